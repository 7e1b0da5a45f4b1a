"""Documents of eviction: signals against their thresholds, pods in eviction order, plan, history record and preview."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from nodeagent.api.common import Document, DocumentError, Number, Part, ReasonDocument
from nodeagent.api.outlook import OutlookDocument
from nodeagent.eviction.plan import memory_model
from nodeagent.model import decision, pressure
from nodeagent.model.pressure import MemoryCounters, MemoryPart, NodeMemory
from nodeagent.record import Time
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.eviction import actions
    from nodeagent.eviction.plan import planner
    from nodeagent.eviction.plan.ranking import RankedPod
    from nodeagent.eviction.plan.state import Evaluation
    from nodeagent.eviction.plan.thresholds import ThresholdStatus
    from nodeagent.eviction.signals import SignalLayout, SignalReadings


class ThresholdDocument(Part, frozen=True, kw_only=True):
    """A threshold of a signal.

    Attributes:
        value: the threshold quantity; ``None`` without an accepted reading.
        distance: distance of the reading from ``value``, negative once the threshold is met; ``None`` without a value.
        grace_period_s: 0 for a hard threshold.
    """

    text: str
    value: Number | None
    met: bool
    distance: Number | None
    grace_period_s: Number = 0.0

    @classmethod
    def of(cls, status: ThresholdStatus, available: float) -> ThresholdDocument:
        """Return the document form of a threshold; ``available`` is the reading of its signal."""
        limit = status.limit
        distance = None if limit is None else abs(available - limit) * (-1 if status.met else 1)
        return cls(
            text=status.threshold.text,
            value=limit,
            met=status.met,
            distance=distance,
            grace_period_s=status.threshold.grace_s,
        )


class SignalDocument(Part, frozen=True, kw_only=True):
    """One reading of a signal.

    Attributes:
        available: amount in bytes, inodes or PIDs, as ``capacity``; for stall signals the percent of time stalled.
        change_per_s: change per second since the previous reading; ``None`` for the first reading.
        mountpoint: mount point of an additional filesystem; empty for all other signals.
        limited_by: limit of a cgroup above the pods that bounds ``available`` or ``capacity``; empty without one.
    """

    signal: pressure.Signal
    available: Number
    capacity: Number
    observed_at: Time
    change_per_s: Number | None
    thresholds: tuple[ThresholdDocument, ...]
    mountpoint: str = ""
    limited_by: str = ""

    @classmethod
    def of(
        cls, reading: pressure.SignalReading, evaluation: Evaluation, earlier: SignalReadings | None
    ) -> SignalDocument:
        """Return the document form of a reading with its thresholds; ``earlier`` are the previous readings."""
        return cls.from_value(
            reading,
            observed_at=reading.observed_at.at,
            change_per_s=change_per_s(reading, earlier),
            thresholds=tuple(
                ThresholdDocument.of(each, reading.available)
                for each in evaluation.statuses
                if each.threshold.measurand == reading.measurand
            ),
            mountpoint=reading.path,
        )


class MemoryAmount(Part, frozen=True, kw_only=True):
    """A part of the node's memory; a part that is not read is 0."""

    name: MemoryPart
    size_bytes: int


