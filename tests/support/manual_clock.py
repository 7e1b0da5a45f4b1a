"""Clock for tests with a monotonic time that is set by the test."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

MIDNIGHT: Final = datetime(2026, 1, 10, tzinfo=UTC)


class ManualClock:
    """Clock whose wall time and monotonic time in seconds change only by assignment to ``wall`` and ``at_s``."""

    def __init__(self, now: datetime = MIDNIGHT, *, at_s: float = 0.0) -> None:
        """Start the clock at a wall time and a monotonic time."""
        self.at_s = at_s
        self.wall = now

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        return self.wall

    def monotonic_s(self) -> float:
        """Return the monotonic time in seconds."""
        return self.at_s
