"""Which pod goes, or what comes before any does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import Resource
from nodeagent.plan.decision import NO_FAILURES, Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.plan.eviction.local_storage import find_violation
from nodeagent.plan.eviction.message import limit_message, offenders, pressure_message
from nodeagent.plan.eviction.protection import Protection
from nodeagent.plan.eviction.ranking import rank_pods
from nodeagent.plan.eviction.reclaim import reclaim_steps
from nodeagent.plan.eviction.selected_threshold import select_threshold
from nodeagent.plan.eviction.signals import MEANINGS
from nodeagent.plan.eviction.state import recent_evictions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from nodeagent.model.pressure import FilesystemLayout, Moment, Observation, PodFacts
    from nodeagent.plan.decision import Detail
    from nodeagent.plan.eviction.local_storage import Violation
    from nodeagent.plan.eviction.message import Offender
    from nodeagent.plan.eviction.policy import EvictionPolicy
    from nodeagent.plan.eviction.ranking import RankedPod
    from nodeagent.plan.eviction.reclaim import ReclaimStep
    from nodeagent.plan.eviction.selected_threshold import SelectedThreshold
    from nodeagent.plan.eviction.state import Evaluation, ThresholdStatus
    from nodeagent.plan.eviction.thresholds import Threshold

DEFAULT_TERMINATION_GRACE_S: Final = 30.0
"""What a pod that does not say asks for. Source: Kubernetes ``terminationGracePeriodSeconds``."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """The one pod to evict.

    Attributes:
        signal: the signal, or the storage limit, as the kubelet labels its metric.
        starved: what is short.
        status: the threshold acted on, with the reading decided by; ``None`` for a storage limit.
        ranked: its place and numbers; ``None`` for a storage limit.
        grace_s: how long its containers have to end; 0 for none.
        message: for the pod's status, in the kubelet's form.
        offenders: its containers above their request.
    """

    pod: PodFacts
    reason: Reason
    signal: str
    starved: Resource
    status: ThresholdStatus | None
    ranked: RankedPod | None
    grace_s: float
    message: str
    offenders: tuple[Offender, ...] = ()


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What a pass is to do.

    Attributes:
        plan: exactly one decision for each pod: the evicted one first, then by rank, then by UID.
        cause: the threshold acted on; ``None`` if none is, or a storage limit comes first.
        reclaim: what to run on the node now, in order. Measure again after each, and plan again with it named among
            what was reclaimed; no pod goes before that.
        pods_may_be_chosen: whether pods could be chosen now. There may be no victim all the same.
        ranking: all pods that could be ranked for the cause, protected ones too.
        victim: the one pod to evict, if any.
        withheld: reason that another met threshold is not acted on: an effect is outstanding.
    """

    plan: Plan
    cause: ThresholdStatus | None = None
    reclaim: tuple[ReclaimStep, ...] = ()
    pods_may_be_chosen: bool = False
    ranking: tuple[RankedPod, ...] = ()
    victim: Eviction | None = None
    withheld: Reason | None = None


def plan_eviction(  # noqa: PLR0913 - what one pass carries from round to round
    evaluation: Evaluation,
    pods: Iterable[PodFacts],
    policy: EvictionPolicy,
    *,
    layout: FilesystemLayout,
    now: Moment,
    observations: Iterable[Observation] | None = None,
    reclaimed: AbstractSet[ReclaimStep] = frozenset(),
    set_aside: Mapping[str, str] = NO_FAILURES,
) -> EvictionPlan:
    """Choose at most one pod to evict; neither the order of pods nor that of thresholds matters.

    First come pods over their own storage limits: lower priority first, then more above the limit. Then the most
    urgent threshold that is acted on and has a resource, if by the latest readings it is still met: the node gives
    back what it can, and only then the pod goes that ranks first of those that may go. A threshold that
    by a later reading came back, by its minimum reclaim if anything was reclaimed for it, gives way to the next.

    Unlike the kubelet, one pod at most goes for storage limits too; a pod is not evicted for one threshold because
    another is still met; and a reading that has grown too old by ``now`` decides nothing. While the effect of an
    earlier eviction or reclaim is outstanding, the same shortage is not acted on; a threshold on another one is.

    Args:
        evaluation: what the pass found; its state counts against the limit of evictions and has the outstanding
            effects.
        pods: all pods of the node; facts that are missing or contradictory keep a pod.
        policy: what is protected, graces and limits.
        layout: which filesystems are one.
        now: the instant of this decision, after the latest readings.
        observations: readings taken after those evaluated; ``None`` to decide by the latter.
        reclaimed: what was already run on the node in this pass.
        set_aside: pod UID to why it could not be evicted earlier in this pass.

    Source: kubelet ``synchronize``, from local storage eviction on, and ``evictPod``.
    """
    listed = sorted(dict.fromkeys(pods), key=lambda pod: (pod.uid, pod.namespace, pod.name))
    pass_ = _Pass(evaluation, listed, policy, layout, now, set_aside)
    over = pass_.over_their_limits()
    if over and pass_.limited is None:
        return pass_.evict_for_limit(*over[0])
    cause = select_threshold(evaluation, observations, policy, layout=layout, now=now, reclaimed=reclaimed)
    return pass_.act_on(cause, reclaimed)


