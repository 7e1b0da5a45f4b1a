"""What images really occupy, and what else keeps each piece of it: builds the model's :class:`StorageGraph`.

A deletion frees the blobs and snapshots that nothing keeps any more, so the graph is containerd's own
(:mod:`nodeagent.runtime.metadata_graph`), cut down to what the images of CRI's list keep. Sizes are what the filesystem
gives back: a blob's bytes in whole blocks; for a snapshot the usage its snapshotter recorded, the directories that
it does not count, and its inodes where they come out of the same space.

Every build lists names, blobs and snapshots anew, which is cheap; only usage costs a call for each snapshot.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from nodeagent.clock import SystemClock
from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError, RuntimeTimeoutError
from nodeagent.model import Holder, ImageRecord, PieceKind, StorageGraph, StoredPiece, UnreferencedPiece
from nodeagent.runtime.containerd_records import SnapshotKind, SnapshotUsage, Stamp
from nodeagent.runtime.metadata_graph import (
    CONTENT,
    IMAGES,
    SNAPSHOTS,
    Node,
    read_inventory,
    run_bounded,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from nodeagent.clock import Clock
    from nodeagent.model import Image
    from nodeagent.runtime.containerd import ContainerdClient
    from nodeagent.runtime.containerd_records import Snapshot, StoredImage
    from nodeagent.runtime.metadata_graph import Inventory, Stored

# Directories of a snapshot beside the one its usage counts: its own, and overlay's work directory.
_UNCOUNTED_DIRECTORIES = dict.fromkeys(("overlayfs", "fuse-overlayfs", "stargz", "soci", "nydus"), 2)
_INODES_PER_CHUNK = 64


@dataclass(frozen=True, slots=True)
class DiskFormat:
    """How the filesystem that images lie on allocates.

    Attributes:
        block_bytes: files occupy multiples of it.
        directory_bytes: what a nearly empty directory occupies: a block on ext4, 0 on xfs and btrfs.
        inode_chunk_bytes: what 64 inodes together take of the free space, 0 where all were set apart at the start.
    """

    block_bytes: int = 4096
    directory_bytes: int = 4096
    inode_chunk_bytes: int = 0


def disk_format(filesystem_type: str) -> DiskFormat:
    """Return how a type of filesystem allocates.

    XFS and Btrfs keep small directories in their inodes. XFS makes inodes when they are needed, 64 at a time, and gives
    their space back once none of the 64 is in use. Source: mkfs.xfs(8), ``-i size``: 512 bytes unless chosen.
    """
    match filesystem_type:
        case "xfs":
            return DiskFormat(directory_bytes=0, inode_chunk_bytes=_INODES_PER_CHUNK * 512)
        case "btrfs":
            return DiskFormat(directory_bytes=0)
        case _:
            return DiskFormat()


_FOREIGN = Holder.OTHER_NAMESPACE


@dataclass(frozen=True, slots=True)
class _Resolved:
    """One CRI image in containerd's terms.

    Attributes:
        names: every name under which it is stored.
        nodes: the blobs and snapshots it keeps, those that exist.
        complete: whether nothing it should have is missing.
    """

    names: tuple[str, ...]
    nodes: tuple[Node, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class _Layout:
    """A graph without its holders, and what it was made from; good for as long as that is unchanged.

    Attributes:
        index: where each node's piece is.
        names: the image names of the images in it.
        whole: whether the usage of every snapshot could be read.
    """

    stored: Stored
    snapshotter: str
    images: tuple[Image, ...]
    stored_images: tuple[StoredImage, ...]
    graph: StorageGraph
    index: Mapping[Node, int]
    names: frozenset[str]
    whole: bool


class UsageNotes(Protocol):
    """Remembers the usage of committed snapshots beyond this process. Its methods block and never raise."""

    def read(self) -> Mapping[Node, tuple[Stamp, SnapshotUsage]]:
        """Return the usage of each remembered snapshot, with the time the snapshot was made."""

    def write(self, learned: Mapping[Node, tuple[Stamp, SnapshotUsage]], gone: Collection[Node]) -> None:
        """Remember what was learned; forget what has gone."""


class LayerCache:
    """Builds storage graphs, and keeps what has not changed since the last build.

    The usage of a committed snapshot never changes, so it is read once.
    """

    def __init__(
        self, disk: DiskFormat | None = None, clock: Clock | None = None, notes: UsageNotes | None = None
    ) -> None:
        """Start with what ``notes`` hold; ``disk`` is ext4's with 4 KiB blocks unless told otherwise."""
        self._disk = disk or DiskFormat()
        self._clock = clock or SystemClock()
        self._usage: dict[Node, tuple[Stamp, SnapshotUsage]] = {}
        self._layout: _Layout | None = None
        self._notes = notes
        self._noted: frozenset[Node] | None = None

    async def build(
        self, client: ContainerdClient, images: Sequence[Image], *, snapshotter: str | None = None
    ) -> StorageGraph:
        """Return what ``images`` occupy now.

        An image whose names are not stored, or of which a snapshot's usage cannot be read, gets no entry in
        ``by_image``; what it shares with others then counts as kept by an unlisted image.

        Args:
            client: containerd, in the namespace CRI uses.
            images: as CRI lists them, read before this call.
            snapshotter: the configured one; ``None`` takes the one most images are unpacked into.

        Raises:
            RuntimeUnavailableError: no connection.
            RuntimeRequestError: a listing failed; without it the graph would be wrong.
        """
        await self._recall()
        inventory = await self._read(client, snapshotter)
        layout = self._layout
        if layout is None or not _still_good(layout, inventory, images):
            layout = self._layout = await self._lay_out(client, inventory, tuple(images))
        kept = _kept_otherwise(layout, inventory)
        loose = inventory.stored.existing.difference(
            layout.index, *(nodes for holder, nodes in kept if holder is not _FOREIGN)
        )
        usage = await self._read_usage(client, inventory, sorted(loose)) if loose else {}
        pending = [
            self._piece(node, inventory, usage)
            for node in loose
            if node in usage or (node.kind == CONTENT and node.id not in inventory.foreign)
        ]
        return replace(_with_holders(layout, kept), pending_bytes=sum(piece.size_bytes for piece in pending))

    async def find_unreferenced(
        self, client: ContainerdClient, *, snapshotter: str | None = None
    ) -> tuple[UnreferencedPiece, ...]:
        """Return the blobs and snapshots that no image, container, lease, write or other piece keeps.

        Those that a label of their own keeps are among them, marked. Blobs that other namespaces have too are, with
        their holder: their record goes, their bytes stay.
        """
        inventory = await self._read(client, snapshotter)
        kept = set().union(
            inventory.kept_by_images(inventory.images),
            inventory.kept_by_containers(),
            inventory.kept_by_leases(),
            inventory.kept_by_ingests(),
        )
        rooted = inventory.closure(sorted(inventory.stored.rooted - kept))
        loose = sorted(inventory.stored.existing - kept)
        usage = await self._read_usage(client, inventory, loose)
        found = []
        for node in loose:
            if node.kind != CONTENT and node not in usage:
                continue
            piece = self._piece(node, inventory, usage)
            if node.kind == CONTENT:
                created = inventory.stored.blobs[node.id].created
                if created.at is None:  # containerd 1.6 does not list it
                    with suppress(RuntimeRequestError):
                        blob = await client.get_blob(node.id)
                        created = blob.created if blob is not None else created
                if node.id in inventory.foreign:
                    piece = replace(piece, holders=(_FOREIGN,))
                found.append(UnreferencedPiece(piece, "", created.at, rooted=node in rooted))
            else:
                snapshot = _snapshot(inventory, node)
                name = node.kind.removeprefix(SNAPSHOTS)
                piece = replace(piece, key=node.id)
                found.append(
                    UnreferencedPiece(piece, name, snapshot.created.at, rooted=node in rooted, parent=snapshot.parent)
                )
        return tuple(found)

    async def _read(self, client: ContainerdClient, snapshotter: str | None) -> Inventory:
        known = self._layout.stored if self._layout else None
        return await read_inventory(client, snapshotter, now=self._clock.now(), known=known)

    async def _recall(self) -> None:
        if self._notes is not None and self._noted is None:
            self._usage.update(await asyncio.to_thread(self._notes.read))
            self._noted = frozenset(self._usage)

    async def _take_notes(self, learned: Iterable[Node]) -> None:
        if self._notes is None or self._noted is None:
            return
        changed = {node: self._usage[node] for node in learned}
        gone = self._noted - self._usage.keys()
        if changed or gone:
            await asyncio.to_thread(self._notes.write, changed, gone)
            self._noted = frozenset(self._usage)

    async def _lay_out(self, client: ContainerdClient, inventory: Inventory, images: tuple[Image, ...]) -> _Layout:
        resolved = _resolve(images, inventory)
        wanted = dict.fromkeys(node for each in resolved.values() for node in each.nodes)
        before = dict(self._usage)
        usage = await self._read_usage(client, inventory, wanted)
        self._forget_all_but(inventory)
        await self._take_notes(node for node, told in self._usage.items() if before.get(node) != told)
        sized = {image_id: each for image_id, each in resolved.items() if _all_sized(each.nodes, usage)}
        nodes = dict.fromkeys(node for each in sized.values() for node in each.nodes)
        index = {node: position for position, node in enumerate(nodes)}
        times = {image.name: max(image.created, image.updated) for image in inventory.images}
        graph = StorageGraph(
            pieces=tuple(self._piece(node, inventory, usage) for node in nodes),
            by_image={image_id: tuple(index[node] for node in each.nodes) for image_id, each in sized.items()},
            records={
                image_id: ImageRecord(each.names, max(times[name] for name in each.names).at, each.complete)
                for image_id, each in resolved.items()
            },
        )
        return _Layout(
            inventory.stored,
            inventory.snapshotter,
            images,
            inventory.images,
            graph,
            index,
            frozenset(name for each in sized.values() for name in each.names),
            whole=len(sized) == len(resolved),
        )

    async def _read_usage(
        self, client: ContainerdClient, inventory: Inventory, nodes: Iterable[Node]
    ) -> dict[Node, SnapshotUsage]:
        """Return the usage of the snapshots among ``nodes``, without those whose snapshotter refuses to tell."""
        snapshots = [node for node in nodes if node.kind != CONTENT]
        missing = [node for node in snapshots if not self._knows(node, inventory)]
        answers = await run_bounded(lambda node: _ask_usage(client, node), missing)
        fresh = {node: usage for node, usage in zip(missing, answers, strict=True) if usage is not None}
        for node, usage in fresh.items():
            snapshot = _snapshot(inventory, node)
            if snapshot.kind is SnapshotKind.COMMITTED:
                self._usage[node] = (snapshot.created, usage)
        return fresh | {node: self._usage[node][1] for node in snapshots if self._knows(node, inventory)}

    def _knows(self, node: Node, inventory: Inventory) -> bool:
        """Return whether the usage of this very snapshot, not of an earlier one of the same name, is remembered."""
        remembered = self._usage.get(node)
        return remembered is not None and remembered[0] == _snapshot(inventory, node).created

    def _forget_all_but(self, inventory: Inventory) -> None:
        for node in self._usage.keys() - inventory.stored.existing:
            del self._usage[node]

    def _piece(self, node: Node, inventory: Inventory, usage: Mapping[Node, SnapshotUsage]) -> StoredPiece:
        """Return the piece without holders; the key of a snapshot in another snapshotter starts with its name."""
        if node.kind == CONTENT:
            block = self._disk.block_bytes
            size = -(-inventory.stored.blobs[node.id].size_bytes // block) * block
            return StoredPiece(node.id, PieceKind.BLOB, size, 1)
        snapshotter, used = node.kind.removeprefix(SNAPSHOTS), usage[node]
        directories = _UNCOUNTED_DIRECTORIES.get(snapshotter, 0) if used.inodes else 0
        inodes = used.inodes + directories
        # Inodes of a snapshot were made one after another; what does not fill a chunk shares one with others.
        chunks_bytes = inodes // _INODES_PER_CHUNK * self._disk.inode_chunk_bytes
        return StoredPiece(
            node.id if snapshotter == inventory.snapshotter else f"{snapshotter}/{node.id}",
            PieceKind.SNAPSHOT,
            used.size_bytes + directories * self._disk.directory_bytes + chunks_bytes,
            inodes,
        )


async def _ask_usage(client: ContainerdClient, node: Node) -> SnapshotUsage | None:
    """Return a snapshot's usage, ``None`` where the snapshotter refuses to tell; one that has gone occupies nothing."""
    try:
        return await client.snapshot_usage(node.kind.removeprefix(SNAPSHOTS), node.id)
    except RuntimeNotFoundError:
        return SnapshotUsage(0, 0)
    except RuntimeTimeoutError:
        raise
    except RuntimeRequestError:
        return None


def _still_good(layout: _Layout, inventory: Inventory, images: Sequence[Image]) -> bool:
    return (
        layout.whole
        and layout.stored is inventory.stored
        and layout.snapshotter == inventory.snapshotter
        and layout.stored_images == inventory.images
        and layout.images == tuple(images)
    )


def _resolve(images: Iterable[Image], inventory: Inventory) -> dict[str, _Resolved]:
    """Return each CRI image's names and pieces, without images none of whose names is stored.

    CRI stores an image under its id, its tags and its digests; names it cannot parse point at the same blob.
    """
    by_name = {image.name: image for image in inventory.images}
    by_target: dict[str, list[StoredImage]] = {}
    for image in inventory.images:
        by_target.setdefault(image.target, []).append(image)
    existing = inventory.stored.existing
    resolved = {}
    for listed in images:
        said = [by_name[name] for name in (*listed.references, listed.id) if name in by_name]
        aliases = [each for target in dict.fromkeys(each.target for each in said) for each in by_target[target]]
        stored = {each.name: each for each in (*said, *aliases)}
        if stored:
            kept = inventory.kept_by_images(stored.values())
            nodes = tuple(node for node in kept if node in existing)
            resolved[listed.id] = _Resolved(tuple(stored), nodes, _is_complete(kept, inventory.stored))
    return resolved


def _is_complete(kept: Iterable[Node], stored: Stored) -> bool:
    """Return whether nothing is missing: no blob or snapshot that is named, nor any snapshot where there are layers."""
    unpacked = layered = False
    for node in kept:
        if node in stored.existing:
            unpacked = unpacked or node.kind != CONTENT
            layered = layered or node in stored.with_layers
        elif node.kind != IMAGES and node not in stored.optional:
            return False
    return unpacked or not layered


def _all_sized(nodes: Iterable[Node], usage: Mapping[Node, SnapshotUsage]) -> bool:
    return all(node.kind == CONTENT or node in usage for node in nodes)


def _snapshot(inventory: Inventory, node: Node) -> Snapshot:
    return inventory.stored.snapshots[node.kind.removeprefix(SNAPSHOTS)][node.id]


def _with_holders(layout: _Layout, kept: Iterable[tuple[Holder, Iterable[Node]]]) -> StorageGraph:
    """Return the layout's graph with the holders of this moment."""
    pieces = list(layout.graph.pieces)
    for holder, nodes in kept:
        for node in nodes:
            index = layout.index.get(node)
            if index is not None:
                pieces[index] = replace(pieces[index], holders=(*pieces[index].holders, holder))
    return replace(layout.graph, pieces=tuple(pieces))


def _kept_otherwise(layout: _Layout, inventory: Inventory) -> tuple[tuple[Holder, Iterable[Node]], ...]:
    """Return what others than the listed images keep, by who does. A label of its own counts as a lease."""
    rooted = inventory.stored.rooted
    below = inventory.closure(sorted(rooted)).keys() - rooted
    parents = {node for node in below if node.kind != CONTENT}
    unlisted = [image for image in inventory.images if image.name not in layout.names]
    return (
        (Holder.CONTAINER, inventory.kept_by_containers()),
        (Holder.LEASE, inventory.kept_by_leases() | rooted | (below - parents)),
        (Holder.SNAPSHOT_CHILD, parents),
        (Holder.OTHER_NAMESPACE, [Node(CONTENT, digest) for digest in inventory.foreign]),
        (Holder.INGEST, inventory.kept_by_ingests()),
        (Holder.UNLISTED_IMAGE, inventory.kept_by_images(unlisted)),
    )
