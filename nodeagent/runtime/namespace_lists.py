"""Lists of one containerd namespace, and the inventory built from the lists.

The lists take as long as the lists of CRI, and both are read concurrently. An object created in the meantime may
be in the lists of CRI only; the graph then lists the namespace again, see :meth:`NamespaceLists.missing`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.errors import RuntimeRequestError
from nodeagent.model import Image, PieceKind, StoredPiece
from nodeagent.record import Record, replace
from nodeagent.runtime.connection import gather_all, run_bounded
from nodeagent.runtime.metadata_graph import (
    CONTENT,
    DEFAULT_SNAPSHOTTER,
    SNAPSHOTS,
    GraphNode,
    Inventory,
    Stored,
    is_expired,
    snapshotters_in,
)

if TYPE_CHECKING:
    from nodeagent.runtime import containerd_records
    from nodeagent.runtime.containerd import ContainerdClient

    SnapshotList = Mapping[str, containerd_records.Snapshot] | RuntimeRequestError

# The usage of an overlay snapshot does not include two directories: the snapshot's directory and the work directory.
_UNCOUNTED_DIRECTORIES = dict.fromkeys(("overlayfs", "fuse-overlayfs", "stargz", "soci", "nydus"), 2)
_INODES_PER_CHUNK = 64


class DiskFormat(Record):
    """Allocation sizes of the image filesystem.

    Attributes:
        block_bytes: allocation unit of files.
        directory_bytes: size of a nearly empty directory: a block on ext4, 0 on xfs and btrfs.
        inode_chunk_bytes: free space used by a chunk of 64 inodes; 0 if inodes use no free space of the filesystem.
    """

    block_bytes: int = 4096
    directory_bytes: int = 4096
    inode_chunk_bytes: int = 0


def disk_format(filesystem_type: str) -> DiskFormat:
    """Return the allocation sizes of a filesystem type.

    XFS and Btrfs store small directories in their inodes. XFS allocates inodes on demand in chunks of 64, and frees a
    chunk once none of its inodes is in use. Source: mkfs.xfs(8), ``-i size``: 512 bytes by default.
    """
    match filesystem_type:
        case "xfs":
            return DiskFormat(directory_bytes=0, inode_chunk_bytes=_INODES_PER_CHUNK * 512)
        case "btrfs":
            return DiskFormat(directory_bytes=0)
        case _:
            return DiskFormat()


class Stores(Record):
    """Directories of the snapshotters, and of the content store under the empty name.

    Attributes:
        paths: directory by store; unknown directories are omitted.
        formats: allocation sizes of the filesystem by store.
    """

    paths: Mapping[str, str]
    formats: Mapping[str, DiskFormat]


NO_STORES: Final = Stores(MappingProxyType({}), MappingProxyType({}))
"""Stores whose directories are unknown."""


def stored_piece(
    node: GraphNode,
    inventory: Inventory,
    usage: Mapping[GraphNode, containerd_records.SnapshotUsage],
    default: DiskFormat,
    formats: Mapping[str, DiskFormat],
) -> StoredPiece:
    """Return the stored piece of a node, without references.

    The key of a snapshot in a snapshotter other than the inventory's starts with the name of that snapshotter.

    Args:
        node: an existing blob or snapshot.
        inventory: reading of the namespace.
        usage: usage by snapshot.
        default: allocation sizes of the image filesystem.
        formats: allocation sizes by snapshotter, with the empty name for the content store; a store without an entry
            has the default.
    """
    snapshotter = "" if node.kind == CONTENT else _snapshotter(node.kind)
    disk = formats.get(snapshotter, default)
    if not snapshotter:
        size = -(-inventory.stored.blobs[node.id].size_bytes // disk.block_bytes) * disk.block_bytes
        return StoredPiece(node.id, PieceKind.BLOB, size, 1)
    used = usage[node]
    directories = _UNCOUNTED_DIRECTORIES.get(snapshotter, 0) if used.inodes else 0
    inodes = used.inodes + directories
    # Inodes of a snapshot are allocated in sequence; a partly filled chunk is shared with other files.
    chunks_bytes = inodes // _INODES_PER_CHUNK * disk.inode_chunk_bytes
    return StoredPiece(
        node.id if snapshotter == inventory.snapshotter else f"{snapshotter}/{node.id}",
        PieceKind.SNAPSHOT,
        used.size_bytes + directories * disk.directory_bytes + chunks_bytes,
        inodes,
        snapshotter=snapshotter,
    )


@lru_cache(maxsize=64)
def _snapshotter(kind: str) -> str:
    """Return the snapshotter in a node kind; all pieces share one text object."""
    return kind.removeprefix(SNAPSHOTS)


class NamespaceLists(Record):
    """Lists of one namespace without its containers.

    Attributes:
        leases: unexpired leases with their resources.
        expected: digests of the blobs being written.
        foreign: digests of blobs that also exist in other namespaces.
        snapshots: snapshots by snapshotter and key, or the error of a failed list, for the snapshotters in ``known``.
        known: the earlier reading, whose unchanged entries are part of these lists.
    """

    images: tuple[containerd_records.StoredImage, ...]
    blobs: Mapping[str, containerd_records.Blob]
    leases: tuple[tuple[containerd_records.ContentLease, tuple[containerd_records.LeasedResource, ...]], ...]
    expected: frozenset[str]
    foreign: frozenset[str]
    snapshots: Mapping[str, SnapshotList]
    known: Stored | None = None

    def missing(
        self, images: Iterable[Image], containers: Iterable[containerd_records.StoredContainer]
    ) -> frozenset[tuple[str, str]]:
        """Return the missing image names and snapshots, as pairs of snapshotter (empty for an image name) and name.

        Args:
            images: images as listed by CRI; their names without a record are missing.
            containers: the container records; their snapshots without a record are missing.
        """
        names = {each.name for each in self.images}
        listed = {name for image in images for name in (image.id, *image.references)}
        snapshots = {
            name: found for name, found in self.snapshots.items() if not isinstance(found, RuntimeRequestError)
        }
        unlisted = {
            (each.snapshotter, each.snapshot_key)
            for each in containers
            if each.snapshotter in snapshots and each.snapshot_key not in snapshots[each.snapshotter]
        }
        return frozenset(("", name) for name in listed - names) | unlisted


class StorageLists(Record):
    """Lists from which a graph is built.

    Attributes:
        namespace: the records of CRI's namespace without containers.
        stores: the directories of the snapshotters and of the content store.
    """

    namespace: NamespaceLists
    stores: Stores = NO_STORES


async def list_namespace(client: ContainerdClient, *, now: datetime, known: Stored | None = None) -> NamespaceLists:
    """Return the lists of a namespace, read from containerd.

    Args:
        client: client of containerd, in the namespace to list.
        now: current time; leases that expired earlier are omitted.
        known: an earlier reading, whose unchanged entries are reused; ``None`` without an earlier reading.

    Raises:
        RuntimeUnavailableError: no connection.
        RuntimeRequestError: a list failed, other than the snapshot list of a snapshotter.
    """
    before: Mapping[str, Mapping[str, containerd_records.Snapshot]] = known.snapshots if known is not None else {}
    (blobs, images, leases, ingests, namespaces), snapshots = await gather_all(
        gather_all(
            client.list_content(known.blobs if known else None),
            client.list_images(),
            client.list_leases(),
            client.list_ingests(),
            client.list_namespaces(),
        ),
        _list_snapshots(client, before, known),
    )
    valid = [lease for lease in leases if not is_expired(lease, now)]
    resources = await run_bounded(client.list_lease_resources, [lease.id for lease in valid])
    foreign = await run_bounded(client.list_digests, [name for name in namespaces if name != client.namespace])
    return NamespaceLists(
        images=images,
        blobs=blobs,
        leases=tuple(zip(valid, resources, strict=True)),
        expected=expected_digests(ingests),
        foreign=frozenset().union(*foreign),
        snapshots=snapshots,
        known=known,
    )


def expected_digests(ingests: Iterable[containerd_records.Ingest]) -> frozenset[str]:
    """Return the digests of the blobs being written."""
    return frozenset(ingest.expected for ingest in ingests if ingest.expected)


async def make_inventory(
    client: ContainerdClient,
    lists: NamespaceLists,
    snapshotter: str | None,
    containers: tuple[containerd_records.StoredContainer, ...],
) -> Inventory:
    """Return the inventory of a namespace; ``stored`` is the object of the earlier reading if unchanged.

    Args:
        client: client of containerd, for listing the remaining snapshotters.
        lists: the lists of the namespace.
        snapshotter: the configured snapshotter; ``None`` selects the snapshotter used by most images.
        containers: the container records.

    Raises:
        RuntimeUnavailableError: no connection.
        RuntimeRequestError: the snapshots of the configured snapshotter cannot be listed.
    """
    kinds = [resource.type for _, each in lists.leases for resource in each]
    used = Counter(snapshotters_in(kinds)) + Counter(each.snapshotter for each in containers if each.snapshotter)
    stored = await _read_stored(client, lists, {*used, snapshotter or ""} - {""}, snapshotter)
    used += stored.snapshotters
    return Inventory(
        stored,
        images=lists.images,
        containers=containers,
        leases=lists.leases,
        expected=lists.expected,
        foreign=lists.foreign,
        snapshotter=snapshotter or next((name for name, _ in used.most_common(1)), DEFAULT_SNAPSHOTTER),
    )


async def _list_snapshots(
    client: ContainerdClient, snapshotters: Iterable[str], known: Stored | None
) -> dict[str, SnapshotList]:
    """Return the snapshots of each snapshotter, or the error of its list."""
    before: Mapping[str, Mapping[str, containerd_records.Snapshot]] = known.snapshots if known is not None else {}

    async def read(name: str) -> SnapshotList:
        try:
            return await client.list_snapshots(name, before.get(name))
        except RuntimeRequestError as error:
            return error

    names = sorted(snapshotters)
    return dict(zip(names, await run_bounded(read, names), strict=True))


async def _read_stored(
    client: ContainerdClient, lists: NamespaceLists, names: set[str], required: str | None
) -> Stored:
    """Return the blobs, with the snapshots of the snapshotters in ``names`` and in the labels of blobs."""
    blobs, known = lists.blobs, lists.known
    same_blobs = known is not None and _same(blobs, known.blobs)
    named = known if known is not None and same_blobs else await asyncio.to_thread(Stored, blobs, {})
    snapshotters = {*names, *named.snapshotters} or {DEFAULT_SNAPSHOTTER}
    before: Mapping[str, Mapping[str, containerd_records.Snapshot]] = known.snapshots if known is not None else {}
    listed = {**lists.snapshots, **await _list_snapshots(client, snapshotters - lists.snapshots.keys(), known)}
    snapshots = {}
    for name in sorted(snapshotters):
        found = listed[name]
        if not isinstance(found, RuntimeRequestError):
            snapshots[name] = found
        elif name == required:
            raise found
        else:
            snapshots[name] = {}  # labels can name a snapshotter that is no longer loaded
    same = (
        same_blobs
        and snapshots.keys() == before.keys()
        and all(_same(found, before[name]) for name, found in snapshots.items())
    )
    return known if known is not None and same else await asyncio.to_thread(Stored, blobs, snapshots)


def _same(new: Mapping[str, object], old: Mapping[str, object]) -> bool:
    """Return whether two listings have identical entries."""
    return new is old or (len(new) == len(old) and all(old.get(key) is value for key, value in new.items()))


class Listed(Record):
    """Lists, with the database revision read before the lists, and the time of the lists."""

    revision: Hashable
    at: datetime
    lists: NamespaceLists


async def updated(
    client: ContainerdClient, lists: NamespaceLists, *, now: datetime, known: Stored | None
) -> NamespaceLists:
    """Return lists with unchanged records, with the current ingests, and without leases that have expired."""
    ingests = await client.list_ingests()
    return replace(
        lists,
        leases=tuple(each for each in lists.leases if not is_expired(each[0], now)),
        expected=expected_digests(ingests),
        known=known,
    )
