"""``nodeagent evict --dry-run``: the pod that would be evicted now or with simulated signals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import structs

from nodeagent.cli.display import Line, warning_lines
from nodeagent.cli.reading import read, show_document
from nodeagent.cli.table import Heading, Table, size_cell
from nodeagent.eviction.documents import EvictionPreview, FactDocument, PodDecision, RankedPodEntry
from nodeagent.model.decision import sentence_of
from nodeagent.model.outlook import Outlook
from nodeagent.text import Cut
from nodeagent.trend.shortage import EVICTION, first_threshold
from nodeagent.trend.words import shortage_words, when_words
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from nodeagent.cli.options import Source
    from nodeagent.gc.agent import Agent

_WIDE: Final = 120
_NO_THRESHOLD_MET: Final = "no-threshold-met"
_UNCHECKED: Final = "storage-limit-unchecked"


def preview(source: Source, form: str, simulate: Sequence[str]) -> None:
    """Print the pod that would be evicted, the eviction order and the reasons; evict nothing.

    Raises:
        UsageError: a simulated amount is not valid, or its signal has no reading on this node.
        RuntimeUnavailableError: the runtime does not answer.
    """

    async def read_node(agent: Agent) -> EvictionPreview:
        from nodeagent.daemon.status import (  # noqa: PLC0415 - not needed if the daemon responds
            StatusReader,
            eviction_preview_document,
        )

        return await eviction_preview_document(agent, StatusReader(agent), None, simulate)

    if any("," in each for each in simulate):  # the request separates values by commas
        simulate = [part for each in simulate for part in each.split(",")]
    found = read("EvictionPreview", EvictionPreview, {"simulate": ",".join(simulate)}, source, read_node)
    show_document(found, form, eviction_lines)


def eviction_lines(found: EvictionPreview, columns: int | None) -> Iterator[Line]:
    """Yield the decision, the pods in eviction order, and the warnings."""
    plan = found.plan
    if found.simulated:
        yield Line(f"simulated: {', '.join(found.simulated)}", "bold")
    yield from _decision_lines(found)
    if plan.decisions:
        yield from _pod_table(found, sources=columns is None or columns >= _WIDE).lines(columns)
    unchecked = (f"{each.name}: {each.reason.sentence}" for each in plan.decisions if each.reason.code == _UNCHECKED)
    reclaimed = f"{found.reclaim_threshold} is met, and no eviction"
    warnings = (
        f"if these steps free nothing: {each}" if each.startswith(reclaimed) else each for each in plan.warnings
    )
    yield from warning_lines((*warnings, *unchecked, *found.warnings))
    if found.daemon_off_because:
        yield Line(f"eviction disabled on this node: {found.daemon_off_because}", "yellow")


def _decision_lines(found: EvictionPreview) -> Iterator[Line]:
    """Yield the exceeded threshold, the steps before an eviction, and the pod that would be evicted."""
    plan, of_reclaim = found.plan, found.reclaim_threshold
    if of_reclaim and (plan.threshold is None or plan.threshold.threshold != of_reclaim):
        yield Line(f"threshold exceeded: {of_reclaim}", "bold red")
        yield from _reclaim_lines(found)
    if plan.threshold is None:
        limited = any(each.verdict == "remove" for each in plan.decisions)
        if not limited and plan.withheld is not None:
            yield Line(f"withheld: {plan.withheld.sentence}", "bold yellow")
        elif not limited:
            yield Line(f"no pod would be evicted: {_why_none(found)}", "green")
            yield from _outlook_lines(found)
    else:
        bound = f"; limited by {plan.threshold.limited_by}" if plan.threshold.limited_by else ""
        yield Line(f"threshold exceeded: {plan.threshold.threshold}{bound}", "bold red")
        if of_reclaim in ("", plan.threshold.threshold):
            yield from _reclaim_lines(found)
    victim = next((each for each in plan.decisions if each.uid == plan.victim), None)
    if victim is not None:
        grace = format_duration(plan.grace_s) if plan.grace_s else "none (SIGKILL)"
        prefix = "then, if the shortage persists: " if found.reclaim_first else ""
        yield Line(f"{prefix}evict {victim.name}; grace period: {grace}", "bold")
        yield from (Line(each.reason.sentence) for each in plan.decisions if each.verdict == "remove")


def _reclaim_lines(found: EvictionPreview) -> Iterator[Line]:
    for step in found.reclaim_first:
        yield Line(f"  first {step}")


def _outlook_lines(found: EvictionPreview) -> Iterator[Line]:
    """Yield when the first eviction threshold is expected, and what grows; nothing without an outlook.

    A threshold that was met at the time of the outlook is omitted: no threshold is met by the readings of now.
    """
    coming = [
        structs.replace(each, forecasts=tuple(one for one in each.forecasts if one.outlook is not Outlook.REACHED))
        for each in found.outlook
    ]
    first = first_threshold(coming, EVICTION)
    if first is None:
        return
    kind = first.forecast.outlook
    if kind is Outlook.NO_TREND:
        yield Line("no eviction threshold is expected: no trend", "dim")
    elif kind is Outlook.UNKNOWN:
        yield Line(f"first eviction threshold: {when_words(first.forecast)}", "dim")
    else:
        yield Line(f"first eviction threshold: {shortage_words(first)}", "yellow" if first.is_near else "")


def _why_none(found: EvictionPreview) -> str:
    """Return the reason that no pod is evicted; a reason of the node takes precedence over that of a single pod."""
    reasons = [each.reason for each in found.plan.decisions]
    if any(each.code in {_NO_THRESHOLD_MET, _UNCHECKED} for each in reasons):
        return sentence_of(_NO_THRESHOLD_MET, {})
    return reasons[0].sentence if reasons else "no pods on this node"


def _pod_table(found: EvictionPreview, *, sources: bool) -> Table:
    """Return the table of pods in eviction order; with ``sources`` also the QoS class and the source of each fact."""
    ranks = {each.uid: each for each in found.plan.ranking}
    numbers = (Heading("USES" if ranks else "MEMORY", right=True), Heading("REQUESTS", right=True))
    qos = (Heading("QOS"),) if sources else ()
    pod_heading = Heading("POD", cut=Cut.MIDDLE, name=True, at_least=16)
    table = Table(Heading("RANK", right=True), pod_heading, *numbers, Heading("PRIORITY", right=True), *qos, "REASON")
    for each in found.plan.decisions:
        ranked, facts = ranks.get(each.uid), found.pods[each.uid]
        remove = each.verdict == "remove"
        table.add(
            "evict" if remove else str(ranked.rank) if ranked is not None else "",
            each.name,
            _usage(found, each, ranked),
            _request(ranked, facts.memory_request_bytes),
            _fact(facts.priority, sources=sources),
            *((_fact(facts.qos, sources=sources),) if sources else ()),
            str(each.reason.code),
            style="bold red" if remove else "",
        )
    return table


def _usage(found: EvictionPreview, decision: PodDecision, ranked: RankedPodEntry | None) -> str:
    if ranked is None:
        return size_cell(found.pod_memory_bytes[decision.uid])
    if ranked.usage is None or ranked.resource in ("memory", "ephemeral-storage"):
        return size_cell(ranked.usage)
    return str(ranked.usage)


def _request(ranked: RankedPodEntry | None, memory: FactDocument) -> str:
    """Return the ranked resource request, or the memory request of an unranked pod; ``~`` marks an inferred request."""
    if ranked is None:
        known = size_cell(memory.value if isinstance(memory.value, int) else None)
        return f"~{known}" if memory.value and memory.source == "inferred" else known
    if ranked.resource in ("inodes", "pids"):
        return ""
    inferred = any(each.endswith("request inferred") for each in ranked.assumed)
    return f"~{size_cell(ranked.request)}" if inferred and ranked.request else size_cell(ranked.request)


def _fact(fact: FactDocument, *, sources: bool) -> str:
    if fact.value is None:
        return "?"
    return f"{fact.value} ({fact.source})" if sources else str(fact.value)
