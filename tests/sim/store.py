"""containerd's metadata: blobs, snapshots, image names, leases, ingests, and their garbage collector.

References are counted, so that the cost of a collection depends on the garbage and not on the size of the store.
Unreferenced pieces (blobs or snapshots) and the bytes of removed records remain until the next
:meth:`MetadataStore.collect`. containerd also collects asynchronously after a removal, or before it responds to a
synchronous request.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError
from nodeagent.model.runtime import PieceKind
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from datetime import datetime

    from tests.sim.content import Descriptor

BLOCK_BYTES: Final = 4096
UNCOUNTED_DIRECTORIES: Final = 2  # directories of a snapshot and its overlayfs work, absent from usage
SNAPSHOTTER: Final = "overlayfs"
NAMESPACE: Final = "k8s.io"
GC_ROOT_LABEL: Final = "containerd.io/gc.root"

PieceKey = tuple[PieceKind, str]


class RefusedError(NodeAgentError):
    """gRPC error of the simulated runtime.

    Attributes:
        status: gRPC status name, such as ``NOT_FOUND``.
        detail: error text of the runtime.
    """

    def __init__(self, status: str, detail: str) -> None:
        self.status = status
        self.detail = detail
        super().__init__(f"{status}: {detail}")


class SnapshotKind(StrEnum):
    """Snapshot kind of containerd: committed for image layers, active for containers."""

    ACTIVE = "active"
    COMMITTED = "committed"
    VIEW = "view"


class Blob(Record):
    """Blob of the content store; ``data`` is ``None`` for layers, since layer content is never read."""

    digest: str
    size_bytes: int
    created_at: datetime
    labels: dict[str, str] = field(default_factory=dict)
    references: tuple[PieceKey, ...] = ()
    data: bytes | None = None


class Snapshot(Record):
    """An unpacked layer, or the writable layer of a container; sizes exclude the parents."""

    key: str
    parent: str
    kind: SnapshotKind
    size_bytes: int
    inodes: int
    created_at: datetime
    labels: dict[str, str] = field(default_factory=dict)


class ImageName(Record):
    """Record of one image name in containerd's image service."""

    name: str
    target: Descriptor
    created_at: datetime
    updated_at: datetime
    labels: dict[str, str] = field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class Lease:
    """Lease, which references its resources; a resource is an (id, type) pair in containerd's notation."""

    id: str
    created_at: datetime
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    resources: list[tuple[str, str]] = dataclasses.field(default_factory=list)


class Ingest(Record):
    """Unfinished write to the content store."""

    ref: str
    offset: int
    total: int
    expected: str
    started_at: datetime
    updated_at: datetime


