"""Configured eviction policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model.pressure import Moment


class EvictionPolicy(Record):
    """Eviction settings other than thresholds.

    Attributes:
        pressure_transition_period_s: seconds for which a node condition is still reported after its last observation.
        max_pod_grace_s: maximum termination grace period of a soft eviction in seconds; 0 uses the pod's grace period,
            as in the kubelet.
        hard_grace_s: termination grace period of any other eviction in seconds: 0 kills immediately; newer kubelets use
            1.
        protected_namespaces: namespaces whose pods are never evicted.
        local_storage_isolation: whether pods over their own storage limits are evicted even without node pressure.
        evict_unmeasured: whether a pod with unknown usage may be evicted. The kubelet evicts pods with unknown usage
            first.
        max_observation_age_s: age in seconds above which a reading is rejected.
        max_evictions_per_window: maximum number of evictions for node pressure per window; 0 for no limit.
        max_limit_evictions_per_window: maximum number of evictions for storage limits of pods per window; 0 for no
            limit.
        eviction_window_s: length of the window of both limits in seconds.
        minimum_effect: share of the shortage, from 0 to 1, that the eviction of a pod must free unless the pod drives
            the shortage.
        always_evict: whether pods are evicted even if their eviction does not help, as in the kubelet.

    Source: kubelet ``evictionPressureTransitionPeriod``, ``evictionMaxPodGracePeriod``,
    ``localStorageCapacityIsolation``; the other settings are specific to nodeagent.
    """

    pressure_transition_period_s: float = 300.0
    max_pod_grace_s: float = 0.0
    hard_grace_s: float = 0.0
    protected_namespaces: frozenset[str] = frozenset({"kube-system"})
    local_storage_isolation: bool = True
    evict_unmeasured: bool = False
    max_observation_age_s: float = 1.0
    max_evictions_per_window: int = 0
    max_limit_evictions_per_window: int = 0
    eviction_window_s: float = 600.0
    minimum_effect: float = 0.1
    always_evict: bool = False

    def within_window(self, times_s: Iterable[float], now: Moment) -> tuple[float, ...]:
        """Return the eviction times, from ``times_s``, that are within the window at ``now``."""
        return tuple(each for each in times_s if now.monotonic_s - each < self.eviction_window_s)
