"""Parser of Pod documents in JSON or YAML.

Absent fields get the Kubernetes defaults; a malformed field is rejected with its path in the document. A malformed pod
does not invalidate its list: the list contains the pod with the error and the readable identity, so that the pod is
neither treated as deleted nor evicted.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Final

from nodeagent.errors import ObservationError
from nodeagent.model.pods import CRITICAL_CLASS_PRIORITIES, ContainerSpec, EmptyDirSpec, PodSpec
from nodeagent.model.pressure import QosClass
from nodeagent.text import shortened
from nodeagent.units import parse_quantity

_Object = dict[str, object]

_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel = 1
_MAX_ERROR_LENGTH: Final = 500
_MAX_INT64: Final = 2**63 - 1
_PRIORITIES: Final = range(-(2**31), 2**31)
_MEMORY: Final = "memory"
_CPU: Final = "cpu"
_EPHEMERAL: Final = "ephemeral-storage"
_RESOURCES: Final = (_CPU, _MEMORY, _EPHEMERAL)


def parse_pod(document: object, where: str) -> PodSpec:
    """Return the pod spec of a ``Pod`` document.

    Args:
        document: decoded JSON or YAML.
        where: name of the document in errors, such as a file path or ``pod 3``.

    Raises:
        ObservationError: the document is not a pod, or a field is malformed; the text has the path of the field.

    Source: Kubernetes ``Pod``; requests as the scheduler counts them, ``PodRequests``.
    """
    pod = _mapping(document, where)
    metadata = _mapping(pod.get("metadata"), f"{where}: metadata")
    name = _text(metadata, "name", where)
    if not name:
        raise ObservationError(f"{where}: metadata.name is missing")
    namespace = _text(metadata, "namespace", where) or "default"
    where = f"{where} ({namespace}/{name})"
    spec = _mapping(pod.get("spec"), f"{where}: spec")
    status = _optional(pod, "status", where)
    containers = _containers(spec, where)
    main = [each for each in containers if not each.init]
    pod_level = _resources(_optional(spec, "resources", where), f"{where}: spec.resources")
    overhead = _quantities(_optional(spec, "overhead", where), f"{where}: spec.overhead")
    priority_class = _text(spec, "priorityClassName", where)
    return PodSpec(
        uid=_text(metadata, "uid", where),
        namespace=namespace,
        name=name,
        priority=_priority(spec, priority_class, where),
        priority_class=priority_class,
        labels=_texts(metadata, "labels", where),
        annotations=_texts(metadata, "annotations", where),
        containers=containers,
        empty_dirs=_empty_dirs(spec, where),
        memory_request_bytes=_pod_request(
            pod_level[0].get(_MEMORY), [(each, each.memory_request_bytes) for each in containers], overhead.get(_MEMORY)
        ),
        ephemeral_request_bytes=_pod_request(
            pod_level[0].get(_EPHEMERAL),
            [(each, each.ephemeral_request_bytes) for each in containers],
            overhead.get(_EPHEMERAL),
        ),
        ephemeral_limit_bytes=_pod_ephemeral_limit(containers, overhead.get(_EPHEMERAL)),
        ephemeral_limit_text=next(
            (each.ephemeral_limit_text for each in (*main, *containers) if each.ephemeral_limit_text), ""
        ),
        qos=_qos(spec, status, where),
        termination_grace_s=_grace_s(spec, metadata, where),
        deleting=metadata.get("deletionTimestamp") is not None,
        phase=_text(status, "phase", where),
        images=_images(spec, where),
        claims=_claims(spec, name, where),
    )


def parse_listed_pod(document: object, where: str) -> PodSpec:
    """Return the pod spec of a list entry; for a malformed pod the readable name, UID and images with the error."""
    try:
        return parse_pod(document, where)
    except ObservationError as error:
        metadata = _readable(_readable(document).get("metadata"))
        uid, namespace, name = (_readable_text(metadata.get(key)) for key in ("uid", "namespace", "name"))
        images = _readable_images(_readable(_readable(document).get("spec")))
        return PodSpec(
            uid, namespace or "default", name, images=images, malformed=shortened(str(error), _MAX_ERROR_LENGTH)
        )


def parse_resource_quantity(value: object, where: str) -> Decimal:
    """Return a resource quantity, written as a string or a number, in base units; at most 2^63-1.

    Raises:
        ObservationError: the value is not a quantity, or is negative.

    Source: Kubernetes ``resource.Quantity``, which saturates.
    """
    text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    try:
        number = parse_quantity(text)
    except ValueError as error:
        raise ObservationError(f"{where}: {shown(value)} is not a quantity such as 500Mi") from error
    return min(number, Decimal(_MAX_INT64))


def _containers(spec: _Object, where: str) -> tuple[ContainerSpec, ...]:
    found = []
    for key, init in (("initContainers", True), ("containers", False)):
        for place, fields in _entries(spec, key, where):
            resources = _optional(fields, "resources", place)
            requests, limits = _resources(resources, f"{place}.resources")
            found.append(
                ContainerSpec(
                    name=_text(fields, "name", place),
                    memory_request_bytes=_rounded_up(requests.get(_MEMORY)),
                    memory_limit_bytes=_rounded_up(limits.get(_MEMORY)),
                    ephemeral_request_bytes=_rounded_up(requests.get(_EPHEMERAL)),
                    ephemeral_limit_bytes=_rounded_up(limits.get(_EPHEMERAL)),
                    memory_request_text=_as_written(resources, _MEMORY, "requests", "limits"),
                    ephemeral_request_text=_as_written(resources, _EPHEMERAL, "requests", "limits"),
                    ephemeral_limit_text=_as_written(resources, _EPHEMERAL, "limits"),
                    init=init,
                    sidecar=init and _text(fields, "restartPolicy", place) == "Always",
                )
            )
    return tuple(found)


def _images(spec: _Object, where: str) -> tuple[str, ...]:
    """Return every image reference of a pod. Source: Kubernetes ``PodSpec``; image volumes since 1.31."""
    found: dict[str, None] = {}
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for place, fields in _entries(spec, key, where):
            found[_text(fields, "image", place).strip()] = None
    for place, fields in _entries(spec, "volumes", where):
        source = _optional(fields, "image", place)
        found[_text(source, "reference", f"{place}.image").strip()] = None
    return tuple(each for each in found if each)


def _claims(spec: _Object, pod_name: str, where: str) -> tuple[str, ...]:
    """Return the names of the persistent volume claims of a pod. Source: Kubernetes ``ephemeral.VolumeClaimName``."""
    found = []
    for place, fields in _entries(spec, "volumes", where):
        if "ephemeral" in fields:
            found.append(f"{pod_name}-{_text(fields, 'name', place)}")
        found.append(_text(_optional(fields, "persistentVolumeClaim", place), "claimName", place))
    return tuple(dict.fromkeys(filter(None, found)))


def _resources(resources: _Object, where: str) -> tuple[dict[str, Decimal], dict[str, Decimal]]:
    """Return requests and limits by resource; an absent request defaults to the limit, as in the API server."""
    limits = _quantities(_optional(resources, "limits", where), f"{where}.limits")
    requests = _quantities(_optional(resources, "requests", where), f"{where}.requests")
    return limits | requests, limits


def _as_written(resources: _Object, name: str, *keys: str) -> str:
    """Return a quantity as written, from the first of the keys that has the resource; empty without a quantity."""
    return next((str(found[name]) for key in keys if name in (found := _readable(resources.get(key)))), "")


def _quantities(values: _Object, where: str) -> dict[str, Decimal]:
    return {name: parse_resource_quantity(values[name], f"{where}.{name}") for name in _RESOURCES if name in values}


def _pod_request(
    pod_level: Decimal | None, containers: Sequence[tuple[ContainerSpec, int]], overhead: Decimal | None
) -> int:
    """Return the request of a pod in bytes, overhead included.

    The pod-level request has precedence; otherwise the larger of the sum of the main containers and sidecars, and the
    peak of the init containers.
    """
    if pod_level is not None:
        return _rounded_up(pod_level) + _rounded_up(overhead)
    main = sum(request for container, request in containers if not container.init)
    sidecars, peak = 0, 0
    for container, request in containers:
        if container.sidecar:
            sidecars += request
            peak = max(peak, sidecars)
        elif container.init:
            peak = max(peak, sidecars + request)
    return max(main + sidecars, peak) + _rounded_up(overhead)


def _pod_ephemeral_limit(containers: Sequence[ContainerSpec], overhead: Decimal | None) -> int | None:
    """Return a pod's ephemeral storage limit in bytes, added up like a request; ``None`` if no container has a limit.

    Source: kubelet ``podEphemeralStorageLimitEviction``, Kubernetes ``PodLimits``.
    """
    limits = [(each, each.ephemeral_limit_bytes) for each in containers]
    return _pod_request(None, limits, overhead) if any(limit for _, limit in limits) else None


def _qos(spec: _Object, status: _Object, where: str) -> QosClass | None:
    """Return the QoS class in the pod status, or compute it from the resources; ``None`` for an unknown class.

    Source: Kubernetes ``ComputePodQOS``.
    """
    reported = _text(status, "qosClass", where)
    if reported:
        try:
            return QosClass(reported)
        except ValueError:
            return None
    parts = [_optional(spec, "resources", where)]
    if not parts[0]:
        containers = (*_list(spec, "initContainers", where), *_list(spec, "containers", where))
        parts = [_optional(_mapping(each, where), "resources", where) for each in containers]
    guaranteed, has_resources = bool(parts), False
    for part in parts:
        requests, limits = _resources(part, where)
        for name in (_CPU, _MEMORY):
            request, limit = requests.get(name) or Decimal(0), limits.get(name) or Decimal(0)
            has_resources = has_resources or bool(request or limit)
            guaranteed = guaranteed and bool(limit) and request == limit
    if not has_resources:
        return QosClass.BEST_EFFORT
    return QosClass.GUARANTEED if guaranteed else QosClass.BURSTABLE


def _empty_dirs(spec: _Object, where: str) -> tuple[EmptyDirSpec, ...]:
    found = []
    for place, fields in _entries(spec, "volumes", where):
        if "emptyDir" not in fields:
            continue
        source = _optional(fields, "emptyDir", place)
        limit = source.get("sizeLimit")
        limit_bytes = (
            None if limit is None else _rounded_up(parse_resource_quantity(limit, f"{place}.emptyDir.sizeLimit"))
        )
        limit_text = "" if limit is None else str(limit)
        found.append(EmptyDirSpec(_text(fields, "name", place), limit_bytes, limit_text))
    return tuple(found)


def _priority(spec: _Object, priority_class: str, where: str) -> int | None:
    priority = spec.get("priority")
    if priority is None:
        return CRITICAL_CLASS_PRIORITIES.get(priority_class)
    if isinstance(priority, bool) or not isinstance(priority, int) or priority not in _PRIORITIES:
        raise ObservationError(f"{where}: spec.priority is {shown(priority)}, not a 32-bit number")
    return priority


def _grace_s(spec: _Object, metadata: _Object, where: str) -> float | None:
    """Return the termination grace period in seconds, of the deletion if set, else of the spec; ``None`` if not set."""
    for fields, key in ((metadata, "deletionGracePeriodSeconds"), (spec, "terminationGracePeriodSeconds")):
        seconds = fields.get(key)
        if seconds is None:
            continue
        if isinstance(seconds, bool) or not isinstance(seconds, int) or seconds > _MAX_INT64:
            raise ObservationError(f"{where}: {key} is {shown(seconds)}, not a number of seconds")
        return float(max(1, seconds)) if seconds < 0 else float(seconds)  # the API server replaces negative values by 1
    return None


def _readable(value: object) -> _Object:
    return value if isinstance(value, dict) else {}


def _readable_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _readable_images(spec: _Object) -> tuple[str, ...]:
    """Return the readable image references of a malformed pod."""
    found: dict[str, None] = {}
    for key in ("initContainers", "containers", "ephemeralContainers", "volumes"):
        entries = spec.get(key)
        for each in entries if isinstance(entries, list) else ():
            image = _readable(each).get("image")
            reference = _readable(image).get("reference") if key == "volumes" else image
            found[_readable_text(reference).strip()] = None
    return tuple(each for each in found if each)


def _rounded_up(number: Decimal | None) -> int:
    return 0 if number is None else int(number.to_integral_value(rounding=ROUND_CEILING))


def _mapping(value: object, where: str) -> _Object:
    if not isinstance(value, dict):
        raise ObservationError(f"{where}: {shown(value)} is not an object")
    return value


def _optional(fields: Mapping[str, object], key: str, where: str) -> _Object:
    value = fields.get(key)
    return {} if value is None else _mapping(value, f"{where}: {key}")


def _list(fields: Mapping[str, object], key: str, where: str) -> list[object]:
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ObservationError(f"{where}: {key} is {shown(value)}, not a list")
    return value


def _entries(spec: _Object, key: str, where: str) -> Iterator[tuple[str, _Object]]:
    """Yield the objects in a list of a pod's specification, each with its path in the document."""
    for number, value in enumerate(_list(spec, key, where)):
        place = f"{where}: spec.{key}[{number}]"
        yield place, _mapping(value, place)


def _text(fields: Mapping[str, object], key: str, where: str) -> str:
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ObservationError(f"{where}: {key} is {shown(value)}, not a string")
    return value


def _texts(fields: Mapping[str, object], key: str, where: str) -> dict[str, str]:
    found = {}
    for name, value in _optional(fields, key, where).items():
        if not isinstance(value, str):
            raise ObservationError(f"{where}: {key}.{name} is {shown(value)}, not a string")
        found[name] = value
    return found


def shown(value: object) -> str:
    """Return a value truncated for an error message; nested YAML aliases could otherwise expand without limit."""
    return "null" if value is None else _SHORT.repr(value)
