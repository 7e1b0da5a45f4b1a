"""From readings to thresholds acted on and node conditions, remembering what has to last from pass to pass.

The steps are those of the kubelet's ``synchronize``: thresholds met now; those acted on last time and not yet come
back by their minimum reclaim; since when; node conditions; grace periods; and only what was read anew is acted on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nodeagent.model.pressure import NodeCondition
from nodeagent.plan.eviction.observations import judge
from nodeagent.plan.eviction.signals import MEANINGS
from nodeagent.plan.eviction.thresholds import in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodeagent.model.pressure import Moment, Observation, Signal
    from nodeagent.plan.eviction.effects import OutstandingEffect, Victim
    from nodeagent.plan.eviction.observations import Refusal
    from nodeagent.plan.eviction.policy import EvictionPolicy
    from nodeagent.plan.eviction.thresholds import Threshold


@dataclass(frozen=True, slots=True)
class EvictionState:
    """What is remembered between passes, all times monotonic seconds of one boot.

    Attributes:
        first_met_s: since when each threshold is met without a break.
        condition_seen_s: when each node condition was last observed.
        acted_on: thresholds whose grace was over last time; their minimum reclaim counts.
        last_read_s: the reading of each signal that was used last.
        reported: node conditions that held last time.
        evicted_s: when pods were evicted, within the window of the limit.
        outstanding: effects of evictions and reclaim that are not measured yet.
        victims: recently evicted pods.

    Source: the kubelet eviction manager's fields.
    """

    first_met_s: Mapping[Threshold, float] = field(default_factory=dict)
    condition_seen_s: Mapping[NodeCondition, float] = field(default_factory=dict)
    acted_on: frozenset[Threshold] = frozenset()
    last_read_s: Mapping[Signal, float] = field(default_factory=dict)
    reported: frozenset[NodeCondition] = frozenset()
    evicted_s: tuple[float, ...] = ()
    outstanding: tuple[OutstandingEffect, ...] = ()
    victims: tuple[Victim, ...] = ()


@dataclass(frozen=True, slots=True)
class ThresholdStatus:
    """How one threshold stands.

    Attributes:
        observation: the trusted reading; ``None`` if the signal was not read, or ``refusal`` says why not.
        limit: the quantity compared with, without minimum reclaim; ``None`` without a reading.
        met: past the limit, or not yet come back by the minimum reclaim after it was acted on.
        latched: whether it was acted on in the pass before, so that the minimum reclaim counts.
        held_s: for how long it has been met; 0 if it is not.
        due: whether it is met and its grace is over.
        acting: whether it is due and its signal was read anew, so that it may be acted on in this pass.
    """

    threshold: Threshold
    observation: Observation | None = None
    refusal: Refusal | None = None
    limit: float | None = None
    met: bool = False
    latched: bool = False
    held_s: float = 0.0
    due: bool = False
    acting: bool = False

    @property
    def grace_left_s(self) -> float:
        """How long until it is acted on if it stays met."""
        return max(0.0, self.threshold.grace_s - self.held_s)


@dataclass(frozen=True, slots=True)
class ConditionStatus:
    """One node condition.

    Attributes:
        holds: whether it is observed now, or was within the transition period.
        observed: whether a threshold that stands for it is met now.
        changed: whether ``holds`` is other than in the pass before.
        lasts_s: for how long it still holds if it is not observed again.
    """

    condition: NodeCondition
    holds: bool
    observed: bool
    changed: bool
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a pass found.

    Attributes:
        at: the instant that was decided at.
        state: to be handed to the next pass.
        statuses: one for each threshold, in the order in which they are acted on.
        conditions: all node conditions.
        refusals: readings that decided nothing, of signals without a threshold too.
    """

    at: Moment
    state: EvictionState
    statuses: tuple[ThresholdStatus, ...]
    conditions: tuple[ConditionStatus, ...]
    refusals: tuple[Refusal, ...]

    @property
    def met(self) -> tuple[ThresholdStatus, ...]:
        """The thresholds that are met, whether or not their grace is over."""
        return tuple(each for each in self.statuses if each.met)

    @property
    def acting(self) -> tuple[ThresholdStatus, ...]:
        """The thresholds to act on in this pass, the most urgent first."""
        return tuple(each for each in self.statuses if each.acting)


