"""Pass records on a simulated node: planned removals before the first removal, outcomes per batch, result."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import NodeAgentError
from nodeagent.gc.executor import Outcome
from nodeagent.gc.pass_history import HistoryRecorder, HistoryWriter, past_pass
from nodeagent.gc.plan.policy import Scope
from nodeagent.host.processes import is_running, own_process
from nodeagent.store.history import History, Retention

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.gc.pass_history import PassStart
    from nodeagent.gc.pass_state import Preview
    from nodeagent.store.history import PastPass
    from tests.unit.gc.conftest import Opener, Rig

KEEP = Retention(timedelta(days=3650), 16 << 20)


class Recorded:
    """A history file and a recorder of passes on a rig."""

    def __init__(self, directory: Path, rig: Rig) -> None:
        self.directory = directory
        self.rig = rig
        self.writer = HistoryWriter(
            History(directory, writer=own_process(), is_running=is_running), KEEP, rig.node.clock
        )
        self.starts: list[PassStart] = []
        self.recorder = HistoryRecorder(self.writer, rig.node.clock, plan_id="plan", on_start=self.starts.append)

    async def run(self, preview: Preview, stop: asyncio.Event | None = None) -> PastPass:
        """Run a pass; return its record in the history."""
        report = await self.rig.collector.run(
            preview, trigger="test", stop=stop or asyncio.Event(), recorder=self.recorder
        )
        await self.writer.finish(past_pass(report, preview.snapshot, "plan"))
        return self.read()

    def read(self, *, running: bool = True) -> PastPass:
        """Return the only record of the history, as another process reads it.

        Args:
            running: whether the process that wrote the record is running.
        """
        (found,) = History(self.directory, is_running=lambda _: running).read()
        return found


@pytest.mark.parametrize("bulk", [True, False])
async def test_all_planned_removals_are_on_disk_before_the_first(rig: Opener, tmp_path: Path, bulk: bool) -> None:
    async with rig(bulk=bulk) as made:
        recorded = Recorded(tmp_path / "state", made)
        preview = await made.collector.preview(Scope.ALL)
        found: list[PastPass] = []
        for method in ("RemoveImage", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox", "Images.Delete"):
            made.server.faults.before(method, lambda: found.append(recorded.read()), times=None)
        last = await recorded.run(preview)
    first = found[0]
    assert (first.result, first.trigger, first.scope, first.plan_id) == ("running", "test", "all", "plan")
    assert [(each.kind, each.item_id, each.name, each.reason, each.frees_bytes) for each in first.actions] == [
        (each.kind.value, each.id, each.name, each.reason.code.value, each.frees_bytes) for each in preview.removals
    ]
    assert {each.outcome for each in first.actions} == {"planned"}
    (start,) = recorded.starts
    assert (start.pass_id, start.planned) == (last.id, len(preview.removals))
    assert (last.id, last.result) == (first.id, "complete")
    assert [each.item_id for each in last.actions] == [each.item_id for each in first.actions]


async def test_outcomes_are_on_disk_before_the_pass_ends(rig: Opener, tmp_path: Path) -> None:
    async with rig() as made:
        recorded = Recorded(tmp_path / "state", made)
        preview = await made.collector.preview(Scope.IMAGES)
        assert len(preview.removals) > 3
        made.server.faults.fail("ImageStatus", preview.removals[2].id, times=99, status="UNAVAILABLE")
        with suppress(NodeAgentError):
            await made.collector.run(preview, trigger="test", stop=asyncio.Event(), recorder=recorded.recorder)
        await recorded.writer.extend("no such pass", [])  # returns after the queued outcomes are written
    found = recorded.read(running=False)
    assert found.result == "interrupted"
    assert [each.outcome for each in found.actions[:3]] == ["done", "done", "failed"]
    assert {each.outcome for each in found.actions[3:]} <= {"unknown"}


async def test_removals_of_a_further_round_are_recorded_before_them(rig: Opener, tmp_path: Path) -> None:
    async with rig() as made:
        recorded = Recorded(tmp_path / "state", made)
        preview = await made.collector.preview(Scope.IMAGES)
        stuck = max(preview.removals, key=lambda each: each.frees_bytes or 0)
        made.server.faults.fail("RemoveImage", stuck.id, times=99, status="INTERNAL", detail="busy")
        seen: list[int] = []
        made.server.faults.before("RemoveImage", lambda: seen.append(len(recorded.read().actions)), times=None)
        last = await recorded.run(preview)
    assert seen[0] == len(preview.removals)
    assert seen[-1] == len(last.actions) > len(preview.removals)
    assert len(recorded.starts) == 1
    failed = [each for each in last.actions if each.outcome == Outcome.FAILED.value]
    assert [each.item_id for each in failed] == [stuck.id]


async def test_stopped_pass_has_the_outcome_of_every_planned_removal(rig: Opener, tmp_path: Path) -> None:
    async with rig() as made:
        recorded = Recorded(tmp_path / "state", made)
        stop = asyncio.Event()
        made.server.faults.before("RemoveImage", stop.set, times=1)
        last = await recorded.run(await made.collector.preview(Scope.IMAGES), stop)
    assert last.result == "cancelled"
    assert [each.outcome for each in last.actions[:2]] == ["done", "not-attempted"]


async def test_pass_with_nothing_to_do_and_dry_run_write_nothing_before_their_end(rig: Opener, tmp_path: Path) -> None:
    async with rig(dry_run=True) as made:
        recorded = Recorded(tmp_path / "state", made)
        await made.collector.run(
            await made.collector.preview(Scope.ALL), trigger="test", stop=asyncio.Event(), recorder=recorded.recorder
        )
    assert recorded.starts == []
    assert not (tmp_path / "state").exists()


async def test_unwritable_history_stops_no_removal(rig: Opener, tmp_path: Path) -> None:
    async with rig() as made:
        (tmp_path / "state").write_text("a file in place of the directory")
        recorded = Recorded(tmp_path / "state", made)
        preview = await made.collector.preview(Scope.IMAGES)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), recorder=recorded.recorder)
        await recorded.writer.finish(past_pass(report, preview.snapshot, "plan"))
    assert len(report.removed) == len(preview.removals)
    assert "cannot write history" in recorded.writer.problem
