"""The records of CRI images in containerd: their names, blobs and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record
from nodeagent.runtime.containerd_facts import is_pinned
from nodeagent.runtime.containerd_records import LeasedResource
from nodeagent.runtime.metadata_graph import CONTENT, IMAGES, Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodeagent.model import Image
    from nodeagent.runtime.containerd_records import Blob, StoredImage
    from nodeagent.runtime.metadata_graph import Inventory, Stored


class ResolvedImage(Record):
    """Records of one CRI image in containerd.

    Attributes:
        names: every name of the image.
        nodes: the existing blobs and snapshots that it references.
        complete: whether every referenced blob and snapshot exists.
        pinned: whether a label of one of its names pins it.
        sources: repositories that the targets of its names were pulled from; ``None`` if unknown.
    """

    names: tuple[str, ...]
    nodes: tuple[Node, ...]
    complete: bool
    pinned: bool
    sources: frozenset[str] | None


class ImageExtent(Record):
    """Pieces of an image that matter for its removal.

    Attributes:
        tops: the topmost snapshots, on which the writable snapshots of its containers are prepared.
        further: pieces referenced by its names but not, over any labels, by the target of one.
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

    CRI stores an image under its id, its tags and its digests; names that it cannot parse have the same target.
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
    """Return the repositories that the targets of these names were pulled from.

    None if one of them was imported, since its name is then not pulled; ``None`` if a target is missing.
    """
    targets = {each.target for each in names}
    found = [blobs[target].sources for target in targets if target in blobs]
    if len(found) < len(targets):
        return None
    return frozenset().union(*found) if all(found) else frozenset()


def _is_complete(referenced: Iterable[Node], stored: Stored) -> bool:
    """Return whether every referenced blob and snapshot exists, and a snapshot if there are layers."""
    unpacked = layered = False
    for node in referenced:
        if node in stored.existing:
            unpacked = unpacked or node.kind != CONTENT
            layered = layered or node in stored.with_layers
        elif node.kind != IMAGES and node not in stored.optional:
            return False
    return unpacked or not layered
