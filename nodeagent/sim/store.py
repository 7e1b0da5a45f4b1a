"""containerd's metadata: blobs, snapshots, image names, leases, ingests, and the garbage collector over them.

References are counted, so that a collection costs what it frees and not what the node holds. What nothing holds stays
until the next :meth:`MetadataStore.collect`, and so do the bytes of what was removed by name, as on containerd, where
the collector runs by itself some time after a removal, or at once for a call that asks to wait for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError
from nodeagent.model import PieceKind

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.sim.content import Descriptor

BLOCK_BYTES: Final = 4096
UNCOUNTED_DIRECTORIES: Final = 2  # a snapshot's own and overlay's work directory, which its usage leaves out
SNAPSHOTTER: Final = "overlayfs"
NAMESPACE: Final = "k8s.io"
GC_ROOT_LABEL: Final = "containerd.io/gc.root"

PieceKey = tuple[PieceKind, str]


class RefusedError(NodeAgentError):
    """The simulated runtime refuses a call.

    Attributes:
        status: a gRPC status name, such as ``NOT_FOUND``.
        detail: the runtime's own words.
    """

    def __init__(self, status: str, detail: str) -> None:
        self.status = status
        self.detail = detail
        super().__init__(f"{status}: {detail}")


class SnapshotKind(StrEnum):
    """Committed snapshots are layers, active ones belong to a container."""

    ACTIVE = "active"
    COMMITTED = "committed"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Blob:
    """Stored content; ``data`` is ``None`` for layers, whose bytes nobody reads."""

    digest: str
    size_bytes: int
    created_at: datetime
    labels: dict[str, str] = field(default_factory=dict)
    references: tuple[PieceKey, ...] = ()
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An unpacked layer, or what a container wrote on top of one; sizes are without its parents."""

    key: str
    parent: str
    kind: SnapshotKind
    size_bytes: int
    inodes: int
    created_at: datetime
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImageName:
    """One name of containerd's image service."""

    name: str
    target: Descriptor
    created_at: datetime
    updated_at: datetime
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Lease:
    """Holds what it lists; resources are (id, type) as containerd writes them."""

    id: str
    created_at: datetime
    labels: dict[str, str] = field(default_factory=dict)
    resources: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ingest:
    """A write to the content store that has not ended."""

    ref: str
    offset: int
    total: int
    expected: str
    started_at: datetime
    updated_at: datetime


