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
        pressure_transition_period_s: time for which a node condition is reported after it was last observed.
        max_pod_grace_s: maximum grace period of a soft eviction; 0 for the pod's own. As in the kubelet, whose kill
            treats an override of 0 as none.
        hard_grace_s: grace period of any other eviction: 0 kills at once, 1 as in newer kubelets.
        protected_namespaces: namespaces whose pods are never evicted.
        local_storage_isolation: whether pods over their own storage limits are evicted without any pressure.
        evict_unmeasured: whether a pod with unknown usage may be evicted. The kubelet evicts such a pod before all
            others.
        max_observation_age_s: age above which a reading is rejected.
        max_evictions_per_window: limit of evictions for node pressure; 0 for none.
        max_limit_evictions_per_window: limit of evictions for the storage limits of pods; 0 for none.
        eviction_window_s: period of both limits.

    Source: kubelet ``evictionPressureTransitionPeriod``, ``evictionMaxPodGracePeriod``,
    ``localStorageCapacityIsolation``; the other settings are this agent's own.
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

    def within_window(self, times_s: Iterable[float], now: Moment) -> tuple[float, ...]:
        """Return the times of evictions that count against a limit at ``now``."""
        return tuple(each for each in times_s if now.monotonic_s - each < self.eviction_window_s)
