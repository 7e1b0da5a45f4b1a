"""Stored content that no listed image references, by the object that keeps it.

Each blob and snapshot belongs to one holder, the first in this order: image names that CRI does not list, containers,
leases, labels, other namespaces. CRI does not list an image whose manifest or config cannot be read: its content is
kept by its name, and no pass frees it. Namespaces share the bytes of a blob.

Writable snapshots of containers are omitted, since their usage is measured with the containers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.errors import RuntimeRequestError
from nodeagent.model.runtime import HeldContent, ReferenceKind, Space, total_space
from nodeagent.record import replace
from nodeagent.runtime.connection import run_bounded
from nodeagent.runtime.containerd import KIND_LABEL, is_pinned, is_undo
from nodeagent.runtime.namespace_lists import CONTENT, SNAPSHOTS, GraphNode, Inventory, expiry_of
from nodeagent.units import format_time

if TYPE_CHECKING:
    from nodeagent.model.runtime import Image, StoredPiece
    from nodeagent.runtime.containerd import ContainerdClient, Ingest, StoredImage


_CONFIG: Final = "containerd.io/gc.ref.content.config"


class OtherNamespace(NamedTuple):
    """Content of a namespace other than CRI's: size by blob, usage of all snapshots, and blobs being written."""

    name: str
    blobs: Mapping[str, int]
    snapshots: Space
    ingests: tuple[Ingest, ...]


async def read_other_namespaces(
    client: ContainerdClient, snapshotters: Collection[str], space_of: Callable[[str, Space], Space]
) -> tuple[OtherNamespace, ...]:
    """Return the content of each namespace other than the client's; unreadable snapshots count as 0 bytes.

    ``space_of`` returns the space of a snapshot of a snapshotter from its usage.

    Raises:
        RuntimeUnavailableError: no connection.
        RuntimeRequestError: a list of namespaces, blobs or blobs being written failed.
    """
    found = []
    for name in await client.list_namespaces():
        if name == client.namespace:
            continue
        other = client.in_namespace(name)
        blobs = {digest: blob.size_bytes for digest, blob in (await other.list_content()).items()}
        spaces = [await _snapshot_space(other, snapshotter, space_of) for snapshotter in snapshotters]
        found.append(OtherNamespace(name, blobs, total_space(spaces), await other.list_ingests()))
    return tuple(found)


async def _snapshot_space(client: ContainerdClient, snapshotter: str, space_of: Callable[[str, Space], Space]) -> Space:
    async def usage(key: str) -> Space:
        with suppress(RuntimeRequestError):
            return space_of(snapshotter, await client.snapshot_usage(snapshotter, key))
        return Space()

    with suppress(RuntimeRequestError):
        return total_space(await run_bounded(usage, list(await client.list_snapshots(snapshotter))))
    return Space()


def unlisted_nodes(inventory: Inventory, images: Iterable[Image]) -> set[GraphNode]:
    """Return every blob and snapshot that no listed image references, without the writable snapshots of containers."""
    listed = _listed_names(images)
    of_images = inventory.referenced_by_images(each for each in inventory.images if each.name in listed)
    writable = {GraphNode(SNAPSHOTS + each.snapshotter, each.snapshot_key) for each in inventory.containers}
    return inventory.stored.existing.difference(of_images, writable)


def _listed_names(images: Iterable[Image]) -> set[str]:
    return {name for image in images for name in (image.id, *image.references)}


def held_content(
    inventory: Inventory,
    images: Iterable[Image],
    pieces: Mapping[GraphNode, StoredPiece],
    others: Iterable[OtherNamespace],
    content_path: str,
) -> tuple[HeldContent, ...]:
    """Return the content that no listed image references, by holder, in a fixed order.

    Args:
        inventory: reading of CRI's namespace.
        images: images as listed by CRI.
        pieces: the pieces of :func:`unlisted_nodes`; nodes without a piece have an unknown size.
        others: content of the other namespaces.
        content_path: directory of the content store, to find missing files; empty if unknown. Files count as existing
            unless their directory is readable: the runtime may have another mount namespace.
    """
    remaining = dict(pieces)
    for node in pieces:
        if node.kind == CONTENT and is_lost(content_path, node.id):
            remaining[node] = replace(remaining[node], size_bytes=0, inodes=0)

    def take(nodes: Iterable[GraphNode]) -> list[Space]:
        pieces = [remaining.pop(node) for node in nodes if node in remaining]
        return [Space(each.size_bytes, each.inodes) for each in pieces]

    def holding(holder: HeldContent, spaces: Iterable[Space]) -> HeldContent:
        space = total_space(spaces)
        return replace(holder, size_bytes=space.size_bytes, inodes=space.inodes)

    holders = ((holder, take(nodes)) for holder, nodes in _holders(inventory, images, content_path))
    found = [holding(holder, spaces) for holder, spaces in holders if spaces]
    counted = set(inventory.stored.blobs)
    for other in others:
        shared = take(node for node in sorted(remaining) if node.kind == CONTENT and node.id in other.blobs)
        own = [
            Space(size, 1)
            for digest, size in other.blobs.items()
            if digest not in counted and not is_lost(content_path, digest)
        ]
        counted.update(other.blobs)
        holder = HeldContent(ReferenceKind.OTHER_NAMESPACE, other.name, 0)
        found.append(holding(holder, (*shared, *own, other.snapshots)))
        found += map(being_written, other.ingests)
    found += [holding(HeldContent(None, node.id, 0), take([node])) for node in sorted(remaining)]
    return tuple(each for each in found if each.size_bytes or each.is_stuck)