def on_disk(size_bytes: int) -> int:
    """Return a file's size rounded up to whole blocks."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class MetadataStore:
    """One namespace's metadata over a store of blobs that other namespaces may share.

    Attributes:
        elsewhere: other namespace to the digests it lists; their blobs stay on disk whatever this namespace does.
        collections: how often the garbage collector ran.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, Blob] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.names: dict[str, ImageName] = {}
        self.leases: dict[str, Lease] = {}
        self.ingests: dict[str, Ingest] = {}
        self.elsewhere: dict[str, dict[str, Blob]] = {}
        self.collections = 0
        self._held: Counter[PieceKey] = Counter()
        self._children: Counter[str] = Counter()
        self._suspects: dict[PieceKey, None] = {}
        self._unswept_bytes = self._unswept_inodes = 0

    @property
    def used_bytes(self) -> int:
        """What all of it occupies on disk."""
        blobs = self.blobs
        if self.elsewhere:
            blobs = {**blobs, **{key: blob for held in self.elsewhere.values() for key, blob in held.items()}}
        return (
            sum(on_disk(blob.size_bytes) for blob in blobs.values())
            + self.snapshot_bytes
            + len(self.snapshots) * UNCOUNTED_DIRECTORIES * BLOCK_BYTES
            + sum(on_disk(ingest.offset) for ingest in self.ingests.values())
            + self._unswept_bytes
        )

    @property
    def snapshot_bytes(self) -> int:
        """The usage of all snapshots as the snapshotter tells it."""
        return sum(on_disk(snapshot.size_bytes) for snapshot in self.snapshots.values())

    @property
    def inodes_used(self) -> int:
        """How many inodes all of it takes."""
        files = len(self.blobs) + len(self.ingests) + len(self.snapshots) * UNCOUNTED_DIRECTORIES + self._unswept_inodes
        return files + sum(snapshot.inodes for snapshot in self.snapshots.values())

    @property
    def collection_due(self) -> bool:
        """Whether a collection might free something."""
        return bool(self._suspects) or self._unswept_inodes > 0

    def put_blob(self, blob: Blob) -> None:
        """Store a blob unless it is there; without a holder it goes with the next collection."""
        if blob.digest in self.blobs:
            return
        self.blobs[blob.digest] = blob
        self._entered((PieceKind.BLOB, blob.digest), blob.labels)
        for piece in blob.references:
            self.hold(piece)

    def put_snapshot(self, snapshot: Snapshot) -> None:
        """Store a snapshot unless it is there; without a holder it goes with the next collection."""
        if snapshot.key in self.snapshots:
            return
        self.snapshots[snapshot.key] = snapshot
        self._entered((PieceKind.SNAPSHOT, snapshot.key), snapshot.labels)
        if snapshot.parent:
            self._children[snapshot.parent] += 1
            self.hold((PieceKind.SNAPSHOT, snapshot.parent))

    def resize_snapshot(self, snapshot: Snapshot) -> None:
        """Replace a snapshot by one of the same key and parent."""
        self.snapshots[snapshot.key] = snapshot

    def hold(self, piece: PieceKey) -> None:
        """Keep a piece, there or not yet there, until released as often."""
        self._held[piece] += 1

    def release(self, piece: PieceKey) -> None:
        """Take back one hold."""
        self._held[piece] -= 1
        if self._held[piece] <= 0:
            del self._held[piece]
            self._suspects[piece] = None

    def set_name(self, name: ImageName) -> None:
        """Make a name or move it to another target."""
        known = self.names.get(name.name)
        self.names[name.name] = name
        self.hold((PieceKind.BLOB, name.target.digest))
        if known is not None:
            self.release((PieceKind.BLOB, known.target.digest))

    def delete_name(self, name: str) -> ImageName:
        """Delete a name and return it; raises RefusedError when there is none."""
        known = self.names.pop(name, None)
        if known is None:
            raise RefusedError("NOT_FOUND", f'image "{name}": not found')
        self.release((PieceKind.BLOB, known.target.digest))
        return known

    def remove_blob(self, digest: str) -> None:
        """Delete a blob whoever holds it; raises RefusedError when there is none."""
        if digest not in self.blobs:
            raise RefusedError("NOT_FOUND", f"content digest {digest}: not found")
        self._drop((PieceKind.BLOB, digest))

    def remove_snapshot(self, key: str) -> None:
        """Delete a snapshot without children; raises RefusedError otherwise."""
        self.get_snapshot(key)
        if self._children[key] > 0:
            raise RefusedError("FAILED_PRECONDITION", "cannot remove snapshot with child: failed precondition")
        self._drop((PieceKind.SNAPSHOT, key))

    def get_blob(self, digest: str) -> Blob:
        """Return a blob; raises RefusedError when there is none."""
        blob = self.blobs.get(digest)
        if blob is None:
            raise RefusedError("NOT_FOUND", f"content digest {digest}: not found")
        return blob

    def get_snapshot(self, key: str) -> Snapshot:
        """Return a snapshot; raises RefusedError when there is none."""
        snapshot = self.snapshots.get(key)
        if snapshot is None:
            raise RefusedError("NOT_FOUND", f"snapshot {key} does not exist: not found")
        return snapshot

    def get_lease(self, lease_id: str) -> Lease:
        """Return a lease; raises RefusedError when there is none."""
        lease = self.leases.get(lease_id)
        if lease is None:
            raise RefusedError("NOT_FOUND", f'lease "{lease_id}": not found')
        return lease

    def add_lease(self, lease: Lease) -> None:
        """Make a lease and hold what it lists; raises RefusedError when its id is taken."""
        if lease.id in self.leases:
            raise RefusedError("ALREADY_EXISTS", f'lease "{lease.id}": already exists')
        resources, lease.resources = lease.resources, []
        self.leases[lease.id] = lease
        for resource_id, resource_type in resources:
            self.add_resource(lease.id, resource_id, resource_type)

    def add_resource(self, lease_id: str, resource_id: str, resource_type: str) -> None:
        """Put a resource under a lease; raises RefusedError for an unknown lease or type."""
        lease = self.get_lease(lease_id)
        lease.resources.append((resource_id, resource_type))
        piece = _leased(resource_id, resource_type)
        if piece is not None:
            self.hold(piece)

    def delete_lease(self, lease_id: str) -> None:
        """Delete a lease; raises RefusedError when there is none."""
        lease = self.get_lease(lease_id)
        del self.leases[lease_id]
        for resource_id, resource_type in lease.resources:
            piece = _leased(resource_id, resource_type)
            if piece is not None:
                self.release(piece)

    def share(self, namespace: str, digest: str) -> None:
        """Let another namespace list a blob, too."""
        self.elsewhere.setdefault(namespace, {})[digest] = self.get_blob(digest)

    def collect(self) -> None:
        """Remove every piece that nothing holds, then what only those held; give all their bytes back."""
        self.collections += 1
        while self._suspects:
            piece, _ = self._suspects.popitem()
            if self._held[piece] <= 0:
                self._drop(piece)
        self._unswept_bytes = self._unswept_inodes = 0

    def _entered(self, piece: PieceKey, labels: dict[str, str]) -> None:
        if GC_ROOT_LABEL in labels:
            self.hold(piece)
        elif self._held[piece] <= 0:
            self._suspects[piece] = None

    def _drop(self, piece: PieceKey) -> None:
        """Drop a record and what it refers to; the bytes stay until the collector has been there."""
        kind, key = piece
        if kind is PieceKind.BLOB:
            blob = self.blobs.pop(key, None)
            if blob is None:
                return
            if not any(key in held for held in self.elsewhere.values()):
                self._unswept_bytes += on_disk(blob.size_bytes)
                self._unswept_inodes += 1
            for referred in blob.references:
                self.release(referred)
            return
        snapshot = self.snapshots.pop(key, None)
        if snapshot is None:
            return
        self._unswept_bytes += on_disk(snapshot.size_bytes) + UNCOUNTED_DIRECTORIES * BLOCK_BYTES
        self._unswept_inodes += snapshot.inodes + UNCOUNTED_DIRECTORIES
        if snapshot.parent:
            self._children[snapshot.parent] -= 1
            self.release((PieceKind.SNAPSHOT, snapshot.parent))


def _leased(resource_id: str, resource_type: str) -> PieceKey | None:
    """Return the piece a lease's resource means; ``None`` for ingests, which are not collected here."""
    if resource_type == "content":
        return PieceKind.BLOB, resource_id
    if resource_type == f"snapshots/{SNAPSHOTTER}":
        return PieceKind.SNAPSHOT, resource_id
    if resource_type == "ingests":
        return None
    raise RefusedError("INVALID_ARGUMENT", f"resource type {resource_type} not supported yet: not implemented")
