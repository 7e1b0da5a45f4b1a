"""From observations to thresholds that are acted on, and to the node's conditions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import NodeCondition, Resource, Signal
from nodeagent.plan.eviction.thresholds import CONDITION_OF

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from nodeagent.model.pressure import Observation
    from nodeagent.plan.eviction.thresholds import EvictionPolicy, Threshold

OLDEST_S: Final = 1.0
"""A decision uses no data older than this."""


@dataclass(frozen=True, slots=True)
class EvictionState:
    """What one pass leaves to the next.

    Attributes:
        first_met_at: since when each threshold has been met, on a clock that does not go back, in seconds.
        acted_on: thresholds whose grace period was over in the last pass; these ask for the minimum reclaim.
        conditions: when each condition was last observed, on the same clock.
        last_observed: when each signal was read that the last pass acted on.

    Source: kubelet ``managerImpl``.
    """

    first_met_at: Mapping[Threshold, float] = field(default_factory=dict)
    acted_on: frozenset[Threshold] = frozenset()
    conditions: Mapping[NodeCondition, float] = field(default_factory=dict)
    last_observed: Mapping[Signal, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a pass finds.

    Attributes:
        acting: thresholds to act on, in the order to do so.
        met: every threshold that is met, its grace period over or not.
        conditions: what the node reports of itself.
        refused: signal to why its reading was not believed.
        missing: thresholds on signals without a reading.
    """

    acting: tuple[Threshold, ...]
    met: tuple[Threshold, ...]
    conditions: frozenset[NodeCondition]
    refused: Mapping[Signal, str]
    missing: tuple[Threshold, ...]


def assess(
    state: EvictionState,
    policy: EvictionPolicy,
    observations: Iterable[Observation],
    *,
    now: datetime,
    monotonic_s: float,
) -> tuple[Assessment, EvictionState]:
    """Return what the observations mean, and the state for the next pass.

    A threshold is met when less than it is available, strictly. One that was acted on stays met until its minimum
    reclaim is available as well. It is acted on once it has been met for its grace period, and only on a reading newer
    than the one last acted on, so that one sample never evicts twice. Conditions are reported as soon as a threshold
    is met and for the transition period afterwards. Grace and transition are timed on a clock that does not go back.

    Departures from the kubelet: the order of what is acted on is total (memory first, hard before soft, then as
    configured); readings that cannot be, or are older than a second, are refused and leave their thresholds as they
    were: neither newly met nor cleared.

    Source: kubelet ``managerImpl.synchronize``, ``thresholdsMet``, ``thresholdsMetGracePeriod``,
    ``nodeConditionsLastObservedAt``.
    """
    refused = {each.signal: why for each in observations if (why := why_refused(each, now))}
    usable = {each.signal: each for each in observations if each.signal not in refused}
    met, missing = [], []
    for threshold in policy.thresholds:
        seen = usable.get(threshold.signal)
        if seen is None:
            missing.append(threshold)
            if threshold in state.first_met_at:
                met.append(threshold)
        elif is_met(threshold, seen, with_reclaim=threshold in state.acted_on):
            met.append(threshold)
    first_met_at = {each: min(state.first_met_at.get(each, monotonic_s), monotonic_s) for each in met}
    observed = {CONDITION_OF[each.resource] for each in met}
    conditions = dict(state.conditions) | dict.fromkeys(observed, monotonic_s)
    reported = frozenset(
        condition
        for condition, at in conditions.items()
        if condition in observed or monotonic_s - at < policy.pressure_transition_s
    )
    over = [each for each in met if monotonic_s - first_met_at[each] >= each.grace_s]
    fresh = [
        each
        for each in over
        if (seen := usable.get(each.signal)) is not None
        and (each.signal not in state.last_observed or seen.observed_at > state.last_observed[each.signal])
    ]
    order = {threshold: position for position, threshold in enumerate(policy.thresholds)}
    acting = sorted(fresh, key=lambda each: (each.resource is not Resource.MEMORY, not each.hard, order[each]))
    assessment = Assessment(tuple(acting), tuple(met), reported, refused, tuple(missing))
    last_observed = dict(state.last_observed) | {signal: each.observed_at for signal, each in usable.items()}
    return assessment, EvictionState(first_met_at, frozenset(over), conditions, last_observed)


def is_met(threshold: Threshold, seen: Observation, *, with_reclaim: bool = False) -> bool:
    """Return whether an observation crosses a threshold; for stalls the minimum reclaim plays no part."""
    wanted = threshold.value.of(seen.capacity)
    if threshold.signal.is_stall:
        return seen.available > wanted
    if with_reclaim:
        wanted += threshold.minimum_reclaim.of(seen.capacity)
    return seen.available < wanted


def still_short(policy: EvictionPolicy, observations: Iterable[Observation], now: datetime) -> tuple[Threshold, ...]:
    """Return every threshold that is not clear by its minimum reclaim: what node-level reclaim has to reach.

    A signal without a believable reading counts as short. Source: kubelet ``reclaimNodeLevelResources``.
    """
    usable = {each.signal: each for each in observations if not why_refused(each, now)}
    return tuple(
        each
        for each in policy.thresholds
        if each.signal not in usable or is_met(each, usable[each.signal], with_reclaim=True)
    )


def why_refused(seen: Observation, now: datetime) -> str:
    """Return why a reading is not believed; empty if it is."""
    if seen.capacity <= 0:
        return f"capacity is {seen.capacity:g}"
    if seen.available < 0:
        return f"available is {seen.available:g}"
    if seen.available > seen.capacity:
        return f"available is {seen.available:g}, more than the capacity {seen.capacity:g}"
    age_s = (now - seen.observed_at).total_seconds()
    if age_s > OLDEST_S:
        return f"it is {age_s:.1f} s old"
    if age_s < -OLDEST_S:
        return f"it is from {-age_s:.1f} s in the future"
    return ""