def being_written(ingest: Ingest) -> HeldContent:
    """Return a download as content: a directory with the data, the name and the times of the download."""
    return HeldContent(ReferenceKind.INGEST, ingest.ref, ingest.written_bytes, inodes=5)


def _holders(
    inventory: Inventory, images: Iterable[Image], content_path: str
) -> Iterator[tuple[HeldContent, Iterable[GraphNode]]]:
    """Yield each possible holder in CRI's namespace, with size 0, and the nodes that it references."""
    listed, used = _listed_names(images), {each.image for each in inventory.containers}
    all_leased, in_containers = inventory.referenced_by_leases(), set(inventory.referenced_by_containers())
    unlisted: dict[str, list[StoredImage]] = {}
    for image in inventory.images:
        if image.name not in listed:
            unlisted.setdefault(image.target, []).append(image)
    for target, named in unlisted.items():
        reached = inventory.referenced_by_images(named)
        blobs, missing = _blobs(inventory, target, reached, content_path)
        names = tuple(sorted((each.name for each in named), key=lambda name: (name.startswith("sha256:"), "@" in name)))
        is_free = used.isdisjoint(names) and GraphNode(CONTENT, target) not in all_leased  # no pull in progress
        edges = inventory.stored.edges
        top = {to for node in reached if node.kind == CONTENT for to in edges.get(node, ()) if to.kind != CONTENT}
        is_free &= not in_containers & top and not any(map(is_pinned, named))  # lower layers are shared
        yield (
            HeldContent(
                ReferenceKind.UNLISTED_IMAGE,
                names[0],
                0,
                max((each.created.at for each in named if each.created.at), default=None),
                f"{len(missing)} of {len(blobs)} blobs missing" if missing else "not listed by CRI",
                is_free and not missing.isdisjoint(_needed(inventory, target, blobs)),
                names=names,
                target=target,
            ),
            reached,
        )
    for container in inventory.containers:
        holder = HeldContent(ReferenceKind.CONTAINER, container.id, 0, None, "image removed")
        yield holder, inventory.closure(inventory.starts_of(container))
    for lease in inventory.leases:
        of_lease, leased = lease[0], replace(inventory, leases=(lease,)).referenced_by_leases()
        expiry, detail = expiry_of(of_lease), "no expiry"
        if is_undo(of_lease):
            detail = "undo window of removed images"
        elif expiry is not None:
            detail = f"until {format_time(expiry)}"
        stuck = expiry is None and KIND_LABEL not in of_lease.labels
        yield HeldContent(ReferenceKind.LEASE, of_lease.id, 0, of_lease.created.at, detail, stuck), leased
    for node in sorted(inventory.stored.rooted | inventory.stored.held):
        yield HeldContent(ReferenceKind.GC_LABEL, node.id, 0, None, "label containerd.io/gc"), inventory.closure([node])


def _blobs(
    inventory: Inventory, target: str, reached: Iterable[GraphNode], content_path: str
) -> tuple[list[GraphNode], set[GraphNode]]:
    """Return the blobs of an image, and those that are missing in the records or as files.

    A manifest that another index references is optional, except as the target of the image.
    """
    optional = inventory.stored.optional - {GraphNode(CONTENT, target)}
    blobs = [node for node in reached if node.kind == CONTENT and node not in optional]
    existing = inventory.stored.existing
    return blobs, {node for node in blobs if node not in existing or is_lost(content_path, node.id)}


def _needed(inventory: Inventory, target: str, blobs: Iterable[GraphNode]) -> Iterator[GraphNode]:
    """Yield the blobs without which no container can use an image: target and configs, as layers may be unpacked."""
    yield GraphNode(CONTENT, target)
    for node in blobs:
        stored = inventory.stored.blobs.get(node.id)
        if stored is not None and _CONFIG in stored.labels:
            yield GraphNode(CONTENT, stored.labels[_CONFIG])


def is_lost(content_path: str, digest: str) -> bool:
    """Return whether the file of a blob is missing in its directory; false if the directory is unreadable."""
    algorithm, _, encoded = digest.partition(":")
    directory = Path(content_path, "blobs", algorithm)
    try:
        return bool(content_path) and directory.is_dir() and not (directory / encoded).exists()
    except OSError:
        return False
