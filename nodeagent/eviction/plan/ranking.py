"""Eviction order of pods, pods over their own local storage limits, and the eviction of one pod with its message.

The kubelet monitors only the first image filesystem and attributes all writable layers to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from nodeagent.eviction.plan.memory_model import estimate_memory
from nodeagent.eviction.plan.thresholds import MEANINGS, Threshold, ThresholdStatus, Unit
from nodeagent.model import pressure
from nodeagent.model.decision import Detail, Reason, ReasonCode
from nodeagent.record import Record, replace
from nodeagent.units import format_bytes, format_quantity


def is_on(layer: pressure.LayerUsage, other: pressure.OtherFilesystem) -> bool | None:
    """Return whether a writable layer is on this image filesystem; ``None`` if unknown or contradictory.

    The device of the layer or its snapshotter identifies the filesystem; if both are known, they must agree.
    """
    by_device = None if layer.device_id is None else layer.device_id == other.device_id
    by_store = layer.snapshotter in other.stores if layer.snapshotter else None
    if by_device is None or by_store is None:
        return by_store if by_device is None else by_device
    return by_device if by_device is by_store else None


def on_first(usage: pressure.PodUsage, others: Collection[pressure.OtherFilesystem]) -> pressure.Footprint:
    """Return the usage of a pod's writable layers, except the layers known to be on the filesystems ``others``."""
    first = [each for each in usage.layers if not any(is_on(each, other) for other in others)]
    return usage.writable if len(first) == len(usage.layers) else total_footprint(each.used for each in first)


def on_filesystem(usage: pressure.PodUsage, other: pressure.OtherFilesystem) -> pressure.Footprint | None:
    """Return the usage of a pod's writable layers on this filesystem; ``None`` if no layer is known to be on it."""
    found = [each.used for each in usage.layers if is_on(each, other)]
    return total_footprint(found) if found else None


def not_there_reason(
    pod: pressure.PodFacts,
    threshold: Threshold,
    layout: pressure.FilesystemLayout,
    others: Collection[pressure.OtherFilesystem],
) -> Reason | None:
    """Return the reason why a pod is no eviction candidate for the threshold's filesystem; ``None`` for a candidate.

    For an image filesystem besides the first, a candidate has a writable layer on this filesystem. For a dedicated
    first image filesystem, every pod is a candidate unless all its layers are known to be on other image filesystems.
    For a filesystem of the pod logs, every pod is a candidate.
    """
    usage, other = pod.usage, threshold.filesystem
    layers = () if usage is None else usage.layers
    if other is not None and not other.has_logs:
        there = [is_on(each, other) for each in layers]
        if any(there):
            return None
        if not there or None in there:
            return Reason(ReasonCode.LAYERS_UNKNOWN, {"filesystem": other.path})
        return Reason(ReasonCode.LAYERS_ELSEWHERE, {"filesystem": other.path})
    role = MEANINGS[threshold.signal].filesystem
    if role in {None, pressure.FilesystemRole.NODEFS} or layout is not pressure.FilesystemLayout.DEDICATED_IMAGEFS:
        return None
    if layers and all(any(is_on(each, one) for one in others) for each in layers):
        return Reason(ReasonCode.LAYERS_ELSEWHERE, {"filesystem": str(role)})
    return None


def total_footprint(parts: Iterable[pressure.Footprint]) -> pressure.Footprint:
    """Return the sum of the parts: unknown if a part is unknown, a lower bound if a part is a lower bound."""
    listed = tuple(parts)
    sizes = [each.used_bytes for each in listed if each.used_bytes is not None]
    inodes = [each.used_inodes for each in listed if each.used_inodes is not None]
    return pressure.Footprint(
        sum(sizes) if len(sizes) == len(listed) else None,
        sum(inodes) if len(inodes) == len(listed) else None,
        any(each.is_lower_bound for each in listed),
    )


