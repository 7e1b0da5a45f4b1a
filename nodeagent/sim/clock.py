"""A clock moved by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

START: Final = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class SimClock:
    """Both of the agent's clocks, standing still until advanced."""

    def __init__(self, start: datetime = START, *, monotonic_s: float = 86400.0) -> None:
        """Start at an aware time; ``monotonic_s`` is how long the machine has been up by then."""
        self._now = start
        self._monotonic_s = monotonic_s

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        return self._now

    def monotonic_s(self) -> float:
        """Return seconds since the simulated boot."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._now += timedelta(seconds=seconds)
        self._monotonic_s += seconds

    def set_wall_time(self, now: datetime) -> None:
        """Set only the wall clock, as a time server or an administrator does; it may go back."""
        self._now = now
