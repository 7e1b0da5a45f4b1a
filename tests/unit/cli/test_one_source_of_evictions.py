"""On random nodes, pod, order and reasons that ``evict`` and ``top`` print are those of the eviction loop's plan."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from nodeagent.cli.table import size_cell
from nodeagent.eviction import eviction_pass
from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.plan.effects import UsageSample
from nodeagent.eviction.plan.planner import EvictionPlan, plan_eviction
from nodeagent.eviction.plan.ranking import has_limit
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.signals import EvictionSignalReader, SignalLayout, SignalReadings
from nodeagent.gc.agent import Agent
from nodeagent.model.decision import ReasonCode
from nodeagent.model.node import Role, RoleBasis, RoleDecision
from nodeagent.model.pods import PodInventory
from nodeagent.model.pressure import FilesystemLayout, Moment, Signal, SignalReading
from nodeagent.record import replace
from tests.sim.clock import START
from tests.sim.node import SimNode
from tests.unit.cli.test_one_source import SEEDS, rows_of
from tests.unit.control_node import Node, say, serving
from tests.unit.eviction.eviction_node import Clock, Node as EvictionNode, run_pass
from tests.unit.eviction.plan.cases import disk, pod
from tests.unit.eviction.plan.test_eviction_properties import FLAWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from nodeagent.eviction.plan.ranking import RankedPod
    from nodeagent.model.pressure import PodFacts
    from tests.sim.clock import SimClock

Dice = random.Random
MIB: Final = 1 << 20
_PASSES: Final = 3
_READINGS: Final = {
    "memory.available": (100, "memory.available<{}Mi"),
    "nodefs.available": (100, "nodefs.available<{}Mi"),
    "pid.available": (100, "pid.available<{}"),
}
"""Threshold of each signal, and its text in the configuration."""


@pytest.mark.parametrize("seed", SEEDS)
async def test_commands_print_the_plan_of_the_eviction_loop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    disks: list[SimNode],
    seed: int,
) -> None:
    dice = random.Random(seed)
    pods, observations = _random_pods(dice), _random_readings(dice)
    hard = ",".join(text.format(limit) for limit, text in _READINGS.values())
    soft = 'soft = "memory.available<500Mi"\nsoft_grace_period = "memory.available=1m"\n' * dice.choice([0, 1])
    unmeasured = json.dumps(dice.random() < 0.3)
    # Above the limit of evictions, the loop does not list pods, and checks their storage limits only once listed.
    limit = 0 if any(map(has_limit, pods)) else dice.choice([0, 0, 2])
    extra = (
        f'[eviction]\nenabled = "on"\nhard = "{hard}"\n{soft}evict_unmeasured = {unmeasured}\n'
        f"max_evictions_per_window = {limit}\nreclaim = false\n"
    )
    sim = SimNode(root_path=str(tmp_path))
    disks.append(sim)
    async with serving(tmp_path, sim=sim, clock=sim.clock, extra=extra) as node:
        monkeypatch.setattr("nodeagent.config.files.DEFAULT_PATH", node.config)
        monkeypatch.setattr("nodeagent.config.paths.CONFIG_FILE", str(node.config))
        settings = node.context.settings.eviction
        now_s = sim.clock.monotonic_s()
        sample = UsageSample(now_s - 5, observations, {each.uid: each.usage for each in pods if each.usage}, True)
        held_s = dice.choice([0.0, 30.0, 90.0])
        node.context.eviction = EvictionState(
            first_met_s=dict.fromkeys(settings.thresholds, now_s - held_s),
            evicted_s=tuple(now_s - 60 for _ in range(dice.choice([0, 0, 2]))),
            samples=(sample,),
        )
        planned = await _plan_of_the_loop(node, pods, observations, monkeypatch)
        preview, top, table = await _eviction_documents(pods, observations, monkeypatch, capsys)
        differences = [*_preview_differences(preview, planned), *_top_differences(top, table, planned)]
        assert not differences, "\n".join(differences)


@pytest.mark.parametrize(("role", "grace_s"), [(Role.STANDALONE, 0), (Role.BESIDE_KUBELET, 1)])
async def test_preview_of_a_hard_eviction_has_the_grace_period_of_the_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], role: Role, grace_s: int
) -> None:
    async def evaluate(_: Agent) -> RoleDecision:
        return RoleDecision(role, RoleBasis.CONFIGURED, "test")

    monkeypatch.setattr(Agent, "evaluate_role", evaluate)
    sim = SimNode(root_path=str(tmp_path))
    low = SignalReading(Signal.MEMORY_AVAILABLE, 50 * MIB, 1000 * MIB, Moment(START, 0.0))
    async with serving(tmp_path, sim=sim, clock=sim.clock, extra='[eviction]\nenabled = "on"\n') as node:
        monkeypatch.setattr("nodeagent.config.files.DEFAULT_PATH", node.config)
        _set_readings((pod("web", memory=300),), (low,), monkeypatch)
        _, out, _ = await say(capsys, "evict", "--dry-run", "-o", "json")
    assert json.loads(out)["plan"]["grace_s"] == grace_s


def _random_pods(dice: Dice) -> tuple[PodFacts, ...]:
    """Return pods of which a third have unknown usage, or a fact that protects them."""
    made = []
    for number in range(dice.randrange(1, 8)):
        facts: dict[str, Any] = dict(dice.choice([{}, {}, {}, *FLAWS]))
        memory = dice.choice([None, 1, 50, 300])
        one = pod(
            f"p{number}",
            memory=memory,
            request=dice.choice([0, 60, None]),
            priority=dice.choice([0, 0, 10]),
            pids=dice.choice([None, 5, 400]),
            writable=disk(dice.choice([None, 0, 300])),
        )
        made.append(replace(one, **facts))
    return tuple({each.uid: each for each in made}.values())


class _LoopClock(Clock):
    """Clock of the eviction loop that starts at the time of a simulated node and advances with each reading."""

    def __init__(self, start: SimClock) -> None:
        super().__init__()
        self._start = start

    def now(self) -> datetime:
        return self._start.now() + timedelta(seconds=self.seconds)

    def monotonic_s(self) -> float:
        return self._start.monotonic_s() + self.seconds


async def _plan_of_the_loop(
    node: Node, pods: tuple[PodFacts, ...], observations: tuple[SignalReading, ...], monkeypatch: pytest.MonkeyPatch
) -> EvictionPlan | None:
    """Return the first plan for pods of the eviction loop, if any with a victim; ``None`` without such a plan."""
    settings, plans = node.context.settings.eviction, list[EvictionPlan]()

    def record(evaluation: Any, found: Any, *arguments: Any, **options: Any) -> EvictionPlan:
        plan = plan_eviction(evaluation, found, *arguments, **options)
        if found is not None:
            plans.append(plan)
        return plan

    async def read_layout() -> SignalLayout:
        return SignalLayout(SignalPaths("/"), FilesystemLayout.SINGLE, settings.thresholds)

    monkeypatch.setattr(eviction_pass, "plan_eviction", record)
    clock = _LoopClock(node.sim.clock)
    made = EvictionNode(clock=clock, readings=lambda: observations, pods=pods, policy=settings.policy, dry_run=True)
    made.context.eviction = node.context.eviction
    monkeypatch.setattr(made, "read_layout", read_layout)
    loop = made.loop()
    for _ in range(_PASSES):  # the first pass can end with the reclaim of the node
        if not plans:
            await run_pass(made, loop)
    return next((each for each in plans if each.victim is not None), plans[0] if plans else None)


async def _eviction_documents(
    pods: tuple[PodFacts, ...],
    observations: tuple[SignalReading, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, str]]]:
    """Return the documents of the preview and of ``top``, and the table of ``top``, with these pods and readings."""
    _set_readings(pods, observations, monkeypatch)
    documents = []
    for words in (("evict", "--dry-run"), ("top",)):
        code, out, err = await say(capsys, *words, "-o", "json")
        assert code == 0, err
        documents.append(json.loads(out))
    _, out, _ = await say(capsys, "top")
    return documents[0], documents[1], rows_of(out[out.index("#  POD") :])


def _set_readings(
    pods: tuple[PodFacts, ...], observations: tuple[SignalReading, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace the pods and the signals that the daemon reads."""

    class Pods:
        async def read(self, *, with_disk: bool) -> PodInventory:
            del with_disk
            return PodInventory(pods, (), {}, Moment(START, 0.0))

        async def close(self) -> None: ...

    async def read(reader: EvictionSignalReader, layout: SignalLayout) -> SignalReadings:
        del layout
        now = reader.now()
        return SignalReadings(tuple(replace(each, observed_at=now) for each in observations), (), now)

    monkeypatch.setattr(Agent, "make_pod_reader", lambda _: Pods())
    monkeypatch.setattr(EvictionSignalReader, "read", read)