class Memory(Part, frozen=True, kw_only=True):
    """The estimates of available memory, and the parts that explain their difference.

    Attributes:
        formula_bytes: the kubelet's formula, capacity minus working set; ``None`` if it is not used.
        kernel_bytes: ``MemAvailable``; ``None`` if it is not used.
        estimate: content of the reading of ``memory.available``, such as ``MemAvailable``; empty for the formula; the
            limit if a cgroup above the pods decides, to which all values then refer instead of the machine.
        difference: the estimates and the largest parts of their difference; empty with one estimate.
        evidence: signs of a shortage; they decide whether the lower estimate is used alone.
        disputed: thresholds that only one of the estimates meets, without evidence for this estimate.
        parts: all parts; their sum is the memory of the node.
        kept_by_evictions_bytes: used memory that no eviction of a pod frees; ``None`` if the memory of the pods is
            unknown.
        reserve_bytes: free memory that the kernel reserves; ``None`` if unknown.
        locked_bytes: memory locked by mlock, contained in other parts.
    """

    formula_bytes: Number | None
    kernel_bytes: Number | None
    estimate: str
    difference: str
    evidence: tuple[memory_model.MemoryEvidence, ...]
    disputed: tuple[str, ...]
    parts: tuple[MemoryAmount, ...]
    kept_by_evictions_bytes: int | None
    reserve_bytes: int | None
    locked_bytes: int

    @classmethod
    def of(cls, memory: NodeMemory, counters: MemoryCounters, evaluation: Evaluation) -> Memory:
        """Return the document form of a reading with its counters."""
        return cls(
            formula_bytes=memory.formula,
            kernel_bytes=memory.kernel_available,
            estimate=memory_model.estimate_memory(memory).basis,
            difference=memory_model.explain_difference(memory),
            evidence=tuple(sorted(memory_model.find_evidence(memory))),
            disputed=tuple(each.threshold.text for each in evaluation.statuses if memory_model.is_disputed(each)),
            parts=tuple(MemoryAmount(name=name, size_bytes=size) for name, size in memory_model.memory_parts(counters)),
            kept_by_evictions_bytes=memory_model.kept_by_evictions(counters),
            reserve_bytes=None if memory.limited_by else counters.reserve_free,
            locked_bytes=counters.locked,
        )


class Pressure(Document, frozen=True, kw_only=True, tag=SchemaId.PRESSURE.value):
    """The node's signals against their thresholds.

    Attributes:
        unrelieved: statements on shortages that no eviction ends; empty without a daemon.
        memory: parts of the memory; ``None`` if they cannot be read.
        outlook: outlook of each resource; absent in the response of an older daemon.
    """

    layout: str
    conditions: tuple[str, ...]
    unrelieved: tuple[str, ...] = ()
    signals: tuple[SignalDocument, ...]
    warnings: tuple[str, ...]
    memory: Memory | None = None
    outlook: tuple[OutlookDocument, ...] = ()

    @classmethod
    def of(
        cls,
        layout: SignalLayout,
        readings: SignalReadings,
        evaluation: Evaluation,
        warnings: Sequence[str],
        earlier: SignalReadings | None = None,
    ) -> Pressure:
        """Return the document of the current readings, with their changes since the readings ``earlier``."""
        return cls(
            layout=layout.layout.value,
            conditions=tuple(each.condition.value for each in evaluation.conditions if each.active),
            unrelieved=tuple(each.text for each in evaluation.state.unrelieved.values()),
            signals=tuple(SignalDocument.of(each, evaluation, earlier) for each in readings.observations),
            warnings=tuple(warnings),
            memory=_memory(readings, evaluation),
        )


def _memory(readings: SignalReadings, evaluation: Evaluation) -> Memory | None:
    memory = next((each.memory for each in readings.observations if each.memory is not None), None)
    if memory is None or memory.counters is None:
        return None
    return Memory.of(memory, memory.counters, evaluation)


def change_per_s(reading: pressure.SignalReading, earlier: SignalReadings | None) -> float | None:
    """Return the change of a signal per second since its earlier reading; ``None`` without an earlier reading."""
    observations = earlier.observations if earlier else ()
    before = next((each for each in observations if each.measurand == reading.measurand), None)
    if before is None:
        return None
    passed_s = reading.observed_at.monotonic_s - before.observed_at.monotonic_s
    return (reading.available - before.available) / passed_s if passed_s > 0 else None


class FactDocument(Part, frozen=True, kw_only=True):
    """A fact about a pod and its source; the value is ``None`` if the source is ``missing``."""

    value: bool | int | float | str | None
    source: str

    @classmethod
    def of(cls, fact: pressure.Fact[object]) -> FactDocument:
        """Return the document form of a fact."""
        value = fact.value
        shown = value if value is None or isinstance(value, bool | int | float | str) else str(value)
        return cls(value=shown, source=fact.source.value)


