"""The metrics file for node_exporter: content, mode, trust in its directory, removal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.http.metrics import Exposition
from nodeagent.daemon.http.metrics_task import TEXTFILE_TASK, TextfileTask
from nodeagent.loops.passes import Activity, LoopStatuses, PassLock
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import MetricsSettings, Origin, parse_textfile
from nodeagent.telemetry import logging as log
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

WITHIN_S = 30
INTERVAL_S = 0.01


def names(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir()]


@dataclass
class Written:
    """A running textfile task and its log."""

    context: DaemonContext
    stream: io.StringIO

    @property
    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true."""
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110 - the file and the status set no asyncio.Event
                await asyncio.sleep(0.002)

    async def until_runs(self, number: int) -> None:
        """Wait until the task has finished at least ``number`` runs."""
        await self.until(lambda: sum(each.runs for each in self.context.loop_statuses.all) >= number)

    async def move(self, path: str) -> None:
        """Change the path of the metrics file as a reload does."""
        self.context.swap(replace(self.context.settings, metrics=MetricsSettings(None, path, 3600)))
        for _ in range(5):
            await asyncio.sleep(0)
        self.context.take_next()


@asynccontextmanager
async def writing(path: Path | str, interval_s: float = INTERVAL_S) -> AsyncIterator[Written]:
    stream, clock = io.StringIO(), ManualClock()
    made = replace(checked(Origin()), metrics=MetricsSettings(None, str(path), interval_s))
    context = DaemonContext(made, log.configure("json", "info", stream), clock, LoopStatuses(clock), PassLock(clock))
    running = asyncio.ensure_future(TextfileTask(context).run(context.stop))
    try:
        yield Written(context, stream)
    finally:
        context.stop.set()
        await asyncio.wait_for(running, WITHIN_S)


async def test_file_has_the_metrics_of_the_agent_without_those_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "nodeagent.prom"
    async with writing(path) as made:
        await made.until_runs(1)
        text = path.read_text()
        now_s = made.context.clock.now().timestamp()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert families["nodeagent_textfile_timestamp_seconds"].samples[0].value == now_s
    assert "nodeagent_build_info" in families
    assert [each for each in families if each.startswith(("process_", "python_"))] == []
    assert [each for family in families.values() for each in family.samples if each.timestamp is not None] == []


async def test_file_is_readable_by_all_users_and_alone_in_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "nodeagent.prom"
    before = os.umask(0o077)
    try:
        async with writing(path) as made:
            await made.until_runs(3)
            assert stat.S_IMODE(path.stat().st_mode) == 0o644
            assert [each for each in names(tmp_path) if each.endswith(".prom")] == [path.name]
    finally:
        os.umask(before)
    assert names(tmp_path) == []


async def test_link_in_place_of_the_file_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    path, target = tmp_path / "nodeagent.prom", tmp_path / "target"
    target.write_text("kept")
    path.symlink_to(target)
    async with writing(path) as made:
        await made.until_runs(1)
        assert not path.is_symlink()
    assert target.read_text() == "kept"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
async def test_directory_writable_by_others_is_refused_and_reported_once(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(mode)
    async with writing(directory / "a.prom") as made:
        await made.until_runs(3)
        (status,) = made.context.loop_statuses.all
        assert names(directory) == []
    (event,) = [each for each in made.logged if each["event"] == "metrics_file_unavailable"]
    assert f"writable by all users; run: chmod o-w {directory}" in event["error"]
    assert (status.name, status.failures, status.result) == (TEXTFILE_TASK, status.runs, "failed")


async def test_file_of_another_user_in_a_refused_directory_is_kept(tmp_path: Path) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    (directory / "a.prom").write_text("other")
    directory.chmod(0o777)
    async with writing(directory / "a.prom") as made:
        await made.until_runs(1)
    assert (directory / "a.prom").read_text() == "other"


async def test_missing_directory_is_reported_and_used_once_it_exists(tmp_path: Path) -> None:
    path = tmp_path / "later" / "a.prom"
    async with writing(path) as made:
        await made.until_runs(2)
        path.parent.mkdir(mode=0o755)
        await made.until(path.exists)
        await made.until_runs(5)
    events = [each["event"] for each in made.logged]
    assert events == ["metrics_file_unavailable", "metrics_file_written"]
    assert "create the directory, owned by root" in made.logged[0]["error"]


async def test_directory_in_place_of_the_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    path.mkdir()
    async with writing(path) as made:
        await made.until_runs(2)
    assert path.is_dir()
    assert names(tmp_path) == [path.name]


async def test_change_of_the_setting_moves_and_removes_the_file(tmp_path: Path) -> None:
    first, second = tmp_path / "a.prom", tmp_path / "b.prom"
    async with writing(first, 3600) as made:
        await made.until_runs(1)
        await made.move(str(second))
        await made.until_runs(2)
        assert (first.exists(), second.exists()) == (False, True)
        await made.move("")
        await made.until(lambda: made.context.loop_statuses.all[0].activity is Activity.DISABLED)
        assert names(tmp_path) == []


async def test_task_without_a_file_has_no_status(tmp_path: Path) -> None:
    async with writing("") as made:
        await asyncio.sleep(0)
        assert made.context.loop_statuses.all == ()
    assert (names(tmp_path), made.logged) == ([], [])


@pytest.mark.parametrize(
    "text",
    ["a.prom", "/etc/passwd", "/a/../b.prom", "/a//b.prom", "//a.prom", "/a/.prom", "/a/b.prom/", "/a/b\n.prom", "/"],
)
def test_path_that_node_exporter_does_not_read_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"absolute path of a \.prom file"):
        parse_textfile(text)


async def test_times_do_not_go_back_after_the_clock_was_set_back() -> None:
    clock = ManualClock()
    start, task = clock.wall, "nodeagent_task_end_timestamp_seconds"
    made = DaemonContext(
        checked(Origin()), log.configure("json", "info", io.StringIO()), clock, LoopStatuses(clock), PassLock(clock)
    )
    exposition = Exposition(made, _no_signals)
    for hours in (0, 1):
        clock.wall = start - timedelta(hours=hours)
        made.loop_statuses.ended("images", "complete")
        made.counters.count_event({"event": "shutdown_started"})
        families = {each.name: each for each in text_string_to_metric_families(await exposition.render_textfile())}
        for name in (task, "kubelet_graceful_shutdown_start_time_seconds", "nodeagent_textfile_timestamp_seconds"):
            assert families[name].samples[0].value == start.timestamp(), name


async def _no_signals() -> None:
    return None
