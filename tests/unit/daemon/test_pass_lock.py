"""Turns: one holder at a time, pauses that end passes, and what is urgent going first."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from nodeagent.daemon.loop_status import Activity, LoopStatuses
from nodeagent.daemon.pass_lock import PassLock, Pause


class StillClock:
    """Time that is set by hand."""

    def __init__(self) -> None:
        self.monotonic = 100.0

    def now(self) -> datetime:
        return datetime(2026, 1, 10, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.monotonic


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


async def test_an_urgent_asker_has_the_holder_end(clock: StillClock) -> None:
    pass_lock, order = PassLock(clock), []

    async def collect() -> None:
        async with pass_lock.take() as end:
            order.append("collect")
            await end.wait()

    holder = asyncio.ensure_future(collect())
    await asyncio.sleep(0)
    async with pass_lock.take(urgent=True) as end:
        order.append("evict")
        assert not end.is_set()
    await holder
    assert order == ["collect", "evict"]


async def test_a_pause_ends_the_pass_and_each_that_begins(clock: StillClock) -> None:
    pass_lock = PassLock(clock)
    async with pass_lock.take() as end:
        pass_lock.hold(Pause("operator", "maintenance"))
        assert end.is_set()
    async with pass_lock.take() as end:
        assert end.is_set()
    assert pass_lock.lift("operator")
    assert not pass_lock.lift("operator")
    async with pass_lock.take() as end:
        assert not end.is_set()


def test_a_pause_lapses(clock: StillClock) -> None:
    pass_lock = PassLock(clock)
    pass_lock.hold(Pause("operator", "maintenance", until_s=160.0))
    pass_lock.hold(Pause("shutdown", "the node goes down"))
    assert pass_lock.pause() == Pause("operator", "maintenance", until_s=160.0)
    clock.monotonic = 160.0
    assert pass_lock.pause() == Pause("shutdown", "the node goes down")
    pass_lock.lift("shutdown")
    assert pass_lock.pause() is None


async def test_the_end_is_for_good(clock: StillClock) -> None:
    pass_lock = PassLock(clock)
    pass_lock.end()
    async with pass_lock.take() as end:
        assert end.is_set()


def test_the_board_tells_what_is_stuck(clock: StillClock) -> None:
    loop_statuses = LoopStatuses(clock)
    loop_statuses.disabled("images", "not enabled")
    loop_statuses.running("containers", within_s=10.0)
    clock.monotonic += 9
    loop_statuses.beat("containers", within_s=10.0)
    clock.monotonic += 9
    assert loop_statuses.stuck() == ()
    clock.monotonic += 2
    assert loop_statuses.stuck() == ("containers",)
    loop_statuses.ended("containers", "complete")
    loop_statuses.waiting("containers", 60.0, slack_s=10.0)
    clock.monotonic += 69
    assert loop_statuses.stuck() == ()
    line = next(each for each in loop_statuses.lines if each.name == "containers")
    assert (line.activity, line.runs, line.failures, line.result) == (Activity.WAITING, 1, 0, "complete")
