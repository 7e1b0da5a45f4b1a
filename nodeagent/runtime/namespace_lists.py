"""Lists of one containerd namespace, and their graph of references.

The lists take as long as the lists of CRI, and both are read concurrently. An object created in the meantime may
be in the lists of CRI only; the graph then lists the namespace again, see :meth:`NamespaceLists.missing`.

The edges are defined by containerd's garbage collector: an image name references its target blob; a blob references the
objects in its labels (a manifest its config and layers, a config the snapshot unpacked from it); a snapshot its parent;
a container its snapshot; a lease its resources. For an intact image the edges equal those computed from manifests and
chain ids. For other images (a missing label, a removed blob, another snapshotter, an OCI artifact) the collector
follows the labels, and the graph uses the same rules. The labels also avoid reading blobs.

Source: containerd ``docs/garbage-collection.md``, labels ``containerd.io/gc.*``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.errors import RuntimeRequestError
from nodeagent.model.runtime import Image, PieceKind, Space, StoredPiece, total_space
from nodeagent.record import Record, replace
from nodeagent.runtime.connection import gather_all, run_bounded
from nodeagent.runtime.containerd import (
    GC_LABELS,
    Blob,
    ContentLease,
    LeasedResource,
    Snapshot,
    StoredContainer,
    StoredImage,
)

if TYPE_CHECKING:
    from nodeagent.runtime import containerd
    from nodeagent.runtime.containerd import ContainerdClient

    SnapshotList = Mapping[str, containerd.Snapshot] | RuntimeRequestError

DEFAULT_SNAPSHOTTER = "overlayfs"

CONTENT = "content"
IMAGES = "images"
CONTAINERS = "containers"
SNAPSHOTS = "snapshots/"
EXPIRE = "containerd.io/gc.expire"

_GC = GC_LABELS
_BACK_REF = "containerd.io/gc.bref."
_REF = "containerd.io/gc.ref."
_ROOT = "containerd.io/gc.root"
_FLAT = "containerd.io/gc.flat"
_LAYER_REF = "containerd.io/gc.ref.content.l."
_PLATFORM_REF = "containerd.io/gc.ref.content.m."


class GraphNode(NamedTuple):
    """One object in the metadata; ``kind`` is a resource type as in leases, such as ``snapshots/SNAPSHOTTER``."""

    kind: str
    id: str


class References(Record):
    """References in an object's labels.

    Attributes:
        to: the referenced objects.
        back: the referencing objects.
        optional: the objects in ``to`` that may be missing.
        root: whether the object has a ``containerd.io/gc.root`` label.
        unknown: whether the object has another ``containerd.io/gc.`` label of unknown meaning. The label counts as a
            reference to the object, since a newer collector or a snapshotter may keep the object because of the label.
        named: ids in unknown ``gc.ref`` labels; every blob and snapshot with this id counts as referenced.
        has_layers: whether the object references layers.
    """

    to: tuple[GraphNode, ...] = ()
    back: tuple[GraphNode, ...] = ()
    optional: tuple[GraphNode, ...] = ()
    root: bool = False
    has_layers: bool = False
    unknown: bool = False
    named: tuple[str, ...] = ()


_NO_REFERENCES = References()


class Stored:
    """Every blob and snapshot with its references; immutable.

    Attributes:
        blobs: blobs by digest.
        snapshots: snapshots by snapshotter and key.
        edges: referenced nodes by node.
        existing: every blob and snapshot.
        optional: manifests referenced by an index; a missing manifest is of a platform that was not pulled.
        with_layers: manifests that reference layer blobs.
        rooted: nodes with a ``containerd.io/gc.root`` label.
        held: nodes with a garbage collection label of unknown meaning, and the nodes that such labels may name.
        snapshotters: number of labels that name each snapshotter.
    """

    def __init__(self, blobs: Mapping[str, Blob], snapshots: Mapping[str, Mapping[str, Snapshot]]) -> None:
        self.blobs = blobs
        self.snapshots = snapshots
        self.edges: dict[GraphNode, tuple[GraphNode, ...]] = {}
        self.optional: set[GraphNode] = set()
        self.with_layers: set[GraphNode] = set()
        self.rooted: set[GraphNode] = set()
        self.held: set[GraphNode] = set()
        self.snapshotters: Counter[str] = Counter()
        # Equal nodes share one object to save memory: a graph has tens of thousands of nodes, each in several edges.
        # The nodes of existing objects are added first, since they share the texts of the records.
        interned = {node: node for node in self._nodes()}
        self.existing: set[GraphNode] = set(interned)
        for node in tuple(interned):
            self._add(node, interned)
        self.held.update(
            self.with_ids({each for node in self.held for each in references(self._record(node).labels).named})
        )

    def _nodes(self) -> Iterator[GraphNode]:
        yield from (GraphNode(CONTENT, digest) for digest in self.blobs)
        for name, listed in self.snapshots.items():
            kind = SNAPSHOTS + name
            yield from (GraphNode(kind, key) for key in listed)

    def with_ids(self, ids: Collection[str]) -> list[GraphNode]:
        """Return every blob and snapshot with one of these ids."""
        if not ids:
            return []
        kinds = (CONTENT, *(SNAPSHOTS + name for name in self.snapshots))
        return [node for each in sorted(ids) for kind in kinds if (node := GraphNode(kind, each)) in self.existing]

    def _record(self, node: GraphNode) -> Blob | Snapshot:
        if node.kind == CONTENT:
            return self.blobs[node.id]
        return self.snapshots[node.kind.removeprefix(SNAPSHOTS)][node.id]

    def _add(self, node: GraphNode, interned: dict[GraphNode, GraphNode]) -> None:
        record = self._record(node)
        found = references(record.labels) if record.labels else _NO_REFERENCES
        parent = (GraphNode(node.kind, record.parent),) if isinstance(record, Snapshot) and record.parent else ()
        if parent or found.to:
            targets = (interned.setdefault(each, each) for each in (*parent, *found.to))
            self.edges[node] = (*self.edges.get(node, ()), *targets)
        if found is _NO_REFERENCES:
            return
        self.snapshotters.update(snapshotters_in(each.kind for each in found.to))
        self.optional.update(found.optional)
        if found.has_layers:
            self.with_layers.add(node)
        if found.root:
            self.rooted.add(node)
        if found.unknown:
            self.held.add(node)
        for source in found.back:
            self.edges[source] = (*self.edges.get(source, ()), node)


class Inventory(Record):
    """One reading of a namespace.

    Attributes:
        leases: unexpired leases with their resources.
        expected: digests of the blobs being written.
        foreign: digests of blobs that also exist in other namespaces; namespaces share the bytes on disk.
        snapshotter: the snapshotter of the images.
    """

    stored: Stored
    images: tuple[StoredImage, ...] = ()
    containers: tuple[StoredContainer, ...] = ()
    leases: tuple[tuple[ContentLease, tuple[LeasedResource, ...]], ...] = ()
    expected: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    snapshotter: str = DEFAULT_SNAPSHOTTER

    def closure(self, starts: Iterable[GraphNode]) -> dict[GraphNode, None]:
        """Return ``starts`` and all nodes reachable from these nodes, existing or missing, in a fixed order."""
        edges, reached = self.stored.edges, dict.fromkeys(starts)
        stack = list(reversed(reached))
        while stack:
            for node in edges.get(stack.pop(), ()):
                if node not in reached:
                    reached[node] = None
                    stack.append(node)
        return reached

    def referenced_by_images(self, images: Iterable[StoredImage]) -> dict[GraphNode, None]:
        """Return all nodes reachable from image names."""
        starts: list[GraphNode] = []
        for image in images:
            starts += (GraphNode(CONTENT, image.target), GraphNode(IMAGES, image.name), *self._named_by(image.labels))
        return self.closure(starts)

    def referenced_by_containers(self) -> dict[GraphNode, None]:
        """Return all nodes reachable from containers: their writable snapshots and all parent snapshots."""
        return self.closure(node for container in self.containers for node in self.starts_of(container))

    def references_by_container(self, index: Mapping[GraphNode, int]) -> dict[str, tuple[int, ...]]:
        """Return the positions in ``index`` of the nodes reachable from each container, by container id.

        Containers with the same image usually share the result, since only their writable snapshots differ.
        """
        edges, shared = self.stored.edges, dict[tuple[GraphNode, ...], tuple[int, ...]]()
        found = {}
        for container in self.containers:
            starts: list[GraphNode] = []
            for node in self.starts_of(container):
                starts += (node,) if node in index else edges.get(node, ())
            key = tuple(starts)
            if key not in shared:
                shared[key] = tuple(index[node] for node in self.closure(key) if node in index)
            found[container.id] = shared[key]
        return found

    def starts_of(self, container: StoredContainer) -> tuple[GraphNode, ...]:
        """Return the nodes that a container references: itself, its snapshot, and the nodes in its labels."""
        own = (GraphNode(CONTAINERS, container.id), *self._named_by(container.labels))
        if not container.snapshotter:
            return own
        return (*own, GraphNode(SNAPSHOTS + container.snapshotter, container.snapshot_key))

    def _named_by(self, labels: Mapping[str, str]) -> tuple[GraphNode, ...]:
        """Return the nodes referenced by the labels of an image name or a container."""
        found = references(labels)
        return (*found.to, *self.stored.with_ids(found.named)) if found.named else found.to

    def referenced_by_unknown_labels(self) -> dict[GraphNode, None]:
        """Return all nodes reachable from blobs and snapshots with labels of unknown meaning."""
        return self.closure(sorted(self.stored.held))

    def referenced_by_leases(self, counts: Callable[[ContentLease], bool] = lambda _: True) -> set[GraphNode]:
        """Return all nodes reachable from leases; a flat lease references its blobs without their own references.

        Args:
            counts: whether a lease is included.

        Source: containerd label ``containerd.io/gc.flat``.
        """
        referenced: set[GraphNode] = set()
        for lease, resources in self.leases:
            if not counts(lease):
                continue
            nodes = [GraphNode(resource.type, resource.id) for resource in resources]
            flat = {node for node in nodes if node.kind == CONTENT and _FLAT in lease.labels}
            referenced.update(flat, self.closure(node for node in nodes if node not in flat))
        return referenced

    def referenced_by_ingests(self) -> dict[GraphNode, None]:
        """Return all nodes reachable from the expected digests of ingests."""
        return self.closure(GraphNode(CONTENT, digest) for digest in sorted(self.expected))


def space_by_store(pieces: Iterable[StoredPiece]) -> dict[str, Space]:
    """Return the space of the pieces by snapshotter, with the empty name for blobs."""
    found: dict[str, list[Space]] = {}
    for each in pieces:
        found.setdefault(each.snapshotter, []).append(Space(each.size_bytes, each.inodes))
    return {store: total_space(spaces) for store, spaces in found.items()}


def snapshotters_in(kinds: Iterable[str]) -> list[str]:
    """Return the snapshotters in these node kinds."""
    return [kind.removeprefix(SNAPSHOTS) for kind in kinds if kind.startswith(SNAPSHOTS)]


def is_expired(lease: ContentLease, now: datetime) -> bool:
    """Return whether a lease expired.

    A lease with an invalid expiry time is not expired, as in containerd. A lease with a label of unknown meaning also
    counts as not expired.
    """
    expiry = expiry_of(lease)
    return expiry is not None and not references(_others(lease.labels)).unknown and expiry < now


def expiry_of(lease: ContentLease) -> datetime | None:
    """Return the expiry time of a lease; ``None`` if the label is missing or malformed."""
    try:
        expiry = datetime.fromisoformat(lease.labels.get(EXPIRE, ""))
    except ValueError:
        return None
    return expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)


def _others(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a lease, except the labels with a known meaning for leases."""
    return {name: labels[name] for name in labels if name != EXPIRE and not name.startswith(_FLAT)}