def _effect_differences(rows: list[dict[str, Any]], victim: RankedPod) -> Iterator[str]:
    shown = {each["uid"]: (each["frees"], each["frees_at_least"]) for each in rows}[victim.pod.uid]
    if shown != (victim.frees, victim.frees_at_least):
        yield f"top: an eviction frees {shown}, planned {victim.frees, victim.frees_at_least}"


def _random_readings(dice: Dice) -> tuple[SignalReading, ...]:
    found = []
    for name, (limit, _) in _READINGS.items():
        unit = 1 if name == "pid.available" else MIB
        available = dice.choice([limit // 2, 2 * limit, 9 * limit]) * unit
        found.append(SignalReading(Signal(name), available, 1000 * limit * unit, Moment(START, 0.0)))
    return tuple(found)


def _preview_differences(preview: Mapping[str, Any], planned: EvictionPlan | None) -> Iterator[str]:
    shown, victim = preview["plan"], None if planned is None else planned.victim
    uid = None if victim is None else victim.pod.uid
    if shown["victim"] != uid:
        yield f"evict: victim {shown['victim']}, planned {uid}"
    threshold = shown["threshold"] and shown["threshold"]["threshold"]
    if planned is None or planned.selected is None or threshold != planned.selected.threshold.text:
        return  # without a victim, the preview shows the most urgent threshold, the loop each
    order = [(each["uid"], each["rank"], each["usage"], each["request"]) for each in shown["ranking"]]
    ranking = [(each.pod.uid, each.rank, each.usage, each.request) for each in planned.ranking]
    if order != ranking:
        yield f"evict: ranking {order}, planned {ranking}"
    reasons = [(each["uid"], each["verdict"], each["reason"]["code"]) for each in shown["decisions"]]
    decided = [(each.id, each.verdict.value, each.reason.code.value) for each in planned.plan.decisions]
    if reasons != decided:
        yield f"evict: {reasons}, planned {decided}"


def _top_differences(
    top: Mapping[str, Any], table: list[dict[str, str]], planned: EvictionPlan | None
) -> Iterator[str]:
    rows, selected = top["pods"]["pods"], None if planned is None else planned.selected
    codes = {each["uid"]: each["kept_because"] and each["kept_because"]["code"] for each in rows}
    for each, row in zip(rows, table, strict=True):
        printed = row["#"], row["REASON"], row["MEMORY"]
        expected = str(each["rank"]), codes[each["uid"]] or "evictable", size_cell(each["memory_bytes"])
        if printed != expected:
            yield f"top: {printed}, document {expected}"
    if planned is None or selected is None or selected.threshold.signal != top["pods"]["signal"]:
        return
    if planned.victim is not None and planned.victim.ranked is not None:
        yield from _effect_differences(rows, planned.victim.ranked)
    order = [(each["uid"], each["rank"]) for each in rows]
    ranking = [(each.pod.uid, each.rank) for each in planned.ranking]
    if order != ranking:
        yield f"top: {order}, planned {ranking}"
    chosen = {ReasonCode.LOW_ON_RESOURCE, ReasonCode.RANKED_LATER}
    limited = {ReasonCode.EVICTION_LIMIT, ReasonCode.EVICTION_SLOWED}  # of the node: any candidate may be next
    for decision in planned.plan.decisions:
        code = decision.reason.code
        if decision.id in codes and code not in limited:
            kept = None if code in chosen else code.value
            if codes[decision.id] != kept:
                yield f"top: {decision.name} {codes[decision.id]}, planned {kept}"
