"""What images really occupy: snapshots and blobs, and who holds each of them.

Two images that share a base hold the same snapshots and blobs, so what deleting one frees depends on what else
is left. The graph keeps every stored piece once and lets a planner count marginal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class PieceKind(StrEnum):
    """What a stored piece is."""

    SNAPSHOT = "snapshot"
    BLOB = "blob"


class Holder(StrEnum):
    """Who besides images keeps a piece alive."""

    CONTAINER = "container"
    LEASE = "lease"
    SNAPSHOT_CHILD = "snapshot-child"
    OTHER_NAMESPACE = "other-namespace"
    INGEST = "ingest"
    UNLISTED_IMAGE = "unlisted-image"


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A snapshot or a blob.

    Attributes:
        key: the snapshot's key (for images its chain id) or the blob's digest.
        size_bytes: what it occupies on disk, rounded up to the filesystem's allocation unit where known.
        inodes: how many inodes go with it.
        holders: who else than the listed images keeps it; empty when only images do.
    """

    key: str
    kind: PieceKind
    size_bytes: int
    inodes: int
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """What the runtime's own image service says of one CRI image.

    Attributes:
        names: every name under which it is stored there (tags, digests, the config digest); all must go for
            the image to go.
        pulled_at: latest time one of these names was made or moved; ``None`` where unknown.
        complete: whether every blob and snapshot it should have was found.
    """

    names: tuple[str, ...]
    pulled_at: datetime | None = None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class StorageGraph:
    """Every stored piece once, and which pieces each image holds.

    Attributes:
        pieces: all pieces that some listed image holds.
        by_image: CRI image id to indexes into ``pieces``, each index once per image. An image without an entry
            could not be resolved; its size is not known here.
        pending_bytes: what pieces that nothing holds occupy; the runtime's next garbage collection frees it.
        records: CRI image id to what the image service says of it.
    """

    pieces: tuple[StoredPiece, ...] = ()
    by_image: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    records: Mapping[str, ImageRecord] = field(default_factory=dict)
    pending_bytes: int = 0


@dataclass(frozen=True, slots=True)
class UnreferencedPiece:
    """A blob or a snapshot that no image, container, lease, write under way or other piece holds.

    Attributes:
        piece: what it is and occupies; its key without its snapshotter.
        snapshotter: of a snapshot; empty for a blob.
        created_at: when it was made; ``None`` where that is not told.
        rooted: whether a label of its own, or of a piece above it, keeps it from being collected.
        parent: key of the snapshot it lies on; empty for none.
    """

    piece: StoredPiece
    snapshotter: str
    created_at: datetime | None
    rooted: bool = False
    parent: str = ""
