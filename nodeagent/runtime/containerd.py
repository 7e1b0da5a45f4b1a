"""Client of containerd's own services for image names, blobs, snapshots and leases, on the socket of CRI.

CRI's objects are in the namespace ``k8s.io``. Records are read with their garbage collection labels, which determine
the bytes freed by a deletion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.empty_pb2 import Empty

from nodeagent._proto.containerd.services.containers.v1 import containers_pb2
from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.introspection.v1 import introspection_pb2
from nodeagent._proto.containerd.services.leases.v1 import leases_pb2
from nodeagent._proto.containerd.services.namespaces.v1 import namespaces_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent._proto.containerd.types.descriptor_pb2 import Descriptor
from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError
from nodeagent.guarded_call import compute
from nodeagent.last_result import keep_last_result
from nodeagent.model.runtime import Space
from nodeagent.record import Record
from nodeagent.runtime.connection import CONTAINERD_SERVICES as _SERVICES, Method, Request, Response, RuntimeConnection
from nodeagent.runtime.lists import DecodeCache, LongList, PartCache, shared_text, shared_texts

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

GC_LABELS = "containerd.io/gc."
CONTAINER_LABELS: Final = ("containerd.io/", "io.cri-containerd.", "io.kubernetes.")
"""Prefixes of the labels by which a container references objects and belongs to CRI and to a pod."""

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


class StoredContainer(Record, gc=False):
    """A container record. Source: ``containers.v1.Container``.

    Attributes:
        labels: the labels that start with one of ``CONTAINER_LABELS``; tenants choose the others, of any length.
    """

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
        ref: reference chosen by the writer.
        written_bytes: bytes written so far.
    """

    expected: str
    ref: str = ""
    written_bytes: int = 0


def decode_stored_containers(message: containers_pb2.ListContainersResponse) -> dict[str, StoredContainer]:
    """Return the container records in a message by id."""
    found = {}
    for each in message.containers:
        labels = shared_texts({key: text for key, text in each.labels.items() if key.startswith(CONTAINER_LABELS)})
        key = each.id
        snapshot = key if each.snapshot_key == key else each.snapshot_key  # equal for the containers of CRI
        found[key] = StoredContainer(key, shared_text(each.image), shared_text(each.snapshotter), snapshot, labels)
    return found


def _stored_containers(by_id: Mapping[str, StoredContainer]) -> tuple[StoredContainer, ...]:
    return tuple(by_id.values())


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


PINNED_LABEL: Final = "io.cri-containerd.pinned"


def is_pinned(stored: StoredImage) -> bool:
    """Return whether a name's label pins its image. Source: containerd CRI plugin, ``labels.PinnedImageLabelKey``."""
    return stored.labels.get(PINNED_LABEL) == "pinned"


NAMESPACE = "k8s.io"

_IMPOSSIBLE = 1 << 60  # bytes or inodes that no disk has
_LEASE_HEADER = "containerd-lease"
_SNAPSHOTTERS = "io.containerd.snapshotter.v1"
_CONTENT_STORE = "io.containerd.content.v1"
_METADATA = "io.containerd.metadata.v1"

_LIST_S = 30.0
_DELETE_S = 120.0

