"""Manual clock of a simulated node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

START: Final = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class SimClock:
    """Wall clock and monotonic clock that change only by ``advance`` and ``set_wall_time``."""

    def __init__(self, start: datetime = START, *, monotonic_s: float = 30 * 86_400.0) -> None:
        """Start the clock at an aware wall time and an uptime of ``monotonic_s`` seconds."""
        self._now = start
        self._monotonic_s = monotonic_s

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        return self._now

    def monotonic_s(self) -> float:
        """Return the seconds since the simulated boot."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Advance the wall clock and the monotonic clock by the same duration."""
        self._now += timedelta(seconds=seconds)
        self._monotonic_s += seconds

    def set_wall_time(self, now: datetime) -> None:
        """Set only the wall clock, as a time service or an administrator does; the new time may be earlier."""
        self._now = now
