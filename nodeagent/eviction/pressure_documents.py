"""Documents of the eviction signals against their thresholds, and of pods: facts, and usage in eviction order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from nodeagent.api.common import Document, Number, Part, ReasonDocument
from nodeagent.eviction.plan import memory_model
from nodeagent.model import decision, pressure
from nodeagent.model.pressure import MemoryCounters, MemoryPart, NodeMemory
from nodeagent.record import Time
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.eviction.plan.ranking import RankedPod
    from nodeagent.eviction.plan.state import Evaluation
    from nodeagent.eviction.plan.thresholds import ThresholdStatus
    from nodeagent.eviction.signals import SignalLayout, SignalReadings


class ThresholdDocument(Part, frozen=True, kw_only=True):
    """A threshold of a signal.

    Attributes:
        value: the threshold quantity; ``None`` without an accepted reading.
        distance: distance of the reading from ``value``, negative once the threshold is met; ``None`` without a value.
    """

    text: str
    value: Number | None
    met: bool
    distance: Number | None

    @classmethod
    def of(cls, status: ThresholdStatus, available: float) -> ThresholdDocument:
        """Return the document form of a threshold; ``available`` is the reading of its signal."""
        limit = status.limit
        distance = None if limit is None else abs(available - limit) * (-1 if status.met else 1)
        return cls(text=status.threshold.text, value=limit, met=status.met, distance=distance)


class SignalDocument(Part, frozen=True, kw_only=True):
    """One reading of a signal.

    Attributes:
        available: amount in bytes, inodes or PIDs, as ``capacity``; for stall signals the percent of time stalled.
        change_per_s: change per second since the previous reading; ``None`` for the first reading.
        mountpoint: mount point of an additional image filesystem; empty for all other signals.
    """

    signal: pressure.Signal
    available: Number
    capacity: Number
    observed_at: Time
    change_per_s: Number | None
    thresholds: tuple[ThresholdDocument, ...]
    mountpoint: str = ""

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
        estimate: content of the reading of ``memory.available``, such as ``MemAvailable``; empty for the formula.
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
            reserve_bytes=counters.reserve_free,
            locked_bytes=counters.locked,
        )


class Pressure(Document, frozen=True, kw_only=True, tag=SchemaId.PRESSURE.value):
    """The node's signals against their thresholds.

    Attributes:
        unrelieved: statements on shortages that no eviction ends; empty without a daemon.
        memory: parts of the memory; ``None`` if they cannot be read.
    """

    layout: str
    conditions: tuple[str, ...]
    unrelieved: tuple[str, ...] = ()
    signals: tuple[SignalDocument, ...]
    warnings: tuple[str, ...]
    memory: Memory | None = None

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
        rank: place in the eviction order under memory pressure, from 1.
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
    kept_because: ReasonDocument | None
    facts: PodFactsDocument

    @classmethod
    def of(cls, ranked: RankedPod, kept: decision.Reason | None) -> RankedPodUsage:
        """Return the document form of a ranked pod with the reason to keep it."""
        pod, usage = ranked.pod, ranked.pod.usage
        return cls.from_value(
            pod,
            rank=ranked.rank,
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
    """The pods with their usage, in eviction order under memory pressure."""

    observed_at: Time
    pods: tuple[RankedPodUsage, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls,
        order: Iterable[tuple[RankedPod, decision.Reason | None]],
        *,
        observed_at: datetime,
        warnings: Iterable[str],
    ) -> PodUsageDocument:
        """Return the document of the pods in eviction order; see ``eviction_order``."""
        return cls(
            observed_at=observed_at,
            pods=tuple(RankedPodUsage.of(ranked, kept) for ranked, kept in order),
            warnings=tuple(warnings),
        )
