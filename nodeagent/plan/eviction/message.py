"""Status message of an evicted pod, in the kubelet's wording."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nodeagent.model.pressure import Resource
from nodeagent.plan.eviction.local_storage import StorageLimit
from nodeagent.plan.eviction.memory_model import estimate_memory
from nodeagent.plan.eviction.signals import MEANINGS, Unit
from nodeagent.units import format_quantity

if TYPE_CHECKING:
    from nodeagent.model.pressure import ContainerFacts, Observation, PodFacts
    from nodeagent.plan.eviction.local_storage import Violation
    from nodeagent.plan.eviction.threshold_status import ThresholdStatus


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


def estimate_note(reading: Observation) -> str:
    """Return the estimate that a reading of memory uses, such as `` (MemAvailable)``; empty for the formula."""
    basis = "" if reading.memory is None else estimate_memory(reading.memory).basis
    return f" ({basis})" if basis else ""
