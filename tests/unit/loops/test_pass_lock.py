"""Pass lock: one pass at a time, pauses stop passes, urgent passes first. Loop statuses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from nodeagent.loops.passes import Activity, LoopStatuses, PassLock, Pause, PausedBy


class ManualClock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.monotonic = 100.0

    def now(self) -> datetime:
        return datetime(2026, 1, 10, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.monotonic


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_urgent_pass_ends_the_running_one_and_gets_the_lock(clock: ManualClock) -> None:
    pass_lock, order = PassLock(clock), []

    async def collect() -> None:
        async with pass_lock.take() as end:
            order.append("collect")
            await end.wait()

    running = asyncio.ensure_future(collect())
    await asyncio.sleep(0)
    async with pass_lock.take(urgent=True) as end:
        order.append("evict")
        assert not end.is_set()
    await running
    assert order == ["collect", "evict"]


async def test_pause_ends_the_running_pass_and_each_later_one(clock: ManualClock) -> None:
    pass_lock = PassLock(clock)
    async with pass_lock.take() as end:
        pass_lock.add_pause(Pause(PausedBy.OPERATOR, "maintenance"))
        assert end.is_set()
    async with pass_lock.take() as end:
        assert end.is_set()
    assert pass_lock.end_pause(PausedBy.OPERATOR)
    assert not pass_lock.end_pause(PausedBy.OPERATOR)
    async with pass_lock.take() as end:
        assert not end.is_set()


def test_pause_ends_at_its_expiry_time(clock: ManualClock) -> None:
    pass_lock = PassLock(clock)
    pass_lock.add_pause(Pause(PausedBy.OPERATOR, "maintenance", until_s=160.0))
    pass_lock.add_pause(Pause(PausedBy.SHUTDOWN, "node is shutting down"))
    assert pass_lock.pause() == Pause(PausedBy.OPERATOR, "maintenance", until_s=160.0)
    clock.monotonic = 160.0
    assert pass_lock.pause() == Pause(PausedBy.SHUTDOWN, "node is shutting down")
    pass_lock.end_pause(PausedBy.SHUTDOWN)
    assert pass_lock.pause() is None


async def test_passes_after_the_end_of_the_daemon_end_at_their_start(clock: ManualClock) -> None:
    pass_lock = PassLock(clock)
    pass_lock.end()
    async with pass_lock.take() as end:
        assert end.is_set()


def test_task_without_a_report_in_time_is_stuck(clock: ManualClock) -> None:
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
    status = next(each for each in loop_statuses.all if each.name == "containers")
    assert (status.activity, status.runs, status.failures, status.result) == (Activity.WAITING, 1, 0, "complete")
