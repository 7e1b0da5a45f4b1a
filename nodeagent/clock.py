"""Time as a value that is handed in.

Ages use aware UTC wall time, because the runtime stamps wall time; timeouts and intervals use the monotonic
clock. Planners never see a clock, only the one instant of their pass.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where the shell reads time from."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back and that also count suspend (CLOCK_BOOTTIME)."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return seconds since boot, suspend included. Source: clock_gettime(2), CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
