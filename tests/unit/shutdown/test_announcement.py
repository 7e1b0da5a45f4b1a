"""Announcement of a shutdown to the API server, for which the inhibitor lock is kept a bounded time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.loops.passes import AnnouncedPart
from nodeagent.shutdown import session
from tests.unit.shutdown.inhibitor_node import daemon_on, ready

if TYPE_CHECKING:
    from tests.unit.shutdown.inhibitor_node import Place


async def test_lock_is_kept_until_the_api_server_knows_of_the_shutdown(place: Place) -> None:
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        daemon.context.shutdown_announcement.begin()
        place.login1.request_shutdown()
        await daemon.until(lambda: place.running() == set())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await place.login1.until(lambda: place.login1.executed == 1)
        for part in AnnouncedPart:
            daemon.context.shutdown_announcement.settle(part)
        await place.login1.until(lambda: place.login1.executed == 1)
        assert daemon.events("shutdown_not_announced") == []


@pytest.mark.parametrize("pods", [(), ("web",)], ids=["no-pods", "one-pod"])
async def test_lock_is_released_after_an_error_of_the_announcement(
    place: Place, monkeypatch: pytest.MonkeyPatch, pods: tuple[str, ...]
) -> None:
    async def fail(*_: object) -> bool:
        raise RuntimeError("announcement failed")

    for each in pods:
        place.pod(each)
    async with daemon_on(place) as daemon:
        await ready(daemon)
        monkeypatch.setattr(daemon.context.shutdown_announcement, "wait", fail)
        place.login1.request_shutdown()
        await daemon.until("inhibitor_lock_released")
        await place.login1.until(lambda: place.login1.executed == 1)
        assert daemon.events("shutdown_crashed")
    assert place.outcomes() == dict.fromkeys(pods, "stopped")


async def test_lock_is_released_within_seconds_while_the_api_server_is_away(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ANNOUNCE_WITHIN_S", 0.3)
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        daemon.context.shutdown_announcement.begin()
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until("shutdown_finished")
        assert len(daemon.events("shutdown_not_announced")) == 1
    assert place.outcomes() == {"web": "stopped"}