_NAMESPACES = Method(
    _SERVICES + "namespaces.v1.Namespaces/List",
    namespaces_pb2.ListNamespacesRequest,
    namespaces_pb2.ListNamespacesResponse,
)
_PLUGINS = Method(
    _SERVICES + "introspection.v1.Introspection/Plugins",
    introspection_pb2.PluginsRequest,
    introspection_pb2.PluginsResponse,
)
_IMAGES = Method(
    _SERVICES + "images.v1.Images/List", images_pb2.ListImagesRequest, images_pb2.ListImagesResponse, _LIST_S
)
_GET_IMAGE = Method(_SERVICES + "images.v1.Images/Get", images_pb2.GetImageRequest, images_pb2.GetImageResponse)
_CREATE_IMAGE = Method(
    _SERVICES + "images.v1.Images/Create", images_pb2.CreateImageRequest, images_pb2.CreateImageResponse, changes=True
)
_UPDATE_IMAGE = Method(
    _SERVICES + "images.v1.Images/Update", images_pb2.UpdateImageRequest, images_pb2.UpdateImageResponse, changes=True
)
_DELETE_IMAGE = Method(
    _SERVICES + "images.v1.Images/Delete", images_pb2.DeleteImageRequest, Empty, _DELETE_S, changes=True
)
_CONTENT = Method(
    _SERVICES + "content.v1.Content/List", content_pb2.ListContentRequest, content_pb2.ListContentResponse, _LIST_S
)
_CONTENT_INFO = Method(_SERVICES + "content.v1.Content/Info", content_pb2.InfoRequest, content_pb2.InfoResponse)
_READ_CONTENT = Method(
    _SERVICES + "content.v1.Content/Read", content_pb2.ReadContentRequest, content_pb2.ReadContentResponse
)
_DELETE_CONTENT = Method(
    _SERVICES + "content.v1.Content/Delete", content_pb2.DeleteContentRequest, Empty, _DELETE_S, changes=True
)
# Both directions are streams; the agent sends a single request, with the action COMMIT.
_WRITE = Method(
    _SERVICES + "content.v1.Content/Write",
    content_pb2.WriteContentRequest,
    content_pb2.WriteContentResponse,
    _DELETE_S,
    changes=True,
)
_INGESTS = Method(
    _SERVICES + "content.v1.Content/ListStatuses", content_pb2.ListStatusesRequest, content_pb2.ListStatusesResponse
)
_SNAPSHOTS = Method(
    _SERVICES + "snapshots.v1.Snapshots/List",
    snapshots_pb2.ListSnapshotsRequest,
    snapshots_pb2.ListSnapshotsResponse,
    _LIST_S,
)
_USAGE = Method(_SERVICES + "snapshots.v1.Snapshots/Usage", snapshots_pb2.UsageRequest, snapshots_pb2.UsageResponse)
_REMOVE_SNAPSHOT = Method(
    _SERVICES + "snapshots.v1.Snapshots/Remove", snapshots_pb2.RemoveSnapshotRequest, Empty, _DELETE_S, changes=True
)
_PREPARE_SNAPSHOT = Method(
    _SERVICES + "snapshots.v1.Snapshots/Prepare",
    snapshots_pb2.PrepareSnapshotRequest,
    snapshots_pb2.PrepareSnapshotResponse,
    _DELETE_S,
    changes=True,
)
_CLEANUP = Method(
    _SERVICES + "snapshots.v1.Snapshots/Cleanup", snapshots_pb2.CleanupRequest, Empty, _DELETE_S, changes=True
)
_CONTAINERS = Method(
    _SERVICES + "containers.v1.Containers/List",
    containers_pb2.ListContainersRequest,
    containers_pb2.ListContainersResponse,
    _LIST_S,
)
_CONTAINERS_STREAMED = Method(
    _SERVICES + "containers.v1.Containers/ListStream",
    containers_pb2.ListContainersRequest,
    containers_pb2.ListContainersResponse,
    _LIST_S,
)
_LEASES = Method(_SERVICES + "leases.v1.Leases/List", leases_pb2.ListRequest, leases_pb2.ListResponse)
_LEASE_RESOURCES = Method(
    _SERVICES + "leases.v1.Leases/ListResources", leases_pb2.ListResourcesRequest, leases_pb2.ListResourcesResponse
)
_CREATE_LEASE = Method(
    _SERVICES + "leases.v1.Leases/Create", leases_pb2.CreateRequest, leases_pb2.CreateResponse, changes=True
)
_ADD_RESOURCE = Method(_SERVICES + "leases.v1.Leases/AddResource", leases_pb2.AddResourceRequest, Empty, changes=True)
_DELETE_LEASE = Method(_SERVICES + "leases.v1.Leases/Delete", leases_pb2.DeleteRequest, Empty, _DELETE_S, changes=True)


class ContainerdClient:
    """Client of containerd in one namespace. Every method raises the errors of :meth:`RuntimeConnection.unary`.

    Deleting an absent object succeeds.
    """

    def __init__(self, connection: RuntimeConnection, *, reuses_lists: bool = True) -> None:
        """Create a client; ``reuses_lists`` is whether decoded lists are cached, see :class:`DecodeCache`."""
        self._connection = connection
        self._reuses_lists = reuses_lists
        self.namespace = NAMESPACE
        self._containers = LongList(connection, _CONTAINERS, _CONTAINERS_STREAMED)
        self._container_parts: PartCache[containers_pb2.ListContainersResponse, StoredContainer] = PartCache(
            reuses=reuses_lists
        )
        self._as_tuple = keep_last_result(_stored_containers)  # an unchanged list is the same tuple as before
        self._images = DecodeCache(attrgetter("images"), decode_stored_image, reuses=reuses_lists)
        self._blobs: PartCache[content_pb2.ListContentResponse, Blob] = PartCache(reuses=reuses_lists)
        self._snapshots: dict[str, PartCache[snapshots_pb2.ListSnapshotsResponse, Snapshot]] = {}

    def in_namespace(self, name: str) -> ContainerdClient:
        """Return a client of another namespace on the same connection, without cached lists."""
        other = ContainerdClient(self._connection, reuses_lists=False)
        other.namespace = name
        return other

    async def list_namespaces(self) -> tuple[str, ...]:
        """Return the names of all namespaces."""
        got = await self._connection.unary(_NAMESPACES, namespaces_pb2.ListNamespacesRequest())
        return tuple(each.name for each in got.namespaces)

    async def read_store_paths(self) -> dict[str, str]:
        """Return the directory of each snapshotter, and of the content store under the empty name.

        A local snapshotter without a reported directory has its default directory beside the content store, as assumed
        by containerd itself. Remote snapshotters without a reported directory are omitted.

        Source: containerd ``introspection.v1.Plugin.exports``, keys ``root`` and ``address``; ``imageFSPath``.
        """
        request = introspection_pb2.PluginsRequest(filters=[f"type=={_SNAPSHOTTERS}", f"type=={_CONTENT_STORE}"])
        got = await self._connection.unary(_PLUGINS, request)
        reported = {
            each.id if each.type == _SNAPSHOTTERS else "": each.exports["root"]
            for each in got.plugins
            if each.type in (_SNAPSHOTTERS, _CONTENT_STORE) and each.exports.get("root")
        }
        content, _, name = reported.get("", "").rpartition("/")
        local = [each.id for each in got.plugins if each.type == _SNAPSHOTTERS and not each.exports.get("address")]
        default = {each: f"{content}/{_SNAPSHOTTERS}.{each}" for each in local} if _CONTENT_STORE in name else {}
        return default | reported

    async def read_database_path(self) -> str:
        """Return the path of the metadata database; empty if containerd does not report the path.

        Source: containerd ``introspection.v1.Plugin.exports``, key ``path`` of the plugin ``bolt``.
        """
        request = introspection_pb2.PluginsRequest(filters=[f"type=={_METADATA}"])
        got = await self._connection.unary(_PLUGINS, request)
        return next((each.exports["path"] for each in got.plugins if each.exports.get("path")), "")

    async def list_images(self, namespace: str | None = None) -> tuple[StoredImage, ...]:
        """Return every image name in ``namespace``, by default the client's namespace."""
        got = await self._connection.unary(_IMAGES, images_pb2.ListImagesRequest(), metadata=self._metadata(namespace))
        if namespace not in (None, self.namespace):
            return tuple(map(decode_stored_image, got.images))
        listing = self._images.start()
        listing.add(got)
        return listing.finish()

    async def list_image_records(self) -> tuple[tuple[StoredImage, bytes], ...]:
        """Return every image name, each with its complete record as an encoded message."""
        got = await self._call(_IMAGES, images_pb2.ListImagesRequest())
        return tuple((decode_stored_image(each), each.SerializeToString()) for each in got.images)

    async def create_image(self, encoded: bytes) -> bool:
        """Create an image name from its encoded record; return false if the name exists already, with any target.

        The new record has the target and the labels of ``encoded``, and a new creation time.
        """
        image = images_pb2.Image.FromString(encoded)
        try:
            await self._call(_CREATE_IMAGE, images_pb2.CreateImageRequest(image=image), image.name)
        except RuntimeRequestError as error:
            if error.status == "ALREADY_EXISTS":
                return False
            raise
        return True

    async def get_image(self, name: str) -> StoredImage | None:
        """Return the record of an image name; ``None`` if the name does not exist."""
        got = await self._find(_GET_IMAGE, images_pb2.GetImageRequest(name=name), name)
        return None if got is None else decode_stored_image(got.image)

    async def label_image(self, name: str, key: str, value: str) -> bool:
        """Set one label of an image name; return whether the name exists."""
        request = images_pb2.UpdateImageRequest(image=images_pb2.Image(name=name, labels={key: value}))
        request.update_mask.paths.append(f"labels.{key}")
        return await self._find(_UPDATE_IMAGE, request, name) is not None

    async def delete_image(self, name: str, *, sync: bool, target: str = "") -> bool:
        """Delete one image name; return whether the name existed.

        Args:
            name: the image name.
            sync: return only after a garbage collection, which also covers all earlier deletions.
            target: delete only if the name has this target digest. containerd before 2.0 ignores this condition.
        """
        request = images_pb2.DeleteImageRequest(name=name, sync=sync)
        if target:
            request.target.CopyFrom(Descriptor(digest=target))
        return await self._find(_DELETE_IMAGE, request, name) is not None

    async def list_content(self, known: Mapping[str, Blob] | None = None) -> dict[str, Blob]:
        """Return every blob by digest.

        An entry of ``known`` is reused if the length of its record is unchanged: the labels of a blob depend on the
        content of the blob, so that labels are added and removed, but never changed. The update time of the record is
        not compared, since containerd 1.6 lists the year 1 for every blob.
        """
        known = known or {}
        texts: dict[str, str] = {}

        def decode(batch: content_pb2.ListContentResponse) -> dict[str, Blob]:
            blobs = {}
            for info in batch.info:
                digest = info.digest
                blob = known.get(digest)
                same = blob is not None and blob.record_bytes == info.ByteSize()
                blobs[digest] = blob if blob is not None and same else decode_blob(info, texts)
            return blobs

        listing = self._blobs.start()
        request = content_pb2.ListContentRequest()
        async for batch in self._connection.stream(_CONTENT, request, metadata=self._metadata()):
            listing.add(batch, decode)
        return listing.finish()

    async def list_digests(self, namespace: str) -> frozenset[str]:
        """Return the digests of every blob of a namespace."""
        digests: set[str] = set()
        request = content_pb2.ListContentRequest()
        async for batch in self._connection.stream(_CONTENT, request, metadata=self._metadata(namespace)):
            digests.update(info.digest for info in batch.info)
        return frozenset(digests)

    async def get_blob(self, digest: str) -> Blob | None:
        """Return the record of a blob; ``None`` if the blob does not exist."""
        got = await self._find(_CONTENT_INFO, content_pb2.InfoRequest(digest=digest), digest)
        return None if got is None else decode_blob(got.info)

    async def read_content(self, digest: str, limit_bytes: int) -> bytes | None:
        """Return the content of a blob; ``None`` if it is longer than ``limit_bytes``.

        Raises:
            RuntimeNotFoundError: the blob does not exist.
        """
        request, data = content_pb2.ReadContentRequest(digest=digest, size=limit_bytes + 1), bytearray()
        stream = self._connection.stream(_READ_CONTENT, request, target=digest, metadata=self._metadata())
        async for part in stream:
            data += part.data
        return bytes(data) if len(data) <= limit_bytes else None

    async def delete_content(self, digest: str) -> bool:
        """Delete one blob's record; return whether the record existed. The next garbage collection frees the bytes."""
        request = content_pb2.DeleteContentRequest(digest=digest)
        return await self._find(_DELETE_CONTENT, request, digest) is not None

    async def write_leased_blob(self, lease_id: str, data: bytes, labels: Mapping[str, str]) -> LeasedResource:
        """Write a small blob with labels as a resource of a lease; return the resource.

        containerd records blob, labels and lease in one transaction. Source: containerd header ``containerd-lease``.
        """
        import hashlib  # noqa: PLC0415 - loads OpenSSL, which reading commands do not need

        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        request = content_pb2.WriteContentRequest(
            action=content_pb2.COMMIT, ref=digest, total=len(data), expected=digest, data=data, labels=labels
        )
        metadata = (*self._metadata(), (_LEASE_HEADER, lease_id))
        async for _ in self._connection.stream(_WRITE, request, target=digest, metadata=metadata):
            pass  # containerd answers the commit twice
        return LeasedResource(digest, "content")

    async def list_ingests(self) -> tuple[Ingest, ...]:
        """Return the blobs being written."""
        got = await self._call(_INGESTS, content_pb2.ListStatusesRequest())
        return tuple(Ingest(each.expected, each.ref, each.offset) for each in got.statuses)

    async def list_snapshots(
        self, snapshotter: str, known: Mapping[str, Snapshot] | None = None
    ) -> dict[str, Snapshot]:
        """Return every snapshot by key; entries of ``known`` with equal record length and creation time are reused."""
        known = known or {}
        texts: dict[str, str] = {}

        def decode(batch: snapshots_pb2.ListSnapshotsResponse) -> dict[str, Snapshot]:
            snapshots = {}
            for info in batch.info:
                key = info.name
                snapshot = known.get(key)
                same = (
                    snapshot is not None
                    and snapshot.record_bytes == info.ByteSize()
                    and snapshot.created.nanos == info.created_at.nanos
                )
                snapshots[key] = snapshot if snapshot is not None and same else decode_snapshot(info, texts)
            return snapshots

        cache = self._snapshots.get(snapshotter, PartCache(reuses=self._reuses_lists))
        listing = cache.start()
        request = snapshots_pb2.ListSnapshotsRequest(snapshotter=snapshotter)
        stream = self._connection.stream(_SNAPSHOTS, request, target=snapshotter, metadata=self._metadata())
        async for batch in stream:
            listing.add(batch, decode)
        self._snapshots[snapshotter] = cache  # only after success: image labels can name any snapshotter
        return listing.finish()

    async def list_writable_snapshots(self, snapshotter: str) -> tuple[Snapshot, ...]:
        """Return the uncommitted snapshots: snapshots of containers, and of layers being unpacked."""
        request = snapshots_pb2.ListSnapshotsRequest(snapshotter=snapshotter, filters=["kind==active", "kind==view"])
        stream = self._connection.stream(_SNAPSHOTS, request, target=snapshotter, metadata=self._metadata())
        return tuple([decode_snapshot(info) async for batch in stream for info in batch.info])

    async def has_snapshot(self, snapshotter: str, key: str) -> bool:
        """Return whether a snapshot exists."""
        request = snapshots_pb2.ListSnapshotsRequest(snapshotter=snapshotter, filters=[f'name=="{key}"'])
        stream = self._connection.stream(_SNAPSHOTS, request, target=key, metadata=self._metadata())
        return any([info.name == key async for batch in stream for info in batch.info])

    async def snapshot_usage(self, snapshotter: str, key: str) -> Space:
        """Return a snapshot's disk usage: recorded if committed, measured by this call if active.

        Raises:
            RuntimeRequestError: the call failed, or the usage is impossible, as after a defect of a snapshotter.

        Source: ``snapshots.v1.UsageResponse``.
        """
        request = snapshots_pb2.UsageRequest(snapshotter=snapshotter, key=key)
        got = await self._call(_USAGE, request, key)
        if not (0 <= got.size < _IMPOSSIBLE and 0 <= got.inodes < _IMPOSSIBLE):
            detail = f"impossible usage: {got.size} bytes, {got.inodes} inodes"
            raise RuntimeRequestError("Usage", key, "DATA_LOSS", detail)
        return Space(got.size, got.inodes)

    async def remove_snapshot(self, snapshotter: str, key: str) -> bool:
        """Remove one snapshot without children; return whether the snapshot existed."""
        request = snapshots_pb2.RemoveSnapshotRequest(snapshotter=snapshotter, key=key)
        return await self._find(_REMOVE_SNAPSHOT, request, key) is not None

    async def clean_up(self, snapshotter: str) -> None:
        """Remove the directories that failed snapshot removals have left in a snapshotter.

        Raises:
            RuntimeUnsupportedError: ``Cleanup`` is unimplemented (containerd 1.6).
        """
        request = snapshots_pb2.CleanupRequest(snapshotter=snapshotter)
        await self._call(_CLEANUP, request, snapshotter)

    async def prepare_snapshot(self, snapshotter: str, key: str) -> None:
        """Create an empty snapshot, which the next garbage collection removes: it has no reference."""
        request = snapshots_pb2.PrepareSnapshotRequest(snapshotter=snapshotter, key=key)
        await self._call(_PREPARE_SNAPSHOT, request, key)

    async def list_containers(self) -> tuple[StoredContainer, ...]:
        """Return every container record, including records of sandboxes."""
        listing = self._container_parts.start()
        async for part in self._containers.read(containers_pb2.ListContainersRequest(), metadata=self._metadata()):
            await compute(len(part.containers), listing.add, part, decode_stored_containers)
        return self._as_tuple(listing.finish())

    async def list_leases(self) -> tuple[ContentLease, ...]:
        """Return every lease, including expired ones."""
        got = await self._call(_LEASES, leases_pb2.ListRequest())
        return tuple(map(decode_lease_record, got.leases))

    async def list_lease_resources(self, lease_id: str) -> tuple[LeasedResource, ...]:
        """Return the resources of a lease; empty if the lease is absent."""
        request = leases_pb2.ListResourcesRequest(id=lease_id)
        got = await self._find(_LEASE_RESOURCES, request, lease_id)
        return () if got is None else tuple(LeasedResource(each.id, each.type) for each in got.resources)

    async def create_lease(self, lease_id: str, labels: Mapping[str, str]) -> None:
        """Create a lease. A lease without the label ``containerd.io/gc.expire`` (RFC 3339 time) never expires."""
        request = leases_pb2.CreateRequest(id=lease_id, labels=labels)
        await self._call(_CREATE_LEASE, request, lease_id)

    async def add_lease_resource(self, lease_id: str, resource: LeasedResource) -> None:
        """Add a resource to a lease."""
        added = leases_pb2.Resource(id=resource.id, type=resource.type)
        request = leases_pb2.AddResourceRequest(id=lease_id, resource=added)
        await self._call(_ADD_RESOURCE, request, lease_id)

    async def delete_lease(self, lease_id: str, *, sync: bool) -> bool:
        """Delete a lease; return whether the lease existed. With ``sync``, return after a garbage collection."""
        request = leases_pb2.DeleteRequest(id=lease_id, sync=sync)
        return await self._find(_DELETE_LEASE, request, lease_id) is not None

    async def _find(self, method: Method[Request, Response], request: Request, target: str) -> Response | None:
        """Return the answer to a call; ``None`` if its target does not exist."""
        try:
            return await self._call(method, request, target)
        except RuntimeNotFoundError:
            return None

    async def _call(
        self, method: Method[Request, Response], request: Request, target: str = "", namespace: str | None = None
    ) -> Response:
        metadata = self._metadata(namespace)
        return await self._connection.unary(method, request, target=target, metadata=metadata)

    def _metadata(self, namespace: str | None = None) -> tuple[tuple[str, str], ...]:
        return (("containerd-namespace", namespace or self.namespace),)