class PodFactsDocument(Part, frozen=True, kw_only=True):
    """The facts about a pod that are relevant for eviction."""

    priority: FactDocument
    qos: FactDocument
    static: FactDocument
    mirror: FactDocument
    critical: FactDocument
    memory_request_bytes: FactDocument
    ephemeral_request_bytes: FactDocument
    termination_grace_s: FactDocument
    priority_class: str
    contradictions: tuple[str, ...]

    @classmethod
    def of(cls, pod: pressure.PodFacts) -> PodFactsDocument:
        """Return the document form of a pod's facts."""
        values = ((name, getattr(pod, name)) for name in cls.__struct_fields__)
        facts = {name: FactDocument.of(value) for name, value in values if isinstance(value, pressure.Fact)}
        return cls.from_value(pod, **facts)


class RankedPodUsage(Part, frozen=True, kw_only=True):
    """A pod with its usage; unknown values are ``None``.

    Attributes:
        rank: place in the eviction order for the signal of the document, from 1.
        frees: amount that returns to the signal if the pod is evicted, in the unit of the signal.
        frees_at_least: whether the measurement of ``frees`` is incomplete.
        kept_because: reason to keep the pod; ``None`` for an evictable pod.
    """

    rank: int
    uid: str
    namespace: str
    name: str
    memory_bytes: int | None
    memory_request_bytes: int | None
    pids: int | None
    writable_bytes: int | None
    logs_bytes: int | None
    volumes_bytes: int | None
    frees: Number | None = None
    frees_at_least: bool = False
    kept_because: ReasonDocument | None
    facts: PodFactsDocument

    @classmethod
    def of(cls, ranked: RankedPod, kept: decision.Reason | None) -> RankedPodUsage:
        """Return the document form of a ranked pod with the reason to keep it."""
        pod, usage = ranked.pod, ranked.pod.usage
        return cls.from_value(
            pod,
            rank=ranked.rank,
            frees=ranked.frees,
            frees_at_least=ranked.frees_at_least,
            memory_bytes=usage.memory_bytes if usage else None,
            memory_request_bytes=pod.memory_request_bytes.value,
            pids=usage.pids if usage else None,
            writable_bytes=usage.writable.used_bytes if usage else None,
            logs_bytes=usage.logs.used_bytes if usage else None,
            volumes_bytes=usage.volumes.used_bytes if usage else None,
            kept_because=None if kept is None else ReasonDocument.of(kept),
            facts=PodFactsDocument.of(pod),
        )


class PodUsageDocument(Document, frozen=True, kw_only=True, tag=SchemaId.POD_USAGE.value):
    """The pods with their usage, in eviction order.

    Attributes:
        signal: signal of the shortage for which the pods are ranked; ``memory.available`` without a shortage.
    """

    observed_at: Time
    signal: pressure.Signal = pressure.Signal.MEMORY_AVAILABLE
    pods: tuple[RankedPodUsage, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls,
        order: Iterable[tuple[RankedPod, decision.Reason | None]],
        *,
        signal: pressure.Signal,
        observed_at: datetime,
        warnings: Iterable[str],
    ) -> PodUsageDocument:
        """Return the document of the pods in eviction order for a signal; see ``eviction_order``."""
        return cls(
            observed_at=observed_at,
            signal=signal,
            pods=tuple(RankedPodUsage.of(ranked, kept) for ranked, kept in order),
            warnings=tuple(warnings),
        )


class ThresholdStatusDocument(Part, frozen=True, kw_only=True):
    """The state of one threshold; readings are ``None`` without an accepted reading of the signal.

    Attributes:
        mountpoint: mount point of an additional filesystem; empty for all other signals.
        limited_by: limit of a cgroup above the pods that bounds ``available`` or ``capacity``; empty without one.
    """

    threshold: str
    signal: str
    hard: bool
    grace_period_s: Number
    available: Number | None
    capacity: Number | None
    limit: Number | None
    observed_at: Time | None
    met: bool
    held_s: Number
    acting: bool
    mountpoint: str = ""
    limited_by: str = ""

    @classmethod
    def of(cls, status: ThresholdStatus) -> ThresholdStatusDocument:
        """Return the document form of a threshold's state."""
        reading = status.observation
        return cls.from_value(
            status,
            threshold=status.threshold.text,
            signal=status.threshold.signal.value,
            hard=status.threshold.hard,
            grace_period_s=status.threshold.grace_s,
            available=None if reading is None else reading.available,
            capacity=None if reading is None else reading.capacity,
            observed_at=None if reading is None else reading.observed_at.at,
            held_s=round(status.met_for_s, 3),
            mountpoint=status.threshold.measurand.path,
            limited_by="" if reading is None else reading.limited_by,
        )


