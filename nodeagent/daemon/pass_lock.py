"""Pass lock: one pass at a time, none during a pause, and an urgent pass ends the running pass."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.clock import Clock


class PausedBy(StrEnum):
    """Origin of a pause. The values are part of the JSON output."""

    OPERATOR = "operator"
    SHUTDOWN = "shutdown"


class Pause(Record):
    """A pause of all passes.

    Attributes:
        by: origin; each origin has at most one pause.
        reason: cause for display, with the user of the operator's pause.
        until_s: monotonic time of the expiry in seconds; ``None`` if the pause does not expire.
    """

    by: PausedBy
    reason: str
    until_s: float | None = None


class PassLock:
    """The lock that all passes of the daemon share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._pauses: dict[PausedBy, Pause] = {}
        self._resumed_s = -math.inf
        self._passes: set[asyncio.Event] = set()
        self._ended = False

    @asynccontextmanager
    async def take(self, *, urgent: bool = False) -> AsyncIterator[asyncio.Event]:
        """Acquire the lock for the block.

        Yields an event that is set to end the pass between two items: when the daemon stops or is paused, or when an
        urgent pass waits for the lock. The event may be set from the start.

        Args:
            urgent: whether to end the pass that holds the lock now.
        """
        if urgent:
            self.stop_passes()
        async with self._lock:
            end = asyncio.Event()
            if self._ended or self.pause() is not None:
                end.set()
            self._passes.add(end)
            try:
                yield end
            finally:
                self._passes.discard(end)

    def pause(self) -> Pause | None:
        """Return the oldest pause in force; ``None`` without a pause."""
        now_s = self._clock.monotonic_s()
        for by, pause in list(self._pauses.items()):
            if pause.until_s is not None and pause.until_s <= now_s:
                del self._pauses[by]
                self._resumed_s = max(self._resumed_s, pause.until_s)
        return next(iter(self._pauses.values()), None)

    def pause_of(self, by: PausedBy) -> Pause | None:
        """Return the pause of one origin, regardless of other pauses; ``None`` without a pause."""
        self.pause()
        return self._pauses.get(by)

    @property
    def paused_by_operator(self) -> str:
        """The operator's pause in force as text for display; empty without a pause."""
        pause = self.pause_of(PausedBy.OPERATOR)
        return "" if pause is None else f"paused: {pause.reason}"

    def add_pause(self, pause: Pause) -> None:
        """Start a pause, or replace the pause of the same origin; the running pass ends between two items."""
        self._pauses[pause.by] = pause
        self.stop_passes()

    def end_pause(self, by: PausedBy) -> bool:
        """End the pause of one origin; return whether it was in force."""
        in_force = self.pause_of(by) is not None
        if in_force:
            del self._pauses[by]
            self._resumed_s = self._clock.monotonic_s()
        return in_force

    @property
    def resumed_s(self) -> float:
        """Monotonic seconds at which the last pause ended; minus infinity before the first end."""
        self.pause()
        return self._resumed_s

    def end(self) -> None:
        """End the running pass between two items, and each later pass at its start."""
        self._ended = True
        self.stop_passes()

    def stop_passes(self) -> None:
        """End the running pass between two items."""
        for each in self._passes:
            each.set()
