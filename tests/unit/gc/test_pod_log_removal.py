"""Removal of log directories of unlisted pods: only of unchanged, completely read directories without open files."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.policy import PodLogPolicy, Scope
from nodeagent.gc.snapshot.node import PodLogReader
from nodeagent.host import pod_logs as log_trees
from nodeagent.host.pod_logs import find_openers, list_pod_log_directories
from nodeagent.model.decision import ItemKind
from nodeagent.model.node import LogOpeners
from nodeagent.record import replace
from nodeagent.store.database import Store
from nodeagent.units import SystemClock
from tests.unit.gc.conftest import POLICY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nodeagent.gc.executor import PassReport
    from nodeagent.model.decision import Decision
    from tests.unit.gc.conftest import Opener, Rig

NAME = "shop_orphan_0a1b2c3d-1111-2222-3333-444455556666"
OLD_S = 7200
NO_AGE = replace(POLICY, logs=PodLogPolicy(minimum_age_s=0.0, period_s=60.0))


def write_log(rig: Rig) -> Path:
    """Write a container log of an unlisted pod; return its path."""
    log = rig.logs / "pods" / NAME / "web" / "0.log"
    log.parent.mkdir(parents=True)
    log.write_text("line\n")
    return log


def set_old_times(log: Path) -> None:
    for path in (log, log.parent, log.parent.parent):
        os.utime(path, (path.stat().st_mtime - OLD_S,) * 2)


async def decide(rig: Rig) -> Decision:
    preview = await rig.collector.preview(Scope.CONTAINERS)
    (decision,) = (each for plan in preview.plans for each in plan.decisions if each.id == NAME)
    return decision


async def remove(rig: Rig, after_preview: Callable[[], object] = lambda: None) -> tuple[Outcome, str]:
    preview = await rig.collector.preview(Scope.CONTAINERS)
    after_preview()
    report: PassReport = await rig.collector.run(preview, trigger="test", stop=asyncio.Event())
    (result,) = (each for each in report.results if each.decision.id == NAME)
    assert result.decision.kind is ItemKind.POD_LOG_DIRECTORY
    return result.outcome, result.detail


async def test_log_appended_now_keeps_its_directory_with_old_times(rig: Opener) -> None:
    """Set old times on the two upper directories: appending to a log changes only the time of the file."""
    async with rig() as made:
        log = write_log(made)
        set_old_times(log)
        with log.open("a") as lines:
            lines.write("now\n")
        decision = await decide(made)
        assert decision.reason.code == "modified-recently"
        assert log.exists()


async def test_directory_whose_log_is_appended_after_the_plan_is_kept(rig: Opener) -> None:
    async with rig() as made:
        log = write_log(made)
        made.node.clock.advance((datetime.now(UTC) - made.node.now).total_seconds() + OLD_S)
        now_s = made.node.now.timestamp()
        outcome, detail = await remove(made, lambda: os.utime(log, (now_s, now_s)))
        assert outcome is Outcome.CHANGED
        assert detail.startswith("kept: changed ")
        assert log.exists()


@pytest.mark.difference("open-log")
@pytest.mark.parametrize(("mode", "use"), [("a", "writing"), ("r", "reading")])
async def test_directory_with_an_open_file_is_kept_in_plan_and_removal(rig: Opener, mode: str, use: str) -> None:
    async with rig(policy=NO_AGE) as made:
        log = write_log(made)
        held = []
        outcome, detail = await remove(made, lambda: held.append(log.open(mode)))
        assert (outcome, f"open in a process for {use}" in detail) == (Outcome.CHANGED, True)
        decision = await decide(made)
        assert (decision.verdict, decision.reason.code) == ("keep", "log-open")
        assert str(log) in decision.reason.sentence
        held.pop().close()
        assert await remove(made) == (Outcome.DONE, "")
        assert not (made.logs / "pods" / NAME).exists()


async def test_directory_that_cannot_be_read_completely_is_kept(rig: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_trees, "MAX_ENTRIES", 2)
    async with rig(policy=NO_AGE) as made:
        write_log(made)
        decision = await decide(made)
        assert (decision.verdict, decision.reason.code) == ("keep", "log-not-read")
        assert decision.reason.sentence == "not read completely: more than 2 entries"


async def test_unknown_openers_require_two_equal_readings_one_period_apart(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_trees, "find_openers", lambda *_: (LogOpeners.UNKNOWN, "no file lease"))
    async with rig(policy=NO_AGE) as made:
        log = write_log(made)
        for seconds, code in ((0, "log-openers-unknown"), (59, "log-openers-unknown"), (1, "pod-deleted")):
            made.node.clock.advance(seconds)
            assert (await decide(made)).reason.code == code
        with log.open("a") as lines:
            lines.write("more\n")
        assert (await decide(made)).reason.code == "log-openers-unknown"
        made.node.clock.advance(60)
        outcome, detail = await remove(made, lambda: log.write_text("again\n"))
        assert (outcome, "open files unknown" in detail) == (Outcome.CHANGED, True)
        made.node.clock.advance(1)
        await decide(made)
        made.node.clock.advance(60)
        assert await remove(made) == (Outcome.DONE, "")


async def test_observation_of_images_keeps_the_readings_of_logs(rig: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_trees, "find_openers", lambda *_: (LogOpeners.UNKNOWN, "no file lease"))
    async with rig(policy=NO_AGE) as made:
        write_log(made)
        assert (await decide(made)).reason.code == "log-openers-unknown"
        made.node.clock.advance(30)
        await made.collector.preview(Scope.IMAGES)
        made.node.clock.advance(30)
        assert (await decide(made)).reason.code == "pod-deleted"


async def test_unchanged_log_with_a_time_in_the_future_is_removed_at_the_minimum_age(
    rig: Opener, tmp_path: Path
) -> None:
    async with rig(memory=Store(tmp_path / "state")) as made:
        log = write_log(made)
        future_s = made.node.now.timestamp() + 365 * 86_400
        os.utime(log, (future_s, future_s))
        assert (await decide(made)).reason.code == "modified-recently"
        made.node.clock.advance(OLD_S)
        outcome, detail = await remove(made, lambda: log.write_text("more\n"))
        assert (outcome, detail[:14]) == (Outcome.CHANGED, "kept: changed ")
        os.utime(log, (future_s, future_s))
        assert (await decide(made)).reason.code == "modified-recently"
        made.node.clock.advance(OLD_S)
        assert await remove(made) == (Outcome.DONE, "")


async def test_unreached_trees_are_incomplete(tmp_path: Path) -> None:
    class Slow(SystemClock):
        def __init__(self) -> None:
            self.now_s = 0.0

        def monotonic_s(self) -> float:
            self.now_s += 20.0
            return self.now_s

    for name in ("a_b_" + NAME[-36:], NAME):
        (tmp_path / name).mkdir()
    read = await PodLogReader(tmp_path, tmp_path, Slow()).read(list_pod_log_directories(tmp_path), ())
    assert [each.tree.problem[:11] for each in read if each.tree] == ["not read in", "not reached"]


def test_lease_of_a_removed_file_raises(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(FileNotFoundError):
            find_openers(descriptor, "absent")
    finally:
        os.close(descriptor)
