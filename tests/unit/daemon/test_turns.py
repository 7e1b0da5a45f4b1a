"""Turns: one holder at a time, pauses that end passes, and what is urgent going first."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from nodeagent.daemon.board import Activity, Board
from nodeagent.daemon.turns import Pause, Turns


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
    turns, order = Turns(clock), []

    async def collect() -> None:
        async with turns.take() as end:
            order.append("collect")
            await end.wait()

    holder = asyncio.ensure_future(collect())
    await asyncio.sleep(0)
    async with turns.take(urgent=True) as end:
        order.append("evict")
        assert not end.is_set()
    await holder
    assert order == ["collect", "evict"]


async def test_a_pause_ends_the_pass_and_each_that_begins(clock: StillClock) -> None:
    turns = Turns(clock)
    async with turns.take() as end:
        turns.hold(Pause("operator", "maintenance"))
        assert end.is_set()
    async with turns.take() as end:
        assert end.is_set()
    assert turns.lift("operator")
    assert not turns.lift("operator")
    async with turns.take() as end:
        assert not end.is_set()


def test_a_pause_lapses(clock: StillClock) -> None:
    turns = Turns(clock)
    turns.hold(Pause("operator", "maintenance", until_s=160.0))
    turns.hold(Pause("shutdown", "the node goes down"))
    assert turns.pause() == Pause("operator", "maintenance", until_s=160.0)
    clock.monotonic = 160.0
    assert turns.pause() == Pause("shutdown", "the node goes down")
    turns.lift("shutdown")
    assert turns.pause() is None


async def test_the_end_is_for_good(clock: StillClock) -> None:
    turns = Turns(clock)
    turns.end()
    async with turns.take() as end:
        assert end.is_set()


def test_the_board_tells_what_is_stuck(clock: StillClock) -> None:
    board = Board(clock)
    board.off("images", "not enabled")
    board.running("containers", within_s=10.0)
    clock.monotonic += 9
    board.beat("containers", within_s=10.0)
    clock.monotonic += 9
    assert board.stuck() == ()
    clock.monotonic += 2
    assert board.stuck() == ("containers",)
    board.ended("containers", "complete")
    board.waiting("containers", 60.0, slack_s=10.0)
    clock.monotonic += 69
    assert board.stuck() == ()
    line = next(each for each in board.lines if each.name == "containers")
    assert (line.activity, line.runs, line.failures, line.result) == (Activity.WAITING, 1, 0, "complete")
