"""In which order pods would go, and which never do."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import Resource, Signal
from nodeagent.plan.decision import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nodeagent.model.pressure import PodFacts, PodUse
    from nodeagent.plan.eviction.thresholds import EvictionPolicy

CRITICAL_PRIORITY: Final = 2_000_000_000
"""Source: Kubernetes ``scheduling.SystemCriticalPriority``."""

_UNKNOWN_FIRST = -1


class Layout(StrEnum):
    """On which filesystems a node keeps what. Source: kubelet ``dedicatedImageFs``, ``splitContainerImageFs``."""

    ONE = "one"
    DEDICATED_IMAGEFS = "dedicated-imagefs"
    SPLIT = "split"


def why_spared(pod: PodFacts, policy: EvictionPolicy) -> Reason | None:  # noqa: PLR0911 - one for each rule
    """Return why a pod is never evicted; ``None`` if it may be.

    What cannot be told apart from critical counts as critical. Source: kubelet ``IsCriticalPod``.
    """
    if pod.static:
        return Reason(ReasonCode.POD_STATIC, {"how": "from a manifest on the node"})
    if pod.mirror:
        return Reason(ReasonCode.POD_STATIC, {"how": "mirrors one from a manifest on the node"})
    if pod.critical_because:
        return Reason(ReasonCode.POD_CRITICAL, {"how": pod.critical_because})
    if pod.priority is not None and pod.priority >= CRITICAL_PRIORITY:
        how = f"priority {pod.priority}" + (f" by {pod.priority_source}" if pod.priority_source else "")
        return Reason(ReasonCode.POD_CRITICAL, {"how": how})
    if pod.namespace in policy.protected_namespaces:
        return Reason(ReasonCode.POD_NAMESPACE_PROTECTED, {"namespace": pod.namespace})
    if pod.contradiction:
        return Reason(ReasonCode.POD_FACTS_UNSURE, {"detail": pod.contradiction})
    if pod.static is None:
        return Reason(ReasonCode.POD_FACTS_UNSURE, {"detail": "nothing tells whether it is static"})
    return None


def rank(pods: Iterable[PodFacts], signal: Signal, resource: Resource, layout: Layout) -> list[PodFacts]:
    """Return the pods in order of eviction, first to go first.

    Memory and disk: those that use more than they asked for, then by priority, lowest first, then by how much more.
    Inodes: those that use any, then by priority, then by how many. Processes: by priority, then by how many. A pod
    without statistics comes before those with. A missing priority is 0, a request that nothing tells is 0.

    Departures from the kubelet: inodes are not compared with a request in bytes; ties are settled, the youngest pod
    first, then by UID.

    Source: kubelet ``rankMemoryPressure``, ``rankDiskPressureFunc``, ``rankPIDPressure``.
    """
    match resource:
        case Resource.MEMORY:
            return sorted(pods, key=lambda pod: _by_excess(pod, _memory(pod), pod.memory_request_bytes or 0))
        case Resource.EPHEMERAL_STORAGE:
            counted = _counted(signal, layout)
            return sorted(
                pods, key=lambda pod: _by_excess(pod, _sum(pod.use, counted, _SIZES), pod.storage_request_bytes)
            )
        case Resource.INODES:
            counted = _counted(signal, layout)
            return sorted(pods, key=lambda pod: _by_excess(pod, _sum(pod.use, counted, _INODES), 0))
        case Resource.PIDS:
            return sorted(pods, key=_by_processes)


def usage_of(pod: PodFacts, signal: Signal, resource: Resource, layout: Layout) -> int | None:
    """Return what a pod uses of what is short; ``None`` where it is not known."""
    match resource:
        case Resource.MEMORY:
            return _memory(pod)
        case Resource.EPHEMERAL_STORAGE:
            return _sum(pod.use, _counted(signal, layout), _SIZES)
        case Resource.INODES:
            return _sum(pod.use, _counted(signal, layout), _INODES)
        case Resource.PIDS:
            return pod.use.pids if pod.use is not None else None


_Key = tuple[int, bool, int, float, float, str]
_SIZES: Final[dict[str, Callable[[PodUse], int | None]]] = {
    "writable": lambda use: use.writable_bytes,
    "logs": lambda use: use.log_bytes,
    "volumes": lambda use: use.volume_bytes,
}
_INODES: Final[dict[str, Callable[[PodUse], int | None]]] = {
    "writable": lambda use: use.writable_inodes,
    "logs": lambda use: use.log_inodes,
    "volumes": lambda use: use.volume_inodes,
}


def _counted(signal: Signal, layout: Layout) -> tuple[str, ...]:
    """Return which parts of a pod's local storage lie on the filesystem of a signal."""
    filesystem = signal.value.partition(".")[0]
    if layout is Layout.DEDICATED_IMAGEFS:
        return ("writable",) if filesystem in ("imagefs", "containerfs") else ("logs", "volumes")
    if layout is Layout.SPLIT and filesystem == "imagefs":
        return ()
    return ("writable", "logs", "volumes")


def _memory(pod: PodFacts) -> int | None:
    return pod.use.memory_bytes if pod.use is not None else None


def _sum(use: PodUse | None, parts: tuple[str, ...], read: dict[str, Callable[[PodUse], int | None]]) -> int | None:
    if use is None:
        return None
    known = [size for part in parts if (size := read[part](use)) is not None]
    return sum(known) if known or not parts else None


def _by_excess(pod: PodFacts, used: int | None, requested: int) -> _Key:
    priority = pod.priority or 0
    if used is None:
        return (_UNKNOWN_FIRST, False, priority, 0.0, *_tie(pod))
    return (0, used <= requested, priority, float(requested - used), *_tie(pod))


def _by_processes(pod: PodFacts) -> _Key:
    processes = pod.use.pids if pod.use is not None else None
    if processes is None:
        return (_UNKNOWN_FIRST, False, pod.priority or 0, 0.0, *_tie(pod))
    return (0, False, pod.priority or 0, float(-processes), *_tie(pod))


def _tie(pod: PodFacts) -> tuple[float, str]:
    return (-pod.started_at.timestamp() if pod.started_at is not None else 0.0, pod.uid)