class RankedPodEntry(Part, frozen=True, kw_only=True):
    """A pod's place in the eviction order, with its usage, request and priority.

    Attributes:
        usage: usage of ``resource``; ``None`` if unreadable.
        assumed: facts that were inferred or assumed, as text.
        reason: code of the decision on the pod.
    """

    rank: int
    uid: str
    name: str
    resource: str
    usage: int | None
    request: int
    excess: int | None
    priority: int
    assumed: tuple[str, ...]
    memory_bytes: int | None
    pids: int | None
    reason: str
    facts: PodFactsDocument

    @classmethod
    def of(cls, ranked: RankedPod, reason: decision.Reason) -> RankedPodEntry:
        """Return the document form of a ranked pod."""
        pod, usage = ranked.pod, ranked.pod.usage
        return cls.from_value(
            ranked,
            uid=pod.uid,
            name=f"{pod.namespace}/{pod.name}",
            resource=ranked.resource.value,
            memory_bytes=None if usage is None else usage.memory_bytes,
            pids=None if usage is None else usage.pids,
            reason=reason.code.value,
            facts=PodFactsDocument.of(pod),
        )


class PodDecision(Part, frozen=True, kw_only=True):
    """The decision on one pod."""

    uid: str
    name: str
    verdict: str
    reason: ReasonDocument


class EvictionPlanDocument(Part, frozen=True, kw_only=True):
    """The plan of an eviction pass.

    Attributes:
        threshold: the selected threshold; ``None`` without one.
        reclaim: node-level reclaim before any eviction.
        withheld: reason for not acting on a met threshold; ``None`` otherwise.
        victim: UID of the evicted pod; ``None``, like ``grace_s`` and ``message``, if no pod is evicted.
        ranking: the ranked pods, in eviction order.
        decisions: the decision on every pod.
        blocked: reason for a plan without decisions; empty normally.
    """

    threshold: ThresholdStatusDocument | None
    reclaim: tuple[str, ...]
    withheld: ReasonDocument | None
    victim: str | None
    grace_s: Number | None
    message: str | None
    ranking: tuple[RankedPodEntry, ...]
    decisions: tuple[PodDecision, ...]
    blocked: str
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, plan: planner.EvictionPlan) -> EvictionPlanDocument:
        """Return the document form of a plan."""
        return cls(**_plan_fields(plan))


def _plan_fields(plan: planner.EvictionPlan) -> dict[str, Any]:
    by_uid = {each.id: each for each in plan.plan.decisions}
    victim = plan.victim
    return {
        "threshold": None if plan.selected is None else ThresholdStatusDocument.of(plan.selected),
        "reclaim": tuple(step.text for step in plan.reclaim),
        "withheld": None if plan.waiting is None else ReasonDocument.of(plan.waiting),
        "victim": None if victim is None else victim.pod.uid,
        "grace_s": None if victim is None else victim.grace_s,
        "message": None if victim is None else victim.message,
        "ranking": tuple(RankedPodEntry.of(each, by_uid[each.pod.uid].reason) for each in plan.ranking),
        "decisions": tuple(
            PodDecision(uid=each.id, name=each.name, verdict=each.verdict.value, reason=ReasonDocument.of(each.reason))
            for each in plan.plan.decisions
        ),
        "blocked": plan.plan.blocked,
        "warnings": plan.plan.warnings,
    }