_GUESSED = frozenset({pressure.FactSource.INFERRED, pressure.FactSource.ASSUMED})
_BYTES = frozenset({pressure.Resource.MEMORY, pressure.Resource.EPHEMERAL_STORAGE})


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

    pod: pressure.PodFacts
    rank: int
    resource: pressure.Resource
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
        others: the additional filesystems.
        ranked: the filesystem in ``others`` for which pods are ranked; ``None`` for the filesystem of the signal.
        removes_volumes: whether an eviction also removes the volumes of the pod, as a kubelet does; the agent itself
            manages no volumes.
        cache_in_use: whether page cache counts as used because the pods read it again at once; it is available when
            these pods end.
    """

    layout: pressure.FilesystemLayout
    others: Collection[pressure.OtherFilesystem] = ()
    ranked: pressure.OtherFilesystem | None = None
    removes_volumes: bool = False
    cache_in_use: bool = False


def rank_pods(
    pods: Iterable[pressure.PodFacts], signal: pressure.Signal, placement: pressure.FilesystemLayout | RankingInput
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
    unfinished = [pod for pod in pods if pod.lifecycle is not pressure.PodLifecycle.FINISHED]
    measured = [_measure(pod, signal, resource, placement) for pod in unfinished]
    stalls = MEANINGS[signal].unit is Unit.STALL_PERCENT
    measured.sort(key=_key_stall if stalls else _key_pids if resource is pressure.Resource.PIDS else _key_usage)
    return tuple(replace(each, rank=rank) for rank, each in enumerate(measured, start=1))


def usage_of(
    usage: pressure.PodUsage | None, signal: pressure.Signal, placement: pressure.FilesystemLayout | RankingInput
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
    inodes = meaning.resource is pressure.Resource.INODES
    found = {
        name: each.used_inodes if inodes else each.used_bytes
        for name, each in _parts(usage, meaning.filesystem, _placement(placement)).items()
    }
    missing = tuple(f"{name} not read, counted as 0" for name, number in found.items() if number is None)
    if found and len(missing) == len(found):
        return None, ()
    return sum(number or 0 for number in found.values()), missing


def _placement(placement: pressure.FilesystemLayout | RankingInput) -> RankingInput:
    return placement if isinstance(placement, RankingInput) else RankingInput(placement)


def _is_lower_bound(usage: pressure.PodUsage | None, signal: pressure.Signal, placement: RankingInput) -> bool:
    filesystem = MEANINGS[signal].filesystem
    if usage is None or filesystem is None:
        return False
    return any(each.is_lower_bound for each in _parts(usage, filesystem, placement).values())


def _plain_usage(usage: pressure.PodUsage, signal: pressure.Signal) -> tuple[int | None, tuple[str, ...]]:
    if signal is pressure.Signal.PID_AVAILABLE:
        return usage.pids, ()
    if signal is pressure.Signal.SWAP_FREE:
        return usage.swap_bytes, ()
    if usage.memory_bytes is None:
        return None, ()
    return usage.memory_bytes + (usage.swap_bytes or 0), ()  # without swap accounting there is no swap


def _parts(
    usage: pressure.PodUsage, filesystem: pressure.FilesystemRole, placement: RankingInput
) -> dict[str, pressure.Footprint]:
    """Return the footprint of each part of a pod's disk usage on a filesystem: writable layers, logs, volumes."""
    if placement.ranked is not None and placement.ranked.has_logs:
        return {"logs": usage.logs}
    if placement.ranked is not None:
        return {"writable layers": on_filesystem(usage, placement.ranked) or pressure.Footprint()}
    layout = placement.layout
    writable = {"writable layers": on_first(usage, placement.others)}
    logs = {} if pressure.has_separate_logs(placement.others) else {"logs": usage.logs}
    others = logs | {"volumes": usage.volumes}
    if layout is pressure.FilesystemLayout.DEDICATED_IMAGEFS:
        return others if filesystem is pressure.FilesystemRole.NODEFS else writable
    if layout is pressure.FilesystemLayout.SPLIT and filesystem is pressure.FilesystemRole.IMAGEFS:
        return {}
    return writable | others