def on_disk(size_bytes: int) -> int:
    """Return the disk usage of a file in bytes: its size rounded up to whole filesystem blocks."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class MetadataStore:
    """Metadata of one namespace, on a blob store shared with other namespaces.

    Attributes:
        other_snapshotters: snapshots by key, by name of each further snapshotter; they can only be listed.
        elsewhere: blobs by digest, by name of each other namespace; a blob in it remains on disk after a removal in
            this namespace.
        collections: number of garbage collections.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, Blob] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.other_snapshotters: dict[str, dict[str, Snapshot]] = {}
        self.names: dict[str, ImageName] = {}
        self.leases: dict[str, Lease] = {}
        self.ingests: dict[str, Ingest] = {}
        self.elsewhere: dict[str, dict[str, Blob]] = {}
        self.collections = 0
        self._references: Counter[PieceKey] = Counter()
        self._children: Counter[str] = Counter()
        self._candidates: dict[PieceKey, None] = {}
        self._unswept_bytes = self._unswept_inodes = 0

    def snapshots_in(self, snapshotter: str) -> dict[str, Snapshot]:
        """Return the snapshots of a snapshotter by key.

        Raises:
            RefusedError: the snapshotter is not loaded.
        """
        loaded = {SNAPSHOTTER: self.snapshots, **self.other_snapshotters}
        if snapshotter not in loaded:
            raise RefusedError("INVALID_ARGUMENT", f"snapshotter not loaded: {snapshotter}: invalid argument")
        return loaded[snapshotter]

    @property
    def used_bytes(self) -> int:
        """Disk usage of all blobs, snapshots and ingests, including removed items until the next collection."""
        blobs = self.blobs
        if self.elsewhere:
            blobs = {**blobs, **{key: blob for each in self.elsewhere.values() for key, blob in each.items()}}
        return (
            sum(on_disk(blob.size_bytes) for blob in blobs.values())
            + self.snapshot_bytes
            + len(self.snapshots) * UNCOUNTED_DIRECTORIES * BLOCK_BYTES
            + sum(on_disk(ingest.offset) for ingest in self.ingests.values())
            + self._unswept_bytes
        )

    @property
    def snapshot_bytes(self) -> int:
        """Disk usage of all snapshots as reported by the snapshotter."""
        return sum(on_disk(snapshot.size_bytes) for snapshot in self.snapshots.values())

    @property
    def inodes_used(self) -> int:
        """Inodes used by all blobs, snapshots and ingests, including removed items until the next collection."""
        files = len(self.blobs) + len(self.ingests) + len(self.snapshots) * UNCOUNTED_DIRECTORIES + self._unswept_inodes
        return files + sum(snapshot.inodes for snapshot in self.snapshots.values())

    @property
    def collection_due(self) -> bool:
        """Whether a collection may free bytes."""
        return bool(self._candidates) or self._unswept_inodes > 0

    def put_blob(self, blob: Blob) -> None:
        """Store a blob unless it exists; the next garbage collection removes an unreferenced blob."""
        if blob.digest in self.blobs:
            return
        self.blobs[blob.digest] = blob
        self._stored((PieceKind.BLOB, blob.digest), blob.labels)
        for piece in blob.references:
            self.add_reference(piece)

    def put_snapshot(self, snapshot: Snapshot) -> None:
        """Store a snapshot unless it exists; the next garbage collection removes an unreferenced snapshot."""
        if snapshot.key in self.snapshots:
            return
        self.snapshots[snapshot.key] = snapshot
        self._stored((PieceKind.SNAPSHOT, snapshot.key), snapshot.labels)
        if snapshot.parent:
            self._children[snapshot.parent] += 1
            self.add_reference((PieceKind.SNAPSHOT, snapshot.parent))

    def resize_snapshot(self, snapshot: Snapshot) -> None:
        """Replace a snapshot with a snapshot of the same key and parent but another size."""
        self.snapshots[snapshot.key] = snapshot

    def add_reference(self, piece: PieceKey) -> None:
        """Count a reference to a blob or snapshot, even before it is stored."""
        self._references[piece] += 1

    def remove_reference(self, piece: PieceKey) -> None:
        """Remove one reference; a blob or snapshot without references is a candidate of the next collection."""
        self._references[piece] -= 1
        if self._references[piece] <= 0:
            del self._references[piece]
            self._candidates[piece] = None

    def set_name(self, name: ImageName) -> None:
        """Create an image name or move it to another target."""
        known = self.names.get(name.name)
        self.names[name.name] = name
        self.add_reference((PieceKind.BLOB, name.target.digest))
        if known is not None:
            self.remove_reference((PieceKind.BLOB, known.target.digest))

    def delete_name(self, name: str) -> ImageName:
        """Delete an image name and return its record.

        Raises:
            RefusedError: the image name does not exist.
        """
        known = self.names.pop(name, None)
        if known is None:
            raise RefusedError("NOT_FOUND", f'image "{name}": not found')
        self.remove_reference((PieceKind.BLOB, known.target.digest))
        return known

    def remove_blob(self, digest: str) -> None:
        """Delete a blob, even if it is referenced.

        Raises:
            RefusedError: the blob does not exist.
        """
        if digest not in self.blobs:
            raise RefusedError("NOT_FOUND", f"content digest {digest}: not found")
        self._drop((PieceKind.BLOB, digest))

    def remove_snapshot(self, key: str) -> None:
        """Delete a snapshot.

        Raises:
            RefusedError: the snapshot does not exist or has children.
        """
        self.get_snapshot(key)
        if self._children[key] > 0:
            raise RefusedError("FAILED_PRECONDITION", "cannot remove snapshot with child: failed precondition")
        self._drop((PieceKind.SNAPSHOT, key))

    def get_blob(self, digest: str) -> Blob:
        """Return a blob.

        Raises:
            RefusedError: the blob does not exist.
        """
        blob = self.blobs.get(digest)
        if blob is None:
            raise RefusedError("NOT_FOUND", f"content digest {digest}: not found")
        return blob

    def get_snapshot(self, key: str) -> Snapshot:
        """Return a snapshot.

        Raises:
            RefusedError: the snapshot does not exist.
        """
        snapshot = self.snapshots.get(key)
        if snapshot is None:
            raise RefusedError("NOT_FOUND", f"snapshot {key} does not exist: not found")
        return snapshot

    def get_lease(self, lease_id: str) -> Lease:
        """Return a lease.

        Raises:
            RefusedError: the lease does not exist.
        """
        lease = self.leases.get(lease_id)
        if lease is None:
            raise RefusedError("NOT_FOUND", f'lease "{lease_id}": not found')
        return lease

    def add_lease(self, lease: Lease) -> None:
        """Create a lease and reference its resources.

        Raises:
            RefusedError: a lease with this id exists.
        """
        if lease.id in self.leases:
            raise RefusedError("ALREADY_EXISTS", f'lease "{lease.id}": already exists')
        resources, lease.resources = lease.resources, []
        self.leases[lease.id] = lease
        for resource_id, resource_type in resources:
            self.add_resource(lease.id, resource_id, resource_type)

    def add_resource(self, lease_id: str, resource_id: str, resource_type: str) -> None:
        """Add a resource to a lease.

        Raises:
            RefusedError: the lease does not exist or the resource type is unknown.
        """
        lease = self.get_lease(lease_id)
        lease.resources.append((resource_id, resource_type))
        piece = _leased(resource_id, resource_type)
        if piece is not None:
            self.add_reference(piece)

    def delete_lease(self, lease_id: str) -> None:
        """Delete a lease.

        Raises:
            RefusedError: the lease does not exist.
        """
        lease = self.get_lease(lease_id)
        del self.leases[lease_id]
        for resource_id, resource_type in lease.resources:
            piece = _leased(resource_id, resource_type)
            if piece is not None:
                self.remove_reference(piece)

    def share(self, namespace: str, digest: str) -> None:
        """Add a blob to another namespace."""
        self.elsewhere.setdefault(namespace, {})[digest] = self.get_blob(digest)

    def collect(self) -> None:
        """Remove all unreferenced blobs and snapshots, recursively, and free their bytes."""
        self.collections += 1
        while self._candidates:
            piece, _ = self._candidates.popitem()
            if self._references[piece] <= 0:
                self._drop(piece)
        self._unswept_bytes = self._unswept_inodes = 0

    def _stored(self, piece: PieceKey, labels: dict[str, str]) -> None:
        if GC_ROOT_LABEL in labels:
            self.add_reference(piece)
        elif self._references[piece] <= 0:
            self._candidates[piece] = None

    def _drop(self, piece: PieceKey) -> None:
        """Delete a blob or snapshot and its references; its bytes remain until the end of the collection."""
        kind, key = piece
        if kind is PieceKind.BLOB:
            blob = self.blobs.pop(key, None)
            if blob is None:
                return
            if not any(key in each for each in self.elsewhere.values()):
                self._unswept_bytes += on_disk(blob.size_bytes)
                self._unswept_inodes += 1
            for reference in blob.references:
                self.remove_reference(reference)
            return
        snapshot = self.snapshots.pop(key, None)
        if snapshot is None:
            return
        self._unswept_bytes += on_disk(snapshot.size_bytes) + UNCOUNTED_DIRECTORIES * BLOCK_BYTES
        self._unswept_inodes += snapshot.inodes + UNCOUNTED_DIRECTORIES
        if snapshot.parent:
            self._children[snapshot.parent] -= 1
            self.remove_reference((PieceKind.SNAPSHOT, snapshot.parent))


def _leased(resource_id: str, resource_type: str) -> PieceKey | None:
    """Return the blob or snapshot of a lease's resource; ``None`` for an ingest, which is never collected here."""
    if resource_type == "content":
        return PieceKind.BLOB, resource_id
    if resource_type == f"snapshots/{SNAPSHOTTER}":
        return PieceKind.SNAPSHOT, resource_id
    if resource_type == "ingests":
        return None
    raise RefusedError("INVALID_ARGUMENT", f"resource type {resource_type} not supported yet: not implemented")
