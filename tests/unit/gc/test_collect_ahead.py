"""Collection ahead of the forecast on a simulated node: growth over hours, and the low priority of its removals."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.executor import DryRunRemover, Interrupted, Outcome, PassEnd, carry_out
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope
from nodeagent.host.stalls import IdleDisk
from nodeagent.model.decision import Decision, ItemKind, Reason, ReasonCode, Verdict
from nodeagent.model.node import CollectionForecast
from nodeagent.model.pressure import FilesystemLayout
from nodeagent.record import replace
from nodeagent.trend.plan.forecast import Sample
from nodeagent.trend.plan.outlook import TrendPolicy, outlook_of
from nodeagent.trend.recorder import TrendState
from tests.sim.clock import START
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.scenario import Scenario
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nodeagent.gc.executor import PassReport
    from tests.unit.gc.conftest import Opener, Rig

MIB = 1 << 20
HOUR_S = 3600.0
AHEAD = ImageGCPolicy(low_threshold_percent=70, collect_ahead_s=2 * HOUR_S)
OLD = 144
SIZE = 256 * MIB
"""Size of an image; the node has room for 200."""
EVERY_MIN = 5
"""Minutes between two pulls: the node grows by 6 % an hour, its use is 72 % at the start."""


def grown_node() -> Scenario:
    node = SimNode(capacity_bytes=200 * SIZE)
    for each in range(OLD):
        node.add_image(f"r.example/old:{each}", layers=[Layer(f"old{each}", SIZE, 1)], age_s=(30 + each) * HOUR_S)
    return Scenario(node)


def regularly(minute: int) -> bool:
    return minute % EVERY_MIN == 0


@dataclass
class Growth:
    """A node that pulls an image every ``EVERY_MIN`` minutes, its record, its passes and its highest use."""

    rig: Rig
    state: TrendState
    policy: ImageGCPolicy
    pulls: Callable[[int], bool]
    samples: list[Sample] = field(default_factory=list)
    passes: list[PassReport] = field(default_factory=list)
    highest_percent: float = 0.0

    async def live(self, hours: float) -> None:
        node, thresholds = self.rig.node, TrendPolicy((), self.policy, FilesystemLayout.SINGLE)
        for minute in range(int(hours * 60)):
            if self.pulls(minute):
                name = f"new-{node.now:%d-%H-%M}"
                node.add_image(f"r.example/{name}:1", layers=[Layer(name, SIZE, 1)])
            freeable = (self.state.images.freeable or 0.0) if self.state.images else 0.0
            self.samples.append(Sample(node.now, float(node.used_bytes), freeable))
            self.highest_percent = max(self.highest_percent, 100 * node.used_bytes / node.capacity_bytes)
            if minute % 5 == 4:
                found = outlook_of("nodefs.available", node.capacity_bytes, self.samples, thresholds, node.now)
                self.state.outlook = () if found is None else (found,)
                await self.collect()
            node.advance(60)

    async def collect(self) -> None:
        """Run a pass as the daemon does."""
        preview = await self.rig.collector.preview(Scope.IMAGES)
        report = await self.rig.collector.run(preview, trigger="interval", stop=asyncio.Event())
        freed = report.predicted_bytes
        self.state.note_images(preview.snapshot, self.policy, freed, self.rig.node.clock.monotonic_s())
        if report.removed:
            self.state.collected_at = self.rig.node.now
            self.passes.append(report)


@pytest.fixture(autouse=True)
def idle_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def idle(_disk: IdleDisk) -> str:
        return ""

    monkeypatch.setattr(IdleDisk, "wait", idle)


async def grow(rig: Opener, policy: ImageGCPolicy, hours: float, pulls: Callable[[int], bool] = regularly) -> Growth:
    state = TrendState()
    async with rig(
        policy=GCPolicy(images=policy), make_scenario=grown_node, read_forecast=state.collection_forecast
    ) as made:
        growth = Growth(made, state, policy, pulls)
        await growth.live(hours)
    return growth


async def test_threshold_is_never_met_under_steady_growth(rig: Opener) -> None:
    found = await grow(rig, AHEAD, 8)
    assert len(found.passes) >= 5
    assert found.highest_percent < 84
    assert {each.decision.reason.code.value for one in found.passes for each in one.removed} == {"collect-ahead"}


async def test_collections_ahead_free_what_the_growth_needs_and_none_repeats_before_its_effect_is_measured(
    rig: Opener,
) -> None:
    found = await grow(rig, AHEAD, 8)
    growth_s = SIZE / (EVERY_MIN * 60)
    for each in found.passes:
        (plan,) = each.plans
        assert each.after is not None
        assert plan.ahead_available_bytes is not None
        assert 0 <= each.after.available_bytes - plan.ahead_available_bytes < SIZE
        assert each.after.bytes_until(85) < 1.2 * growth_s * 2 * HOUR_S + SIZE, "more than two hours of growth"
    starts = [each.started_at for each in found.passes]
    assert all(after - before >= timedelta(minutes=10) for before, after in pairwise(starts))
    names = [each.decision.name for one in found.passes for each in one.removed]
    oldest = [f"r.example/old:{each}" for each in reversed(range(OLD))]
    assert names == oldest[: len(names)]


@pytest.mark.parametrize("busy_hour", [3, 1], ids=["busy hours", "irregular"])
async def test_threshold_is_never_met_under_irregular_growth(rig: Opener, busy_hour: int) -> None:
    dice = Random(1)

    def pulls(minute: int) -> bool:
        return dice.random() < (0.2 if busy_hour == 1 else 0.5 if minute // 60 % busy_hour == 0 else 0.05)

    found = await grow(rig, AHEAD, 12, pulls=pulls)
    assert found.highest_percent < 84
    assert {each.decision.reason.code.value for one in found.passes for each in one.removed} == {"collect-ahead"}


async def test_threshold_is_met_without_the_setting(rig: Opener) -> None:
    found = await grow(rig, replace(AHEAD, collect_ahead_s=0.0), 3)
    (only,) = found.passes
    assert found.highest_percent > 84
    assert {each.decision.reason.code.value for each in only.removed} == {"least-recently-used"}


def forecast_of(made: SimNode) -> CollectionForecast:
    return CollectionForecast(made.now, SIZE / 300)


@asynccontextmanager
async def due(rig: Opener, **options: object) -> AsyncIterator[Rig]:
    """Yield a rig of a node for which removals of five images or more are due."""
    scenario = grown_node()
    scenario.node.other_bytes = 14 * SIZE
    async with rig(
        policy=GCPolicy(images=AHEAD),
        make_scenario=lambda: scenario,
        read_forecast=lambda: forecast_of(scenario.node),
        **options,
    ) as made:
        yield made


async def test_images_are_removed_one_at_a_time_until_the_disk_is_busy(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["", "", "postponed: busy"])

    async def busy(_disk: IdleDisk) -> str:
        return next(answers)

    monkeypatch.setattr(IdleDisk, "wait", busy)
    async with due(rig, bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        assert len(preview.removals) > 3
        report = await made.collector.run(preview, trigger="interval", stop=asyncio.Event())
        left = len(made.node.images)
    assert (report.end, report.end_detail) == (PassEnd.CANCELLED, "postponed: busy")
    assert [each.outcome for each in report.results[:3]] == [Outcome.DONE, Outcome.DONE, Outcome.NOT_ATTEMPTED]
    assert left == OLD - 2


@pytest.mark.parametrize("code", [each for each in ReasonCode if each is not ReasonCode.COLLECT_AHEAD])
async def test_only_removals_ahead_of_a_forecast_wait_for_an_idle_disk(code: ReasonCode) -> None:
    async def busy() -> str:
        return "postponed: busy"

    def decision(number: int, code: ReasonCode) -> Decision:
        return Decision(ItemKind.IMAGE, str(number), str(number), Verdict.REMOVE, Reason(code), 1)

    decisions = [decision(0, code), decision(1, code), decision(2, ReasonCode.COLLECT_AHEAD), decision(3, code)]
    with pytest.raises(Interrupted) as raised:
        await carry_out(
            decisions,
            dict.fromkeys(ItemKind, DryRunRemover()),
            clock=ManualClock(START),
            stop=asyncio.Event(),
            busy=busy,
        )
    assert raised.value.reason == "postponed: busy"
    outcomes = [each.outcome for each in raised.value.results]
    assert outcomes == [Outcome.DRY_RUN, Outcome.DRY_RUN, Outcome.NOT_ATTEMPTED, Outcome.NOT_ATTEMPTED]


async def test_a_dry_run_does_not_wait_for_an_idle_disk(rig: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(_disk: IdleDisk) -> str:
        return "postponed: busy"

    monkeypatch.setattr(IdleDisk, "wait", busy)
    async with due(rig, dry_run=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        report = await made.collector.run(preview, trigger="interval", stop=asyncio.Event())
    assert report.end is PassEnd.COMPLETE
    assert {each.outcome for each in report.results} == {Outcome.DRY_RUN}


async def test_removals_end_once_the_measured_space_is_enough(rig: Opener) -> None:
    async with due(rig) as made:
        preview = await made.collector.preview(Scope.IMAGES)

        def release(_: object) -> None:
            made.node.other_bytes = 0

        report = await made.collector.run(preview, trigger="interval", stop=asyncio.Event(), on_result=release)
    assert [each.outcome for each in report.results[:2]] == [Outcome.DONE, Outcome.NOT_NEEDED]
    assert report.end is PassEnd.COMPLETE


async def test_collection_ahead_has_one_round_and_no_shortfall(rig: Opener) -> None:
    async with due(rig) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        first = preview.removals[0]
        made.server.faults.fail("RemoveImage", first.id, times=99, status="INTERNAL", detail="busy")
        report = await made.collector.run(preview, trigger="interval", stop=asyncio.Event())
    assert [each.decision.id for each in report.failed] == [first.id]
    assert len(report.plans) == 1
    assert report.end is PassEnd.COMPLETE


async def test_dry_run_lists_the_images_and_removes_none(rig: Opener) -> None:
    async with due(rig, dry_run=True) as made:
        report = await made.collector.run(
            await made.collector.preview(Scope.IMAGES), trigger="interval", stop=asyncio.Event()
        )
        assert len(made.node.images) == OLD
    assert {each.outcome for each in report.results} == {Outcome.DRY_RUN}
    assert {each.decision.reason.code.value for each in report.results} == {"collect-ahead"}


async def test_image_is_kept_if_its_use_was_not_observed_for_long_since_the_plan(rig: Opener) -> None:
    async with due(rig) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        made.node.advance(601)
        report = await made.collector.run(preview, trigger="interval", stop=asyncio.Event())
        assert len(made.node.images) == OLD
    assert {each.outcome for each in report.results} == {Outcome.CHANGED}
