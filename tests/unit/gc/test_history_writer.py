"""Asynchronous writes to the history: order, and behavior with a hanging disk."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.pass_history import HistoryWriter
from nodeagent.record import replace
from nodeagent.store.history import History, PastAction, PastPass, Retention
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

T0 = datetime(2026, 1, 10, 12, tzinfo=UTC)
KEEP = Retention(timedelta(days=30), 16 << 20)
PLANNED = PastAction("image", "a", "r/a:1", (), "planned", "", "all-unused", "unused", 7, 0.0)
DONE = replace(PLANNED, outcome="done")
BEGUN = PastPass("one", T0, 0.0, "interval", "images", "p", False, "running", "", 0, None, 91, None, (PLANNED,) * 3)


class SlowHistory(History):
    """A history that delays each write until ``released`` is set and records it in ``notes``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.released = threading.Event()
        self.entered = threading.Event()
        self.notes: list[tuple[str, object]] = []

    def _note(self, name: str, value: object) -> None:
        self.entered.set()
        assert self.released.wait(30)
        self.notes.append((name, value))

    def begin(self, past: PastPass) -> None:
        self._note("begin", past.id)

    def extend(self, pass_id: str, actions: Sequence[PastAction]) -> None:
        del pass_id
        self._note("extend", len(actions))

    def update(self, pass_id: str, outcomes: Mapping[int, PastAction], duration_s: float) -> None:
        del pass_id, duration_s
        self._note("update", sorted(outcomes))

    def add(self, past: PastPass, retention: Retention, *, clock_trusted: bool = True) -> None:
        del retention
        self._note("add", (past.id, clock_trusted))


async def entered(history: SlowHistory) -> None:
    assert await asyncio.to_thread(history.entered.wait, 30)


async def test_pass_is_on_disk_when_begin_returns(tmp_path: Path) -> None:
    await HistoryWriter(History(tmp_path), KEEP, ManualClock(T0)).begin(BEGUN)
    assert [each.id for each in History(tmp_path).read()] == ["one"]


async def test_outcomes_that_arrive_during_a_write_share_the_next_one(tmp_path: Path) -> None:
    history = SlowHistory(tmp_path)
    writer = HistoryWriter(history, KEEP, ManualClock(T0))
    begin = asyncio.ensure_future(writer.begin(BEGUN))
    await entered(history)
    for position in range(3):
        writer.update("one", position, DONE, 1.0)
    history.released.set()
    await begin
    await writer.finish(BEGUN)
    assert history.notes == [("begin", "one"), ("update", [0, 1, 2]), ("add", ("one", True))]


async def test_begin_that_ends_late_is_written_before_the_end_of_the_pass(tmp_path: Path) -> None:
    history = SlowHistory(tmp_path)
    writer = HistoryWriter(history, KEEP, ManualClock(T0))
    await writer.begin(BEGUN, within_s=0.0)
    await entered(history)
    finish = asyncio.ensure_future(writer.finish(BEGUN))
    history.released.set()
    await finish
    assert [name for name, _ in history.notes] == ["begin", "add"]


async def test_hanging_disk_is_reported_and_delays_no_further_pass(tmp_path: Path) -> None:
    history, clock = SlowHistory(tmp_path), ManualClock(T0)
    writer = HistoryWriter(history, KEEP, clock)
    await writer.begin(BEGUN, within_s=0.0)
    await entered(history)
    assert writer.problem == ""
    clock.at_s = 5.1
    assert "a write has not ended after 5 s" in writer.problem
    async with asyncio.timeout(4):  # shorter than the time limit of one write, so that no call waits for the disk
        await writer.finish(BEGUN)
        await writer.begin(replace(BEGUN, id="two"))
        await writer.extend("two", [PLANNED])
    assert history.notes == []
    history.released.set()
    clock.at_s = 0.0
    await writer.finish(replace(BEGUN, id="two"))
    assert writer.problem == ""
    assert [name for name, _ in history.notes] == ["begin", "add", "begin", "extend", "add"]


async def test_queued_writes_are_bounded_and_dropped_ones_are_reported(tmp_path: Path) -> None:
    history = SlowHistory(tmp_path)
    writer = HistoryWriter(history, KEEP, ManualClock(T0))
    await writer.begin(BEGUN, within_s=0.0)
    await entered(history)
    for number in range(600):
        await writer.begin(replace(BEGUN, id=f"p{number}"), within_s=0.0)
    assert history.dropped == 100
    assert "too many writes wait for the disk" in history.take_notices()[0]
    writer.update("p599", 0, DONE, 1.0)
    writer.update("p599", 1, DONE, 1.0)
    assert history.dropped == 102
    history.released.set()
    await writer.finish(BEGUN)


async def test_unexpected_error_of_the_history_is_reported_and_does_not_fail_the_pass(tmp_path: Path) -> None:
    class Broken(History):
        def begin(self, past: PastPass) -> None:
            raise KeyError(past.id)

    writer = HistoryWriter(Broken(tmp_path), KEEP, ManualClock(T0))
    await writer.begin(BEGUN)
    assert writer.problem == "cannot write history: KeyError('one'); this is a bug"
    await writer.finish(BEGUN)
    assert writer.problem == ""


async def test_trust_in_the_wall_clock_is_evaluated_for_each_pass(tmp_path: Path) -> None:
    history, trust = SlowHistory(tmp_path), [True, False]
    history.released.set()
    writer = HistoryWriter(history, KEEP, ManualClock(T0), trust.pop)
    await writer.finish(BEGUN)
    await writer.finish(BEGUN)
    assert history.notes == [("add", ("one", False)), ("add", ("one", True))]


@pytest.mark.parametrize("cause", ["cancelled", "crashed"])
async def test_interrupted_pass_is_recorded_with_its_cause(tmp_path: Path, cause: str) -> None:
    writer = HistoryWriter(History(tmp_path), KEEP, ManualClock(T0))
    await writer.begin(BEGUN)
    writer.update("one", 1, DONE, 1.0)
    writer.interrupt("one", cause)
    await writer.finish(replace(BEGUN, id="two", started_at=T0 + timedelta(hours=1)))
    found = History(tmp_path).read()[1]
    assert (found.result, found.detail) == ("interrupted", f"{cause} before the pass finished")
    assert [each.outcome for each in found.actions] == ["unknown", "done", "unknown"]
