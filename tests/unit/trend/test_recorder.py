"""The recorder on a simulated node: what it writes, and the effect of a failure."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.daemon.context import DaemonContext
from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.signals import SignalLayout
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.policy import Scope
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.model.node import CollectionForecast
from nodeagent.model.outlook import ExpectedShortage, Outlook, ThresholdKind
from nodeagent.model.pressure import FilesystemLayout
from nodeagent.settings.loading import load
from nodeagent.store.clock_record import ClockReading
from nodeagent.telemetry import logging as log
from nodeagent.trend.document_readings import read_outlook, trend_document
from nodeagent.trend.plan.forecast import Forecast, Threshold
from nodeagent.trend.plan.outlook import ResourceOutlook
from nodeagent.trend.plan.readings import ResourceReading, is_total
from nodeagent.trend.recorder import EVERY_S, RecorderTask, TrendState, moved_resources
from nodeagent.trend.sample_file import FILE_NAME, RecordedLine, SampleFile
from tests.sim.clock import START
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.support.manual_clock import MIDNIGHT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.gc.agent import Agent

MIB = 1 << 20
HOSTILE = "shop/\x1b[31mred"


class Node:
    """A simulated node with one used and one unused image, a context, and a log."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.state = directory, directory / "state"
        self.sim = SimNode()
        self.sim.root_path = str(directory)
        self.sim.add_image("r/used:v1", layers=[Layer("used", 3 * MIB)], variant="used")
        self.sim.add_image("r/unused:v1", layers=[Layer("unused", 5 * MIB)], variant="unused")
        self.sim.add_container(self.sim.add_pod("web"), "main", "r/used:v1")
        self.sim.advance(86_400)
        self.stream = io.StringIO()

    @asynccontextmanager
    async def task(self) -> AsyncIterator[tuple[RecorderTask, DaemonContext, Agent]]:
        values: dict[str, str | int] = {
            "runtime.endpoint": f"unix://{self.directory}/cri.sock",
            "state.directory": str(self.state),
            "role": "standalone",
        }
        settings = load(None, values, {}).config.settings()
        clock = self.sim.clock
        context = DaemonContext(
            settings, log.configure("json", "debug", self.stream), clock, LoopStatuses(clock), PassLock(clock)
        )
        async with (
            SimServer(self.sim, self.directory / "cri.sock"),
            open_agent(settings, record=True, dry_run=False, clock=clock) as agent,
        ):
            yield RecorderTask(context, agent), context, agent

    async def record(self, task: RecorderTask, lines: int) -> None:
        """Let the task record this number of lines, a minute apart, and stop it."""
        stop = asyncio.Event()
        for number in range(lines):
            await task.step()
            if number < lines - 1:
                self.sim.advance(EVERY_S)
        stop.set()
        await task.run(stop)


