"""Announcement of a graceful shutdown: the wait for its parts."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.loops.passes import AnnouncedPart, ShutdownAnnouncement


@pytest.mark.parametrize("steps", range(4))
async def test_cancellation_while_the_last_part_is_settled_is_not_lost(steps: int) -> None:
    announcement = ShutdownAnnouncement()
    announcement.begin()
    waiting = asyncio.ensure_future(announcement.wait(60.0))
    for _ in range(3):
        await asyncio.sleep(0)
    for part in AnnouncedPart:
        announcement.settle(part)
    for _ in range(steps):
        await asyncio.sleep(0)
    is_cancelled = waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled() is is_cancelled
