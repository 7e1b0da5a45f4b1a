"""``nodeagent evict --dry-run``: preview of the eviction now or with simulated signals."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from nodeagent.api.codec import encode
from nodeagent.api.eviction import EvictionPreview
from nodeagent.cli.display import Line, standard_output
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.cli.table import Heading, Table
from nodeagent.errors import StoreError, UsageError
from nodeagent.host.node import boot_id
from nodeagent.model.pressure import Signal
from nodeagent.observe.eviction_signals import EvictionSignalReader
from nodeagent.observe.pods import make_pod_reader
from nodeagent.plan.decision import Verdict
from nodeagent.plan.eviction.grammar import parse_thresholds
from nodeagent.plan.eviction.planner import plan_eviction
from nodeagent.plan.eviction.signals import MEANINGS
from nodeagent.plan.eviction.state import EvictionState
from nodeagent.store.evictions import EvictionFile
from nodeagent.text import Cut
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from nodeagent.act.agent import Agent
    from nodeagent.config.settings import Settings
    from nodeagent.model.pods import PodInventory
    from nodeagent.model.pressure import Fact, Observation, PodFacts
    from nodeagent.observe.eviction_signals import SignalLayout
    from nodeagent.plan.eviction.effects import OutstandingEffect
    from nodeagent.plan.eviction.planner import EvictionPlan
    from nodeagent.plan.eviction.ranking import RankedPod
    from nodeagent.plan.eviction.state import Evaluation
    from nodeagent.plan.eviction.thresholds import Amount

_LONG_AGO_S = 10.0 * 365 * 86_400

_WIDE: Final = 120


@dataclass(frozen=True, slots=True)
class _DryRun:
    """Result of a dry run.

    Attributes:
        first: the plan of the pass, with node-level reclaim if there are steps.
        then: the plan if reclaim frees too little; the same as ``first`` without reclaim steps.
        off: reason for disabled eviction on this node; empty if it is enabled.
    """

    first: EvictionPlan
    then: EvictionPlan
    evaluation: Evaluation
    pods: PodInventory
    warnings: tuple[str, ...]
    off: str


def preview(config: Path | None, overrides: Mapping[str, str | int], form: str, simulate: Sequence[str]) -> None:
    """Print the pod to evict, the eviction order and the reasons, without an eviction.

    Raises:
        UsageError: a simulated amount is not valid, or its signal has no reading on this node.
        RuntimeUnavailableError: the runtime does not answer.
    """
    amounts = _parse_simulated(simulate)
    settings = load_settings(config, overrides)
    dry_run = run_async(_open_and_run(settings, amounts))
    if form != "table":
        sys.stdout.write(encode(_document(dry_run, simulate), form))
        return
    display = standard_output()
    display.write(_lines(dry_run, simulate, display.columns))


def _parse_simulated(texts: Sequence[str]) -> dict[Signal, Amount]:
    """Return the simulated amount of each signal.

    Raises:
        UsageError: a text is not ``SIGNAL=AMOUNT``.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        signal = next((each for each in Signal if each.value == name.strip()), None)
        if signal is None or not equals:
            known = ", ".join(Signal)
            raise UsageError(
                f"--simulate {text!r}: expected SIGNAL=AMOUNT, such as memory.available=50Mi; signals: {known}"
            )
        try:
            (threshold, *_) = parse_thresholds(
                hard=f"{signal}{MEANINGS[signal].operator}{value.strip()}", allocatable=False
            ) or (None,)
        except ValueError as error:
            raise UsageError(f"--simulate {text!r}: {error}") from error
        if threshold is None:
            raise UsageError(f"--simulate {text!r}: 0% and 100% disable a threshold; write an amount")
        found[signal] = threshold.amount
    return found


async def _open_and_run(settings: Settings, amounts: Mapping[Signal, Amount]) -> _DryRun:
    async with open_for_command(settings, record=False) as agent:
        return await _dry_run(agent, settings, amounts)


async def _dry_run(agent: Agent, settings: Settings, amounts: Mapping[Signal, Amount]) -> _DryRun:
    eviction = settings.eviction
    reader = EvictionSignalReader(eviction, agent.clock)
    layout = await reader.read_layout(agent.cri, settings.imagefs_path)
    pod_reader = make_pod_reader(agent.cri, agent.settings, agent.clock, lambda: agent.role)
    try:
        pods = await pod_reader.read(with_disk=True)
    finally:
        await pod_reader.close()
    measured = await reader.read(layout)
    readings = replace(measured, observations=_simulated(measured.observations, amounts))
    # A simulated amount counts for longer than the grace period of a soft threshold.
    first_met_s = {each: -_LONG_AGO_S for each in layout.thresholds if each.signal in amounts}
    outstanding, unread = await asyncio.to_thread(_outstanding, settings)
    state = EvictionState(first_met_s=first_met_s, outstanding=outstanding)
    evaluation = reader.evaluate_readings(layout, readings, state).evaluation
    first, then = _plans(evaluation, pods, settings, layout, readings.observations)
    warnings = (*layout.warnings, *readings.unread, *pods.warnings, *unread)
    role = await agent.evaluate_role()
    off = eviction.off_because(role.role, role.reason)
    return _DryRun(first, then, evaluation, pods, warnings, off)


def _outstanding(settings: Settings) -> tuple[tuple[OutstandingEffect, ...], tuple[str, ...]]:
    """Return the outstanding effects of the running agent, and a warning if they cannot be read."""
    try:
        return EvictionFile(settings.state_directory).read(boot_id())[0], ()
    except StoreError as error:
        return (), (str(error),)


