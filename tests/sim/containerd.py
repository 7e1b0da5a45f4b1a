"""gRPC services of containerd's own API, on the metadata of a simulated node, for the namespace ``k8s.io``."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp

from nodeagent._proto.containerd.services.containers.v1 import containers_pb2
from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.leases.v1 import leases_pb2
from nodeagent._proto.containerd.services.namespaces.v1 import namespaces_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent._proto.containerd.types import descriptor_pb2
from nodeagent.model.runtime import PieceKind
from tests.sim.content import Descriptor, digest
from tests.sim.cri import in_parts
from tests.sim.filters import parse_filters
from tests.sim.messages import nanoseconds
from tests.sim.store import (
    NAMESPACE,
    SNAPSHOTTER,
    Blob,
    ImageName,
    Lease,
    RefusedError,
    Snapshot,
    SnapshotKind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from tests.sim.node import SimNode
    from tests.sim.profiles import Profile

_T = TypeVar("_T")

_BATCH: Final = 100
_READ_BYTES: Final = 512
_CONTENT_REFERENCE: Final = "containerd.io/gc.ref.content."
_GO_ZERO_S: Final = -62135596800  # Go's zero time, in the year 1: containerd reports it for an unset time
_KINDS: Final = {
    SnapshotKind.ACTIVE: snapshots_pb2.ACTIVE,
    SnapshotKind.COMMITTED: snapshots_pb2.COMMITTED,
    SnapshotKind.VIEW: snapshots_pb2.VIEW,
}


class ContainerdServices:
    """Services of containerd's own API.

    A method has the arguments request and namespace, and raises RefusedError for a gRPC error.
    """

    def __init__(self, node: SimNode, profile: Profile) -> None:
        self._node = node
        self._profile = profile
        self._store = node.store

    def methods(self) -> dict[str, dict[str, Callable[..., object]]]:
        """Return the RPC methods by full service name and RPC name."""
        return {
            "containerd.services.namespaces.v1.Namespaces": {"List": self.list_namespaces},
            "containerd.services.images.v1.Images": {
                "Get": self.get_image,
                "List": self.list_images,
                "Create": self.create_image,
                "Update": self.update_image,
                "Delete": self.delete_image,
            },
            "containerd.services.content.v1.Content": {
                "Info": self.blob_info,
                "List": self.list_blobs,
                "Read": self.read_blob,
                "Delete": self.delete_blob,
                "ListStatuses": self.list_ingests,
                "Write": self.write_blob,
            },
            "containerd.services.snapshots.v1.Snapshots": {
                "List": self.list_snapshots,
                "Usage": self.snapshot_usage,
                "Prepare": self.prepare_snapshot,
                "Remove": self.remove_snapshot,
                "Cleanup": self.clean_up,
            },
            "containerd.services.leases.v1.Leases": {
                "Create": self.create_lease,
                "Delete": self.delete_lease,
                "List": self.list_leases,
                "AddResource": self.add_resource,
                "ListResources": self.list_resources,
            },
            "containerd.services.containers.v1.Containers": {
                "List": self.list_containers,
                "ListStream": in_parts(self.list_containers, containers_pb2.ListContainersResponse, "containers"),
            },
        }

    def list_namespaces(
        self, _request: namespaces_pb2.ListNamespacesRequest, _namespace: str
    ) -> namespaces_pb2.ListNamespacesResponse:
        """List the containerd namespaces."""
        names = sorted({NAMESPACE, *self._store.elsewhere})
        return namespaces_pb2.ListNamespacesResponse(namespaces=[namespaces_pb2.Namespace(name=name) for name in names])

    def get_image(self, request: images_pb2.GetImageRequest, namespace: str) -> images_pb2.GetImageResponse:
        """Return the record of one image name."""
        name = self._store.names.get(request.name) if namespace == NAMESPACE else None
        if name is None:
            raise RefusedError("NOT_FOUND", f'image "{request.name}": not found')
        return images_pb2.GetImageResponse(image=_image(name))

    def list_images(self, request: images_pb2.ListImagesRequest, namespace: str) -> images_pb2.ListImagesResponse:
        """List image names in alphabetical order."""
        names = sorted(self._store.names.values(), key=lambda name: name.name) if namespace == NAMESPACE else []
        matches = parse_filters(request.filters)
        matching = [
            name for name in names if matches({"name": name.name, "target.digest": name.target.digest}, name.labels)
        ]
        return images_pb2.ListImagesResponse(images=map(_image, matching))

    def create_image(self, request: images_pb2.CreateImageRequest, namespace: str) -> images_pb2.CreateImageResponse:
        """Create an image name with the current time as creation time."""
        asked = request.image
        if namespace != NAMESPACE or asked.name in self._store.names:
            raise RefusedError("ALREADY_EXISTS", f'image "{asked.name}": already exists')
        target = Descriptor(asked.target.digest, asked.target.size, asked.target.media_type)
        name = ImageName(asked.name, target, self._node.now, self._node.now, dict(asked.labels))
        self._node.set_name(name)
        return images_pb2.CreateImageResponse(image=_image(name))

    def update_image(self, request: images_pb2.UpdateImageRequest, namespace: str) -> images_pb2.UpdateImageResponse:
        """Set the labels in the update mask.

        If the profile reports pins, CRI then reports an image with the pin label as pinned.
        """
        known = self._store.names.get(request.image.name) if namespace == NAMESPACE else None
        if known is None:
            raise RefusedError("NOT_FOUND", f'image "{request.image.name}": not found')
        for path in request.update_mask.paths:
            key = path.removeprefix("labels.")
            known.labels[key] = request.image.labels[key]
        self._node.update_pins()
        return images_pb2.UpdateImageResponse(image=_image(known))

    def delete_image(self, request: images_pb2.DeleteImageRequest, namespace: str) -> Empty:
        """Delete one image name; with ``sync``, run the garbage collection before the response."""
        known = self._store.names.get(request.name)
        if namespace != NAMESPACE or known is None:
            raise RefusedError("NOT_FOUND", f'image "{request.name}": not found')
        moved = request.HasField("target") and request.target.digest != known.target.digest
        if moved and self._profile.checks_delete_target:
            raise RefusedError("FAILED_PRECONDITION", f"image target mismatch for {request.name}: failed precondition")
        self._node.delete_image_name(request.name, sync=request.sync)
        return Empty()

    def blob_info(self, request: content_pb2.InfoRequest, namespace: str) -> content_pb2.InfoResponse:
        """Return the metadata of one blob."""
        return content_pb2.InfoResponse(info=_blob(self._blob(request.digest, namespace)))

    def list_blobs(
        self, request: content_pb2.ListContentRequest, namespace: str
    ) -> Iterator[content_pb2.ListContentResponse]:
        """List the blobs, ordered by digest."""
        matches = parse_filters(request.filters)
        blobs = sorted(self._blobs(namespace).values(), key=lambda blob: blob.digest)
        matching = [
            blob for blob in blobs if matches({"digest": blob.digest, "size": str(blob.size_bytes)}, blob.labels)
        ]
        for batch in _batches(matching):
            yield content_pb2.ListContentResponse(info=map(_blob, batch))

    def read_blob(
        self, request: content_pb2.ReadContentRequest, namespace: str
    ) -> Iterator[content_pb2.ReadContentResponse]:
        """Yield the content of one blob in parts; only documents have content."""
        data = self._blob(request.digest, namespace).data or b""
        data = data[: request.offset + request.size] if request.size else data
        for start in range(request.offset, len(data), _READ_BYTES):
            yield content_pb2.ReadContentResponse(offset=start, data=data[start : start + _READ_BYTES])

    def write_blob(
        self, request: content_pb2.WriteContentRequest, _namespace: str, lease: str
    ) -> Iterator[content_pb2.WriteContentResponse]:
        """Write a blob in one request, as a resource of the call's lease, and yield two responses to the commit."""
        if request.action != content_pb2.COMMIT or digest(request.data) != request.expected:
            raise RefusedError("FAILED_PRECONDITION", f"unexpected commit of {request.ref}: failed precondition")
        labels = dict(request.labels)
        references = tuple((PieceKind.BLOB, labels[key]) for key in labels if key.startswith(_CONTENT_REFERENCE))
        self._store.get_lease(lease)
        self._store.put_blob(
            Blob(request.expected, len(request.data), self._node.now, labels, references, request.data)
        )
        self._store.add_resource(lease, request.expected, "content")
        for _ in range(2):
            yield content_pb2.WriteContentResponse(action=request.action, offset=request.total, digest=request.expected)

    def delete_blob(self, request: content_pb2.DeleteContentRequest, namespace: str) -> Empty:
        """Delete one blob, even if it is referenced."""
        self._blob(request.digest, namespace)
        if namespace == NAMESPACE:
            self._store.remove_blob(request.digest)
        else:
            del self._store.elsewhere[namespace][request.digest]
        return Empty()

    def list_ingests(
        self, _request: content_pb2.ListStatusesRequest, namespace: str
    ) -> content_pb2.ListStatusesResponse:
        """List the unfinished writes to the content store."""
        ingests = self._store.ingests.values() if namespace == NAMESPACE else ()
        return content_pb2.ListStatusesResponse(
            statuses=[
                content_pb2.Status(
                    started_at=_timestamp(ingest.started_at),
                    updated_at=_timestamp(ingest.updated_at),
                    ref=ingest.ref,
                    offset=ingest.offset,
                    total=ingest.total,
                    expected=ingest.expected,
                )
                for ingest in ingests
            ]
        )

    def list_snapshots(
        self, request: snapshots_pb2.ListSnapshotsRequest, namespace: str
    ) -> Iterator[snapshots_pb2.ListSnapshotsResponse]:
        """List the snapshots, ordered by key."""
        matches = parse_filters(request.filters)
        listed = self._store.snapshots_in(request.snapshotter)
        known = listed.values() if namespace == NAMESPACE else ()
        matching = [
            snapshot
            for snapshot in sorted(known, key=lambda snapshot: snapshot.key)
            if matches({"name": snapshot.key, "parent": snapshot.parent, "kind": snapshot.kind.value}, snapshot.labels)
        ]
        for batch in _batches(matching):
            yield snapshots_pb2.ListSnapshotsResponse(info=map(_snapshot, batch))

    def snapshot_usage(self, request: snapshots_pb2.UsageRequest, namespace: str) -> snapshots_pb2.UsageResponse:
        """Return the disk usage of one snapshot without its parents."""
        known = self._snapshot(request, namespace)
        return snapshots_pb2.UsageResponse(size=known.size_bytes, inodes=known.inodes)

    def remove_snapshot(self, request: snapshots_pb2.RemoveSnapshotRequest, namespace: str) -> Empty:
        """Remove a snapshot that has no children."""
        self._store.remove_snapshot(self._snapshot(request, namespace).key)
        return Empty()

    def prepare_snapshot(
        self, request: snapshots_pb2.PrepareSnapshotRequest, _namespace: str
    ) -> snapshots_pb2.PrepareSnapshotResponse:
        """Create an empty writable snapshot without a parent."""
        _check_snapshotter(request.snapshotter)
        if request.key in self._store.snapshots:
            raise RefusedError("ALREADY_EXISTS", f"snapshot {request.key}: already exists")
        self._store.put_snapshot(Snapshot(request.key, "", SnapshotKind.ACTIVE, 0, 0, self._node.now))
        return snapshots_pb2.PrepareSnapshotResponse()

    def clean_up(self, request: snapshots_pb2.CleanupRequest, _namespace: str) -> Empty:
        """Fail with UNIMPLEMENTED, as ``Cleanup`` of containerd 1.6 does."""
        _check_snapshotter(request.snapshotter)
        raise RefusedError("UNIMPLEMENTED", "snapshotter does not implement Cleanup method: not implemented")

    def create_lease(self, request: leases_pb2.CreateRequest, _namespace: str) -> leases_pb2.CreateResponse:
        """Create a lease; generate an id if the request has none."""
        lease = Lease(request.id or f"lease-{len(self._store.leases)}", self._node.now, dict(request.labels))
        self._store.add_lease(lease)
        return leases_pb2.CreateResponse(lease=_lease(lease))

    def delete_lease(self, request: leases_pb2.DeleteRequest, _namespace: str) -> Empty:
        """Delete a lease; with ``sync``, run the garbage collection before the response."""
        self._store.delete_lease(request.id)
        if request.sync:
            self._node.collect_garbage()
        return Empty()

    def list_leases(self, request: leases_pb2.ListRequest, namespace: str) -> leases_pb2.ListResponse:
        """List the leases; on containerd 2 including the empty lease of each sandbox."""
        leases = list(self._store.leases.values())
        if self._profile.sandbox_leases:
            leases += [Lease(sandbox.id, sandbox.created_at) for sandbox in self._node.sandboxes.values()]
        matches = parse_filters(request.filters)
        matching = [lease for lease in leases if namespace == NAMESPACE and matches({"id": lease.id}, lease.labels)]
        return leases_pb2.ListResponse(leases=map(_lease, matching))

    def add_resource(self, request: leases_pb2.AddResourceRequest, _namespace: str) -> Empty:
        """Add a resource, such as a blob or a snapshot, to a lease."""
        self._store.add_resource(request.id, request.resource.id, request.resource.type)
        return Empty()

    def list_resources(
        self, request: leases_pb2.ListResourcesRequest, _namespace: str
    ) -> leases_pb2.ListResourcesResponse:
        """List the resources of a lease."""
        if self._profile.sandbox_leases and request.id in self._node.sandboxes:
            return leases_pb2.ListResourcesResponse()
        resources = self._store.get_lease(request.id).resources
        return leases_pb2.ListResourcesResponse(
            resources=[leases_pb2.Resource(id=resource_id, type=kind) for resource_id, kind in resources]
        )

    def list_containers(
        self, _request: containers_pb2.ListContainersRequest, namespace: str
    ) -> containers_pb2.ListContainersResponse:
        """List containers and sandboxes, each with its writable snapshot."""
        if namespace != NAMESPACE:
            return containers_pb2.ListContainersResponse()
        items = [
            _container(each.id, each.image_name, "container", each.labels, each.created_at)
            for each in self._node.containers.values()
        ] + [
            _container(each.id, each.image, "sandbox", each.labels, each.created_at)
            for each in self._node.sandboxes.values()
        ]
        return containers_pb2.ListContainersResponse(containers=items)

    def _blobs(self, namespace: str) -> Mapping[str, Blob]:
        return self._store.blobs if namespace == NAMESPACE else self._store.elsewhere.get(namespace, {})

    def _blob(self, digest: str, namespace: str) -> Blob:
        blob = self._blobs(namespace).get(digest)
        if blob is None:
            raise RefusedError("NOT_FOUND", f"content digest {digest}: not found")
        return blob

    def _snapshot(
        self,
        request: snapshots_pb2.UsageRequest | snapshots_pb2.RemoveSnapshotRequest,
        namespace: str,
    ) -> Snapshot:
        _check_snapshotter(request.snapshotter)
        if namespace != NAMESPACE:
            raise RefusedError("NOT_FOUND", f"snapshot {request.key} does not exist: not found")
        return self._store.get_snapshot(request.key)


