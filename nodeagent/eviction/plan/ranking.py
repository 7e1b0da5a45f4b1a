"""Eviction order of pods, their writable layers by image filesystem, and the eviction of one pod.

The kubelet monitors only the first image filesystem and attributes all writable layers to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from nodeagent.eviction.plan.thresholds import MEANINGS, Threshold, ThresholdStatus, Unit
from nodeagent.model.decision import Detail, Reason, ReasonCode
from nodeagent.model.pressure import (
    Fact,
    FactSource,
    FilesystemLayout,
    FilesystemRole,
    Footprint,
    LayerUsage,
    OtherImageFilesystem,
    PodFacts,
    PodLifecycle,
    PodUsage,
    Resource,
    Signal,
)
from nodeagent.record import Record, replace
from nodeagent.units import format_bytes


def is_on(layer: LayerUsage, other: OtherImageFilesystem) -> bool | None:
    """Return whether a writable layer is on this image filesystem; ``None`` if unknown or contradictory.

    The device of the layer or its snapshotter identifies the filesystem; if both are known, they must agree.
    """
    by_device = None if layer.device_id is None else layer.device_id == other.device_id
    by_store = layer.snapshotter in other.stores if layer.snapshotter else None
    if by_device is None or by_store is None:
        return by_store if by_device is None else by_device
    return by_device if by_device is by_store else None


def on_first(usage: PodUsage, others: Collection[OtherImageFilesystem]) -> Footprint:
    """Return the usage of a pod's writable layers, except the layers known to be on the filesystems ``others``."""
    first = [each for each in usage.layers if not any(is_on(each, other) for other in others)]
    return usage.writable if len(first) == len(usage.layers) else total_footprint(each.used for each in first)


def on_filesystem(usage: PodUsage, other: OtherImageFilesystem) -> Footprint | None:
    """Return the usage of a pod's writable layers on this filesystem; ``None`` if no layer is known to be on it."""
    found = [each.used for each in usage.layers if is_on(each, other)]
    return total_footprint(found) if found else None


def not_there_reason(
    pod: PodFacts, threshold: Threshold, layout: FilesystemLayout, others: Collection[OtherImageFilesystem]
) -> Reason | None:
    """Return the reason why a pod is no eviction candidate for the threshold's filesystem; ``None`` for a candidate.

    For an image filesystem besides the first, a candidate has a writable layer on this filesystem. For a dedicated
    first image filesystem, every pod is a candidate unless all its layers are known to be on other image filesystems.
    """
    usage, other = pod.usage, threshold.filesystem
    layers = () if usage is None else usage.layers
    if other is not None:
        there = [is_on(each, other) for each in layers]
        if any(there):
            return None
        if not there or None in there:
            return Reason(ReasonCode.LAYERS_UNKNOWN, {"filesystem": other.path})
        return Reason(ReasonCode.LAYERS_ELSEWHERE, {"filesystem": other.path})
    role = MEANINGS[threshold.signal].filesystem
    if role in {None, FilesystemRole.NODEFS} or layout is not FilesystemLayout.DEDICATED_IMAGEFS:
        return None
    if layers and all(any(is_on(each, one) for one in others) for each in layers):
        return Reason(ReasonCode.LAYERS_ELSEWHERE, {"filesystem": str(role)})
    return None


def total_footprint(parts: Iterable[Footprint]) -> Footprint:
    """Return the sum of the parts: unknown if a part is unknown, a lower bound if a part is a lower bound."""
    listed = tuple(parts)
    sizes = [each.used_bytes for each in listed if each.used_bytes is not None]
    inodes = [each.used_inodes for each in listed if each.used_inodes is not None]
    return Footprint(
        sum(sizes) if len(sizes) == len(listed) else None,
        sum(inodes) if len(inodes) == len(listed) else None,
        any(each.is_lower_bound for each in listed),
    )


_GUESSED = frozenset({FactSource.INFERRED, FactSource.ASSUMED})
_BYTES = frozenset({Resource.MEMORY, Resource.EPHEMERAL_STORAGE})