def references(labels: Mapping[str, str]) -> References:
    """Return the references in an object's garbage collection labels.

    Labels of unknown meaning count as references: unknown kinds of ``gc.ref.`` and ``gc.bref.``, ``gc.expire``,
    ``gc.cond.`` and all other ``gc.`` labels.

    Source: containerd ``containerd.io/gc.ref.content[./]*``, ``.image``, ``.snapshot.NAME[/*]``, ``gc.bref.*`` (only
    newer servers) and ``gc.root``.
    """
    if not any(name.startswith(_GC) for name in labels):
        return _NO_REFERENCES
    to, back, optional, named = [], [], [], []
    root = unknown = has_layers = False
    for name in sorted(labels):
        if name.startswith(_REF):
            node = _target(name.removeprefix(_REF), labels[name])
            if node is None:
                named.append(labels[name])
                unknown = True
                continue
            to.append(node)
            has_layers = has_layers or name.startswith(_LAYER_REF)
            if name.startswith(_PLATFORM_REF):
                optional.append(node)
        elif name.startswith(_BACK_REF):
            node = _target(name.removeprefix(_BACK_REF), labels[name])
            if node is not None:
                back.append(node)
            unknown = unknown or node is None
        elif name.startswith(_ROOT):
            root = True
        elif name.startswith(_GC):
            unknown = True
    return References(tuple(to), tuple(back), tuple(optional), root, has_layers, unknown, tuple(named))


