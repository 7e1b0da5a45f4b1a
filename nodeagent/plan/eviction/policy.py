"""What an operator decides about evictions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """How evictions go, apart from the thresholds.

    Attributes:
        pressure_transition_period_s: how long a node condition lingers after it was last observed.
        max_pod_grace_s: caps a pod's own grace at a soft eviction; 0 for no cap, which is what the kubelet's 0 comes
            to, since its kill takes an override of 0 for none.
        hard_grace_s: grace of every other eviction: 0 kills at once, 1 is the newer kubelet's.
        protected_namespaces: no pod in these is ever chosen.
        local_storage_isolation: whether pods over their own storage limits are evicted without any pressure.
        evict_unmeasured: whether a pod of which no usage could be read may be chosen. The kubelet chooses it before
            all others.
        max_observation_age_s: older readings decide nothing.
        max_evictions_per_window: 0 for no limit.
        eviction_window_s: what that limit counts over.

    Source: kubelet ``evictionPressureTransitionPeriod``, ``evictionMaxPodGracePeriod``,
    ``localStorageCapacityIsolation``; the rest is ours.
    """

    pressure_transition_period_s: float = 300.0
    max_pod_grace_s: float = 0.0
    hard_grace_s: float = 0.0
    protected_namespaces: frozenset[str] = frozenset({"kube-system"})
    local_storage_isolation: bool = True
    evict_unmeasured: bool = False
    max_observation_age_s: float = 1.0
    max_evictions_per_window: int = 0
    eviction_window_s: float = 600.0