def _check_snapshotter(snapshotter: str) -> None:
    if snapshotter != SNAPSHOTTER:
        raise RefusedError("INVALID_ARGUMENT", f"snapshotter not loaded: {snapshotter}: invalid argument")


def _timestamp(at: datetime) -> Timestamp:
    seconds, nanos = divmod(nanoseconds(at), 10**9)
    return Timestamp(seconds=seconds, nanos=nanos)


def _image(name: ImageName) -> images_pb2.Image:
    target = descriptor_pb2.Descriptor(
        media_type=name.target.media_type, digest=name.target.digest, size=name.target.size_bytes
    )
    return images_pb2.Image(
        name=name.name,
        labels=name.labels,
        target=target,
        created_at=_timestamp(name.created_at),
        updated_at=_timestamp(name.updated_at),
    )


def _blob(blob: Blob) -> content_pb2.Info:
    return content_pb2.Info(
        digest=blob.digest,
        size=blob.size_bytes,
        created_at=_timestamp(blob.created_at),
        updated_at=Timestamp(seconds=_GO_ZERO_S),
        labels=blob.labels,
    )


def _snapshot(snapshot: Snapshot) -> snapshots_pb2.Info:
    at = _timestamp(snapshot.created_at)
    return snapshots_pb2.Info(
        name=snapshot.key,
        parent=snapshot.parent,
        kind=_KINDS[snapshot.kind],
        created_at=at,
        updated_at=at,
        labels=snapshot.labels,
    )


def _lease(lease: Lease) -> leases_pb2.Lease:
    return leases_pb2.Lease(id=lease.id, created_at=_timestamp(lease.created_at), labels=lease.labels)


def _container(
    container_id: str, image: str, kind: str, labels: Mapping[str, str], at: datetime
) -> containers_pb2.Container:
    return containers_pb2.Container(
        id=container_id,
        labels={**labels, "io.cri-containerd.kind": kind},
        image=image,
        snapshotter=SNAPSHOTTER,
        snapshot_key=container_id,
        created_at=_timestamp(at),
        updated_at=_timestamp(at),
    )


def _batches(items: Iterable[_T]) -> Iterator[list[_T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch
