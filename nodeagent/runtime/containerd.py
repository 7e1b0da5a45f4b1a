"""containerd's own services, on the socket that also serves CRI: image names, blobs, snapshots, leases.

CRI's objects live in the namespace ``k8s.io``. What is read here is close to the metadata that containerd's garbage
collector walks, labels included, because that alone decides what a deletion frees.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.empty_pb2 import Empty

from nodeagent._proto.containerd.services.containers.v1 import containers_pb2
from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.leases.v1 import leases_pb2
from nodeagent._proto.containerd.services.namespaces.v1 import namespaces_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent._proto.containerd.services.version.v1 import version_pb2
from nodeagent._proto.containerd.types.descriptor_pb2 import Descriptor
from nodeagent.errors import RuntimeNotFoundError, RuntimeUnsupportedError
from nodeagent.runtime.connection import Method

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.timestamp_pb2 import Timestamp

    from nodeagent.clock import Clock
    from nodeagent.runtime.connection import RuntimeConnection

NAMESPACE = "k8s.io"
GC_LABELS = "containerd.io/gc."

_SERVICES = "/containerd.services."
_LIST_S = 30.0
_DELETE_S = 120.0
_LEASE_LASTS = timedelta(minutes=10)
_READ_LIMIT_BYTES = 8 << 20

_VERSION = Method(_SERVICES + "version.v1.Version/Version", Empty, version_pb2.VersionResponse, "version.Version")
_NAMESPACES = Method(
    _SERVICES + "namespaces.v1.Namespaces/List",
    namespaces_pb2.ListNamespacesRequest,
    namespaces_pb2.ListNamespacesResponse,
    "namespaces.List",
)
_IMAGES = Method(
    _SERVICES + "images.v1.Images/List",
    images_pb2.ListImagesRequest,
    images_pb2.ListImagesResponse,
    "images.List",
    _LIST_S,
)
_GET_IMAGE = Method(
    _SERVICES + "images.v1.Images/Get", images_pb2.GetImageRequest, images_pb2.GetImageResponse, "images.Get"
)
_DELETE_IMAGE = Method(
    _SERVICES + "images.v1.Images/Delete",
    images_pb2.DeleteImageRequest,
    Empty,
    "images.Delete",
    _DELETE_S,
    changes=True,
)
_CONTENT = Method(
    _SERVICES + "content.v1.Content/List",
    content_pb2.ListContentRequest,
    content_pb2.ListContentResponse,
    "content.List",
    _LIST_S,
)
_CONTENT_INFO = Method(
    _SERVICES + "content.v1.Content/Info", content_pb2.InfoRequest, content_pb2.InfoResponse, "content.Info"
)
_READ = Method(
    _SERVICES + "content.v1.Content/Read",
    content_pb2.ReadContentRequest,
    content_pb2.ReadContentResponse,
    "content.Read",
)
_DELETE_CONTENT = Method(
    _SERVICES + "content.v1.Content/Delete",
    content_pb2.DeleteContentRequest,
    Empty,
    "content.Delete",
    _DELETE_S,
    changes=True,
)
_INGESTS = Method(
    _SERVICES + "content.v1.Content/ListStatuses",
    content_pb2.ListStatusesRequest,
    content_pb2.ListStatusesResponse,
    "content.ListStatuses",
)
_SNAPSHOTS = Method(
    _SERVICES + "snapshots.v1.Snapshots/List",
    snapshots_pb2.ListSnapshotsRequest,
    snapshots_pb2.ListSnapshotsResponse,
    "snapshots.List",
    _LIST_S,
)
_STAT_SNAPSHOT = Method(
    _SERVICES + "snapshots.v1.Snapshots/Stat",
    snapshots_pb2.StatSnapshotRequest,
    snapshots_pb2.StatSnapshotResponse,
    "snapshots.Stat",
)
_USAGE = Method(
    _SERVICES + "snapshots.v1.Snapshots/Usage",
    snapshots_pb2.UsageRequest,
    snapshots_pb2.UsageResponse,
    "snapshots.Usage",
)
_REMOVE_SNAPSHOT = Method(
    _SERVICES + "snapshots.v1.Snapshots/Remove",
    snapshots_pb2.RemoveSnapshotRequest,
    Empty,
    "snapshots.Remove",
    _DELETE_S,
    changes=True,
)
_PREPARE_SNAPSHOT = Method(
    _SERVICES + "snapshots.v1.Snapshots/Prepare",
    snapshots_pb2.PrepareSnapshotRequest,
    snapshots_pb2.PrepareSnapshotResponse,
    "snapshots.Prepare",
    _DELETE_S,
    changes=True,
)
_CLEANUP = Method(
    _SERVICES + "snapshots.v1.Snapshots/Cleanup",
    snapshots_pb2.CleanupRequest,
    Empty,
    "snapshots.Cleanup",
    _DELETE_S,
    changes=True,
)
_CONTAINERS = Method(
    _SERVICES + "containers.v1.Containers/List",
    containers_pb2.ListContainersRequest,
    containers_pb2.ListContainersResponse,
    "containers.List",
    _LIST_S,
)
_LEASES = Method(_SERVICES + "leases.v1.Leases/List", leases_pb2.ListRequest, leases_pb2.ListResponse, "leases.List")
_LEASE_RESOURCES = Method(
    _SERVICES + "leases.v1.Leases/ListResources",
    leases_pb2.ListResourcesRequest,
    leases_pb2.ListResourcesResponse,
    "leases.ListResources",
)
_CREATE_LEASE = Method(
    _SERVICES + "leases.v1.Leases/Create",
    leases_pb2.CreateRequest,
    leases_pb2.CreateResponse,
    "leases.Create",
    changes=True,
)
_ADD_RESOURCE = Method(
    _SERVICES + "leases.v1.Leases/AddResource",
    leases_pb2.AddResourceRequest,
    Empty,
    "leases.AddResource",
    changes=True,
)
_DELETE_LEASE = Method(
    _SERVICES + "leases.v1.Leases/Delete", leases_pb2.DeleteRequest, Empty, "leases.Delete", _DELETE_S, changes=True
)

_NO_LABELS: Mapping[str, str] = MappingProxyType({})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SnapshotKind(StrEnum):
    """Whether a snapshot is a finished layer or lies on top of one. Source: ``snapshots.v1.Kind``."""

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
    """A time as containerd sent it: cheap to compare, and made a datetime only where somebody looks."""

    seconds: int
    nanos: int

    @property
    def at(self) -> datetime | None:
        """The instant; ``None`` for Go's zero time and where none was sent."""
        return _EPOCH + timedelta(seconds=self.seconds, microseconds=self.nanos // 1000) if self.seconds > 0 else None


class StoredImage(NamedTuple):
    """One name and the blob it points at. Source: ``images.v1.Image``."""

    name: str
    target: str
    media_type: str
    labels: Mapping[str, str]
    created: Stamp
    updated: Stamp


class Blob(NamedTuple):
    """One blob of the content store. Source: ``content.v1.Info``.

    Attributes:
        labels: those for the garbage collector; a node has too many blobs to keep the others.
        record_bytes: the length of the record it was read from.
    """

    digest: str
    size_bytes: int
    labels: Mapping[str, str]
    created: Stamp
    record_bytes: int = 0


class Snapshot(NamedTuple):
    """One snapshot; ``parent`` is empty for a bottom layer. Source: ``snapshots.v1.Info``.

    Attributes:
        labels: those for the garbage collector.
        record_bytes: the length of the record it was read from.
    """

    key: str
    parent: str
    kind: SnapshotKind
    labels: Mapping[str, str]
    created: Stamp
    record_bytes: int = 0


class SnapshotUsage(NamedTuple):
    """What one snapshot occupies without its parents. Source: ``snapshots.v1.UsageResponse``."""

    size_bytes: int
    inodes: int


@dataclass(frozen=True, slots=True)
class StoredContainer:
    """A container record. Source: ``containers.v1.Container``."""

    id: str
    image: str
    snapshotter: str
    snapshot_key: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease. Source: ``leases.v1.Lease``."""

    id: str
    labels: Mapping[str, str]
    created_at: datetime | None


@dataclass(frozen=True, slots=True)
class LeasedResource:
    """What a lease holds. Source: ``leases.v1.Resource``.

    Attributes:
        id: a digest, an ingest's reference or a snapshot's key.
        type: ``content``, ``ingests`` or ``snapshots/NAME``; newer servers also know ``images``.
    """

    id: str
    type: str


@dataclass(frozen=True, slots=True)
class Ingest:
    """A blob being written; ``expected`` is its digest where the writer said so. Source: ``content.v1.Status``."""

    reference: str
    expected: str
    offset_bytes: int
    total_bytes: int
    started_at: datetime | None
    updated_at: datetime | None


class ContainerdClient:
    """Calls on containerd in one namespace. Every method raises what :meth:`RuntimeConnection.unary` does.

    Methods that read take another ``namespace`` where that makes sense. Deletions of what is already gone succeed.
    """

    def __init__(self, connection: RuntimeConnection, namespace: str = NAMESPACE) -> None:
        self._connection = connection
        self.namespace = namespace

    async def version(self) -> str:
        """Return the daemon's version. Raises RuntimeUnsupportedError where the socket is not containerd's."""
        return (await self._connection.unary(_VERSION, Empty())).version

    async def list_namespaces(self) -> tuple[str, ...]:
        """Return the names of all namespaces."""
        got = await self._connection.unary(_NAMESPACES, namespaces_pb2.ListNamespacesRequest())
        return tuple(each.name for each in got.namespaces)

    async def list_images(self, namespace: str | None = None) -> tuple[StoredImage, ...]:
        """Return every image name."""
        got = await self._connection.unary(_IMAGES, images_pb2.ListImagesRequest(), metadata=self._metadata(namespace))
        return tuple(map(_stored_image, got.images))

    async def get_image(self, name: str) -> StoredImage | None:
        """Return one image name, ``None`` when there is none."""
        try:
            got = await self._connection.unary(
                _GET_IMAGE, images_pb2.GetImageRequest(name=name), target=name, metadata=self._metadata()
            )
        except RuntimeNotFoundError:
            return None
        return _stored_image(got.image)

    async def delete_image(self, name: str, *, sync: bool, target: str = "") -> bool:
        """Delete one image name; return whether it was there.

        Args:
            name: which.
            sync: answer only after containerd has collected garbage. One such call after many others collects for all.
            target: delete only if the name points at this digest. containerd before 2.0 does not look.
        """
        request = images_pb2.DeleteImageRequest(name=name, sync=sync)
        if target:
            request.target.CopyFrom(Descriptor(digest=target))
        try:
            await self._connection.unary(_DELETE_IMAGE, request, target=name, metadata=self._metadata())
        except RuntimeNotFoundError:
            return False
        return True

    async def list_content(self, known: Mapping[str, Blob] | None = None) -> dict[str, Blob]:
        """Return every blob by digest.

        Entries of ``known`` whose record has not changed its length are taken over as they are: what a blob's labels
        say follows from its content, so they come and go but do not change. (The record's own time of change will not
        do: containerd 1.6 lists the year 1 for every blob.)
        """
        known, blobs = known or {}, {}
        request = content_pb2.ListContentRequest()
        async for batch in self._connection.stream(_CONTENT, request, metadata=self._metadata()):
            for info in batch.info:
                digest = info.digest
                blob = known.get(digest)
                blobs[digest] = blob if blob is not None and blob.record_bytes == info.ByteSize() else _blob(info)
        return blobs

    async def list_digests(self, namespace: str) -> frozenset[str]:
        """Return the digests of every blob of a namespace."""
        digests: set[str] = set()
        request = content_pb2.ListContentRequest()
        async for batch in self._connection.stream(_CONTENT, request, metadata=self._metadata(namespace)):
            digests.update(info.digest for info in batch.info)
        return frozenset(digests)

    async def get_blob(self, digest: str) -> Blob | None:
        """Return one blob's record, ``None`` when there is none."""
        try:
            got = await self._connection.unary(
                _CONTENT_INFO, content_pb2.InfoRequest(digest=digest), target=digest, metadata=self._metadata()
            )
        except RuntimeNotFoundError:
            return None
        return _blob(got.info)

    async def read_content(self, digest: str, *, limit_bytes: int = _READ_LIMIT_BYTES) -> bytes:
        """Return a blob's bytes, at most the first ``limit_bytes``; for manifests and configs."""
        request = content_pb2.ReadContentRequest(digest=digest)
        parts: list[bytes] = []
        stream = self._connection.stream(_READ, request, target=digest, metadata=self._metadata())
        try:
            async for part in stream:
                parts.append(part.data)
                if sum(map(len, parts)) >= limit_bytes:
                    break
        finally:
            await stream.aclose()
        return b"".join(parts)[:limit_bytes]

    async def delete_content(self, digest: str) -> bool:
        """Delete one blob's record; return whether it was there. The bytes go with the next garbage collection."""
        request = content_pb2.DeleteContentRequest(digest=digest)
        try:
            await self._connection.unary(_DELETE_CONTENT, request, target=digest, metadata=self._metadata())
        except RuntimeNotFoundError:
            return False
        return True

    async def list_ingests(self, namespace: str | None = None) -> tuple[Ingest, ...]:
        """Return the blobs being written."""
        got = await self._connection.unary(
            _INGESTS, content_pb2.ListStatusesRequest(), metadata=self._metadata(namespace)
        )
        return tuple(
            Ingest(
                each.ref,
                each.expected,
                each.offset,
                each.total,
                _stamp(each.started_at).at,
                _stamp(each.updated_at).at,
            )
            for each in got.statuses
        )

    async def list_snapshots(
        self, snapshotter: str, known: Mapping[str, Snapshot] | None = None
    ) -> dict[str, Snapshot]:
        """Return every snapshot by key; entries of ``known`` whose record is as long and as old as then are kept."""
        known, snapshots = known or {}, {}
        request = snapshots_pb2.ListSnapshotsRequest(snapshotter=snapshotter)
        stream = self._connection.stream(_SNAPSHOTS, request, target=snapshotter, metadata=self._metadata())
        async for batch in stream:
            for info in batch.info:
                key = info.name
                snapshot = known.get(key)
                same = (
                    snapshot is not None
                    and snapshot.record_bytes == info.ByteSize()
                    and snapshot.created.nanos == info.created_at.nanos
                )
                snapshots[key] = snapshot if snapshot is not None and same else _snapshot(info)
        return snapshots

    async def get_snapshot(self, snapshotter: str, key: str) -> Snapshot | None:
        """Return one snapshot, ``None`` when there is none."""
        request = snapshots_pb2.StatSnapshotRequest(snapshotter=snapshotter, key=key)
        try:
            got = await self._connection.unary(_STAT_SNAPSHOT, request, target=key, metadata=self._metadata())
        except RuntimeNotFoundError:
            return None
        return _snapshot(got.info)

    async def snapshot_usage(self, snapshotter: str, key: str) -> SnapshotUsage:
        """Return what a snapshot occupies: as recorded for a committed one, walked now for an active one."""
        request = snapshots_pb2.UsageRequest(snapshotter=snapshotter, key=key)
        got = await self._connection.unary(_USAGE, request, target=key, metadata=self._metadata())
        return SnapshotUsage(got.size, got.inodes)

    async def remove_snapshot(self, snapshotter: str, key: str) -> bool:
        """Remove one snapshot without children; return whether it was there."""
        request = snapshots_pb2.RemoveSnapshotRequest(snapshotter=snapshotter, key=key)
        try:
            await self._connection.unary(_REMOVE_SNAPSHOT, request, target=key, metadata=self._metadata())
        except RuntimeNotFoundError:
            return False
        return True

    async def remove_orphaned_directories(self, snapshotter: str, clock: Clock) -> None:
        """Make a snapshotter remove the directories of snapshots whose removal failed before.

        containerd retries such a removal in the garbage collection after the removal of another snapshot only. Where
        there is no call for it (containerd 1.6 answers UNIMPLEMENTED), an empty snapshot is created and removed.
        """
        request = snapshots_pb2.CleanupRequest(snapshotter=snapshotter)
        try:
            await self._connection.unary(_CLEANUP, request, target=snapshotter, metadata=self._metadata())
        except RuntimeUnsupportedError:
            key = f"nodeagent-{secrets.token_hex(6)}"
            prepare = snapshots_pb2.PrepareSnapshotRequest(snapshotter=snapshotter, key=key)
            await self._connection.unary(_PREPARE_SNAPSHOT, prepare, target=key, metadata=self._metadata())
            await self.remove_snapshot(snapshotter, key)
            await self.collect_garbage(clock)

    async def list_containers(self) -> tuple[StoredContainer, ...]:
        """Return every container record, those of sandboxes included."""
        got = await self._connection.unary(
            _CONTAINERS, containers_pb2.ListContainersRequest(), metadata=self._metadata()
        )
        return tuple(
            StoredContainer(each.id, each.image, each.snapshotter, each.snapshot_key, dict(each.labels))
            for each in got.containers
        )

    async def list_leases(self) -> tuple[Lease, ...]:
        """Return every lease, expired ones included."""
        got = await self._connection.unary(_LEASES, leases_pb2.ListRequest(), metadata=self._metadata())
        return tuple(Lease(each.id, dict(each.labels), _stamp(each.created_at).at) for each in got.leases)

    async def list_lease_resources(self, lease_id: str) -> tuple[LeasedResource, ...]:
        """Return what a lease holds; nothing when it is gone."""
        request = leases_pb2.ListResourcesRequest(id=lease_id)
        try:
            got = await self._connection.unary(_LEASE_RESOURCES, request, target=lease_id, metadata=self._metadata())
        except RuntimeNotFoundError:
            return ()
        return tuple(LeasedResource(each.id, each.type) for each in got.resources)

    async def create_lease(self, lease_id: str, labels: Mapping[str, str]) -> None:
        """Create a lease; label it ``containerd.io/gc.expire`` with an RFC 3339 time, lest it stay for ever."""
        request = leases_pb2.CreateRequest(id=lease_id, labels=labels)
        await self._connection.unary(_CREATE_LEASE, request, target=lease_id, metadata=self._metadata())

    async def add_lease_resource(self, lease_id: str, resource: LeasedResource) -> None:
        """Let a lease hold something more."""
        held = leases_pb2.Resource(id=resource.id, type=resource.type)
        request = leases_pb2.AddResourceRequest(id=lease_id, resource=held)
        await self._connection.unary(_ADD_RESOURCE, request, target=lease_id, metadata=self._metadata())

    async def delete_lease(self, lease_id: str, *, sync: bool) -> bool:
        """Delete a lease; return whether it was there. With ``sync``, answer after a garbage collection."""
        request = leases_pb2.DeleteRequest(id=lease_id, sync=sync)
        try:
            await self._connection.unary(_DELETE_LEASE, request, target=lease_id, metadata=self._metadata())
        except RuntimeNotFoundError:
            return False
        return True

    async def collect_garbage(self, clock: Clock) -> None:
        """Make containerd collect garbage and wait for it, by giving back a lease that holds nothing.

        There is no call for it; deletions can ask for a collection before they are answered.
        """
        lease = f"nodeagent-{secrets.token_hex(6)}"
        expires = (clock.now() + _LEASE_LASTS).isoformat(timespec="seconds").replace("+00:00", "Z")
        await self.create_lease(lease, {"containerd.io/gc.expire": expires})
        await self.delete_lease(lease, sync=True)

    def _metadata(self, namespace: str | None = None) -> tuple[tuple[str, str], ...]:
        return (("containerd-namespace", namespace or self.namespace),)


def _stamp(message: Timestamp) -> Stamp:
    return Stamp(message.seconds, message.nanos)


def _stored_image(message: images_pb2.Image) -> StoredImage:
    target = message.target
    return StoredImage(
        message.name,
        target.digest,
        target.media_type,
        dict(message.labels),
        _stamp(message.created_at),
        _stamp(message.updated_at),
    )


def _gc_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    names = [name for name in labels if name.startswith(GC_LABELS)]
    return {name: labels[name] for name in names} if names else _NO_LABELS


def _blob(message: content_pb2.Info) -> Blob:
    return Blob(
        message.digest, message.size, _gc_labels(message.labels), _stamp(message.created_at), message.ByteSize()
    )


def _snapshot(message: snapshots_pb2.Info) -> Snapshot:
    return Snapshot(
        message.name,
        message.parent,
        _KINDS.get(message.kind, SnapshotKind.UNKNOWN),
        _gc_labels(message.labels),
        _stamp(message.created_at),
        message.ByteSize(),
    )