def effective_grace_s(threshold: Threshold | None, pod: PodFacts, policy: EvictionPolicy) -> float:
    """Return the seconds a victim's containers have to end; ``None`` stands for a storage limit.

    Source: kubelet ``synchronize``: ``immediateEvictionGracePeriodSeconds``, ``MaxPodGracePeriodSeconds``.
    """
    if threshold is None or threshold.hard:
        return policy.hard_grace_s
    own_s, cap_s = pod.termination_grace_s.value, policy.max_pod_grace_s
    if own_s is None:
        return cap_s if cap_s > 0 else DEFAULT_TERMINATION_GRACE_S
    return min(own_s, cap_s) if cap_s > 0 else own_s


class _Pass:
    """The pods of one pass and what keeps each."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of one pass
        self,
        evaluation: Evaluation,
        pods: list[PodFacts],
        policy: EvictionPolicy,
        layout: FilesystemLayout,
        now: Moment,
        set_aside: Mapping[str, str],
    ) -> None:
        self._evaluation = evaluation
        self._pods = pods
        self._policy = policy
        self._layout = layout
        self._now = now
        self._protection = Protection(pods, policy)
        self._set_aside = set_aside
        self._kept = {id(pod): reason for pod in pods if (reason := self._why_kept(pod)) is not None}
        self.limited = self._limit_reached()

    def over_their_limits(self) -> list[tuple[PodFacts, Violation]]:
        """Return the pods that may go and exceed their own storage limits, the first to go first."""
        if not self._policy.local_storage_isolation:
            return []
        found = [
            (pod, violation)
            for pod in self._pods
            if id(pod) not in self._kept and (violation := find_violation(pod, self._layout)) is not None
        ]
        return sorted(found, key=lambda each: (each[0].priority.value or 0, -each[1].excess_bytes, each[0].uid))

    def evict_for_limit(self, pod: PodFacts, violation: Violation) -> EvictionPlan:
        """Return the plan that evicts a pod for its own limit."""
        victim = Eviction(
            pod=pod,
            reason=violation.reason,
            signal=violation.limit.value,
            starved=Resource.EPHEMERAL_STORAGE,
            status=None,
            ranked=None,
            grace_s=effective_grace_s(None, pod, self._policy),
            message=limit_message(violation),
        )
        others = Reason(ReasonCode.ANOTHER_POD_EVICTED, {"victim": _name(pod)})
        decisions = [
            Decision(ItemKind.POD, pod.uid, _name(pod), Verdict.REMOVE, victim.reason, violation.usage_bytes),
            *(self._keep(each, others) for each in self._pods if each is not pod),
        ]
        return EvictionPlan(self._plan(decisions), pods_may_be_chosen=True, victim=victim)

    def act_on(self, cause: SelectedThreshold, reclaimed: AbstractSet[ReclaimStep]) -> EvictionPlan:
        """Return the plan that reclaims for a cause, or evicts, or does neither."""
        status = cause.status
        if status is None:
            decisions = [self._keep(pod, cause.reason) for pod in self._pods]
            return EvictionPlan(self._plan(decisions, blocked=cause.blocked), withheld=cause.withheld)
        signal = status.threshold.signal
        steps = tuple(step for step in reclaim_steps(signal, self._layout) if step not in reclaimed)
        ranking = rank_pods(self._pods, signal, self._layout)
        everyone = self.limited
        if steps:
            texts = tuple(step.text for step in steps)
            everyone = Reason(ReasonCode.RECLAIM_FIRST, {"threshold": status.threshold.text, "steps": texts})
        if everyone is not None:
            decisions = [self._keep(pod, everyone) for pod in self._by_rank(ranking)]
            return EvictionPlan(self._plan(decisions), status, steps, ranking=ranking, withheld=cause.withheld)
        return replace(self._choose(status, cause.reason, ranking), withheld=cause.withheld)

    def _choose(self, status: ThresholdStatus, reason: Reason, ranking: tuple[RankedPod, ...]) -> EvictionPlan:
        """Return the plan that evicts the first in the ranking that may go."""
        kept = self._kept | {
            id(each.pod): why
            for each in ranking
            if id(each.pod) not in self._kept and (why := self._protection.why_unmeasured(each)) is not None
        }
        first = next((each for each in ranking if id(each.pod) not in kept), None)
        ranked_by_pod = {id(each.pod): each for each in ranking}
        victim = None if first is None else self._victim(status, reason, first)
        decisions, warnings = [], []
        for pod in self._by_rank(ranking):
            ranked = ranked_by_pod.get(id(pod))
            if ranked is None or id(pod) in kept:
                decisions.append(self._keep(pod, kept.get(id(pod), reason)))
            elif victim is not None and ranked is first:
                decisions.insert(0, _decide(ranked, Verdict.REMOVE, victim.reason))
            else:
                later = Reason(ReasonCode.RANKED_LATER, {**_numbers(ranked), "of": len(ranking)})
                decisions.append(_decide(ranked, Verdict.KEEP, later))
        if victim is None:
            warnings.append(f"{status.threshold.text} is met, and no pod may be evicted")
        plan = self._plan(decisions, warnings)
        return EvictionPlan(plan, status, pods_may_be_chosen=True, ranking=ranking, victim=victim)

    def _victim(self, status: ThresholdStatus, reason: Reason, ranked: RankedPod) -> Eviction:
        over = offenders(ranked.pod, ranked.resource)
        return Eviction(
            pod=ranked.pod,
            reason=Reason(reason.code, {**reason.details, **_numbers(ranked)}),
            signal=status.threshold.signal.value,
            starved=ranked.resource,
            status=status,
            ranked=ranked,
            grace_s=effective_grace_s(status.threshold, ranked.pod, self._policy),
            message=pressure_message(status, ranked.resource, over),
            offenders=over,
        )

    def _why_kept(self, pod: PodFacts) -> Reason | None:
        if pod.uid in self._set_aside:
            return Reason(ReasonCode.FAILED_EARLIER, {"detail": self._set_aside[pod.uid]})
        effects = self._evaluation.state.outstanding
        if any(each.uid == pod.uid and self._now.monotonic_s < each.until_s for each in effects):
            return Reason(ReasonCode.BEING_EVICTED)
        return self._protection.why_kept(pod)

    def _limit_reached(self) -> Reason | None:
        limit, window_s = self._policy.max_evictions_per_window, self._policy.eviction_window_s
        count = len(recent_evictions(self._evaluation.state, self._policy, self._now))
        if not 0 < limit <= count:
            return None
        return Reason(ReasonCode.EVICTION_LIMIT, {"count": count, "window_s": window_s, "limit": limit})

    def _keep(self, pod: PodFacts, otherwise: Reason) -> Decision:
        """Return the decision to keep a pod, for a reason of its own if it has one."""
        reason = self._kept.get(id(pod), otherwise)
        verdict = Verdict.FAILED if reason.code is ReasonCode.FAILED_EARLIER else Verdict.KEEP
        return Decision(ItemKind.POD, pod.uid, _name(pod), verdict, reason)

    def _by_rank(self, ranking: tuple[RankedPod, ...]) -> list[PodFacts]:
        """Return all pods, those ranked first and in their order."""
        ranks = {id(each.pod): each.rank for each in ranking}
        return sorted(self._pods, key=lambda pod: ranks.get(id(pod), len(ranking) + 1))

    def _plan(self, decisions: Iterable[Decision], warnings: Iterable[str] = (), *, blocked: str = "") -> Plan:
        listed = tuple(decisions)
        return Plan("pods", self._now.at, listed, warnings=(*self._warnings(), *warnings), blocked=blocked)

    def _warnings(self) -> Iterator[str]:
        yield from (refusal.sentence for refusal in self._evaluation.refusals)
        for status in self._evaluation.acting:
            if MEANINGS[status.threshold.signal].resource is None:
                yield f"{status.threshold.text} is met, but no pod is evicted for it"
        if self.limited is not None:
            yield f"no pod is evicted: {self.limited.sentence}"


def _decide(ranked: RankedPod, verdict: Verdict, reason: Reason) -> Decision:
    """Return a decision on a pod, with what its eviction gives back where that is space or inodes."""
    usage, resource = ranked.usage, ranked.resource
    frees_bytes = usage if resource in {Resource.MEMORY, Resource.EPHEMERAL_STORAGE} else None
    frees_inodes = usage if resource is Resource.INODES else None
    pod = ranked.pod
    return Decision(ItemKind.POD, pod.uid, _name(pod), verdict, reason, frees_bytes, frees_inodes)


def _numbers(ranked: RankedPod) -> dict[str, Detail]:
    return {**ranked.details, "measure": ranked.measure, "note": ranked.note}


def _name(pod: PodFacts) -> str:
    return f"{pod.namespace}/{pod.name}"
