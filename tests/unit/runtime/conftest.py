"""A minimal runtime on a unix socket, with the CRI and containerd services required by the tests."""

from __future__ import annotations

import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from google.protobuf.empty_pb2 import Empty

from nodeagent._proto.containerd.services.containers.v1 import containers_pb2
from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.leases.v1 import leases_pb2
from nodeagent._proto.containerd.services.namespaces.v1 import namespaces_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.containerd import ContainerdClient
from tests.sim.serving import service_handler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from google.protobuf.descriptor import ServiceDescriptor
    from google.protobuf.message import Message

    Context = grpc.aio.ServicerContext[Message, Message]

REF = "containerd.io/gc.ref."
SERVICES: tuple[ServiceDescriptor, ...] = (
    api.DESCRIPTOR.services_by_name["RuntimeService"],
    api.DESCRIPTOR.services_by_name["ImageService"],
)


class Fake:
    """A fake service: each method returns a scripted message or the result of a coroutine function, or fails."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.requests: list[tuple[str, Message]] = []

    def __getattr__(self, name: str) -> Callable[[Message, Context], Awaitable[object]]:
        if name not in self.__dict__["answers"]:
            raise AttributeError(name)

        async def serve(request: Message, context: Context) -> object:
            self.requests.append((name, request))
            answer = self.answers[name]
            if isinstance(answer, tuple):
                await context.abort(*answer)
            return await answer() if callable(answer) else answer

        return serve


@asynccontextmanager
async def serving(socket: Path, *handlers: grpc.GenericRpcHandler[object, object]) -> AsyncIterator[None]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def cri_handlers(fake: object) -> list[grpc.GenericRpcHandler[object, object]]:
    return [service_handler(service, fake) for service in SERVICES]


@pytest.fixture
def socket() -> Iterator[Path]:
    """Yield a path for a unix socket, shorter than the maximum of 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="na-") as directory:
        yield Path(directory) / "runtime.sock"


@pytest.fixture
async def connection(socket: Path) -> AsyncIterator[RuntimeConnection]:
    async with RuntimeConnection(str(socket)) as opened:
        yield opened


@dataclass
class Store:
    """Metadata of one containerd namespace, filled by a test; ``others`` has the content of other namespaces."""

    images: dict[str, str] = field(default_factory=dict)
    image_labels: dict[str, dict[str, str]] = field(default_factory=dict)
    blobs: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    snapshots: dict[str, dict[str, tuple[str, dict[str, str]]]] = field(default_factory=lambda: {"overlayfs": {}})
    containers: dict[str, str] = field(default_factory=dict)
    container_images: dict[str, str] = field(default_factory=dict)
    leases: dict[str, tuple[dict[str, str], list[tuple[str, str]]]] = field(default_factory=dict)
    expected: list[str] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    usage_calls: list[str] = field(default_factory=list)
    inodes: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, snapshots_pb2.Kind.ValueType] = field(default_factory=dict)

    def image(self, name: str, *layers: str, tags: tuple[str, ...] = (), unpacked: bool = True) -> None:
        """Store a complete image: manifest, config, layer blobs and, if ``unpacked``, one snapshot per layer."""
        for tag in tags or (f"{name}:1",):
            self.images[tag] = f"m-{name}"
        self.images[f"sha256:{name}"] = f"m-{name}"
        labels = {f"{REF}content.config": f"sha256:{name}"}
        chain = ""
        for number, layer in enumerate(layers):
            self.blobs[f"l-{layer}"] = (1000, {"containerd.io/uncompressed": layer})
            labels[f"{REF}content.l.{number}"] = f"l-{layer}"
            key = f"{chain}/{layer}" if chain else layer
            if unpacked:
                self.snapshots["overlayfs"][key] = (chain, {})
            chain = key
        self.blobs[f"m-{name}"] = (500, labels)
        self.blobs[f"sha256:{name}"] = (300, {f"{REF}snapshot.overlayfs": chain} if unpacked and chain else {})


