"""Announcement of a graceful shutdown to the API server, for which the shutdown waits a bounded time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum


class AnnouncedPart(StrEnum):
    """Parts of the Node object that announce a shutdown."""

    STATUS = "status"
    CORDON = "cordon"


class ShutdownAnnouncement:
    """Whether the API server knows of the shutdown in progress; nothing is announced without a registered node."""

    def __init__(self) -> None:
        """Create an announcement without expected parts."""
        self._settled = asyncio.Event()
        self._settled.set()
        self._open: set[AnnouncedPart] = set()

    def begin(self) -> None:
        """Expect every part, from now on and for each shutdown."""
        self._open = set(AnnouncedPart)
        self._settled.clear()

    def settle(self, part: AnnouncedPart) -> None:
        """Expect a part no longer: it was written, or refused in a way that another attempt does not change."""
        self._open.discard(part)
        if not self._open:
            self._settled.set()

    def expect(self, part: AnnouncedPart) -> None:
        """Expect a part again, as after a cancelled shutdown."""
        self._open.add(part)
        self._settled.clear()

    def end(self) -> None:
        """Expect nothing any longer."""
        self._open = set()
        self._settled.set()

    async def wait(self, seconds: float) -> bool:
        """Wait until every expected part is settled, at most this time; return whether it is."""
        if not self._settled.is_set() and seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._settled.wait()
        return self._settled.is_set()
