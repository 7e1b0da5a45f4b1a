"""The records of CRI images in containerd: their names, blobs and snapshots.

Facts recorded by containerd and not reported by its CRI service.

Containers created by other clients in the same namespace also use images, and containerd 1.6 does not report pinned
images through CRI. These containers and pins are read from containerd's own services.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import Container, ContainerState
from nodeagent.record import Record, replace
from nodeagent.runtime.containerd_records import LeasedResource
from nodeagent.runtime.metadata_graph import CONTENT, IMAGES, Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from nodeagent.model import Image, Sandbox, StorageGraph
    from nodeagent.runtime.containerd_records import Blob, StoredContainer, StoredImage
    from nodeagent.runtime.metadata_graph import Inventory, Stored

PINNED_LABEL = "io.cri-containerd.pinned"


def unlisted_containers(
    stored: Sequence[StoredContainer], containers: Iterable[Container], sandboxes: Iterable[Sandbox]
) -> tuple[Container, ...]:
    """Return the stored containers not listed by CRI, in unknown state and without creation time."""
    if not stored:
        return ()
    listed = {each.id for each in containers} | {each.id for each in sandboxes}
    return tuple(
        Container(
            id=each.id,
            name=each.id,
            sandbox_id="",
            state=ContainerState.UNKNOWN,
            image_name=each.image,
            labels=each.labels,
        )
        for each in stored
        if each.id not in listed
    )


def is_pinned(stored: StoredImage) -> bool:
    """Return whether a name's label pins its image. Source: containerd CRI plugin, ``labels.PinnedImageLabelKey``."""
    return stored.labels.get(PINNED_LABEL) == "pinned"


def with_pins(images: Sequence[Image], storage: StorageGraph) -> tuple[Image, ...]:
    """Return the images with pins from containerd's labels added; a pin on any of an image's names counts.

    The same tuple is returned if no pin is added.
    """
    pinned = {image_id for image_id, record in storage.records.items() if record.pinned}
    if not any(image.id in pinned and not image.pinned for image in images):
        return tuple(images)
    return tuple(replace(image, pinned=True) if image.id in pinned and not image.pinned else image for image in images)


def pull_times(images: Iterable[Image], storage: StorageGraph | None) -> dict[str, datetime | None]:
    """Return the time of the last pull by image id; ``None`` if the runtime does not report the time."""
    if storage is None:
        return dict.fromkeys([image.id for image in images])
    records = [(image.id, storage.records.get(image.id)) for image in images]
    return {image_id: record.pulled_at if record is not None else None for image_id, record in records}


class ResolvedImage(Record):
    """Records of one CRI image in containerd.

    Attributes:
        names: every name of the image.
        nodes: the existing blobs and snapshots that the image references.
        complete: whether every referenced blob and snapshot exists.
        pinned: whether a label of one of its names pins the image.
        sources: repositories from which the targets of the names were pulled; ``None`` if unknown.
    """

    names: tuple[str, ...]
    nodes: tuple[Node, ...]
    complete: bool
    pinned: bool
    sources: frozenset[str] | None


class ImageExtent(Record):
    """Snapshots and other pieces of an image that its removal must take into account.

    Attributes:
        tops: the topmost snapshots, on which the writable snapshots of containers are prepared.
        further: pieces that the names reference, but that are not reachable from the targets of the names.
    """

    tops: frozenset[Node]
    further: tuple[LeasedResource, ...]


def image_extent(inventory: Inventory, names: Sequence[StoredImage]) -> ImageExtent:
    """Return the extent of the image with these names."""
    existing = inventory.stored.existing
    pieces = [node for node in inventory.referenced_by_images(names) if node in existing]
    leased = inventory.closure(dict.fromkeys(Node(CONTENT, each.target) for each in names))
    snapshots = {node for node in pieces if node.kind != CONTENT}
    parents = {parent for node in snapshots for parent in inventory.stored.edges.get(node, ())}
    return ImageExtent(
        frozenset(snapshots - parents),
        tuple(LeasedResource(node.id, node.kind) for node in pieces if node not in leased),
    )


def resolve_images(images: Iterable[Image], inventory: Inventory) -> dict[str, ResolvedImage]:
    """Return each CRI image's names and pieces; images without a stored name are omitted.

    CRI stores an image under its id, its tags and its digests. Names that CRI does not list are found by their target.
    """
    by_name = {image.name: image for image in inventory.images}
    by_target: dict[str, list[StoredImage]] = {}
    for image in inventory.images:
        by_target.setdefault(image.target, []).append(image)
    existing = inventory.stored.existing
    resolved = {}
    for listed in images:
        own = [by_name[name] for name in (*listed.references, listed.id) if name in by_name]
        aliases = [each for target in dict.fromkeys(each.target for each in own) for each in by_target[target]]
        stored = {each.name: each for each in (*own, *aliases)}
        if stored:
            referenced = inventory.referenced_by_images(stored.values())
            nodes = tuple(node for node in referenced if node in existing)
            complete, pinned = _is_complete(referenced, inventory.stored), any(map(is_pinned, stored.values()))
            sources = _image_sources(stored.values(), inventory.stored.blobs)
            resolved[listed.id] = ResolvedImage(tuple(stored), nodes, complete, pinned, sources)
    return resolved


def _image_sources(names: Iterable[StoredImage], blobs: Mapping[str, Blob]) -> frozenset[str] | None:
    """Return the repositories from which the targets of these names were pulled; ``None`` if a target is missing.

    The result is empty if a target was imported, since a name of the image then has no repository.
    """
    targets = {each.target for each in names}
    found = [blobs[target].sources for target in targets if target in blobs]
    if len(found) < len(targets):
        return None
    return frozenset().union(*found) if all(found) else frozenset()


def _is_complete(referenced: Iterable[Node], stored: Stored) -> bool:
    """Return whether every referenced blob and snapshot exists, with at least one snapshot for an image with layers."""
    unpacked = layered = False
    for node in referenced:
        if node in stored.existing:
            unpacked = unpacked or node.kind != CONTENT
            layered = layered or node in stored.with_layers
        elif node.kind != IMAGES and node not in stored.optional:
            return False
    return unpacked or not layered