class RankedPod(Record):
    """A pod with its rank in the eviction order.

    Attributes:
        rank: position in eviction order, from 1.
        usage: usage of ``resource`` in bytes, inodes or PIDs; ``None`` if unknown. For ``swap.free`` the swapped-out
            memory.
        is_lower_bound: whether the measurement of the usage is incomplete.
        swapped: swapped-out part of the memory usage in bytes; 0 for other resources.
        frees: amount that returns to the signal if the pod is evicted, in the unit of the signal; ``None`` if unknown.
            Volumes that outlive the pod and swapped-out memory are not part of it.
        frees_at_least: whether the measurement of ``frees`` is incomplete.
        stalled_percent: percentage of time in which the pod waited for memory; ``None`` except for stall signals.
        request: request in bytes; 0 for inodes and PIDs, which have no requests.
        priority: pod priority; 0 if unknown.
        assumed: notes on facts that were inferred, assumed or not read, such as ``priority assumed``.
    """

    pod: PodFacts
    rank: int
    resource: Resource
    usage: int | None
    request: int
    priority: int
    assumed: tuple[str, ...] = ()
    is_lower_bound: bool = False
    swapped: int = 0
    frees: float | None = None
    frees_at_least: bool = False
    stalled_percent: float | None = None

    @property
    def excess(self) -> int | None:
        """Usage minus request; negative if the usage is below the request, ``None`` if the usage is unknown."""
        return None if self.usage is None else self.usage - self.request

    @property
    def measure(self) -> str:
        """Usage, request and priority as text."""
        if self.stalled_percent is not None:
            return f"waits for memory {self.stalled_percent:.1f}% of the time, priority {self.priority}"
        if self.usage is None:
            return f"{self.resource} usage unknown, priority {self.priority}"
        uses = "uses at least" if self.is_lower_bound else "uses"
        if self.resource not in _BYTES:
            return f"{uses} {self.usage} {self.resource}, priority {self.priority}"
        compared = f"request {format_bytes(self.request)}" if self.request else "no request"
        resource = f"{self.resource} ({format_bytes(self.swapped)} swapped out)" if self.swapped else self.resource
        return f"{uses} {format_bytes(self.usage)} of {resource}, {compared}, priority {self.priority}"

    @property
    def note(self) -> str:
        """The notes in ``assumed`` in parentheses, to append to a sentence; empty without notes."""
        return f" ({'; '.join(self.assumed)})" if self.assumed else ""

    @property
    def details(self) -> dict[str, Detail]:
        """Rank, usage, request and priority as details of a reason, with the unit in each key."""
        details: dict[str, Detail] = {"rank": self.rank, "resource": self.resource.value, "priority": self.priority}
        unit = "bytes" if self.resource in _BYTES else self.resource.value
        if self.usage is not None:
            details[f"usage_{unit}"] = self.usage
            if unit == "bytes":
                details["request_bytes"] = self.request
                details["excess_bytes"] = self.usage - self.request
        if self.swapped:
            details["swapped_bytes"] = self.swapped
        if self.stalled_percent is not None:
            details["stalled_percent"] = self.stalled_percent
        if self.is_lower_bound:
            details["usage_is_lower_bound"] = True
        if self.assumed:
            details["assumed"] = self.assumed
        return details


class RankingInput(NamedTuple):
    """Filesystems for which pods are ranked.

    Attributes:
        layout: which of nodefs, imagefs and containerfs share a device.
        others: the image filesystems other than the first.
        ranked: the filesystem in ``others`` for which pods are ranked; ``None`` for the filesystem of the signal.
        removes_volumes: whether an eviction also removes the volumes of the pod, as a kubelet does; the agent itself
            manages no volumes.
        cache_in_use: whether page cache counts as used because the pods read it again at once; it is available when
            these pods end.
    """

    layout: FilesystemLayout
    others: Collection[OtherImageFilesystem] = ()
    ranked: OtherImageFilesystem | None = None
    removes_volumes: bool = False
    cache_in_use: bool = False


def rank_pods(
    pods: Iterable[PodFacts], signal: Signal, placement: FilesystemLayout | RankingInput
) -> tuple[RankedPod, ...]:
    """Return the pods that are not finished, in eviction order for a signal.

    - Memory and disk: pods with usage above their request first; then lower priority; then larger excess.
    - Inodes: pods with any usage first; then lower priority; then more inodes.
    - PIDs: lower priority first; then more PIDs.
    - Memory stalls: lower priority first; then longer stalls of the pod itself.

    A pod with unknown or incompletely measured usage precedes other pods in every comparison of usage: a tenant could
    otherwise hide usage by slowing down the measurement of its pod. Ties are broken by UID.

    Unlike in the kubelet, memory usage includes swapped-out memory: with swap enabled, the pod that causes the pressure
    may itself be swapped out, and its working set alone would rank it behind other pods. Inodes are not compared with
    the storage request, which counts bytes. The ranking for a signal without a resource is empty.

    Source: kubelet ``rankMemoryPressure``, ``rankDiskPressureFunc``, ``rankPIDPressure``.
    """
    resource = MEANINGS[signal].resource
    if resource is None:
        return ()
    placement = _placement(placement)
    unfinished = [pod for pod in pods if pod.lifecycle is not PodLifecycle.FINISHED]
    measured = [_measure(pod, signal, resource, placement) for pod in unfinished]
    stalls = MEANINGS[signal].unit is Unit.STALL_PERCENT
    measured.sort(key=_key_stall if stalls else _key_pids if resource is Resource.PIDS else _key_usage)
    return tuple(replace(each, rank=rank) for rank, each in enumerate(measured, start=1))


def usage_of(
    usage: PodUsage | None, signal: Signal, placement: FilesystemLayout | RankingInput
) -> tuple[int | None, tuple[str, ...]]:
    """Return a pod's usage of the resource of a signal, and a note for each part that was not read.

    Disk usage is the sum of the parts on the filesystem of the signal. A part that was not read counts as 0; if no part
    was read, the usage is ``None``.

    Source: kubelet ``podDiskUsage``, ``containerUsage``, ``podLocalVolumeUsage``, selected by the rank function of the
    layout.
    """
    meaning = MEANINGS[signal]
    if usage is None:
        return None, ()
    if meaning.filesystem is None:
        return _plain_usage(usage, signal)
    inodes = meaning.resource is Resource.INODES
    found = {
        name: each.used_inodes if inodes else each.used_bytes
        for name, each in _parts(usage, meaning.filesystem, _placement(placement)).items()
    }
    missing = tuple(f"{name} not read, counted as 0" for name, number in found.items() if number is None)
    if found and len(missing) == len(found):
        return None, ()
    return sum(number or 0 for number in found.values()), missing


def _placement(placement: FilesystemLayout | RankingInput) -> RankingInput:
    return placement if isinstance(placement, RankingInput) else RankingInput(placement)


def _is_lower_bound(usage: PodUsage | None, signal: Signal, placement: RankingInput) -> bool:
    filesystem = MEANINGS[signal].filesystem
    if usage is None or filesystem is None:
        return False
    return any(each.is_lower_bound for each in _parts(usage, filesystem, placement).values())


def _plain_usage(usage: PodUsage, signal: Signal) -> tuple[int | None, tuple[str, ...]]:
    if signal is Signal.PID_AVAILABLE:
        return usage.pids, ()
    if signal is Signal.SWAP_FREE:
        return usage.swap_bytes, ()
    if usage.memory_bytes is None:
        return None, ()
    return usage.memory_bytes + (usage.swap_bytes or 0), ()  # without swap accounting there is no swap


def _parts(usage: PodUsage, filesystem: FilesystemRole, placement: RankingInput) -> dict[str, Footprint]:
    """Return the footprint of each part of a pod's disk usage on a filesystem: writable layers, logs, volumes."""
    if placement.ranked is not None:
        return {"writable layers": on_filesystem(usage, placement.ranked) or Footprint()}
    layout = placement.layout
    writable = {"writable layers": on_first(usage, placement.others)}
    others = {"logs": usage.logs, "volumes": usage.volumes}
    if layout is FilesystemLayout.DEDICATED_IMAGEFS:
        return others if filesystem is FilesystemRole.NODEFS else writable
    if layout is FilesystemLayout.SPLIT and filesystem is FilesystemRole.IMAGEFS:
        return {}
    return writable | others


