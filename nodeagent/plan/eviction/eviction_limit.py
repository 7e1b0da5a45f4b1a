"""Limits of evictions per window, which protect pods if evictions do not relieve the shortage.

Evictions for node pressure and evictions for storage limits of pods are counted in separate windows: a tenant with many
small pods over their limits cannot use up the evictions that protect the node. Above the limit, evictions for a hard
memory threshold are spaced out and not suspended, since the alternative is an OOM kill of an arbitrary pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import Signal
from nodeagent.plan.decision import Reason, ReasonCode

if TYPE_CHECKING:
    from nodeagent.model.pressure import Moment
    from nodeagent.plan.eviction.policy import EvictionPolicy
    from nodeagent.plan.eviction.state import EvictionState
    from nodeagent.plan.eviction.thresholds import Threshold

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
