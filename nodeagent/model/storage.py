"""Storage graph: the snapshots and blobs of images, and the references to each.

Images with a common base reference the same snapshots and blobs, so the bytes freed by a removal depend on the
remaining images. The graph contains every piece once, so a planner can count marginal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from nodeagent.record import Record, field


class PieceKind(StrEnum):
    """Kind of a stored piece."""

    SNAPSHOT = "snapshot"
    BLOB = "blob"


class ReferenceKind(StrEnum):
    """Kind of a reference to a piece other than from a listed image. The values are part of the JSON output."""

    CONTAINER = "container"
    LEASE = "lease"
    SNAPSHOT_CHILD = "snapshot-child"
    OTHER_NAMESPACE = "other-namespace"
    INGEST = "ingest"
    UNLISTED_IMAGE = "unlisted-image"
    GC_LABEL = "gc-label"


class StoredPiece(Record):
    """A snapshot or a blob.

    Attributes:
        key: the snapshot's key (for images its chain id) or the blob's digest.
        size_bytes: its disk usage, in whole allocation units of the filesystem where known.
        inodes: number of inodes freed by the removal of the piece.
        references: references other than from listed images; empty if only images reference the piece.
        snapshotter: snapshotter of a snapshot; empty for a blob.
    """

    key: str
    kind: PieceKind
    size_bytes: int
    inodes: int
    references: tuple[ReferenceKind, ...] = ()
    snapshotter: str = ""


class ImageRecord(Record):
    """Records of one CRI image in the runtime's own image service.

    Attributes:
        names: every name of the image (tags, digests, the config digest); removal of the last name removes the image.
        pulled_at: time of the latest pull, at which a name was created or its target changed; ``None`` if unknown.
        complete: whether every blob and snapshot that the image references exists.
        pinned: whether a label of one of the names pins the image.
        sources: repositories from which the content of the image was pulled; ``None`` if unknown.
    """

    names: tuple[str, ...]
    pulled_at: datetime | None = None
    complete: bool = True
    pinned: bool = False
    sources: frozenset[str] | None = None


class StorageGraph(Record):
    """Every stored piece once, and the pieces referenced by each image.

    Attributes:
        pieces: all pieces referenced by a listed image.
        by_image: CRI image id to indexes into ``pieces``, each index once per image. An image without an entry
            could not be resolved; its size is unknown.
        by_container: id of a container or sandbox to indexes into ``pieces``; these pieces have a container reference.
        pending_bytes: size of the unreferenced pieces, freed by the runtime's next garbage collection.
        records: CRI image id to its records in the image service.
        undo_bytes: size of the pieces that are kept only for the undo windows of removed images.
        pending_by_store: ``pending_bytes`` by snapshotter, with the empty name for blobs.
        undo_by_store: ``undo_bytes`` by snapshotter, with the empty name for blobs.
        store_paths: directory by snapshotter, with the blobs under the empty name; unknown directories are omitted.
    """

    pieces: tuple[StoredPiece, ...] = ()
    by_image: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    by_container: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    records: Mapping[str, ImageRecord] = field(default_factory=dict)
    pending_bytes: int = 0
    undo_bytes: int = 0
    pending_by_store: Mapping[str, int] = field(default_factory=dict)
    undo_by_store: Mapping[str, int] = field(default_factory=dict)
    store_paths: Mapping[str, str] = field(default_factory=dict)

    @property
    def stores(self) -> frozenset[str]:
        """The snapshotters with pieces, and the empty name for blobs."""
        return frozenset({piece.snapshotter for piece in self.pieces}).union(self.pending_by_store, self.undo_by_store)


class UnreferencedPiece(Record):
    """A blob or a snapshot without reference from an image, container, lease, ingest or other piece.

    Attributes:
        piece: kind, size and key of the piece; the key does not include the snapshotter.
        snapshotter: snapshotter of a snapshot; empty for a blob.
        created_at: creation time; ``None`` if not reported.
        rooted: whether a ``containerd.io/gc.root`` label of the piece or of a child exempts the piece from garbage
            collection.
        parent: key of the parent snapshot; empty without a parent.
    """

    piece: StoredPiece
    snapshotter: str
    created_at: datetime | None
    rooted: bool = False
    parent: str = ""


class FsObservation(Record):
    """One plausible reading of a filesystem; the reader rejects implausible readings.

    Attributes:
        path: the path that was passed to statvfs.
        device_id: device id of the filesystem, equal for all its subvolumes and bind mounts.
        capacity_bytes: size, always positive.
        available_bytes: bytes available to unprivileged users, from 0 to the capacity.
        inodes: total inodes; 0 on filesystems without a fixed number.
        inodes_free: free inodes.
        observed_at: wall time of the reading.

    Source: statvfs(3), ``f_blocks`` and ``f_bavail`` times ``f_frsize``, ``f_files`` and ``f_ffree``.
    """

    path: str
    device_id: int
    capacity_bytes: int
    available_bytes: int
    inodes: int
    inodes_free: int
    observed_at: datetime

    @property
    def used_percent(self) -> int:
        """Usage in whole percent, rounded up by truncating the available share, as the kubelet does."""
        return 100 - self.available_bytes * 100 // self.capacity_bytes

    def bytes_until(self, percent: int) -> int:
        """Return the least further usage in bytes at which ``used_percent`` is ``percent``; 0 from there on."""
        return max(0, self.available_bytes - ((101 - percent) * self.capacity_bytes - 1) // 100)


class ImageFilesystem(Record):
    """One image filesystem of a node with several image filesystems.

    Attributes:
        path: a path on the filesystem: the mount point reported by the runtime, else the directory of a snapshotter.
        stores: names of the snapshotters on the filesystem, and the empty name for the content store.
        observed: reading of the filesystem; ``None`` after a failed reading.
        error: cause of the failed reading; empty after a successful reading.
    """

    path: str
    stores: frozenset[str] = frozenset()
    observed: FsObservation | None = None
    error: str = ""

    @property
    def label(self) -> str:
        """Names of the snapshotters, for display, such as ``native``; the path of a filesystem without snapshotter."""
        return ",".join(sorted(self.stores - {""})) or self.path
