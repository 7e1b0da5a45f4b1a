"""Eviction plan of one pass: the threshold, its reclaim steps or the pod to evict, and a reason for every other pod."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set as AbstractSet
from typing import Final

from nodeagent.eviction.plan.effects import (
    OutstandingEffect,
    Unrelieved,
    drives_shortage,
    measure_growth,
    no_relief_reasons,
    unrelieved,
    withholding,
)
from nodeagent.eviction.plan.memory_model import is_cache_in_use
from nodeagent.eviction.plan.policy import EvictionPolicy, Protection
from nodeagent.eviction.plan.ranking import (
    Eviction,
    LimitCheck,
    RankedPod,
    RankingInput,
    estimate_note,
    format_reading,
    not_there_reason,
    offenders,
    pressure_message,
    rank_over_limits,
    rank_pods,
    unread_reason,
)
from nodeagent.eviction.plan.reclaim import ReclaimStep, reclaim_steps, shortage_of
from nodeagent.eviction.plan.state import Evaluation, limit_reached
from nodeagent.eviction.plan.thresholds import MEANINGS, Threshold, ThresholdStatus, ValidatedReadings, validate
from nodeagent.model import pressure
from nodeagent.model.decision import NO_FAILURES, Decision, Detail, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.record import Record, replace


class SelectedThreshold(Record):
    """The threshold that a pass acts on.

    Attributes:
        reason: reason to evict a pod for the threshold; without a selected threshold, reason to keep all pods.
        status: the selected threshold with its latest reading; ``None`` without a selected threshold.
        blocked: cause why the pass cannot decide, a rejected reading; empty otherwise.
        waiting: reason why no action is taken for a met threshold, with its outstanding effect; else ``None``.
        ineffective: reason to evict only pods that drive the shortage, an earlier eviction that freed too little; else
            ``None``.
    """

    reason: Reason
    status: ThresholdStatus | None = None
    blocked: str = ""
    waiting: Reason | None = None
    ineffective: Reason | None = None


def select_threshold(  # noqa: PLR0913 - one argument for each input of a pass
    evaluation: Evaluation,
    observations: Iterable[pressure.SignalReading] | None,
    policy: EvictionPolicy,
    *,
    layout: pressure.FilesystemLayout,
    now: pressure.Moment,
    reclaimed: AbstractSet[ReclaimStep],
    without_candidate: AbstractSet[Threshold] = frozenset(),
) -> SelectedThreshold:
    """Return the most urgent due threshold that has a resource, is still met, and has no outstanding effect.

    A threshold with an ineffective effect is returned with the reason to evict only pods that drive the shortage.
    Thresholds in ``without_candidate`` are skipped.

    Without newer readings, the evaluated readings are validated by their age at ``now``. If a reclaim step was run for
    the signal of a threshold, or the threshold was due in the last pass, only its minimum reclaim clears it.

    Source: kubelet ``getReclaimableThreshold``; ``reclaimNodeLevelResources`` for the comparison.
    """
    latest = [each.observation for each in evaluation.statuses if each.observation is not None]
    readings = validate(latest if observations is None else observations, now, policy.max_observation_age_s)
    skipped, waiting = [], None
    for status in evaluation.acting:
        resource = MEANINGS[status.threshold.signal].resource
        if resource is None or status.threshold in without_candidate:
            continue
        threshold = status.threshold
        steps = frozenset(reclaim_steps(threshold.signal, layout, threshold.filesystem))
        why_skipped = _skip_reason(status, readings, reclaimed=not steps.isdisjoint(reclaimed))
        if why_skipped is not None:
            skipped.append(why_skipped)
            continue
        shortage = shortage_of(threshold.signal, layout, threshold.filesystem)
        effect = withholding(evaluation.state.outstanding, shortage, now, threshold.measurand.path)
        if effect is not None and not effect.ineffective:
            waiting = waiting or _waiting(status, effect, now)
            continue
        current = _with_reading(status, readings.accepted[threshold.measurand])
        details = {**_details(current), "resource": resource.value}
        ineffective = None if effect is None or policy.always_evict else _waiting(status, effect, now)
        return SelectedThreshold(
            Reason(ReasonCode.LOW_ON_RESOURCE, details), current, waiting=waiting, ineffective=ineffective
        )
    rejected = next((each for each in skipped if each.code is ReasonCode.READING_REJECTED), None)
    if waiting is not None and rejected is None:
        return SelectedThreshold(waiting, waiting=waiting)
    if not skipped:
        return SelectedThreshold(_keep_all_reason(evaluation))
    return SelectedThreshold(rejected or skipped[0], blocked=rejected.sentence if rejected else "", waiting=waiting)


def _waiting(status: ThresholdStatus, effect: OutstandingEffect, now: pressure.Moment) -> Reason:
    """Return the reason why no action is taken for a met threshold: the outstanding effect and its remaining time."""
    code = ReasonCode.EVICTION_INEFFECTIVE if effect.ineffective else ReasonCode.EFFECT_OUTSTANDING
    left_s = max(0.0, effect.until_s - now.monotonic_s)
    return Reason(code, {"threshold": status.threshold.text, **effect.details, "left_s": left_s})


def _skip_reason(status: ThresholdStatus, readings: ValidatedReadings, *, reclaimed: bool) -> Reason | None:
    """Return the reason to skip a threshold by the latest readings; ``None`` to act on it."""
    threshold = status.threshold
    reading = readings.accepted.get(threshold.measurand)
    if reading is None:
        rejection = readings.rejected.get(threshold.measurand)
        detail = rejection.cause if rejection else f"{threshold.signal} not read again"
        return Reason(ReasonCode.READING_REJECTED, {"threshold": threshold.text, "detail": detail})
    with_reclaim = reclaimed or status.latched
    if threshold.met_by(reading.available, reading.capacity, with_reclaim=with_reclaim):
        return None
    code = ReasonCode.RECLAIM_SUFFICIENT if reclaimed else ReasonCode.NO_LONGER_MET
    return Reason(code, _details(_with_reading(status, reading)))


def _keep_all_reason(evaluation: Evaluation) -> Reason:
    """Return the reason to keep all pods in a pass without a selected threshold."""
    met = evaluation.met
    if not met:
        for status in evaluation.statuses:
            if status.rejection is not None:
                rejected = {"threshold": status.threshold.text, "detail": status.rejection.cause}
                return Reason(ReasonCode.READING_REJECTED, rejected)
        return Reason(ReasonCode.NO_THRESHOLD_MET)
    first = next((each for each in met if MEANINGS[each.threshold.signal].resource is not None), met[0])
    details: dict[str, Detail] = {"threshold": first.threshold.text}
    if not first.due:
        times = {"held_s": first.met_for_s, "grace_s": first.threshold.grace_s, "left_s": first.grace_left_s}
        return Reason(ReasonCode.GRACE_PERIOD_RUNNING, {**details, **times})
    if not first.acting:
        return Reason(ReasonCode.NO_NEW_READING, details)
    return Reason(ReasonCode.NOT_RELIEVED_BY_EVICTION, details)


def _with_reading(status: ThresholdStatus, reading: pressure.SignalReading) -> ThresholdStatus:
    """Return the status with a later reading and the limit for its capacity."""
    return replace(status, observation=reading, limit=status.threshold.limit(reading.capacity))


def _details(status: ThresholdStatus) -> dict[str, Detail]:
    """Return the threshold, its reading and its limit as details of a reason."""
    details: dict[str, Detail] = {"threshold": status.threshold.text}
    if status.observation is not None and status.limit is not None:
        available, capacity = status.observation.available, status.observation.capacity
        details |= {"available": available, "capacity": capacity, "limit": status.limit}
        shown = [format_reading(status, each) for each in (available, capacity, status.limit)]
        note = estimate_note(status.observation)
        details["reading"] = f"{shown[0]} of {shown[1]}, limit {shown[2]}{note}"
    return details


DEFAULT_TERMINATION_GRACE_S: Final = 30.0
"""Grace period in seconds if that of a pod is unknown. Source: Kubernetes ``terminationGracePeriodSeconds``."""


class EvictionPlan(Record):
    """Actions of one eviction pass, with the decision on every pod.

    Attributes:
        plan: exactly one decision for each pod: the evicted pod first, then the others by rank, then by UID.
        selected: the selected threshold; ``None`` if no threshold is selected or the eviction is for a storage limit.
        reclaim: steps of node-level reclaim to run now, in order. After each step the caller reads the signals and
            plans again with the step in ``reclaimed``; no pod is evicted before all steps are run.
        ranking: all pods ranked for the selected threshold, including protected pods.
        victim: the pod to evict; ``None`` if no pod is evicted.
        hindrance: reason why no pod is evicted at all: the limit of evictions, or an unknown growth; else ``None``.
        waiting: reason why no action is taken for another met threshold, with its outstanding effect; else ``None``.
        without_candidate: met thresholds for which no pod can be evicted now.
        unrelieved: statement if no eviction ends the shortage of the selected threshold; else ``None``.
    """

    plan: Plan
    selected: ThresholdStatus | None = None
    reclaim: tuple[ReclaimStep, ...] = ()
    ranking: tuple[RankedPod, ...] = ()
    victim: Eviction | None = None
    hindrance: Reason | None = None
    waiting: Reason | None = None
    without_candidate: frozenset[Threshold] = frozenset()
    unrelieved: Unrelieved | None = None

    def is_hindered_by(self, code: ReasonCode) -> bool:
        """Return whether no pod is evicted for this reason."""
        return self.hindrance is not None and self.hindrance.code is code


def plan_eviction(  # noqa: PLR0913 - one argument for each input of a pass
    evaluation: Evaluation,
    pods: Iterable[pressure.PodFacts] | None,
    policy: EvictionPolicy,
    *,
    layout: pressure.FilesystemLayout,
    now: pressure.Moment,
    observations: Iterable[pressure.SignalReading] | None = None,
    reclaimed: AbstractSet[ReclaimStep] = frozenset(),
    excluded: Mapping[str, str] = NO_FAILURES,
    without_candidate: AbstractSet[Threshold] = frozenset(),
    others: Collection[pressure.OtherFilesystem] = (),
    removes_volumes: bool = False,
) -> EvictionPlan:
    """Return a plan that evicts at most one pod, independent of the order of pods and thresholds.

    The plan selects the most urgent threshold that is due, has a resource to reclaim, is still met by the latest
    readings, and has no outstanding effect. Node-level reclaim for this threshold precedes the eviction of the first
    unprotected pod of the ranking whose eviction helps (:func:`no_relief_reasons`); after an eviction that freed too
    little, of the first pod that drives the shortage. The next threshold is selected if no pod can be evicted for the
    first. Without a victim, and before pods for a soft threshold, a pod over its own storage limit is evicted.

    Args:
        evaluation: status of the thresholds, with the recent evictions and the outstanding effects in its state.
        pods: all pods of the node; ``None`` to select a threshold only.
        policy: protected pods, grace periods and limits.
        layout: which filesystems share a device.
        others: the additional filesystems.
        now: time of this decision, after the latest readings.
        observations: readings newer than the evaluated readings; ``None`` to use the evaluated readings.
        reclaimed: steps already run in this pass.
        excluded: cause of the failure by pod UID, for pods with a failed eviction earlier in this pass.
        without_candidate: thresholds for which an earlier plan of this pass found no victim; not selected again.
        removes_volumes: whether an eviction also removes the volumes of the pod.

    Source: kubelet ``synchronize``, from local storage eviction on, and ``evictPod``.
    """
    placement = RankingInput(layout, others, removes_volumes=removes_volumes)
    planner = _Planner(evaluation, pods, policy, placement, now, excluded)
    passed_over = frozenset(without_candidate)
    first: EvictionPlan | None = None
    waiting: Reason | None = None
    while True:
        selected = select_threshold(
            evaluation, observations, policy, layout=layout, now=now, reclaimed=reclaimed, without_candidate=passed_over
        )
        plan = planner.act_on(selected, reclaimed)
        waiting = waiting or plan.waiting
        plan = replace(plan, waiting=waiting)
        threshold = None if selected.status is None else selected.status.threshold
        if threshold is None or not threshold.hard:
            for_limit = planner.evict_for_limit(plan)
            if for_limit is not None:
                return replace(for_limit, without_candidate=passed_over)
        first = first or plan
        if threshold is None or pods is None:
            return planner.report_suspended_limits(replace(first, waiting=waiting, without_candidate=passed_over))
        if plan.victim is not None or plan.reclaim or plan.is_hindered_by(ReasonCode.EVICTION_SLOWED):
            return replace(plan, without_candidate=passed_over)
        passed_over |= {threshold}


def shortage_signal(evaluation: Evaluation) -> pressure.Signal:
    """Return the signal of the most urgent met threshold that evictions can end; ``memory.available`` without one.

    A met threshold of an additional filesystem counts once it is due, since the pods are ranked by the usage of that
    filesystem only then.
    """
    on_roles = (each for each in evaluation.met if each.threshold.filesystem is None)
    signals = (each.threshold.signal for each in (*evaluation.acting, *on_roles))
    relieved = (each for each in signals if MEANINGS[each].resource is not None)
    return next(relieved, pressure.Signal.MEMORY_AVAILABLE)


def eviction_order(  # noqa: PLR0913 - one argument for each input of a pass
    evaluation: Evaluation,
    pods: Iterable[pressure.PodFacts],
    policy: EvictionPolicy,
    signal: pressure.Signal,
    *,
    layout: pressure.FilesystemLayout,
    now: pressure.Moment,
    others: Collection[pressure.OtherFilesystem] = (),
    removes_volumes: bool = False,
) -> tuple[tuple[RankedPod, Reason | None], ...]:
    """Return the unfinished pods in eviction order for a signal, each with the reason to keep it.

    The reason is ``None`` for a pod that a plan for this signal may evict. Pods whose eviction does not help are known
    only while a threshold of the signal is met. The arguments are those of :func:`plan_eviction`.
    """
    placement = RankingInput(layout, others, removes_volumes=removes_volumes)
    planner = _Planner(evaluation, pods, policy, placement, now, NO_FAILURES)
    of_others = frozenset(each.threshold for each in evaluation.statuses if each.threshold.signal is not signal)
    selected = select_threshold(
        evaluation, None, policy, layout=layout, now=now, reclaimed=frozenset(), without_candidate=of_others
    )
    return planner.order(signal, selected)


def effective_grace_s(threshold: Threshold | None, pod: pressure.PodFacts, policy: EvictionPolicy) -> float:
    """Return the termination grace period of an eviction in seconds; ``threshold`` is ``None`` for a storage limit.

    Source: kubelet ``synchronize``: ``immediateEvictionGracePeriodSeconds``, ``MaxPodGracePeriodSeconds``.
    """
    if threshold is None or threshold.hard:
        return policy.hard_grace_s
    own_s, cap_s = pod.termination_grace_s.value, policy.max_pod_grace_s
    if own_s is None:
        return cap_s if cap_s > 0 else DEFAULT_TERMINATION_GRACE_S
    return min(own_s, cap_s) if cap_s > 0 else own_s


class _Planner:
    """Planner of one pass: the pods, and the reason to keep each protected pod."""

    def __init__(  # noqa: PLR0913, PLR0917 - one argument for each input of a pass
        self,
        evaluation: Evaluation,
        pods: Iterable[pressure.PodFacts] | None,
        policy: EvictionPolicy,
        placement: RankingInput,
        now: pressure.Moment,
        excluded: Mapping[str, str],
    ) -> None:
        self._evaluation = evaluation
        self._chooses = pods is not None
        self._pods = sorted(dict.fromkeys(pods or ()), key=lambda pod: (pod.uid, pod.namespace, pod.name))
        self._policy = policy
        self._layout = placement.layout
        self._placement = placement
        self._now = now
        self._protection = Protection(self._pods, policy)
        self._excluded = excluded
        self._kept = {id(pod): reason for pod in self._pods if (reason := self._keep_reason(pod)) is not None}
        self._limits: list[Reason] = []

    def pods_over_limits(self) -> list[tuple[pressure.PodFacts, LimitCheck]]:
        """Return the unprotected pods over their own storage limits, in eviction order."""
        if not self._policy.local_storage_isolation:
            return []
        return [each for each in rank_over_limits(self._pods) if id(each[0]) not in self._kept]

    def evict_for_limit(self, otherwise: EvictionPlan) -> EvictionPlan | None:
        """Return the plan that evicts a pod over its own storage limit.

        The result is ``None`` if no unprotected pod is over its storage limit or the limit of evictions per window is
        reached. ``otherwise`` is the plan for the selected threshold.
        """
        over_limits = self.pods_over_limits()
        if not over_limits or self._limited(None) is not None:
            return None
        pod, violation = over_limits[0]
        victim = Eviction(
            pod=pod,
            reason=violation.reason,
            signal=violation.limit.value,
            starved=pressure.Resource.EPHEMERAL_STORAGE,
            status=None,
            ranked=None,
            grace_s=effective_grace_s(None, pod, self._policy),
            message=violation.message,
        )
        others = Reason(ReasonCode.ANOTHER_POD_EVICTED, {"victim": _name(pod)})
        decisions = [
            Decision(ItemKind.POD, pod.uid, _name(pod), Verdict.REMOVE, victim.reason),
            *(self._keep(each, others) for each in self._pods if each is not pod),
        ]
        plan = self._plan(decisions)
        return EvictionPlan(plan, victim=victim, waiting=otherwise.waiting)

    def report_suspended_limits(self, plan: EvictionPlan) -> EvictionPlan:
        """Return ``plan`` with the eviction limit as reason to keep pods over their storage limits.

        ``plan`` has no victim. The result is ``plan`` without changes if the eviction limit is not reached or no pod is
        over its storage limit.
        """
        over_limits = {pod.uid for pod, _ in self.pods_over_limits()}
        reason = self._limited(None) if over_limits else None
        if reason is None:
            return plan
        decisions = tuple(
            replace(each, reason=reason) if each.id in over_limits else each for each in plan.plan.decisions
        )
        warnings = dict.fromkeys((*plan.plan.warnings, f"no pod is evicted: {reason.sentence}"))
        changed = replace(plan.plan, decisions=decisions, warnings=tuple(warnings))
        return replace(plan, plan=changed, hindrance=plan.hindrance or reason)

    def act_on(self, selected: SelectedThreshold, reclaimed: AbstractSet[ReclaimStep]) -> EvictionPlan:
        """Return the plan for the selected threshold: reclaim steps, the eviction of a pod, or no action."""
        status = selected.status
        if status is None:
            decisions = [self._keep(pod, self._unread_reason(pod, selected) or selected.reason) for pod in self._pods]
            return EvictionPlan(self._plan(decisions, blocked=selected.blocked), waiting=selected.waiting)
        signal, other = status.threshold.signal, status.threshold.filesystem
        separate_logs = pressure.has_separate_logs(self._placement.others)
        every = reclaim_steps(signal, self._layout, other, separate_logs=separate_logs)
        steps = tuple(step for step in every if step not in reclaimed)
        candidates = [pod for pod in self._pods if self._not_there_reason(pod, status) is None]
        ranking = rank_pods(candidates, signal, self._placement_for(status))
        limited = None if steps else self._limited(status.threshold)
        common_reason = limited
        if steps:
            texts = tuple(step.text for step in steps)
            common_reason = Reason(ReasonCode.RECLAIM_FIRST, {"threshold": status.threshold.text, "steps": texts})
        if common_reason is not None:
            decisions = [self._keep(pod, common_reason) for pod in self._by_rank(ranking)]
            plan = self._plan(decisions)
            return EvictionPlan(plan, status, steps, ranking, hindrance=limited, waiting=selected.waiting)
        return self._choose(status, selected, ranking)

    def _choose(
        self, status: ThresholdStatus, selected: SelectedThreshold, ranking: tuple[RankedPod, ...]
    ) -> EvictionPlan:
        """Return the plan that evicts the first unprotected pod of the ranking whose eviction helps."""
        reason = selected.reason
        protected = {id(pod): why for pod in self._pods if (why := self._not_there_reason(pod, status)) is not None}
        protected |= self._protected(ranking)
        kept = self._no_relief_reasons(status, selected, ranking) | protected
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
        hindrance, statement, waiting = None, None, selected.waiting
        if victim is None and self._chooses:
            hindrance = next((each for each in kept.values() if each.code is ReasonCode.GROWTH_UNKNOWN), None)
            waiting = waiting or selected.ineffective
            if hindrance is None:
                statement = unrelieved(status, ranking, self._pods, protected)
                warnings.append(statement.sentence)
        return EvictionPlan(
            self._plan(decisions, warnings),
            status,
            ranking=ranking,
            victim=victim,
            hindrance=hindrance,
            waiting=waiting,
            unrelieved=statement,
        )

    def order(
        self, signal: pressure.Signal, selected: SelectedThreshold
    ) -> tuple[tuple[RankedPod, Reason | None], ...]:
        """Return the pods ranked for a signal with the reason to keep each; ``selected`` is a threshold of it."""
        status = selected.status
        ranking = rank_pods(self._pods, signal, self._placement if status is None else self._placement_for(status))
        kept = {} if status is None else self._no_relief_reasons(status, selected, ranking)
        kept |= self._protected(ranking)
        return tuple((each, kept.get(id(each.pod))) for each in ranking)

    def _protected(self, ranking: Iterable[RankedPod]) -> dict[int, Reason]:
        """Return the reason to keep each pod that is protected or not measured, by the ``id`` of its facts."""
        return self._kept | {
            id(each.pod): why
            for each in ranking
            if id(each.pod) not in self._kept and (why := self._protection.unmeasured_reason(each)) is not None
        }

    def _no_relief_reasons(
        self, status: ThresholdStatus, selected: SelectedThreshold, ranking: tuple[RankedPod, ...]
    ) -> dict[int, Reason]:
        """Return the reason to keep each ranked pod whose eviction does not help, by the ``id`` of its facts."""
        if self._policy.always_evict:
            return {}
        placement = self._placement_for(status)
        state = self._evaluation.state
        growth = measure_growth(state.samples, state.recent, ranking, status, placement, self._now)
        if selected.ineffective is not None:
            return {
                id(each.pod): selected.ineffective
                for each in ranking
                if not drives_shortage(each, status, growth, self._policy)
            }
        return no_relief_reasons(ranking, status, growth, self._policy)

    def _placement_for(self, status: ThresholdStatus) -> RankingInput:
        cache_in_use = is_cache_in_use(status.observation)
        return self._placement._replace(ranked=status.threshold.filesystem, cache_in_use=cache_in_use)

    def _victim(self, status: ThresholdStatus, reason: Reason, ranked: RankedPod) -> Eviction:
        over_request = offenders(ranked.pod, ranked.resource)
        return Eviction(
            pod=ranked.pod,
            reason=Reason(reason.code, {**reason.details, **_numbers(ranked)}),
            signal=status.threshold.signal.value,
            starved=ranked.resource,
            status=status,
            ranked=ranked,
            grace_s=effective_grace_s(status.threshold, ranked.pod, self._policy),
            message=pressure_message(status, ranked.resource, over_request),
        )

    def _unread_reason(self, pod: pressure.PodFacts, selected: SelectedThreshold) -> Reason | None:
        """Return the reason why a pod, without any met threshold, is not known to be within its storage limits."""
        checks_limits = self._policy.local_storage_isolation and selected.reason.code is ReasonCode.NO_THRESHOLD_MET
        return unread_reason(pod) if checks_limits else None

    def _not_there_reason(self, pod: pressure.PodFacts, status: ThresholdStatus) -> Reason | None:
        return not_there_reason(pod, status.threshold, self._layout, self._placement.others)

    def _keep_reason(self, pod: pressure.PodFacts) -> Reason | None:
        if pod.uid in self._excluded:
            return Reason(ReasonCode.FAILED_EARLIER, {"detail": self._excluded[pod.uid]})
        effects = self._evaluation.state.outstanding
        if any(each.uid == pod.uid and self._now.monotonic_s < each.until_s for each in effects):
            return Reason(ReasonCode.BEING_EVICTED)
        return self._protection.keep_reason(pod)

    def _limited(self, threshold: Threshold | None) -> Reason | None:
        """Return the reason why the eviction limit permits no eviction now, and record the reason as a warning.

        ``threshold`` is ``None`` for an eviction for a storage limit. The result is ``None`` below the limit.
        """
        reason = limit_reached(self._evaluation.state, self._policy, self._now, threshold)
        if reason is not None:
            self._limits.append(reason)
        return reason

    def _keep(self, pod: pressure.PodFacts, default: Reason) -> Decision:
        """Return the decision to keep a pod; ``default`` is the reason if no rule protects this pod."""
        reason = self._kept.get(id(pod), default)
        verdict = Verdict.FAILED if reason.code is ReasonCode.FAILED_EARLIER else Verdict.KEEP
        return Decision(ItemKind.POD, pod.uid, _name(pod), verdict, reason)

    def _by_rank(self, ranking: tuple[RankedPod, ...]) -> list[pressure.PodFacts]:
        """Return all pods: the ranked pods by rank, then the others by UID."""
        ranks = {id(each.pod): each.rank for each in ranking}
        return sorted(self._pods, key=lambda pod: ranks.get(id(pod), len(ranking) + 1))

    def _plan(self, decisions: Iterable[Decision], warnings: Iterable[str] = (), *, blocked: str = "") -> Plan:
        listed = tuple(decisions)
        return Plan("pods", self._now.at, listed, warnings=(*self._warnings(), *warnings), blocked=blocked)

    def _warnings(self) -> Iterator[str]:
        yield from (rejection.sentence for rejection in self._evaluation.rejections)
        for status in self._evaluation.acting:
            if MEANINGS[status.threshold.signal].resource is None:
                yield f"{status.threshold.text} is met, but no pod is evicted for it"
        for reason in self._limits:
            yield f"no pod is evicted: {reason.sentence}"


def _decide(ranked: RankedPod, verdict: Verdict, reason: Reason) -> Decision:
    """Return a decision on a pod, with the bytes or inodes that its eviction frees."""
    frees = None if ranked.frees is None or ranked.stalled_percent is not None else int(ranked.frees)
    frees_bytes = frees if ranked.resource in {pressure.Resource.MEMORY, pressure.Resource.EPHEMERAL_STORAGE} else None
    frees_inodes = frees if ranked.resource is pressure.Resource.INODES else None
    pod = ranked.pod
    return Decision(ItemKind.POD, pod.uid, _name(pod), verdict, reason, frees_bytes, frees_inodes)


def _numbers(ranked: RankedPod) -> dict[str, Detail]:
    return {**ranked.details, "measure": ranked.measure, "note": ranked.note}


def _name(pod: pressure.PodFacts) -> str:
    return f"{pod.namespace}/{pod.name}"
