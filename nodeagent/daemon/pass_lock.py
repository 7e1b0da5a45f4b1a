"""Who may act: one pass at a time, none while the daemon is paused, and what is urgent goes before what can wait."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.clock import Clock


@dataclass(frozen=True, slots=True)
class Pause:
    """Why nothing is done for now.

    Attributes:
        who: what asked for it, such as ``operator`` or ``shutdown``.
        why: in words.
        until_s: monotonic seconds at which it lapses; ``None`` for no end.
    """

    who: str
    why: str
    until_s: float | None = None

    @property
    def text(self) -> str:
        """Who and why in one line."""
        return f"{self.who}: {self.why}"


class PassLock:
    """The one turn that all passes of the daemon share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._pauses: dict[str, Pause] = {}
        self._resumed_s = -math.inf
        self._passes: set[asyncio.Event] = set()
        self._ended = False

    @asynccontextmanager
    async def take(self, *, urgent: bool = False) -> AsyncIterator[asyncio.Event]:
        """Wait for the turn, and hold it.

        Gives the event that tells the holder to end between two items: the daemon stops, or is paused, or something
        urgent wants the turn. It may be set from the start.

        Args:
            urgent: have the pass end that holds the turn now.
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
        """Return why nothing may be done now, ``None`` if all may."""
        now_s = self._clock.monotonic_s()
        for who, pause in list(self._pauses.items()):
            if pause.until_s is not None and pause.until_s <= now_s:
                del self._pauses[who]
                self._resumed_s = max(self._resumed_s, pause.until_s)
        return next(iter(self._pauses.values()), None)

    def pause_of(self, who: str) -> Pause | None:
        """Return the pause that somebody asked for, whatever others there are."""
        self.pause()
        return self._pauses.get(who)

    def hold(self, pause: Pause) -> None:
        """Let no pass begin, and the one under way end between two items; a pause of the same asker is replaced."""
        self._pauses[pause.who] = pause
        self.stop_passes()

    def lift(self, who: str) -> bool:
        """End the pause that ``who`` asked for; return whether there was one."""
        there = self.pause_of(who) is not None
        if there:
            del self._pauses[who]
            self._resumed_s = self._clock.monotonic_s()
        return there

    @property
    def resumed_s(self) -> float:
        """The monotonic second at which the last pause ended; minus infinity if none did."""
        self.pause()
        return self._resumed_s

    def end(self) -> None:
        """Let the pass under way end, and each that begins end at once, for good."""
        self._ended = True
        self.stop_passes()

    def stop_passes(self) -> None:
        """Let the pass under way end between two items."""
        for each in self._passes:
            each.set()
