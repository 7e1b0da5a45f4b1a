"""Configured eviction policy, and the pods that are never evicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.model.pods import CRITICAL_CLASS_PRIORITIES, CRITICAL_PRIORITY
from nodeagent.model.pressure import Moment, PodFacts, PodLifecycle, QosClass, Resource
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.eviction.plan.ranking import RankedPod


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


class Protection:
    """Protection rules for the pods of one pass."""

    def __init__(self, pods: Sequence[PodFacts], policy: EvictionPolicy) -> None:
        self._namespaces = policy.protected_namespaces
        self._evict_unmeasured = policy.evict_unmeasured
        self._uids = Counter(pod.uid for pod in pods)

    def keep_reason(self, pod: PodFacts) -> Reason | None:
        """Return the reason of the first rule that protects a pod; ``None`` for an unprotected pod.

        The rules apply in this order: static, mirror and critical pods, protected namespaces, contradictory facts,
        missing facts, finished pods. A terminating pod is not protected: an eviction shortens its termination grace
        period.

        Source: kubelet ``evictPod`` and ``IsCriticalPod``; protection by missing facts is specific to nodeagent.
        """
        kept = _critical_reason(pod)
        if kept is not None:
            return kept
        if pod.namespace in self._namespaces:
            return Reason(ReasonCode.PROTECTED_NAMESPACE, {"namespace": pod.namespace})
        contradictions = tuple(self._contradictions(pod))
        if contradictions:
            return Reason(ReasonCode.FACTS_CONTRADICTORY, {"detail": "; ".join(contradictions)})
        missing = tuple(_missing(pod))
        if missing:
            return Reason(ReasonCode.FACTS_MISSING, {"missing": missing})
        if pod.lifecycle is PodLifecycle.FINISHED:
            return Reason(ReasonCode.POD_NOT_ACTIVE, {"lifecycle": pod.lifecycle.value})
        return None

    def unmeasured_reason(self, ranked: RankedPod) -> Reason | None:
        """Return the reason to keep a ranked pod with unknown usage or request; ``None`` if both are known.

        Only memory and ephemeral storage have requests. A pod with unknown usage is not kept if the policy permits its
        eviction.
        """
        request = {
            Resource.MEMORY: ranked.pod.memory_request_bytes,
            Resource.EPHEMERAL_STORAGE: ranked.pod.ephemeral_request_bytes,
        }.get(ranked.resource)
        if request is not None and request.value is None:
            return Reason(ReasonCode.FACTS_MISSING, {"missing": (f"{ranked.resource} request",)})
        if ranked.usage is None and not self._evict_unmeasured:
            return Reason(ReasonCode.USAGE_UNKNOWN, {"resource": ranked.resource.value})
        return None

    def _contradictions(self, pod: PodFacts) -> Iterator[str]:
        yield from pod.contradictions
        if self._uids[pod.uid] > 1:
            yield f"{self._uids[pod.uid]} pods with the same UID"
        if pod.qos.value is QosClass.BEST_EFFORT and pod.memory_request_bytes.value:
            yield "BestEffort with a memory request"
        if pod.qos.value is QosClass.GUARANTEED and pod.memory_request_bytes.value == 0:
            yield "Guaranteed without a memory request"
        if any(number is not None and number < 0 for number in _numbers(pod)):
            yield "negative usage or request"


def _critical_reason(pod: PodFacts) -> Reason | None:
    if pod.static.value:
        return Reason(ReasonCode.STATIC_POD, {"source": pod.static.source.value})
    if pod.mirror.value:
        return Reason(ReasonCode.MIRROR_POD, {"source": pod.mirror.source.value})
    priority = pod.priority.value
    if priority is not None and priority >= CRITICAL_PRIORITY:
        how, source = f"priority {priority}", pod.priority.source
    elif pod.priority_class in CRITICAL_CLASS_PRIORITIES:
        how, source = f"priority class {pod.priority_class}", pod.priority.source
    elif pod.critical.value:
        how, source = "by priority class", pod.critical.source
    else:
        return None
    return Reason(ReasonCode.CRITICAL_POD, {"how": how, "source": source.value})


def _missing(pod: PodFacts) -> Iterator[str]:
    """Yield the names of the unknown facts that an eviction of the pod requires."""
    if not pod.uid or not pod.namespace or not pod.name:
        yield "UID, namespace or name"
    required = {
        "static or not": pod.static,
        "mirror or not": pod.mirror,
        "critical or not": pod.critical,
        "priority": pod.priority,
    }
    yield from (name for name, fact in required.items() if fact.value is None)


def _numbers(pod: PodFacts) -> Iterator[float | None]:
    """Yield the requests, grace period and usage of a pod; a negative value is a contradiction."""
    yield from (pod.memory_request_bytes.value, pod.ephemeral_request_bytes.value, pod.termination_grace_s.value)
    usage = pod.usage
    if usage is None:
        return
    yield from (usage.memory_bytes, usage.swap_bytes, usage.pids, usage.ephemeral_bytes)
    for footprint in (usage.writable, usage.logs, usage.volumes):
        yield from (footprint.used_bytes, footprint.used_inodes)
