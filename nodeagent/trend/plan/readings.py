"""What is recorded of a node at one time: the use of each resource, and its largest and fastest growing parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from nodeagent.eviction.plan.thresholds import Unit, unit_of
from nodeagent.gc.plan.image_users import repository_of
from nodeagent.model.outlook import GrowthCategory
from nodeagent.model.pressure import FilesystemLayout, Signal, has_separate_logs
from nodeagent.model.runtime import total_space
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.pressure import OtherFilesystem, PodFacts, SignalReading

MOST_RESOURCES: Final = 16
MOST_PARTS: Final = 8
LONGEST_NAME: Final = 100
"""Limits of a record; they bound the size of the file."""

_SHARED: Final[Mapping[FilesystemLayout, Mapping[str, str]]] = {
    FilesystemLayout.SINGLE: {"imagefs": "nodefs", "containerfs": "nodefs"},
    FilesystemLayout.DEDICATED_IMAGEFS: {"containerfs": "imagefs"},
    FilesystemLayout.SPLIT: {"containerfs": "nodefs"},
}
"""Filesystem whose signals are recorded, by the filesystem that is the same one."""
_OF_IMAGES: Final = "images of "


REST_OF: Final[Mapping[GrowthCategory, str]] = {
    GrowthCategory.IMAGES: "other images",
    GrowthCategory.UNREFERENCED: "unreferenced content",
    GrowthCategory.UNDO: "removed images in undo windows",
    GrowthCategory.WRITABLE: "writable layers of other pods",
    GrowthCategory.LOGS: "logs of other pods",
    GrowthCategory.VOLUMES: "volumes of other pods",
    GrowthCategory.PODS: "other pods",
    GrowthCategory.OTHER: "",
}
"""Name of what is not in a named part of a category."""
_TOTALS: Final = frozenset(each.value for each in GrowthCategory)
_SUFFIXES: Final = {
    GrowthCategory.WRITABLE: " writable layer",
    GrowthCategory.LOGS: " logs",
    GrowthCategory.VOLUMES: " volumes",
}


class ResourceReading(Record):
    """Use of one resource at one time.

    Attributes:
        resource: name of the signal, such as ``nodefs.available``, with `` on PATH`` for an additional filesystem.
        used: amount in use in the unit of the signal; of a stall signal the percentage of time.
        freeable: part of ``used`` that image GC can free; ``None`` if unknown.
        parts: amount by part of ``used``; empty if the parts were not read.
    """

    resource: str
    used: float
    capacity: float
    freeable: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


class Parts(Record):
    """Parts of the resources at one time, by resource.

    Attributes:
        amounts: amount by resource and part.
        freeable: amount that image GC can free by resource.
    """

    amounts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    freeable: Mapping[str, float] = field(default_factory=dict)


def resource_readings(
    signals: Iterable[SignalReading], layout: FilesystemLayout, parts: Parts, before: Mapping[str, Mapping[str, float]]
) -> tuple[ResourceReading, ...]:
    """Return the use of each resource, one reading for each filesystem; without names longer than ``LONGEST_NAME``.

    Args:
        signals: readings of the signals.
        layout: decides which signals have the same filesystem.
        parts: parts of the resources; empty if they were not read.
        before: earlier amounts of the parts by resource, which show growth.
    """
    found = []
    for each in signals:
        name = resource_name(each.signal, each.path)
        if recorded_as(each.signal, layout, each.path) != name or len(name) > LONGEST_NAME:
            continue
        used = each.available if unit_of(each.signal) is Unit.STALL_PERCENT else each.capacity - each.available
        own = parts.amounts.get(name, {})
        totals = [part for part in own if is_total(part)]
        named = {part: amount for part, amount in own.items() if part not in totals}
        chosen = (*totals, *largest_and_fastest(named, before.get(name, {})))
        found.append(
            ResourceReading(
                name, max(0.0, used), each.capacity, parts.freeable.get(name), {part: own[part] for part in chosen}
            )
        )
    return tuple(found[:MOST_RESOURCES])


def resource_name(signal: Signal, path: str = "") -> str:
    """Return the name of a resource."""
    return f"{signal.value} on {path}" if path else signal.value


def recorded_as(signal: Signal, layout: FilesystemLayout, path: str = "") -> str:
    """Return the name of the resource with the record of a signal; signals of one filesystem have one record."""
    filesystem, _, kind = signal.value.partition(".")
    same = "" if path else _SHARED[layout].get(filesystem, "")
    return f"{same}.{kind}" if same else resource_name(signal, path)


def largest_and_fastest(amounts: Mapping[str, float], before: Mapping[str, float]) -> Collection[str]:
    """Return the names of at most ``MOST_PARTS`` parts: half of them the largest, the others grew the most."""
    by_size = sorted(amounts, key=lambda part: (-amounts[part], part))
    by_growth = sorted(amounts, key=lambda part: (before.get(part, 0.0) - amounts[part], part))
    chosen = dict.fromkeys((*by_size[: MOST_PARTS // 2], *by_growth[: MOST_PARTS - MOST_PARTS // 2]))
    return tuple(chosen)


def pod_parts(
    pods: Iterable[PodFacts], layout: FilesystemLayout, others: Iterable[OtherFilesystem]
) -> Mapping[str, Mapping[str, float]]:
    """Return the use of each pod and of each category by resource: memory, process ids, and bytes by filesystem.

    Unknown usage is omitted. Writable layers of additional image filesystems are omitted.
    """
    others = tuple(others)
    node = resource_name(Signal.NODEFS_AVAILABLE)
    writable = resource_name(
        Signal.IMAGEFS_AVAILABLE if layout is FilesystemLayout.DEDICATED_IMAGEFS else Signal.NODEFS_AVAILABLE
    )
    logs = node
    if has_separate_logs(others):
        logs = next(resource_name(Signal.NODEFS_AVAILABLE, each.path) for each in others if each.has_logs)
    found: dict[str, dict[str, float]] = {}
    for pod in pods:
        usage = pod.usage
        if usage is None:
            continue
        name = f"{pod.namespace}/{pod.name}"
        amounts = (
            (resource_name(Signal.MEMORY_AVAILABLE), GrowthCategory.PODS, usage.memory_bytes),
            (resource_name(Signal.PID_AVAILABLE), GrowthCategory.PODS, usage.pids),
            (writable, GrowthCategory.WRITABLE, usage.writable.used_bytes),
            (logs, GrowthCategory.LOGS, usage.logs.used_bytes),
            (node, GrowthCategory.VOLUMES, usage.volumes.used_bytes),
        )
        for resource, category, amount in amounts:
            if amount:
                of_resource = found.setdefault(resource, {})
                # A pod that terminates may have the name of its successor.
                for part in (shortened(name + _SUFFIXES.get(category, "")), category.value):
                    of_resource[part] = of_resource.get(part, 0.0) + amount
    return found


def parts_of_pod(pod: str) -> frozenset[str]:
    """Return the names of the parts of a pod, given as ``namespace/name``."""
    return frozenset(shortened(f"{pod}{part}") for part in ("", *_SUFFIXES.values()))


def part_of_image(reference: str) -> str:
    """Return the name of the part of an image, that of its repository."""
    return shortened(f"{_OF_IMAGES}{repository_of(reference)}")


def image_parts(snapshot: NodeSnapshot, sizes: Mapping[str, int]) -> Mapping[str, float]:
    """Return the bytes of the images by repository and in total, and of content without an image if it is known.

    Args:
        snapshot: the images.
        sizes: bytes by image id, each layer counted for one image.
    """
    found: dict[str, float] = {}
    for each in snapshot.images:
        is_unnamed = each.name.startswith("sha256:")
        part = shortened("images without a name" if is_unnamed else f"{_OF_IMAGES}{repository_of(each.name)}")
        found[part] = found.get(part, 0.0) + sizes.get(each.id, 0)
    found[GrowthCategory.IMAGES.value] = sum(found.values())
    if snapshot.storage is not None:
        found[GrowthCategory.UNREFERENCED.value] = float(total_space(snapshot.storage.pending.values()).size_bytes)
        found[GrowthCategory.UNDO.value] = float(total_space(snapshot.storage.undo.values()).size_bytes)
    return found


def image_sizes(snapshot: NodeSnapshot) -> Mapping[str, int]:
    """Return the bytes of each image by id, a shared layer counted for the first image; with CRI alone its sizes."""
    storage = snapshot.storage
    if storage is None:
        return {each.id: each.size_bytes or 0 for each in snapshot.images}
    counted: set[int] = set()
    found = {}
    for each in sorted(snapshot.images, key=lambda image: image.id):
        own = [index for index in storage.by_image.get(each.id, ()) if index not in counted]
        counted.update(own)
        found[each.id] = sum(storage.pieces[index].size_bytes for index in own)
    return found


def is_total(part: str) -> bool:
    """Return whether a part is the sum of a category; names of other parts contain a slash or a space."""
    return part in _TOTALS


def category_of(part: str) -> GrowthCategory:
    """Return the category of a part."""
    if is_total(part):
        return GrowthCategory(part)
    for category, suffix in _SUFFIXES.items():
        if part.endswith(suffix):
            return category
    return GrowthCategory.IMAGES if part.startswith("images ") else GrowthCategory.PODS


def shortened(part: str) -> str:
    """Return the name of a part, with the middle of a long name omitted."""
    if len(part) <= LONGEST_NAME:
        return part
    half = (LONGEST_NAME - 1) // 2
    return f"{part[:half]}\u2026{part[-half:]}"
