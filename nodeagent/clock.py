"""Wall clock and monotonic clock.

Ages use aware UTC wall time, as the timestamps of the runtime are wall time; timeouts and intervals use the monotonic
clock. Planners receive the time of their pass as an argument and never read a clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Source of time outside the planners."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""

    def monotonic_s(self) -> float:
        """Return monotonic seconds, suspend included (CLOCK_BOOTTIME)."""


class SystemClock:
    """Clocks of the machine."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return seconds since boot, suspend included. Source: clock_gettime(2), CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