async def test_lines_have_all_resources_and_a_stopped_task_writes_the_rest(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.task() as (task, _, agent):
        await node.record(task, 7)
    found = {each.resource: len(each.samples) for each in SampleFile(node.state).read()}
    assert found["memory.available"] == 7
    assert set(found.values()) == {7}
    assert agent.settings.state_directory == node.state


async def test_images_of_a_pass_are_parts_with_what_image_gc_can_free(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.task() as (task, context, agent):
        preview = await agent.collector.prepare(Scope.IMAGES)
        context.trend.note_images(preview.snapshot, agent.settings.policy.images, 0, node.sim.clock.monotonic_s())
        await node.record(task, 1)
        images = context.trend.images
    assert images is not None
    assert images.freeable == images.parts["images of r/unused"] > 5 * MIB
    named = {part for part in images.parts if not is_total(part)}
    assert named == {"images of r/used", "images of r/unused"}
    assert images.parts["images"] == sum(images.parts[part] for part in named)
    recorded = [each for each in SampleFile(node.state).read() if "images of r/used" in each.samples[-1].parts]
    assert len(recorded) == 1
    assert recorded[0].samples[-1].freeable == images.freeable


async def test_what_a_pass_freed_can_not_be_freed_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.task() as (_, context, agent):
        preview = await agent.collector.prepare(Scope.IMAGES)
        context.trend.note_images(preview.snapshot, agent.settings.policy.images, 0, 0.0)
        before = context.trend.images
        context.trend.note_images(preview.snapshot, agent.settings.policy.images, 4 * MIB, 0.0)
    assert before is not None
    assert context.trend.images is not None
    assert (before.freeable or 0) - (context.trend.images.freeable or 0) == 4 * MIB


async def test_without_an_answer_of_the_runtime_only_its_figures_are_missing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.task() as (task, _, _):
        await task.step()
    await task.step()
    stop = asyncio.Event()
    stop.set()
    await task.run(stop)
    lengths = {each.resource: len(each.samples) for each in SampleFile(node.state).read()}
    assert lengths["memory.available"] == 2


async def test_a_record_that_cannot_be_written_is_logged_once_and_ends_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.state.mkdir()
    (node.state / FILE_NAME).mkdir()
    async with node.task() as (task, _, _):
        await node.record(task, 12)
    assert node.stream.getvalue().count('"trend_not_recorded"') == 1


async def test_an_unexpected_error_is_logged_once_and_ends_neither_the_task_nor_the_daemon(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.task() as (task, context, _):
        stop, failures = asyncio.Event(), 0

        async def fail() -> None:
            nonlocal failures
            failures += 1
            if failures == 2:
                stop.set()
            raise ZeroDivisionError

        task.step = fail  # type: ignore[method-assign]
        context.clock.monotonic_s = lambda: failures * EVERY_S  # type: ignore[method-assign]
        await asyncio.wait_for(task.run(stop), 30)
    assert failures == 2
    assert node.stream.getvalue().count('"trend_not_recorded"') == 1


@pytest.mark.parametrize("failing", ["last_number", "append"])
async def test_a_thread_that_cannot_be_started_ends_neither_the_task_nor_the_daemon(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(SampleFile, failing, fail)
    node = Node(tmp_path)
    async with node.task() as (task, _, _):
        task.step = task._record  # type: ignore[assignment,method-assign] # noqa: SLF001
        stop = asyncio.Event()
        await task.step()
        stop.set()
        await asyncio.wait_for(task.run(stop), 30)
    assert node.stream.getvalue().count('"trend_not_recorded"') == 1


async def test_the_outlook_has_every_resource_with_the_thresholds_of_all_its_signals(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.task() as (task, context, _):
        await node.record(task, 6)
    outlook = {each.resource: sorted(one.threshold.name for one in each.forecasts) for each in context.trend.outlook}
    assert outlook["nodefs.available"] == ["collection", "full", "hard", "hard"], "imagefs is on the same filesystem"
    assert outlook["memory.available"] == ["full", "hard"]


GROWING = "imagefs.available on /mnt"


def fill(node: Node, file: SampleFile, minutes: int, *, from_share: float, per_hour: float) -> float:
    """Record a filesystem for a time, of whose growth one pod writes all; return the used share at its end."""
    start, share = node.sim.clock.now(), from_share
    lines = []
    for minute in range(minutes):
        share = from_share + per_hour * minute / 60
        parts = {f"{HOSTILE} logs": share} if minute % 5 == 0 else {}
        reading = ResourceReading(GROWING, share, 1.0, None, parts)
        lines.append(RecordedLine(ClockReading("b", minute * 60.0, start + timedelta(minutes=minute)), (reading,)))
    file.append(lines)
    node.sim.advance(minutes * 60.0)
    return share


async def test_an_expected_shortage_is_logged_once_and_its_end_after_an_hour(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.task() as (task, context, agent):
        file = SampleFile(agent.settings.state_directory)
        share = fill(node, file, 120, from_share=0.2, per_hour=0.2)
        await node.record(task, 1)
        expected = context.trend.shortage
        assert expected is not None
        assert expected.is_expected
        assert expected.detail.startswith("imagefs on /mnt: full at 100% in ")
        assert expected.detail.endswith(f"100% by {HOSTILE} logs")
        share = fill(node, file, 10, from_share=share, per_hour=0.2)
        await node.record(task, 5)
        assert events(node) == ["shortage_expected"]
        share = fill(node, file, 30, from_share=share, per_hour=0.0)
        await node.record(task, 5)
        assert events(node) == ["shortage_expected"]
        for _ in range(4):
            share = fill(node, file, 60, from_share=share, per_hour=0.0)
            await node.record(task, 5)
        assert events(node) == ["shortage_expected", "shortage_not_expected"]
        assert context.trend.lasting == {}
    (line,) = (json.loads(each) for each in node.stream.getvalue().splitlines() if '"shortage_expected"' in each)
    assert (line["resource"], line["threshold"]) == (GROWING, "full")
    assert line["earliest_s"] < line["expected_s"] < 4 * 3600


def events(node: Node) -> list[str]:
    found = [json.loads(each)["event"] for each in node.stream.getvalue().splitlines()]
    return [each for each in found if each.startswith("shortage_")]


async def test_outlook_of_a_damaged_record_is_made_and_the_damage_is_logged_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.task() as (task, context, agent):
        file = SampleFile(agent.settings.state_directory)
        fill(node, file, 120, from_share=0.2, per_hour=0.2)
        with closing(sqlite3.connect(file.path)) as connection:
            connection.execute("UPDATE samples SET used = 'x' WHERE number = 60")
            connection.commit()
        await node.record(task, 10)
        outlook = {each.resource: each for each in context.trend.outlook}
        assert Outlook.RANGE in {each.outlook for each in outlook[GROWING].forecasts}
        known = await read_outlook(
            agent.settings, SignalLayout(SignalPaths("/"), FilesystemLayout.SINGLE, ()), node.sim.clock.now()
        )
        assert [each.resource for each in known.resources] == sorted(outlook)
        assert "the record is incomplete" in known.warnings[0]
    assert node.stream.getvalue().count("the record is incomplete") == 1


async def test_a_resource_that_is_no_longer_read_is_unknown_for_an_hour_and_then_not_part_of_the_outlook(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    async with node.task() as (task, context, agent):
        fill(node, SampleFile(agent.settings.state_directory), 120, from_share=0.2, per_hour=0.2)
        await node.record(task, 30)
        outlook = {each.resource: each for each in context.trend.outlook}
        assert {each.outlook for each in outlook[GROWING].forecasts} == {Outlook.UNKNOWN}
        assert GROWING in context.trend.lasting
        await node.record(task, 35)
        assert "memory.available" in {each.resource for each in context.trend.outlook}
        assert GROWING not in {each.resource for each in context.trend.outlook}
        layout = SignalLayout(SignalPaths("/"), FilesystemLayout.SINGLE, ())
        for name, is_listed in (("", False), (GROWING, True), ("imagefs", True)):
            shown = await trend_document(agent, layout, name, 86_400.0)
            assert (GROWING in {each.outlook.resource for each in shown.resources}) is is_listed
    assert events(node) == ["shortage_expected", "shortage_not_expected"]
    assert GROWING in SampleFile(node.state).read_names()


async def test_too_few_readings_are_unknown_and_no_shortage(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.task() as (task, context, _):
        await node.record(task, 6)
        shortage = context.trend.shortage
    assert shortage is not None
    assert shortage.is_expected is None
    assert "memory: eviction at " in shortage.detail
    assert events(node) == []


@pytest.mark.parametrize(
    ("resource", "name", "latest_s", "collected_s", "found"),
    [
        pytest.param("nodefs.available", ThresholdKind.COLLECTION, 7200.0, None, True, id="images on nodefs"),
        pytest.param("imagefs.available", ThresholdKind.COLLECTION, 7200.0, None, True, id="images on imagefs"),
        pytest.param("imagefs.available", ThresholdKind.COLLECTION, None, None, True, id="range without an end"),
        pytest.param("imagefs.inodesFree", ThresholdKind.COLLECTION, 7200.0, None, False, id="inodes"),
        pytest.param("imagefs.available", ThresholdKind.HARD, 7200.0, None, False, id="another threshold"),
        pytest.param("imagefs.available", ThresholdKind.COLLECTION, 7200.0, -1, True, id="collected before"),
        pytest.param("imagefs.available", ThresholdKind.COLLECTION, 7200.0, 0, False, id="no reading since"),
    ],
)
def test_growth_until_collection_is_that_of_a_forecast_after_the_last_collection(
    resource: str, name: ThresholdKind, latest_s: float | None, collected_s: int | None, *, found: bool
) -> None:
    made = Forecast(Threshold(name, 90.0, after_collection=False), Outlook.RANGE, 1800.0, 3600.0, latest_s, 2.0, 9e9)
    collected_at = None if collected_s is None else START + timedelta(seconds=collected_s)
    outlook = (ResourceOutlook(resource, 50.0, 100.0, START, (made,), (), ()),)
    expected = CollectionForecast(START, 2.0) if found else None
    assert TrendState(outlook=outlook, collected_at=collected_at).collection_forecast() == expected


def test_growth_after_a_collection_is_known_again_after_the_clock_was_set_back() -> None:
    made = Forecast(Threshold(ThresholdKind.COLLECTION, 90.0, after_collection=False), Outlook.RANGE, rate_per_s=2.0)
    outlook = (ResourceOutlook("nodefs.available", 50.0, 100.0, START, (made,), (), ()),)
    state = TrendState(outlook=outlook, collected_at=START + timedelta(days=1))
    assert state.collection_forecast() == CollectionForecast(START, 2.0)


@pytest.mark.parametrize(
    ("age_s", "in_force"),
    [(0, True), (1800, True), (1801, False), (-86_400, False)],
    ids=["new", "30m", "old", "ahead"],
)
def test_an_outlook_without_a_reading_for_30_minutes_is_unknown(age_s: int, *, in_force: bool) -> None:
    now, expected = START + timedelta(seconds=age_s), ExpectedShortage(True, "nodefs: full")
    hanging = ResourceOutlook("imagefs.available", 50.0, 100.0, START - timedelta(seconds=3000), (), (), ())
    outlook = (hanging, ResourceOutlook("nodefs.available", 50.0, 100.0, START, (), (), ()))
    state = TrendState(outlook=outlook, shortage=expected)
    assert state.outlook_at(now) == (outlook if in_force else ())
    assert state.shortage_at(now) == (
        expected if in_force else ExpectedShortage(None, "no resource was recorded for 30m")
    )


def test_before_the_first_outlook_no_shortage_is_stated() -> None:
    assert TrendState().shortage_at(START) is None


@pytest.mark.parametrize("outlook", [Outlook.REACHED, Outlook.NO_TREND, Outlook.UNKNOWN])
def test_growth_until_collection_is_unknown_without_a_range(outlook: Outlook) -> None:
    made = Forecast(Threshold(ThresholdKind.COLLECTION, 90.0, after_collection=False), outlook)
    state = TrendState(outlook=(ResourceOutlook("nodefs.available", 50.0, 100.0, START, (made,), (), ()),))
    assert state.collection_forecast() is None


@pytest.mark.parametrize(
    ("used", "moved"), [(50.0, ()), (50.9, ()), (51.1, ("nodefs.available",)), (48.0, ("nodefs.available",))]
)
def test_a_resource_that_changed_by_a_hundredth_of_its_capacity_has_moved(used: float, moved: tuple[str, ...]) -> None:
    before = ResourceOutlook("nodefs.available", 50.0, 100.0, MIDNIGHT, (), (), ())
    new = ResourceReading("memory.available", 90.0, 100.0)
    assert moved_resources([before], [ResourceReading("nodefs.available", used, 100.0), new]) == moved