class FakeContainerd:
    """A fake containerd: its services read and write a :class:`Store`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def handlers(self) -> list[grpc.GenericRpcHandler[object, object]]:
        parts: list[tuple[ServiceDescriptor, type[_Part]]] = [
            (images_pb2.DESCRIPTOR.services_by_name["Images"], _Images),
            (content_pb2.DESCRIPTOR.services_by_name["Content"], _Content),
            (snapshots_pb2.DESCRIPTOR.services_by_name["Snapshots"], _Snapshots),
            (containers_pb2.DESCRIPTOR.services_by_name["Containers"], _Containers),
            (leases_pb2.DESCRIPTOR.services_by_name["Leases"], _Leases),
            (namespaces_pb2.DESCRIPTOR.services_by_name["Namespaces"], _Namespaces),
        ]
        return [service_handler(service, part(self.store)) for service, part in parts]


class _Part:
    def __init__(self, store: Store) -> None:
        self.store = store


class _Images(_Part):
    async def List(self, _request: Message, _context: Context) -> Message:  # noqa: N802 - gRPC method name
        answer = images_pb2.ListImagesResponse()
        for name, target in self.store.images.items():
            image = answer.images.add(name=name)
            image.target.digest = target
            image.labels.update(self.store.image_labels.get(name, {}))
            image.created_at.FromSeconds(1_700_000_000)
            image.updated_at.FromSeconds(1_700_000_060)
        return answer

    async def Delete(self, request: images_pb2.DeleteImageRequest, context: Context) -> Message:  # noqa: N802
        if self.store.images.pop(request.name, None) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "image not found")
        return Empty()


class _Content(_Part):
    async def List(self, _request: Message, context: Context) -> AsyncIterator[Message]:  # noqa: N802
        metadata = dict(context.invocation_metadata() or ())
        namespace = metadata["containerd-namespace"]
        blobs = self.store.blobs
        if namespace != "k8s.io":
            blobs = {digest: (1, {}) for digest in self.store.others[str(namespace)]}
        for digest, (size, labels) in blobs.items():
            yield content_pb2.ListContentResponse(info=[content_pb2.Info(digest=digest, size=size, labels=labels)])

    async def ListStatuses(self, _request: Message, _context: Context) -> Message:  # noqa: N802
        statuses = [content_pb2.Status(ref="x", expected=digest) for digest in self.store.expected]
        return content_pb2.ListStatusesResponse(statuses=statuses)


class _Snapshots(_Part):
    async def List(  # noqa: N802
        self, request: snapshots_pb2.ListSnapshotsRequest, context: Context
    ) -> AsyncIterator[Message]:
        if request.snapshotter not in self.store.snapshots:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "snapshotter not loaded")
        for key, (parent, labels) in self.store.snapshots[request.snapshotter].items():
            kind = self.store.kinds.get(key, snapshots_pb2.COMMITTED)
            info = snapshots_pb2.Info(name=key, parent=parent, kind=kind, labels=labels)
            yield snapshots_pb2.ListSnapshotsResponse(info=[info])

    async def Usage(self, request: snapshots_pb2.UsageRequest, context: Context) -> Message:  # noqa: N802
        self.store.usage_calls.append(request.key)
        if request.key in self.store.gone:
            await context.abort(grpc.StatusCode.NOT_FOUND, "snapshot does not exist")
        if request.key in self.store.broken:
            await context.abort(grpc.StatusCode.UNKNOWN, "input/output error")
        return snapshots_pb2.UsageResponse(
            size=self.store.sizes.get(request.key, 8192), inodes=self.store.inodes.get(request.key, 3)
        )


class _Containers(_Part):
    async def List(self, _request: Message, _context: Context) -> Message:  # noqa: N802
        answer = containers_pb2.ListContainersResponse()
        for name, key in self.store.containers.items():
            image = self.store.container_images.get(name, "")
            answer.containers.add(id=name, snapshotter="overlayfs", snapshot_key=key, image=image)
        return answer


class _Leases(_Part):
    async def List(self, _request: Message, _context: Context) -> Message:  # noqa: N802
        leases = [leases_pb2.Lease(id=name, labels=labels) for name, (labels, _) in self.store.leases.items()]
        return leases_pb2.ListResponse(leases=leases)

    async def ListResources(  # noqa: N802
        self, request: leases_pb2.ListResourcesRequest, _context: Context
    ) -> Message:
        held = [leases_pb2.Resource(type=kind, id=name) for kind, name in self.store.leases[request.id][1]]
        return leases_pb2.ListResourcesResponse(resources=held)


class _Namespaces(_Part):
    async def List(self, _request: Message, _context: Context) -> Message:  # noqa: N802
        names = [namespaces_pb2.Namespace(name=name) for name in ("k8s.io", *self.store.others)]
        return namespaces_pb2.ListNamespacesResponse(namespaces=names)


@pytest.fixture
def store() -> Store:
    """Return a store with two images on one base.

    Blobs have 1000, 500 and 300 bytes; each snapshot has 8192 bytes and 3 inodes.
    """
    store = Store()
    store.image("a", "base", "a1")
    store.image("b", "base", "b1")
    return store


@pytest.fixture
async def client(socket: Path, store: Store, connection: RuntimeConnection) -> AsyncIterator[ContainerdClient]:
    async with serving(socket, *FakeContainerd(store).handlers()):
        yield ContainerdClient(connection)
