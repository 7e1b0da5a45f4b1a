"""Which pod goes, if any, and what the node gives back first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import Resource, Signal
from nodeagent.plan.decision import Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.plan.eviction.ranking import Layout, rank, usage_of, why_spared
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from nodeagent.model.pressure import ContainerUse, Observation, PodFacts
    from nodeagent.plan.decision import Detail
    from nodeagent.plan.eviction.thresholds import EvictionPolicy, Threshold

HARD_GRACE_S: Final = 1.0
"""What a pod is given at a hard threshold. Source: kubelet ``immediateEvictionGracePeriodSeconds``."""


class Reclaim(StrEnum):
    """What the node can give back without ending a pod."""

    DEAD_CONTAINERS = "dead-containers"
    IMAGES = "images"


_RECLAIMS: Final[Mapping[tuple[Layout, str], tuple[Reclaim, ...]]] = {
    (Layout.ONE, "nodefs"): (Reclaim.DEAD_CONTAINERS, Reclaim.IMAGES),
    (Layout.ONE, "imagefs"): (Reclaim.DEAD_CONTAINERS, Reclaim.IMAGES),
    (Layout.ONE, "containerfs"): (Reclaim.DEAD_CONTAINERS, Reclaim.IMAGES),
    (Layout.DEDICATED_IMAGEFS, "nodefs"): (),
    (Layout.DEDICATED_IMAGEFS, "imagefs"): (Reclaim.DEAD_CONTAINERS, Reclaim.IMAGES),
    (Layout.DEDICATED_IMAGEFS, "containerfs"): (Reclaim.DEAD_CONTAINERS, Reclaim.IMAGES),
    (Layout.SPLIT, "nodefs"): (Reclaim.DEAD_CONTAINERS,),
    (Layout.SPLIT, "imagefs"): (Reclaim.IMAGES,),
    (Layout.SPLIT, "containerfs"): (Reclaim.DEAD_CONTAINERS,),
}


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that goes.

    Attributes:
        grace_s: what it is given to end.
        message: what the pod's status would say.
        signal: what it goes for, as metrics call it.
    """

    pod: PodFacts
    grace_s: float
    message: str
    signal: str


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What a pass does.

    Attributes:
        plan: one decision for each pod.
        victims: who goes: all that break a limit of their own, or at most one for pressure.
        reclaim: what the node gives back first; no pod goes for pressure in the same pass.
        acting: the threshold that is acted on.
    """

    plan: Plan
    victims: tuple[Victim, ...] = ()
    reclaim: tuple[Reclaim, ...] = ()
    acting: Threshold | None = None


def reclaims(threshold: Threshold, layout: Layout) -> tuple[Reclaim, ...]:
    """Return what the node gives back for a threshold, in order. Source: kubelet ``buildSignalToNodeReclaimFuncs``."""
    return _RECLAIMS.get((layout, threshold.signal.value.partition(".")[0]), ())


def plan_eviction(  # noqa: PLR0913 - what a pass knows
    pods: Sequence[PodFacts],
    policy: EvictionPolicy,
    acting: Sequence[Threshold],
    observations: Mapping[Signal, Observation],
    *,
    layout: Layout,
    reclaimed: bool,
    now: datetime,
) -> EvictionPlan:
    """Choose who goes.

    Pods that break a storage limit of their own go first, all of them, pressure or not; then nothing else does in this
    pass. Then the first threshold that is acted on decides: if the node can give something back for it, and has not
    been asked to in this pass (``reclaimed``), it does, and no pod goes. Else the first pod in order of eviction that
    is not spared goes, alone.

    Source: kubelet ``synchronize``, ``localStorageEviction``, ``evictPod``.
    """
    spared = {pod.uid: reason for pod in pods if (reason := why_spared(pod, policy)) is not None}
    breaking = [
        (pod, found) for pod in pods if pod.uid not in spared and (found := over_limit(pod, layout)) is not None
    ]
    if breaking:
        reasons = {pod.uid: reason for pod, (reason, _, _) in breaking}
        victims = tuple(Victim(pod, HARD_GRACE_S, message, signal) for pod, (_, message, signal) in breaking)
        return EvictionPlan(_plan(pods, now, reasons, spared, Reason(ReasonCode.RECLAIM_FIRST)), victims)
    if not acting:
        return EvictionPlan(_plan(pods, now, {}, spared, Reason(ReasonCode.NO_PRESSURE)))
    threshold = acting[0]
    if not reclaimed and reclaims(threshold, layout):
        kept = _plan(pods, now, {}, spared, Reason(ReasonCode.RECLAIM_FIRST))
        return EvictionPlan(kept, reclaim=reclaims(threshold, layout), acting=threshold)
    ranked = rank(pods, threshold.signal, threshold.resource, layout)
    ranks = {pod.uid: number for number, pod in enumerate(ranked, 1)}
    chosen = next((pod for pod in ranked if pod.uid not in spared), None)
    going: dict[str, Reason] = {}
    victims = ()
    if chosen is not None:
        seen = observations.get(threshold.signal)
        going[chosen.uid] = _why(chosen, threshold, seen, layout, (ranks[chosen.uid], len(ranked)))
        grace_s = HARD_GRACE_S if threshold.hard else soft_grace_s(chosen, policy)
        victims = (Victim(chosen, grace_s, message_for(chosen, threshold, seen), threshold.signal.value),)
    decisions = [
        _decision(pod, going, spared, Reason(ReasonCode.ONE_AT_A_TIME, {"rank": ranks[pod.uid], "pods": len(ranked)}))
        for pod in ranked
    ]
    decisions.sort(key=lambda decision: decision.verdict is not Verdict.REMOVE)
    return EvictionPlan(Plan("pods", now, tuple(decisions)), victims, acting=threshold)


def soft_grace_s(pod: PodFacts, policy: EvictionPolicy) -> float:
    """Return what a pod is given at a soft threshold: the least of its own and the maximum, which 0 turns off."""
    maximum_s = policy.maximum_pod_grace_s
    return min(pod.grace_s, maximum_s) if maximum_s > 0 else pod.grace_s


def over_limit(pod: PodFacts, layout: Layout) -> tuple[Reason, str, str] | None:
    """Return which storage limit of its own a pod breaks: the reason, the message, and the signal of it.

    Source: kubelet ``emptyDirLimitEviction``, ``podEphemeralStorageLimitEviction``,
    ``containerEphemeralStorageLimitEviction``; all comparisons strict.
    """
    for volume in pod.empty_dirs:
        if 0 < volume.limit_bytes < volume.used_bytes:
            details: dict[str, Detail] = {
                "volume": volume.name,
                "used_bytes": volume.used_bytes,
                "limit_bytes": volume.limit_bytes,
            }
            message = f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{volume.limit_bytes}". '
            return Reason(ReasonCode.EMPTY_DIR_OVER_LIMIT, details), message, "emptydirfs.limit"
    limit = sum(each.storage_limit_bytes for each in pod.containers)
    use = pod.use
    if limit and use is not None:
        used = sum(size or 0 for size in (use.writable_bytes, use.log_bytes, use.volume_bytes))
        if used > limit:
            reason = Reason(ReasonCode.POD_STORAGE_OVER_LIMIT, {"used_bytes": used, "limit_bytes": limit})
            message = f"Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
            return reason, message, "ephemeralpodfs.limit"
    for each in pod.containers:
        used = (each.log_bytes or 0) + (0 if layout is Layout.DEDICATED_IMAGEFS else each.writable_bytes or 0)
        if 0 < each.storage_limit_bytes < used:
            details = {"container": each.name, "used_bytes": used, "limit_bytes": each.storage_limit_bytes}
            message = f'Container {each.name} exceeded its local ephemeral storage limit "{each.storage_limit_bytes}". '
            return Reason(ReasonCode.CONTAINER_STORAGE_OVER_LIMIT, details), message, "ephemeralcontainerfs.limit"
    return None


def message_for(pod: PodFacts, threshold: Threshold, seen: Observation | None) -> str:
    """Return what the status of an evicted pod says, in the kubelet's form. Source: kubelet ``evictionMessage``."""
    resource = threshold.resource
    words = [f"The node was low on resource: {resource.value}. "]
    if seen is not None:
        wanted = _quantity(threshold.value.of(seen.capacity), resource, threshold.signal)
        words.append(
            f"Threshold quantity: {wanted}, available: {_quantity(seen.available, resource, threshold.signal)}. "
        )
    for each in pod.containers:
        used, requested = _of_container(each, resource)
        if used is not None and requested is not None and used > requested:
            words.append(
                f"Container {each.name} was using {_quantity(used, resource)}, request is "
                f"{_quantity(requested, resource)}, has larger consumption of {resource.value}. "
            )
    return "".join(words)


