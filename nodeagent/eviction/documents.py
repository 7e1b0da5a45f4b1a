"""Documents of eviction: the plan of a pass, its record in the history, and the preview."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from nodeagent.api.common import Document, DocumentError, Number, Part, ReasonDocument
from nodeagent.eviction.pressure_documents import PodFactsDocument
from nodeagent.record import Time
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.eviction import actions
    from nodeagent.eviction.plan import planner
    from nodeagent.eviction.plan.ranking import RankedPod
    from nodeagent.eviction.plan.state import Evaluation
    from nodeagent.eviction.plan.thresholds import ThresholdStatus as ThresholdState
    from nodeagent.model import decision, pressure


class ThresholdStatusDocument(Part, frozen=True, kw_only=True):
    """The state of one threshold; readings are ``None`` without an accepted reading of the signal.

    Attributes:
        mountpoint: mount point of an additional image filesystem; empty for all other signals.
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

    @classmethod
    def of(cls, status: ThresholdState) -> ThresholdStatusDocument:
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
        pods: facts by pod UID.
        pod_memory_bytes: working set by pod UID; ``None`` if unknown.
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
    warnings: tuple[str, ...]

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
            plan=EvictionPlanDocument.of(then),
            pods={each.uid: PodFactsDocument.of(each) for each in facts},
            pod_memory_bytes={each.uid: each.usage.memory_bytes if each.usage is not None else None for each in facts},
            warnings=tuple(warnings),
        )