class EvictionRecordDocument(EvictionPlanDocument, frozen=True, kw_only=True):
    """Record of an eviction in the history: its plan and its outcome.

    Attributes:
        signal: signal of the met threshold, or exceeded storage limit.
        hurried: whether the grace period was shortened.
        available_before: available amount at the decision; ``None`` for a storage limit, as for ``available_after``.
        gained: increase of the available amount; ``None`` if a reading is missing.
    """

    signal: str
    outcome: str
    hurried: bool
    available_before: Number | None
    available_after: Number | None
    gained: Number | None

    @classmethod
    def of_record(cls, record: actions.EvictionRecord, outcome: str) -> EvictionRecordDocument:
        """Return the document form of a record."""
        before, after = record.before, record.after
        return cls(
            **_plan_fields(record.plan),
            signal=record.eviction.signal,
            outcome=outcome,
            hurried=record.result is not None and record.result.hurried,
            available_before=before,
            available_after=after,
            gained=None if before is None or after is None else after - before,
        )


class RecordedThreshold(Part, frozen=True, kw_only=True):
    """The printed fields of a recorded eviction's threshold."""

    threshold: str
    capacity: Number | None = None


class RecordedRank(Part, frozen=True, kw_only=True):
    """The printed fields of a ranked pod in a recorded eviction."""

    rank: int
    name: str
    usage: int | None = None
    request: int = 0
    priority: int = 0
    reason: str = ""


class RecordedEviction(Part, frozen=True, kw_only=True):
    """The printed fields of an eviction record. An older version may have written fewer fields."""

    threshold: RecordedThreshold | None = None
    ranking: tuple[RecordedRank, ...] = ()
    available_before: Number | None = None
    available_after: Number | None = None

    @classmethod
    def of(cls, record: dict[str, Any]) -> RecordedEviction:
        """Decode the eviction record of a pass in the history.

        Raises:
            DocumentError: a field has a value of the wrong type.
        """
        try:
            return msgspec.convert(record, cls)
        except msgspec.ValidationError as error:
            raise DocumentError(f"cannot decode eviction record: {error}") from error


class EvictionPreview(Document, frozen=True, kw_only=True, tag=SchemaId.EVICTION_PREVIEW.value):
    """Preview of the next eviction, by current or by simulated readings.

    Attributes:
        simulated: simulated readings from the command line.
        reclaim_first: node-level reclaim before ``plan``.
        reclaim_threshold: the threshold of ``reclaim_first``; empty without such a step.
        pods: facts by pod UID.
        pod_memory_bytes: working set by pod UID; ``None`` if unknown.
        outlook: outlook of each resource by its recorded readings; empty if readings are simulated.
    """

    simulated: tuple[str, ...]
    daemon_evicts: bool
    daemon_off_because: str
    thresholds: tuple[ThresholdStatusDocument, ...]
    conditions: tuple[str, ...]
    reclaim_first: tuple[str, ...]
    plan: EvictionPlanDocument
    pods: dict[str, PodFactsDocument]
    pod_memory_bytes: dict[str, int | None]
    outlook: tuple[OutlookDocument, ...] = ()
    warnings: tuple[str, ...]
    reclaim_threshold: str = ""

    @classmethod
    def of(  # noqa: PLR0913 - the parts of the document
        cls,
        evaluation: Evaluation,
        first: planner.EvictionPlan,
        then: planner.EvictionPlan,
        pods: Iterable[pressure.PodFacts],
        *,
        simulated: Iterable[str],
        disabled_because: str,
        warnings: Iterable[str],
    ) -> EvictionPreview:
        """Return the document of a preview: ``first`` with its reclaim steps, ``then`` after insufficient reclaim."""
        facts = tuple(pods)
        return cls(
            simulated=tuple(simulated),
            daemon_evicts=not disabled_because,
            daemon_off_because=disabled_because,
            thresholds=tuple(map(ThresholdStatusDocument.of, evaluation.statuses)),
            conditions=tuple(each.condition.value for each in evaluation.conditions if each.active),
            reclaim_first=tuple(step.text for step in first.reclaim),
            reclaim_threshold=first.selected.threshold.text if first.reclaim and first.selected is not None else "",
            plan=EvictionPlanDocument.of(then),
            pods={each.uid: PodFactsDocument.of(each) for each in facts},
            pod_memory_bytes={each.uid: each.usage.memory_bytes if each.usage is not None else None for each in facts},
            warnings=tuple(warnings),
        )