def evaluate(
    previous: EvictionState,
    observations: Iterable[Observation],
    thresholds: Iterable[Threshold],
    policy: EvictionPolicy,
    *,
    now: Moment,
) -> Evaluation:
    """Judge readings against thresholds; neither's order matters.

    A threshold on a signal that was not read is not met and loses its time, as with the kubelet. One whose reading
    was refused is not met either, but keeps its time: refused means that nothing is known, as when the kubelet gets
    no statistics at all and leaves its state alone. Evaluating the same readings again acts on nothing.

    If monotonic time should go back, as it does across a reboot, what is remembered counts from ``now``: grace
    periods and conditions last longer, never shorter.

    Args:
        previous: the state of the pass before, empty at start.
        observations: at most one for each signal.
        thresholds: with those on containerfs derived, see ``for_layout``.
        policy: transition period and greatest age of a reading.
        now: the instant of the decision, after the readings.

    Source: kubelet ``synchronize``, ``thresholdsMet``, ``mergeThresholds``, ``thresholdsFirstObservedAt``,
    ``nodeConditionsLastObservedAt``, ``nodeConditionsObservedSince``, ``thresholdsMetGracePeriod``,
    ``thresholdsUpdatedStats``.
    """
    readings = judge(observations, now, policy.max_observation_age_s)
    now_s = now.monotonic_s
    statuses, first_met_s, acted_on = [], {}, set()
    for threshold in in_order(thresholds):
        status = _stand(previous, threshold, readings.trusted.get(threshold.signal), now_s)
        refusal = readings.refused.get(threshold.signal)
        statuses.append(replace(status, refusal=refusal))
        if status.met or (refusal is not None and threshold in previous.first_met_s):
            first_met_s[threshold] = _since(previous, threshold, now_s)
        if status.due or (refusal is not None and threshold in previous.acted_on):
            acted_on.add(threshold)
    last_read_s = {signal: each.observed_at.monotonic_s for signal, each in readings.trusted.items()}
    conditions, seen_s = _conditions(previous, statuses, policy.pressure_transition_period_s, now_s)
    state = EvictionState(
        first_met_s=first_met_s,
        condition_seen_s=seen_s,
        acted_on=frozenset(acted_on),
        last_read_s={**previous.last_read_s, **last_read_s},
        reported=frozenset(each.condition for each in conditions if each.holds),
        evicted_s=recent_evictions(previous, policy, now),
        outstanding=previous.outstanding,
        victims=previous.victims,
    )
    return Evaluation(now, state, tuple(statuses), conditions, tuple(readings.refused.values()))


def recent_evictions(state: EvictionState, policy: EvictionPolicy, now: Moment) -> tuple[float, ...]:
    """Return when pods were evicted within the window that the limit counts over."""
    return tuple(each for each in state.evicted_s if now.monotonic_s - each < policy.eviction_window_s)


def record_eviction(state: EvictionState, now: Moment) -> EvictionState:
    """Return the state with one more eviction, to be called for each that was carried out."""
    return replace(state, evicted_s=(*state.evicted_s, now.monotonic_s))


def begin_eviction(state: EvictionState, victim: Victim, effects: Iterable[OutstandingEffect]) -> EvictionState:
    """Return the state with an eviction that is about to start; it replaces an earlier one of the same pod."""
    before = drop_eviction(state, victim.uid)
    return replace(before, outstanding=(*before.outstanding, *effects), victims=(*before.victims, victim))


def drop_eviction(state: EvictionState, uid: str) -> EvictionState:
    """Return the state without the eviction of a pod."""
    return replace(
        state,
        outstanding=tuple(each for each in state.outstanding if each.uid != uid),
        victims=tuple(each for each in state.victims if each.uid != uid),
    )


def suspended(state: EvictionState, now_s: float) -> EvictionState:
    """Return the state while evictions are disabled: without thresholds and conditions, which are not evaluated then.

    Evictions of the window, victims and effects within their bound remain, so that an eviction in progress is neither
    repeated nor lost when evictions resume.
    """
    return EvictionState(
        evicted_s=state.evicted_s,
        outstanding=tuple(each for each in state.outstanding if now_s < each.until_s),
        victims=state.victims,
    )


def update_victim(state: EvictionState, victim: Victim) -> EvictionState:
    """Return the state with a victim replaced, by its UID."""
    return replace(state, victims=tuple(victim if each.uid == victim.uid else each for each in state.victims))


def _since(previous: EvictionState, threshold: Threshold, now_s: float) -> float:
    """Return since when a threshold is met if it is met now; never in the future."""
    return min(previous.first_met_s.get(threshold, now_s), now_s)


def _stand(previous: EvictionState, threshold: Threshold, reading: Observation | None, now_s: float) -> ThresholdStatus:
    """Return how a threshold stands by a trusted reading."""
    latched = threshold in previous.acted_on
    if reading is None:
        return ThresholdStatus(threshold, latched=latched)
    limit = threshold.limit(reading.capacity)
    if not threshold.met_by(reading.available, reading.capacity, with_reclaim=latched):
        return ThresholdStatus(threshold, reading, limit=limit, latched=latched)
    held_s = now_s - _since(previous, threshold, now_s)
    due = held_s >= threshold.grace_s
    last_s = previous.last_read_s.get(threshold.signal)
    anew = last_s is None or reading.observed_at.monotonic_s > last_s
    return ThresholdStatus(
        threshold, reading, limit=limit, met=True, latched=latched, held_s=held_s, due=due, acting=due and anew
    )


def _conditions(
    previous: EvictionState, statuses: Iterable[ThresholdStatus], transition_s: float, now_s: float
) -> tuple[tuple[ConditionStatus, ...], dict[NodeCondition, float]]:
    """Return all conditions, and when each was last observed."""
    observed = {MEANINGS[each.threshold.signal].condition for each in statuses if each.met}
    seen_s = {condition: min(at_s, now_s) for condition, at_s in previous.condition_seen_s.items()}
    seen_s.update(dict.fromkeys((each for each in observed if each is not None), now_s))
    conditions = []
    for condition in NodeCondition:
        lasts_s = transition_s - (now_s - seen_s[condition]) if condition in seen_s else 0.0
        holds = condition in observed or lasts_s > 0
        changed = holds is not (condition in previous.reported)
        conditions.append(ConditionStatus(condition, holds, condition in observed, changed, max(0.0, lasts_s)))
    return tuple(conditions), seen_s