def _of_container(each: ContainerUse, resource: Resource) -> tuple[int | None, int | None]:
    if resource is Resource.MEMORY:
        return each.memory_bytes, each.memory_request_bytes
    if resource is Resource.EPHEMERAL_STORAGE:
        known = [size for size in (each.writable_bytes, each.log_bytes) if size is not None]
        return (sum(known) if known else None), each.storage_request_bytes
    return None, None


def _quantity(value: float, resource: Resource, signal: Signal | None = None) -> str:
    if signal is not None and signal.is_stall:
        return f"{value:g}%"
    if resource in (Resource.MEMORY, Resource.EPHEMERAL_STORAGE):
        return f"{int(value) // 1024}Ki" if value >= 1024 else f"{int(value)}"
    return f"{int(value)}"


def _why(
    pod: PodFacts, threshold: Threshold, seen: Observation | None, layout: Layout, place: tuple[int, int]
) -> Reason:
    used = usage_of(pod, threshold.signal, threshold.resource, layout)
    sized = threshold.resource in (Resource.MEMORY, Resource.EPHEMERAL_STORAGE)

    def shown(value: float | None) -> str:
        if value is None:
            return "an unknown amount"
        return format_bytes(int(value)) if sized else f"{int(value)}"

    available = (
        "unknown" if seen is None else f"{seen.available:g}%" if threshold.signal.is_stall else shown(seen.available)
    )
    return Reason(
        ReasonCode.NODE_LOW_ON_RESOURCE,
        {
            "resource": threshold.resource.value,
            "threshold": threshold.text or threshold.signal.value,
            "available": available,
            "rank": place[0],
            "pods": place[1],
            "usage": shown(used),
            "priority": pod.priority or 0,
        },
    )


def _plan(
    pods: Iterable[PodFacts], now: datetime, going: Mapping[str, Reason], spared: Mapping[str, Reason], kept: Reason
) -> Plan:
    decisions = sorted(
        (_decision(pod, going, spared, kept) for pod in pods),
        key=lambda decision: (decision.verdict is not Verdict.REMOVE, decision.name, decision.id),
    )
    return Plan("pods", now, tuple(decisions))


def _decision(pod: PodFacts, going: Mapping[str, Reason], spared: Mapping[str, Reason], kept: Reason) -> Decision:
    if pod.uid in going:
        return Decision(ItemKind.POD, pod.uid, pod.full_name, Verdict.REMOVE, going[pod.uid])
    return Decision(ItemKind.POD, pod.uid, pod.full_name, Verdict.KEEP, spared.get(pod.uid, kept))
