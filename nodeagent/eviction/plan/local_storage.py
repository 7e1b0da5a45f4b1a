"""Pods over their own local storage limits, and the messages of evictions."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from nodeagent.eviction.plan.memory_model import estimate_memory
from nodeagent.eviction.plan.thresholds import MEANINGS, ThresholdStatus, Unit
from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.model.pressure import ContainerFacts, FilesystemLayout, PodFacts, Resource, SignalReading
from nodeagent.units import format_quantity


class StorageLimit(StrEnum):
    """Kind of storage limit, named as in the label of the kubelet's eviction metric."""

    EMPTY_DIR = "emptydirfs.limit"
    POD = "ephemeralpodfs.limit"
    CONTAINER = "ephemeralcontainerfs.limit"


class Violation(NamedTuple):
    """Storage limit exceeded by a pod, with usage and limit.

    Attributes:
        name: name of the emptyDir volume or container; empty for the limit of the pod.
        limit_text: the limit as written in the definition of the pod, for display.
    """

    limit: StorageLimit
    name: str
    usage_bytes: int
    limit_bytes: int
    limit_text: str = ""

    @property
    def excess_bytes(self) -> int:
        """Usage above the limit, in bytes."""
        return self.usage_bytes - self.limit_bytes

    @property
    def reason(self) -> Reason:
        """The reason to evict the pod."""
        numbers = {"usage_bytes": self.usage_bytes, "limit_bytes": self.limit_bytes}
        if self.limit is StorageLimit.EMPTY_DIR:
            return Reason(ReasonCode.EMPTY_DIR_OVER_LIMIT, {"volume": self.name, **numbers})
        if self.limit is StorageLimit.POD:
            return Reason(ReasonCode.POD_OVER_STORAGE_LIMIT, numbers)
        return Reason(ReasonCode.CONTAINER_OVER_STORAGE_LIMIT, {"container": self.name, **numbers})


def find_violation(pod: PodFacts, layout: FilesystemLayout) -> Violation | None:
    """Return the first storage limit below a pod's usage; ``None`` if no limit is exceeded or the usage is unknown.

    Limits are checked in this order: emptyDir volumes, the pod, containers. The writable layer of a container counts
    only if it is on the filesystem of the container's logs.

    Source: kubelet ``localStorageEviction``: ``emptyDirLimitEviction``, ``podEphemeralStorageLimitEviction``,
    ``containerEphemeralStorageLimitEviction``.
    """
    return next((each for each in _candidates(pod, layout) if each.usage_bytes > each.limit_bytes > 0), None)


def has_limit(pod: PodFacts) -> bool:
    """Return whether a pod has a storage limit: of the pod, of a container or of an emptyDir volume."""
    return bool(
        pod.ephemeral_limit_bytes
        or any(each.limit_bytes for each in pod.empty_dirs)
        or any(each.ephemeral_limit_bytes for each in pod.containers)
    )


def _candidates(pod: PodFacts, layout: FilesystemLayout) -> Iterator[Violation]:
    for volume in pod.empty_dirs:
        if volume.used_bytes is not None and volume.limit_bytes:
            limit_bytes, limit_text = volume.limit_bytes, volume.limit_text
            yield Violation(StorageLimit.EMPTY_DIR, volume.name, volume.used_bytes, limit_bytes, limit_text)
    if pod.usage is not None and pod.usage.ephemeral_bytes is not None and pod.ephemeral_limit_bytes:
        limit_bytes, limit_text = pod.ephemeral_limit_bytes, pod.ephemeral_limit_text
        yield Violation(StorageLimit.POD, "", pod.usage.ephemeral_bytes, limit_bytes, limit_text)
    for container in pod.containers:
        if container.ephemeral_limit_bytes:
            usage_bytes = container.logs_bytes or 0
            if layout is FilesystemLayout.SINGLE:
                usage_bytes += container.writable_bytes or 0
            limit_bytes, limit_text = container.ephemeral_limit_bytes, container.ephemeral_limit_text
            yield Violation(StorageLimit.CONTAINER, container.name, usage_bytes, limit_bytes, limit_text)


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


def offenders(pod: PodFacts, resource: Resource) -> tuple[Offender, ...]:
    """Return the containers with usage above their request, in the order of the pod; empty for inodes and PIDs.

    An unknown request counts as 0. Storage usage is the sum of writable layer and logs.

    Source: kubelet ``evictionMessage``.
    """
    found = (_share(container, resource) for container in pod.containers)
    return tuple(each for each in found if each is not None and each.usage_bytes > (each.request_bytes or 0))


def _share(container: ContainerFacts, resource: Resource) -> Offender | None:
    if resource is Resource.MEMORY and container.memory_bytes is not None:
        request_bytes, inferred = container.memory_request_bytes, container.memory_request_inferred
        return Offender(container.name, container.memory_bytes, request_bytes, inferred, container.memory_request_text)
    if resource is Resource.EPHEMERAL_STORAGE:
        parts = [each for each in (container.writable_bytes, container.logs_bytes) if each is not None]
        request_bytes, text = container.ephemeral_request_bytes, container.ephemeral_request_text
        return Offender(container.name, sum(parts), request_bytes, request_text=text) if parts else None
    return None


def pressure_message(status: ThresholdStatus, resource: Resource, over: tuple[Offender, ...]) -> str:
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


def limit_message(violation: Violation) -> str:
    """Return the status message of a pod evicted for its own storage limit, with the kubelet's trailing space.

    Source: kubelet ``localStorageEviction``.
    """
    limit = format_quantity(violation.limit_bytes, like=violation.limit_text)
    if violation.limit is StorageLimit.EMPTY_DIR:
        return f'Usage of EmptyDir volume "{violation.name}" exceeds the limit "{limit}". '
    if violation.limit is StorageLimit.POD:
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
    return f'Container {violation.name} exceeded its local ephemeral storage limit "{limit}". '


def format_reading(status: ThresholdStatus, number: float) -> str:
    """Return a reading or limit of a threshold's signal as text, in the unit of the signal."""
    unit = MEANINGS[status.threshold.signal].unit
    if unit is Unit.STALL_PERCENT:
        return f"{number:.2f}%"
    return format_quantity(int(number)) if unit is Unit.BYTES else str(int(number))


def estimate_note(reading: SignalReading) -> str:
    """Return the estimate that a reading of memory uses, such as `` (MemAvailable)``; empty for the formula."""
    basis = "" if reading.memory is None else estimate_memory(reading.memory).basis
    return f" ({basis})" if basis else ""
