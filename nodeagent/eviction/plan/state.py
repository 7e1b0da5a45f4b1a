"""Evaluation of readings: threshold status, node conditions, and the eviction state kept between passes.

The steps follow the kubelet's ``synchronize``: thresholds met now; thresholds due in the last pass and not cleared by
their minimum reclaim; time of the first met reading of each; node conditions; grace periods. A threshold is acted on
only after a new reading.

Limits of evictions per window, which protect pods if evictions do not relieve the shortage.

Evictions for node pressure and evictions for storage limits of pods are counted in separate windows: a tenant with many
small pods over their limits cannot use up the evictions that protect the node. Above the limit, evictions for a hard
memory threshold are spaced out and not suspended, since the alternative is an OOM kill of an arbitrary pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from nodeagent.eviction.plan.thresholds import MEANINGS, Rejection, Threshold, ThresholdStatus, in_order, validate
from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.model.pressure import Measurand, Moment, NodeCondition, Signal, SignalReading
from nodeagent.record import Record, field, replace

if TYPE_CHECKING:
    from nodeagent.eviction.plan.effects import OutstandingEffect, Unrelieved, UsageSample, Victim
    from nodeagent.eviction.plan.policy import EvictionPolicy

RECENT_S: Final = 2.0


class EvictionState(Record):
    """Eviction state kept between passes. All times are monotonic seconds of one boot.

    Attributes:
        first_met_s: time since which each threshold has been met without interruption.
        condition_observed_s: time of the last observation of each node condition.
        acted_on: thresholds that were due in the last pass; only their minimum reclaim clears them.
        last_read_s: time of the last accepted reading, by signal and filesystem.
        reported: node conditions that were active in the last pass.
        evicted_s: times of evictions for node pressure within the window of their limit.
        limit_evicted_s: times of evictions for storage limits of pods within the window of their limit.
        outstanding: effects of evictions and reclaim that are not measured yet.
        victims: recently evicted pods.
        samples: earlier readings of the usage of the pods, newest first.
        recent: accepted readings of the last ``RECENT_S`` seconds, oldest first.
        unrelieved: the met thresholds whose shortage no eviction ends, each with its statement.

    Source: the kubelet eviction manager's fields.
    """

    first_met_s: Mapping[Threshold, float] = field(default_factory=dict)
    condition_observed_s: Mapping[NodeCondition, float] = field(default_factory=dict)
    acted_on: frozenset[Threshold] = frozenset()
    last_read_s: Mapping[Measurand, float] = field(default_factory=dict)
    reported: frozenset[NodeCondition] = frozenset()
    evicted_s: tuple[float, ...] = ()
    limit_evicted_s: tuple[float, ...] = ()
    outstanding: tuple[OutstandingEffect, ...] = ()
    victims: tuple[Victim, ...] = ()
    samples: tuple[UsageSample, ...] = ()
    recent: tuple[SignalReading, ...] = ()
    unrelieved: Mapping[Threshold, Unrelieved] = field(default_factory=dict)


class ConditionStatus(Record):
    """Status of one node condition in a pass.

    Attributes:
        active: whether a threshold with this condition is met now, or was met within the transition period.
        changed: whether ``active`` changed since the last pass.
    """

    condition: NodeCondition
    active: bool
    changed: bool


class Evaluation(Record):
    """Status of thresholds and node conditions at one time.

    Attributes:
        at: time of the evaluation.
        state: eviction state, input of the next pass.
        statuses: status of each threshold, most urgent first.
        conditions: all node conditions.
        rejections: rejected readings, including readings of signals without a threshold.
    """

    at: Moment
    state: EvictionState
    statuses: tuple[ThresholdStatus, ...]
    conditions: tuple[ConditionStatus, ...]
    rejections: tuple[Rejection, ...]

    @property
    def met(self) -> tuple[ThresholdStatus, ...]:
        """The met thresholds, during and after their grace period."""
        return tuple(each for each in self.statuses if each.met)

    @property
    def acting(self) -> tuple[ThresholdStatus, ...]:
        """The due thresholds with a new reading, on which this pass acts, most urgent first."""
        return tuple(each for each in self.statuses if each.acting)


def evaluate(
    previous: EvictionState,
    observations: Iterable[SignalReading],
    thresholds: Iterable[Threshold],
    policy: EvictionPolicy,
    *,
    now: Moment,
) -> Evaluation:
    """Return the status of thresholds and node conditions, independent of the order of thresholds and readings.

    A threshold on a signal that was not read is not met, and its grace period restarts, as with the kubelet. A
    threshold with a rejected reading is not met either, but its grace period continues: the kubelet also keeps its
    state if statistics are unavailable. In a second evaluation of the same readings no threshold is acting.

    If monotonic time decreases, such as after a reboot, recorded times are limited to ``now``: grace periods and
    conditions become longer, never shorter.

    Args:
        previous: state of the last pass; an empty state at start.
        observations: readings, at most one per signal and filesystem.
        thresholds: the thresholds, including those derived for containerfs by ``for_layout``.
        policy: policy with the transition period, the maximum age of a reading and the eviction window.
        now: time of the decision, after the readings.

    Source: kubelet ``synchronize``, ``thresholdsMet``, ``mergeThresholds``, ``thresholdsFirstObservedAt``,
    ``nodeConditionsLastObservedAt``, ``nodeConditionsObservedSince``, ``thresholdsMetGracePeriod``,
    ``thresholdsUpdatedStats``.
    """
    readings = validate(observations, now, policy.max_observation_age_s)
    now_s = now.monotonic_s
    statuses, first_met_s, acted_on = [], {}, set()
    for threshold in in_order(thresholds):
        status = _threshold_status(previous, threshold, readings.accepted.get(threshold.measurand), now_s)
        rejection = readings.rejected.get(threshold.measurand)
        statuses.append(replace(status, rejection=rejection))
        if status.met or (rejection is not None and threshold in previous.first_met_s):
            first_met_s[threshold] = _since(previous, threshold, now_s)
        if status.due or (rejection is not None and threshold in previous.acted_on):
            acted_on.add(threshold)
    last_read_s = {measurand: each.observed_at.monotonic_s for measurand, each in readings.accepted.items()}
    conditions, observed_s = _conditions(previous, statuses, policy.pressure_transition_period_s, now_s)
    state = EvictionState(
        first_met_s=first_met_s,
        condition_observed_s=observed_s,
        acted_on=frozenset(acted_on),
        last_read_s={**previous.last_read_s, **last_read_s},
        reported=frozenset(each.condition for each in conditions if each.active),
        evicted_s=policy.within_window(previous.evicted_s, now),
        limit_evicted_s=policy.within_window(previous.limit_evicted_s, now),
        outstanding=_not_cleared(previous.outstanding, statuses),
        victims=previous.victims,
        samples=previous.samples,
        recent=(
            *(each for each in previous.recent if now_s - each.observed_at.monotonic_s <= RECENT_S),
            *readings.accepted.values(),
        ),
        unrelieved={each: text for each, text in previous.unrelieved.items() if each in first_met_s},
    )
    return Evaluation(now, state, tuple(statuses), conditions, tuple(readings.rejected.values()))


def record_eviction(state: EvictionState, now: Moment, *, storage_limit: bool = False) -> EvictionState:
    """Return the state with one more completed eviction, for node pressure or for the storage limit of its pod."""
    if storage_limit:
        return replace(state, limit_evicted_s=(*state.limit_evicted_s, now.monotonic_s))
    return replace(state, evicted_s=(*state.evicted_s, now.monotonic_s))


def begin_eviction(state: EvictionState, victim: Victim, effects: Iterable[OutstandingEffect]) -> EvictionState:
    """Return the state with an eviction that starts now; an earlier eviction of the same pod is replaced."""
    before = drop_eviction(state, victim.uid)
    return replace(before, outstanding=(*before.outstanding, *effects), victims=(*before.victims, victim))


def drop_eviction(state: EvictionState, uid: str) -> EvictionState:
    """Return the state without the tracked eviction of a pod and its outstanding effects."""
    return replace(
        state,
        outstanding=tuple(each for each in state.outstanding if each.uid != uid),
        victims=tuple(each for each in state.victims if each.uid != uid),
    )


def suspended(state: EvictionState, now_s: float) -> EvictionState:
    """Return the state to keep while evictions are disabled, without thresholds and node conditions.

    Thresholds and conditions are not evaluated while evictions are disabled. Evictions in the window, victims, and
    effects before their deadline are kept, so that an eviction in progress is not repeated or lost when evictions
    resume.
    """
    return EvictionState(
        evicted_s=state.evicted_s,
        limit_evicted_s=state.limit_evicted_s,
        outstanding=tuple(each for each in state.outstanding if now_s < each.until_s),
        victims=state.victims,
    )


def update_victim(state: EvictionState, victim: Victim) -> EvictionState:
    """Return the state with the victim of the same UID replaced."""
    return replace(state, victims=tuple(victim if each.uid == victim.uid else each for each in state.victims))


def _since(previous: EvictionState, threshold: Threshold, now_s: float) -> float:
    """Return the time since which a met threshold has been met, in monotonic seconds; at most ``now_s``."""
    return min(previous.first_met_s.get(threshold, now_s), now_s)


def _threshold_status(
    previous: EvictionState, threshold: Threshold, reading: SignalReading | None, now_s: float
) -> ThresholdStatus:
    """Return the status of a threshold by an accepted reading."""
    latched = threshold in previous.acted_on
    if reading is None:
        return ThresholdStatus(threshold, latched=latched)
    limit = threshold.limit(reading.capacity)
    if not threshold.met_by(reading.available, reading.capacity, with_reclaim=latched):
        return ThresholdStatus(threshold, reading, limit=limit, latched=latched)
    met_for_s = now_s - _since(previous, threshold, now_s)
    due = met_for_s >= threshold.grace_s
    last_s = previous.last_read_s.get(threshold.measurand)
    is_new = last_s is None or reading.observed_at.monotonic_s > last_s
    return ThresholdStatus(
        threshold, reading, limit=limit, met=True, latched=latched, met_for_s=met_for_s, due=due, acting=due and is_new
    )


def _not_cleared(
    effects: Iterable[OutstandingEffect], statuses: Iterable[ThresholdStatus]
) -> tuple[OutstandingEffect, ...]:
    """Return the effects without the ineffective ones whose signal was read and meets no threshold."""
    met_by_signal: dict[Measurand, bool] = {}
    for each in statuses:
        if each.observation is not None:
            measurand = each.threshold.measurand
            met_by_signal[measurand] = each.met or met_by_signal.get(measurand, False)
    return tuple(each for each in effects if not each.ineffective or met_by_signal.get(each.measurand, True))


def _conditions(
    previous: EvictionState, statuses: Iterable[ThresholdStatus], transition_s: float, now_s: float
) -> tuple[tuple[ConditionStatus, ...], dict[NodeCondition, float]]:
    """Return the status of all node conditions, and the time of the last observation of each observed condition."""
    observed = {MEANINGS[each.threshold.signal].condition for each in statuses if each.met}
    observed_s = {condition: min(at_s, now_s) for condition, at_s in previous.condition_observed_s.items()}
    observed_s.update(dict.fromkeys((each for each in observed if each is not None), now_s))
    conditions = []
    for condition in NodeCondition:
        remaining_s = transition_s - (now_s - observed_s[condition]) if condition in observed_s else 0.0
        active = condition in observed or remaining_s > 0
        changed = active is not (condition in previous.reported)
        conditions.append(ConditionStatus(condition, active, changed))
    return tuple(conditions), observed_s


SLOWED_EVERY_S: Final = 10.0
"""Minimum seconds between evictions for hard memory thresholds above the limit.