def freed_by_eviction(
    usage: PodUsage | None, signal: Signal, placement: FilesystemLayout | RankingInput
) -> tuple[float | None, bool]:
    """Return the amount that an eviction returns to a signal, and whether its measurement is incomplete.

    The amount is in the unit of the signal; ``None`` if unknown. Writable layers and logs are removed with the pod. Its
    volumes are removed by a kubelet only, and the pages of memory volumes remain in memory with them. Page cache counts
    only if it is in use, since other page cache is available in any case. A part that was not read counts as 0. For a
    stall signal the amount is the stall of the pod itself.
    """
    meaning, placement = MEANINGS[signal], _placement(placement)
    if usage is None:
        return None, False
    if meaning.filesystem is not None:
        parts = _parts(usage, meaning.filesystem, placement)
        if not placement.removes_volumes:
            parts.pop("volumes", None)
        inodes = meaning.resource is Resource.INODES
        found = [each.used_inodes if inodes else each.used_bytes for each in parts.values()]
        known = [each for each in found if each is not None]
        return (sum(known) if known or not found else None), any(each.is_lower_bound for each in parts.values())
    if signal is Signal.PID_AVAILABLE:
        return usage.pids, False
    if signal is Signal.SWAP_FREE:
        return usage.swap_bytes, False
    if meaning.unit is Unit.STALL_PERCENT:
        return usage.stalled_full_percent if signal is Signal.MEMORY_PSI_FULL else usage.stalled_some_percent, False
    remains = 0 if placement.removes_volumes else usage.memory_volumes_bytes
    remains += 0 if placement.cache_in_use else usage.memory_cache_bytes
    return None if usage.memory_bytes is None else max(0, usage.memory_bytes - remains), False


def _measure(pod: PodFacts, signal: Signal, resource: Resource, placement: RankingInput) -> RankedPod:
    usage, unread = usage_of(pod.usage, signal, placement)
    facts: list[tuple[str, Fact[int | None]]] = [("priority", pod.priority)]
    request = 0
    if resource in _BYTES and signal is not Signal.SWAP_FREE:
        fact = pod.memory_request_bytes if resource is Resource.MEMORY else pod.ephemeral_request_bytes
        facts.append((f"{resource} request", fact))
        request = fact.value or 0
    assumed = tuple(f"{name} {fact.source}" for name, fact in facts if fact.source in _GUESSED)
    is_lower_bound = _is_lower_bound(pod.usage, signal, placement)
    swapped = (pod.usage.swap_bytes or 0) if resource is Resource.MEMORY and pod.usage is not None else 0
    frees, frees_at_least = freed_by_eviction(pod.usage, signal, placement)
    return RankedPod(
        pod,
        0,
        resource,
        usage,
        request,
        pod.priority.value or 0,
        assumed + unread,
        is_lower_bound,
        swapped,
        frees,
        frees_at_least,
        frees if MEANINGS[signal].unit is Unit.STALL_PERCENT else None,
    )


def _key_usage(each: RankedPod) -> tuple[bool, bool, int, int, str]:
    excess = each.excess
    is_measured = excess is not None and not each.is_lower_bound
    return is_measured, is_measured and (excess or 0) <= 0, each.priority, -(excess or 0), each.pod.uid


def _key_pids(each: RankedPod) -> tuple[int, bool, int, str]:
    return each.priority, each.usage is not None, -(each.usage or 0), each.pod.uid


def _key_stall(each: RankedPod) -> tuple[int, float, str]:
    return each.priority, -(each.stalled_percent or 0.0), each.pod.uid


_URGENT: Final = frozenset({Resource.MEMORY, Resource.PIDS})


class Eviction(Record):
    """The pod to evict in a pass; a pass evicts at most one pod.

    Attributes:
        signal: name of the signal or storage limit, as in the label of the kubelet's eviction metric.
        starved: the resource in shortage.
        status: the selected threshold with the latest reading; ``None`` for a storage limit.
        ranked: the pod with its rank; ``None`` for a storage limit.
        grace_s: termination grace period of the eviction in seconds; 0 kills immediately.
        message: message of the pod status, in the kubelet's wording.
    """

    pod: PodFacts
    reason: Reason
    signal: str
    starved: Resource
    status: ThresholdStatus | None
    ranked: RankedPod | None
    grace_s: float
    message: str

    @property
    def is_urgent(self) -> bool:
        """Whether the starved resource, memory or PIDs, can be exhausted within a second."""
        return self.starved in _URGENT