def _simulated(observations: tuple[Observation, ...], amounts: Mapping[Signal, Amount]) -> tuple[Observation, ...]:
    """Return the observations with the simulated amounts.

    Raises:
        UsageError: this node has no reading of a simulated signal.
    """
    read = {each.signal for each in observations}
    for signal in amounts:
        if signal not in read:
            raise UsageError(f"--simulate {signal}: this node has no reading of the signal")
    return tuple(
        replace(each, available=amounts[each.signal].of(each.capacity)) if each.signal in amounts else each
        for each in observations
    )


def _plans(
    evaluation: Evaluation,
    pods: PodInventory,
    settings: Settings,
    layout: SignalLayout,
    observations: tuple[Observation, ...],
) -> tuple[EvictionPlan, EvictionPlan]:
    """Return the plan of the pass, and the plan if node-level reclaim frees nothing."""
    policy = replace(settings.eviction.policy, max_observation_age_s=_LONG_AGO_S)

    def plan(reclaimed: frozenset[object]) -> EvictionPlan:
        return plan_eviction(
            evaluation,
            pods.facts,
            policy,
            layout=layout.layout,
            now=evaluation.at,
            observations=observations,
            reclaimed=reclaimed,  # type: ignore[arg-type]
        )

    first = then = plan(frozenset())
    reclaimed: set[object] = set()
    while then.reclaim:
        reclaimed.update(then.reclaim)
        then = plan(frozenset(reclaimed))
    return first, then


def _document(dry_run: _DryRun, simulate: Sequence[str]) -> EvictionPreview:
    return EvictionPreview.of(
        dry_run.evaluation,
        dry_run.first,
        dry_run.then,
        dry_run.pods.facts,
        simulated=simulate,
        disabled_because=dry_run.off,
        warnings=dry_run.warnings,
    )


def _lines(dry_run: _DryRun, simulate: Sequence[str], columns: int | None) -> Iterator[Line]:
    plan = dry_run.then
    if simulate:
        yield Line(f"simulated: {', '.join(simulate)}", "bold")
    if plan.selected is None:
        limit = next((each for each in plan.plan.decisions if each.verdict is Verdict.REMOVE), None)
        if limit is None and plan.withheld is not None:
            yield Line(f"withheld: {plan.withheld.sentence}", "bold yellow")
        elif limit is None:
            sentence = plan.plan.decisions[0].reason.sentence if plan.plan.decisions else "no pods on this node"
            yield Line(f"no pod would be evicted: {sentence}", "green")
    else:
        yield Line(f"threshold exceeded: {plan.selected.threshold.text}", "bold red")
        for step in dry_run.first.reclaim:
            yield Line(f"  first {step.text}")
    if plan.victim is not None:
        grace = format_duration(plan.victim.grace_s) if plan.victim.grace_s else "none (SIGKILL)"
        name = f"{plan.victim.pod.namespace}/{plan.victim.pod.name}"
        prefix = "then, if the shortage persists: " if dry_run.first.reclaim else ""
        yield Line(f"{prefix}evict {name}; grace period: {grace}", "bold")
        yield from (Line(each.reason.sentence) for each in plan.plan.decisions if each.verdict is Verdict.REMOVE)
    if plan.plan.decisions:
        yield from _pod_table(plan, dry_run.pods.facts, sources=columns is None or columns >= _WIDE).lines(columns)
    for warning in (*plan.plan.warnings, *dry_run.warnings):
        yield Line(f"warning: {warning}", "yellow")
    if dry_run.off:
        yield Line(f"eviction disabled on this node: {dry_run.off}", "yellow")


def _pod_table(plan: EvictionPlan, facts: Sequence[PodFacts], *, sources: bool) -> Table:
    """Return the pods in eviction order; with ``sources`` also those of their facts, and the QoS class."""
    by_uid = {each.pod.uid: each for each in plan.ranking}
    pods = {each.uid: each for each in facts}
    numbers = (Heading("USES", right=True), Heading("REQUESTS", right=True))
    qos = (Heading("QOS"),) if sources else ()
    pod_heading = Heading("POD", cut=Cut.MIDDLE, name=True, at_least=16)
    table = Table(Heading("RANK", right=True), pod_heading, *numbers, "PRIORITY", *qos, "REASON")
    for decision in plan.plan.decisions:
        pod, ranked = pods[decision.id], by_uid.get(decision.id)
        table.add(
            "evict" if decision.verdict is Verdict.REMOVE else str(ranked.rank) if ranked is not None else "",
            decision.name,
            _usage_text(ranked, pod).replace(" ", ""),
            _request_text(ranked, pod).replace(" ", ""),
            _fact_text(pod.priority, sources=sources),
            *((_fact_text(pod.qos, sources=sources),) if sources else ()),
            decision.reason.code.value,
            style="bold red" if decision.verdict is Verdict.REMOVE else "",
        )
    return table


def _fact_text(fact: Fact[Any], *, sources: bool) -> str:
    if fact.value is None:
        return "?"
    return f"{fact.value} ({fact.source})" if sources else str(fact.value)


def _usage_text(ranked: RankedPod | None, pod: PodFacts) -> str:
    if ranked is not None:
        if ranked.usage is None:
            return "?"
        return (
            format_bytes(ranked.usage)
            if ranked.resource.value in ("memory", "ephemeral-storage")
            else str(ranked.usage)
        )
    memory = pod.usage.memory_bytes if pod.usage is not None else None
    return "?" if memory is None else format_bytes(memory)


def _request_text(ranked: RankedPod | None, pod: PodFacts) -> str:
    if ranked is not None and ranked.resource.value in ("inodes", "pids"):
        return ""
    request = ranked.request if ranked is not None else pod.memory_request_bytes.value
    return "?" if request is None else format_bytes(request)