Source: kubelet, ``evictionMonitoringPeriod``.
"""
_ENDS_IN_OOM_KILLS: Final = frozenset({Signal.MEMORY_AVAILABLE, Signal.ALLOCATABLE_MEMORY_AVAILABLE})


def limit_reached(
    state: EvictionState, policy: EvictionPolicy, now: Moment, threshold: Threshold | None
) -> Reason | None:
    """Return the reason why the eviction limit permits no eviction now; ``None`` if it permits one.

    Args:
        state: eviction state, with the times of the evictions in both windows.
        policy: policy with the two limits and their window.
        now: the instant of the decision.
        threshold: the selected threshold; ``None`` for the storage limit of a pod.
    """
    times_s = state.limit_evicted_s if threshold is None else state.evicted_s
    limit = policy.max_limit_evictions_per_window if threshold is None else policy.max_evictions_per_window
    recent = policy.within_window(times_s, now)
    if not 0 < limit <= len(recent):
        return None
    numbers = {"count": len(recent), "window_s": policy.eviction_window_s, "limit": limit}
    if threshold is None or not never_suspended(threshold):
        return Reason(ReasonCode.EVICTION_LIMIT, numbers)
    left_s = max(recent) + SLOWED_EVERY_S - now.monotonic_s
    return Reason(ReasonCode.EVICTION_SLOWED, {**numbers, "left_s": left_s}) if left_s > 0 else None


def never_suspended(threshold: Threshold) -> bool:
    """Return whether evictions for a threshold are spaced out above the limit, rather than suspended."""
    return threshold.hard and threshold.signal in _ENDS_IN_OOM_KILLS