def _target(name: str, value: str) -> GraphNode | None:
    """Return the node of a label suffix (``content.l.0``, ``snapshot.overlayfs/x``) and value; ``None`` if unknown."""
    kind, _, rest = name.partition(".")
    if kind == "snapshot":
        return GraphNode(SNAPSHOTS + rest.partition("/")[0], value)
    kind = kind.partition("/")[0]
    known = {"content": CONTENT, "image": IMAGES, "container": CONTAINERS}
    return GraphNode(known[kind], value) if kind in known else None


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
    usage: Mapping[GraphNode, Space],
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
    return StoredPiece(
        node.id if snapshotter == inventory.snapshotter else f"{snapshotter}/{node.id}",
        PieceKind.SNAPSHOT,
        *snapshot_space(snapshotter, usage[node], disk),
        snapshotter=snapshotter,
    )


def snapshot_space(snapshotter: str, used: Space, disk: DiskFormat) -> Space:
    """Return the space of a snapshot, with the directories that its usage does not include."""
    directories = _UNCOUNTED_DIRECTORIES.get(snapshotter, 0) if used.inodes else 0
    inodes = used.inodes + directories
    # Inodes of a snapshot are allocated in sequence; a partly filled chunk is shared with other files.
    chunks_bytes = inodes // _INODES_PER_CHUNK * disk.inode_chunk_bytes
    return Space(used.size_bytes + directories * disk.directory_bytes + chunks_bytes, inodes)


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

    images: tuple[containerd.StoredImage, ...]
    blobs: Mapping[str, containerd.Blob]
    leases: tuple[tuple[containerd.ContentLease, tuple[containerd.LeasedResource, ...]], ...]
    expected: frozenset[str]
    foreign: frozenset[str]
    snapshots: Mapping[str, SnapshotList]
    known: Stored | None = None

    def missing(
        self, images: Iterable[Image], containers: Iterable[containerd.StoredContainer]
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
    before: Mapping[str, Mapping[str, containerd.Snapshot]] = known.snapshots if known is not None else {}
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


def expected_digests(ingests: Iterable[containerd.Ingest]) -> frozenset[str]:
    """Return the digests of the blobs being written."""
    return frozenset(ingest.expected for ingest in ingests if ingest.expected)


async def make_inventory(
    client: ContainerdClient,
    lists: NamespaceLists,
    snapshotter: str | None,
    containers: tuple[containerd.StoredContainer, ...],
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
    before: Mapping[str, Mapping[str, containerd.Snapshot]] = known.snapshots if known is not None else {}

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
    before: Mapping[str, Mapping[str, containerd.Snapshot]] = known.snapshots if known is not None else {}
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