def freed_by_eviction(
    usage: pressure.PodUsage | None, signal: pressure.Signal, placement: pressure.FilesystemLayout | RankingInput
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
        inodes = meaning.resource is pressure.Resource.INODES
        found = [each.used_inodes if inodes else each.used_bytes for each in parts.values()]
        known = [each for each in found if each is not None]
        return (sum(known) if known or not found else None), any(each.is_lower_bound for each in parts.values())
    if signal is pressure.Signal.PID_AVAILABLE:
        return usage.pids, False
    if signal is pressure.Signal.SWAP_FREE:
        return usage.swap_bytes, False
    if meaning.unit is Unit.STALL_PERCENT:
        return (
            usage.stalled_full_percent if signal is pressure.Signal.MEMORY_PSI_FULL else usage.stalled_some_percent,
            False,
        )
    remains = 0 if placement.removes_volumes else usage.memory_volumes_bytes
    remains += 0 if placement.cache_in_use else usage.memory_cache_bytes
    return None if usage.memory_bytes is None else max(0, usage.memory_bytes - remains), False


def _measure(
    pod: pressure.PodFacts, signal: pressure.Signal, resource: pressure.Resource, placement: RankingInput
) -> RankedPod:
    usage, unread = usage_of(pod.usage, signal, placement)
    facts: list[tuple[str, pressure.Fact[int | None]]] = [("priority", pod.priority)]
    request = 0
    if resource in _BYTES and signal is not pressure.Signal.SWAP_FREE:
        fact = pod.memory_request_bytes if resource is pressure.Resource.MEMORY else pod.ephemeral_request_bytes
        facts.append((f"{resource} request", fact))
        request = fact.value or 0
    assumed = tuple(f"{name} {fact.source}" for name, fact in facts if fact.source in _GUESSED)
    is_lower_bound = _is_lower_bound(pod.usage, signal, placement)
    swapped = (pod.usage.swap_bytes or 0) if resource is pressure.Resource.MEMORY and pod.usage is not None else 0
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


_URGENT: Final = frozenset({pressure.Resource.MEMORY, pressure.Resource.PIDS})


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

    pod: pressure.PodFacts
    reason: Reason
    signal: str
    starved: pressure.Resource
    status: ThresholdStatus | None
    ranked: RankedPod | None
    grace_s: float
    message: str

    @property
    def is_urgent(self) -> bool:
        """Whether the starved resource, memory or PIDs, can be exhausted within a second."""
        return self.starved in _URGENT


class StorageLimit(StrEnum):
    """Kind of storage limit, named as in the label of the kubelet's eviction metric."""

    EMPTY_DIR = "emptydirfs.limit"
    POD = "ephemeralpodfs.limit"
    CONTAINER = "ephemeralcontainerfs.limit"

    @property
    def noun(self) -> str:
        """The limited object, before its name."""
        return {StorageLimit.EMPTY_DIR: "emptyDir ", StorageLimit.CONTAINER: "container "}.get(self, "the pod")


class LimitCheck(NamedTuple):
    """Measured usage beside a storage limit.

    Attributes:
        name: name of the emptyDir volume or container; empty for the limit of the pod.
        parts: usage in bytes by part; ``None`` for a part that was not read.
        limit_text: the limit as written in the definition of the pod, for display.
    """

    limit: StorageLimit
    name: str
    parts: Mapping[str, int | None]
    limit_bytes: int
    limit_text: str = ""

    @property
    def usage_bytes(self) -> int:
        """Usage of the parts that were read, in bytes: a lower bound if a part was not read."""
        return sum(each for each in self.parts.values() if each is not None)

    @property
    def excess_bytes(self) -> int:
        """Usage above the limit, in bytes; negative below the limit."""
        return self.usage_bytes - self.limit_bytes

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of the parts that were not read."""
        return tuple(name for name, used_bytes in self.parts.items() if used_bytes is None)

    @property
    def reason(self) -> Reason:
        """The reason to evict the pod if the limit is exceeded."""
        numbers: dict[str, Detail] = {"usage_bytes": self.usage_bytes, "limit_bytes": self.limit_bytes}
        if self.limit is StorageLimit.EMPTY_DIR:
            return Reason(ReasonCode.EMPTY_DIR_OVER_LIMIT, {"volume": self.name, **numbers})
        if self.unread:
            numbers["unread"] = self.unread
        if self.limit is StorageLimit.POD:
            return Reason(ReasonCode.POD_OVER_STORAGE_LIMIT, numbers)
        keys = {_LAYER: "writable_bytes", _LOGS: "logs_bytes"}
        parts = {keys[name]: used_bytes for name, used_bytes in self.parts.items() if used_bytes is not None}
        return Reason(ReasonCode.CONTAINER_OVER_STORAGE_LIMIT, {"container": self.name, **numbers, **parts})

    @property
    def message(self) -> str:
        """The status message of a pod evicted for the limit, with the kubelet's trailing space.

        Source: kubelet ``localStorageEviction``.
        """
        limit = format_quantity(self.limit_bytes, like=self.limit_text)
        if self.limit is StorageLimit.EMPTY_DIR:
            return f'Usage of EmptyDir volume "{self.name}" exceeds the limit "{limit}". '
        if self.limit is StorageLimit.POD:
            return f"Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        return f'Container {self.name} exceeded its local ephemeral storage limit "{limit}". '


_LAYER: Final = "writable layer"
_LOGS: Final = "logs"


def find_violation(pod: pressure.PodFacts) -> LimitCheck | None:
    """Return the first storage limit below a pod's usage; ``None`` if no limit is known to be exceeded.

    Limits are checked in this order: emptyDir volumes, the pod, running containers. Unlike in the kubelet, the writable
    layer of a container counts on any filesystem, and the limits of init containers are checked too: a limit means the
    same on every node. Layers of earlier instances of a container do not count, since restarts would accumulate usage
    that the container cannot remove.

    Source: kubelet ``localStorageEviction``: ``emptyDirLimitEviction``, ``podEphemeralStorageLimitEviction``,
    ``containerEphemeralStorageLimitEviction``.
    """
    return next((each for each in _limit_checks(pod) if each.excess_bytes > 0), None)


def rank_over_limits(pods: Iterable[pressure.PodFacts]) -> list[tuple[pressure.PodFacts, LimitCheck]]:
    """Return the pods over their own storage limits in eviction order: lower priority, then larger excess, then UID."""
    found = [(pod, violation) for pod in pods if (violation := find_violation(pod)) is not None]
    return sorted(found, key=lambda each: (each[0].priority.value or 0, -each[1].excess_bytes, each[0].uid))


def has_limit(pod: pressure.PodFacts) -> bool:
    """Return whether a pod has a storage limit: of the pod, of a container or of an emptyDir volume."""
    return any(True for _ in _limit_checks(pod))


def unread_reason(pod: pressure.PodFacts) -> Reason | None:
    """Return the reason why a pod is not known to be within its storage limits, unread usage; ``None`` if it is."""
    unread = tuple(f"{part} of {each.limit.noun}{each.name}" for each in _limit_checks(pod) for part in each.unread)
    return Reason(ReasonCode.STORAGE_LIMIT_UNCHECKED, {"unread": unread}) if unread else None


def _limit_checks(pod: pressure.PodFacts) -> Iterator[LimitCheck]:
    """Yield the usage beside each limit of a pod; a limit of 0 is no limit."""
    for volume in pod.empty_dirs:
        if volume.limit_bytes:
            parts = {"files": volume.used_bytes}
            yield LimitCheck(StorageLimit.EMPTY_DIR, volume.name, parts, volume.limit_bytes, volume.limit_text)
    if pod.ephemeral_limit_bytes:
        parts = _pod_parts(pod)
        yield LimitCheck(StorageLimit.POD, "", parts, pod.ephemeral_limit_bytes, pod.ephemeral_limit_text)
    for container in pod.containers:
        if container.ephemeral_limit_bytes:
            limit_bytes, limit_text = container.ephemeral_limit_bytes, container.ephemeral_limit_text
            parts = {_LAYER: container.writable_bytes, _LOGS: container.logs_bytes}
            yield LimitCheck(StorageLimit.CONTAINER, container.name, parts, limit_bytes, limit_text)


def _pod_parts(pod: pressure.PodFacts) -> dict[str, int | None]:
    """Return the measured total, and ``None`` for each part that the total lacks."""
    usage = pod.usage or pressure.PodUsage()
    lacks = {
        "writable layers": any(each.writable_bytes is None for each in pod.containers),
        "logs": usage.logs.used_bytes is None,
        "volumes": usage.volumes.used_bytes is None,
    }
    parts: dict[str, int | None] = {name: None for name, is_unread in lacks.items() if is_unread}
    return parts if usage.ephemeral_bytes is None else {**parts, "total": usage.ephemeral_bytes}


class Offender(NamedTuple):
    """A container that uses more than its request.

    Attributes:
        request_bytes: request of the container; ``None`` if unknown.
        inferred: whether the request was inferred, not read from a definition of the pod.
        request_text: the request as written in the definition.
    """

    name: str
    usage_bytes: int
    request_bytes: int | None
    inferred: bool = False
    request_text: str = ""


def offenders(pod: pressure.PodFacts, resource: pressure.Resource) -> tuple[Offender, ...]:
    """Return the containers with usage above their request, in the order of the pod; empty for inodes and PIDs.

    An unknown request counts as 0. Storage usage is the sum of writable layer and logs.

    Source: kubelet ``evictionMessage``.
    """
    found = (_share(container, resource) for container in pod.containers)
    return tuple(each for each in found if each is not None and each.usage_bytes > (each.request_bytes or 0))


def _share(container: pressure.ContainerFacts, resource: pressure.Resource) -> Offender | None:
    if resource is pressure.Resource.MEMORY and container.memory_bytes is not None:
        request_bytes, inferred = container.memory_request_bytes, container.memory_request_inferred
        return Offender(container.name, container.memory_bytes, request_bytes, inferred, container.memory_request_text)
    if resource is pressure.Resource.EPHEMERAL_STORAGE:
        parts = [each for each in (container.writable_bytes, container.logs_bytes) if each is not None]
        request_bytes, text = container.ephemeral_request_bytes, container.ephemeral_request_text
        return Offender(container.name, sum(parts), request_bytes, request_text=text) if parts else None
    return None


def pressure_message(status: ThresholdStatus, resource: pressure.Resource, over: tuple[Offender, ...]) -> str:
    """Return the status message of a pod evicted for a threshold, with the kubelet's trailing space.

    Unlike in the kubelet, a request can be inferred; it is then marked ``(inferred)``. Configured quantities keep their
    form; readings and percentages of a capacity are binary, counts of inodes and PIDs decimal.

    Source: kubelet ``evictionMessage``, ``GetThresholdQuantity``, ``makeSignalObservations``.
    """
    parts = [f"The node was low on resource: {resource}. "]
    reading, limit = status.observation, status.limit
    if reading is not None and limit is not None:
        unit = MEANINGS[reading.signal].unit
        if unit is Unit.STALL_PERCENT:
            quantity, available = format_reading(status, limit), format_reading(status, reading.available)
            parts.append(f"Threshold: {reading.signal} above {quantity}, observed: {available}. ")
        else:
            quantity = format_quantity(int(limit), like=status.threshold.amount.text)
            available = format_quantity(int(reading.available), like="" if unit is Unit.BYTES else "1")
            parts.append(f"Threshold quantity: {quantity}, available: {available}. ")
    for name, usage_bytes, request_bytes, inferred, text in over:
        request = "unknown" if request_bytes is None else format_quantity(request_bytes, like=text)
        if inferred and request_bytes is not None:
            request += " (inferred)"
        parts.append(
            f"Container {name} was using {format_quantity(usage_bytes)}, request is {request}, "
            f"has larger consumption of {resource}. "
        )
    return "".join(parts)


def format_reading(status: ThresholdStatus, number: float) -> str:
    """Return a reading or limit of a threshold's signal as text, in the unit of the signal."""
    unit = MEANINGS[status.threshold.signal].unit
    if unit is Unit.STALL_PERCENT:
        return f"{number:.2f}%"
    return format_quantity(int(number)) if unit is Unit.BYTES else str(int(number))


def estimate_note(reading: pressure.SignalReading) -> str:
    """Return the estimate that a reading of memory uses, such as `` (MemAvailable)``; empty for the formula."""
    basis = "" if reading.memory is None else estimate_memory(reading.memory).basis
    return f" ({basis})" if basis else ""
