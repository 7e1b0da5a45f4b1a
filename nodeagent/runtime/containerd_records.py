"""Records of containerd's metadata store, decoded from the messages of its services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent.record import Record

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from nodeagent._proto.containerd.services.content.v1 import content_pb2
    from nodeagent._proto.containerd.services.leases.v1 import leases_pb2

GC_LABELS = "containerd.io/gc."
SOURCE_LABELS = "containerd.io/distribution.source."

_NO_SOURCES: frozenset[str] = frozenset()
_NO_LABELS: Mapping[str, str] = MappingProxyType({})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SnapshotKind(StrEnum):
    """Kind of a snapshot: unpacked layer, writable layer or read-only mount. Source: ``snapshots.v1.Kind``."""

    UNKNOWN = "unknown"
    VIEW = "view"
    ACTIVE = "active"
    COMMITTED = "committed"


_KINDS = {
    snapshots_pb2.VIEW: SnapshotKind.VIEW,
    snapshots_pb2.ACTIVE: SnapshotKind.ACTIVE,
    snapshots_pb2.COMMITTED: SnapshotKind.COMMITTED,
}


class Stamp(NamedTuple):
    """A timestamp in containerd's form: fast to compare, converted to a datetime on access only."""

    seconds: int
    nanos: int

    @property
    def at(self) -> datetime | None:
        """The timestamp as aware UTC; ``None`` for Go's zero time and for a missing timestamp."""
        return _EPOCH + timedelta(seconds=self.seconds, microseconds=self.nanos // 1000) if self.seconds > 0 else None


_NEVER = Stamp(0, 0)


class StoredImage(NamedTuple):
    """One image name and its target blob. Source: ``images.v1.Image``."""

    name: str
    target: str
    labels: Mapping[str, str]
    created: Stamp
    updated: Stamp


class Blob(NamedTuple):
    """One blob of the content store. Source: ``content.v1.Info``.

    Attributes:
        labels: garbage collection labels only; a node has too many blobs to cache all labels.
        record_bytes: length of the encoded record.
        sources: repositories from which the blob was pulled, such as ``docker.io/library/nginx``.
    """

    digest: str
    size_bytes: int
    labels: Mapping[str, str]
    created: Stamp
    record_bytes: int = 0
    sources: frozenset[str] = frozenset()


class Snapshot(NamedTuple):
    """One snapshot; ``parent`` is empty for a bottom layer. Source: ``snapshots.v1.Info``.

    Attributes:
        labels: garbage collection labels only.
        record_bytes: length of the encoded record.
    """

    key: str
    parent: str
    kind: SnapshotKind
    labels: Mapping[str, str]
    created: Stamp
    record_bytes: int = 0


class SnapshotUsage(NamedTuple):
    """Disk usage of one snapshot without its parents. Source: ``snapshots.v1.UsageResponse``."""

    size_bytes: int
    inodes: int


class StoredContainer(Record):
    """A container record. Source: ``containers.v1.Container``."""

    id: str
    image: str
    snapshotter: str
    snapshot_key: str
    labels: Mapping[str, str]


class ContentLease(Record):
    """A containerd lease, which protects its resources from garbage collection. Source: ``leases.v1.Lease``."""

    id: str
    labels: Mapping[str, str]
    created: Stamp = _NEVER


class LeasedResource(Record):
    """A resource referenced by a lease. Source: ``leases.v1.Resource``.

    Attributes:
        id: a digest, an ingest's reference or a snapshot's key.
        type: ``content``, ``ingests`` or ``snapshots/NAME``; newer servers also have ``images``.
    """

    id: str
    type: str


class Ingest(Record):
    """A blob being written. Source: ``content.v1.Status``.

    Attributes:
        expected: digest declared by the writer; empty if not declared.
    """

    expected: str


def decode_stored_image(message: images_pb2.Image) -> StoredImage:
    """Return the image name in a message."""
    return StoredImage(
        message.name,
        message.target.digest,
        dict(message.labels),
        _stamp(message.created_at),
        _stamp(message.updated_at),
    )


def decode_encoded_image(encoded: bytes) -> StoredImage:
    """Return the image name in an encoded record.

    Raises:
        DecodeError: ``encoded`` is not a record of an image name.
    """
    return decode_stored_image(images_pb2.Image.FromString(encoded))


def decode_lease_record(message: leases_pb2.Lease) -> ContentLease:
    """Return the lease in a message."""
    return ContentLease(message.id, dict(message.labels), _stamp(message.created_at))


def decode_blob(message: content_pb2.Info, texts: dict[str, str] | None = None) -> Blob:
    """Return one blob with its garbage collection labels.

    Args:
        message: the record.
        texts: keys and references of the earlier records in the list, to which this record's are added, so that equal
            texts share one object.
    """
    texts = {} if texts is None else texts
    digest = message.digest
    labels = list(message.labels.items())
    return Blob(
        texts.setdefault(digest, digest),
        message.size,
        _gc_labels(labels, texts),
        _stamp(message.created_at),
        message.ByteSize(),
        _sources(labels),
    )


def decode_snapshot(message: snapshots_pb2.Info, texts: dict[str, str] | None = None) -> Snapshot:
    """Return one snapshot with its garbage collection labels.

    Args:
        message: the record.
        texts: as for :func:`decode_blob`.
    """
    texts = {} if texts is None else texts
    key, parent = message.name, message.parent
    return Snapshot(
        texts.setdefault(key, key),
        texts.setdefault(parent, parent),
        _KINDS.get(message.kind, SnapshotKind.UNKNOWN),
        _gc_labels(message.labels.items(), texts),
        _stamp(message.created_at),
        message.ByteSize(),
    )


def _stamp(message: Timestamp) -> Stamp:
    return Stamp(_shared_number(message.seconds), message.nanos)


@lru_cache(maxsize=256)
def _shared_number(number: int) -> int:
    """Return a shared object for equal numbers, to save memory: the records of an image are created within seconds."""
    return number


def _gc_labels(labels: Iterable[tuple[str, str]], texts: dict[str, str]) -> Mapping[str, str]:
    return {
        texts.setdefault(name, name): texts.setdefault(value, value)
        for name, value in labels
        if name.startswith(GC_LABELS)
    } or _NO_LABELS


def _sources(labels: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the repositories in the distribution source labels; equal sets share one object.

    Source: containerd ``AppendDistributionSourceLabel``: a label for each registry, with its repositories.
    """
    found = [
        f"{name.removeprefix(SOURCE_LABELS)}/{repository}"
        for name, repositories in labels
        if name.startswith(SOURCE_LABELS)
        for repository in repositories.split(",")
        if repository
    ]
    return _interned(tuple(sorted(found))) if found else _NO_SOURCES


@lru_cache(maxsize=4096)
def _interned(repositories: tuple[str, ...]) -> frozenset[str]:
    return frozenset(repositories)


KIND_LABEL: Final = "nodeagent/image-removal"

REMOVED: Final = "removed"
"""Value of ``KIND_LABEL`` after the decision to remove: the names can be restored until the lease expires."""


def is_undo(lease: ContentLease) -> bool:
    """Return whether a lease keeps the content of removed images until their undo window ends."""
    return lease.labels.get(KIND_LABEL) == REMOVED
