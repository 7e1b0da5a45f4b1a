"""gRPC server of a simulated node on a unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, Self

import grpc
import grpc.aio

from nodeagent._proto.containerd.services.containers.v1 import containers_pb2
from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.leases.v1 import leases_pb2
from nodeagent._proto.containerd.services.namespaces.v1 import namespaces_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent._proto.runtime.v1 import api_pb2
from tests.sim.containerd import ContainerdServices
from tests.sim.cri import ImageService, RuntimeService, image_methods, runtime_methods
from tests.sim.faults import Call, Faults
from tests.sim.messages import Messages
from tests.sim.profiles import PROFILES, Profile
from tests.sim.serving import service_handler
from tests.sim.store import RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from types import TracebackType

    from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
    from google.protobuf.message import Message

    from tests.sim.node import SimNode

    Context = grpc.aio.ServicerContext[Message, Message]

GC_DELAY_S: Final = 0.05
_SOCKET_PATH_BYTES: Final = 107
_CRI_PACKAGE: Final = "runtime.v1"
_NAMESPACE_KEY: Final = "containerd-namespace"
_LEASE_KEY: Final = "containerd-lease"
_WITHOUT_NAMESPACE: Final = frozenset({"Namespaces"})
_TARGET_FIELDS: Final = ("container_id", "pod_sandbox_id", "image", "name", "digest", "key", "id")
_SERVICES: Final[dict[str, ServiceDescriptor]] = {
    service.full_name: service
    for module in (
        api_pb2,
        containers_pb2,
        content_pb2,
        images_pb2,
        leases_pb2,
        namespaces_pb2,
        snapshots_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
}


class SimServer:
    """Async context manager that serves a simulated node; the server is bound to the event loop of ``__aenter__``.

    Attributes:
        node: state of the node; tests may change it at any time.
        faults: injected faults.
        profile: simulated runtime version.
        socket: path of the socket; ``endpoint`` is the URL of that path.
    """

    def __init__(
        self,
        node: SimNode,
        socket: Path | str,
        *,
        profile: str | Profile = "1.7",
        containerd_api: bool | None = None,
        gc_delay_s: float | None = GC_DELAY_S,
    ) -> None:
        """Create a server without starting it.

        Args:
            node: state of the node.
            socket: path of the socket, at most 107 bytes.
            profile: key of ``PROFILES``, or a custom profile.
            containerd_api: overrides ``containerd_api`` of the profile.
            gc_delay_s: delay of the asynchronous garbage collection after a removal; ``None`` disables it, so that
                only synchronous removals and ``node.collect_garbage`` free bytes.

        Raises:
            ValueError: the path exceeds the maximum length of a socket path.
        """
        self.node = node
        self.socket = Path(socket)
        if len(str(self.socket).encode()) > _SOCKET_PATH_BYTES:
            raise ValueError(f"{self.socket}: longer than the maximum of a socket path ({_SOCKET_PATH_BYTES} bytes)")
        self.profile = PROFILES[profile] if isinstance(profile, str) else profile
        self._containerd_api = self.profile.containerd_api if containerd_api is None else containerd_api
        self._gc_delay_s = gc_delay_s
        self._collection: asyncio.TimerHandle | None = None
        self._server: grpc.aio.Server | None = None
        methods = [method for service in _SERVICES.values() for method in service.methods]
        self.faults = Faults(map(_log_name, methods))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def endpoint(self) -> str:
        """URL of the socket."""
        return f"unix://{self.socket}"

    @property
    def calls(self) -> list[Call]:
        """Log of all received calls, in order."""
        return self.faults.calls

    async def start(self) -> None:
        """Start listening; the state of the node is unchanged."""
        if self._server is not None:
            return
        self.socket.unlink(missing_ok=True)
        self._server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        self._server.add_generic_rpc_handlers(tuple(self._handlers()))
        self._server.add_insecure_port(self.endpoint)
        await self._server.start()

    async def stop(self) -> None:
        """Remove the socket and abort all calls, as a kill of the runtime does; :meth:`start` restarts the server."""
        server, self._server = self._server, None
        if self._collection is not None:
            self._collection.cancel()
            self._collection = None
        if server is not None:
            await server.stop(None)
            self.socket.unlink(missing_ok=True)

    async def restart(self) -> None:
        """Stop and start the server."""
        await self.stop()
        await self.start()

    def _handlers(self) -> Iterator[grpc.GenericRpcHandler[object, object]]:
        messages = Messages(self.node, self.profile)
        runtime = RuntimeService(self.node, self.profile, messages)
        runtime.list_containers(api_pb2.ListContainersRequest())  # fills the message cache before the first call
        services = {
            f"{_CRI_PACKAGE}.RuntimeService": runtime_methods(runtime, streams=self.profile.streams_lists),
            f"{_CRI_PACKAGE}.ImageService": image_methods(
                ImageService(self.node, self.profile, messages), streams=self.profile.streams_lists
            ),
        }
        if self._containerd_api:
            services |= ContainerdServices(self.node, self.profile).methods()
        for name, methods in services.items():
            service = _SERVICES[name]
            served = {
                method: self._served(service.methods_by_name[method], implementation)
                for method, implementation in methods.items()
            }
            yield service_handler(service, SimpleNamespace(**served))

    def _served(self, method: MethodDescriptor, implementation: Callable[..., object]) -> Callable[..., object]:
        """Return the handler of an RPC with call log, faults, error statuses and garbage collection after removals."""
        name, in_namespace = _log_name(method), method.containing_service.file.package != _CRI_PACKAGE
        needs_namespace = in_namespace and method.containing_service.name not in _WITHOUT_NAMESPACE

        def run(request: Message, context: Context) -> object:
            if not in_namespace:
                return implementation(request)
            headers = dict(context.invocation_metadata() or ())
            namespace = headers.get(_NAMESPACE_KEY, "")
            if needs_namespace and not namespace:
                raise RefusedError("FAILED_PRECONDITION", "namespace is required: failed precondition")
            if method.client_streaming:
                return implementation(request, namespace, headers.get(_LEASE_KEY, ""))
            return implementation(request, namespace)

        async def unary(request: Message, context: Context) -> object:
            call = Call(name, _target(request))
            async with _refusals(context):
                await self.faults.enter(call)
                result = self.faults.altered(call, run(request, context))
                self._collect_later()
                await self.faults.leave(call)
                return result

        async def streamed(request: Message, context: Context) -> AsyncGenerator[object, None]:
            call = Call(name, _target(request))
            async with _refusals(context):
                await self.faults.enter(call)
                async for item in _each(run(request, context)):
                    yield self.faults.altered(call, item)
                await self.faults.leave(call)

        return streamed if method.server_streaming else unary

    def _collect_later(self) -> None:
        """Schedule one garbage collection for all removals until it runs; none if no removal can have left garbage."""
        if self._gc_delay_s is None or self._collection is not None or not self.node.store.collection_due:
            return
        self._collection = asyncio.get_running_loop().call_later(self._gc_delay_s, self._collect)

    def _collect(self) -> None:
        self._collection = None
        if self.node.store.collection_due:
            self.node.store.collect()


@asynccontextmanager
async def _refusals(context: Context) -> AsyncGenerator[None, None]:
    """Abort the call with the gRPC status of a RefusedError that the block raises."""
    try:
        yield
    except RefusedError as refused:
        await context.abort(grpc.StatusCode[refused.status], refused.detail)


def _log_name(method: MethodDescriptor) -> str:
    """Return the name of a method in the call log; for containerd's own API, it includes the service."""
    service = method.containing_service
    return method.name if service.file.package == _CRI_PACKAGE else f"{service.name}.{method.name}"


def _target(request: Message) -> str:
    """Return the id, reference or name in a request or its filter; empty if the request has none of these fields."""
    known = request.DESCRIPTOR.fields_by_name
    for field in _TARGET_FIELDS:
        if field in known:
            value = getattr(request, field)
            if isinstance(value, images_pb2.Image):
                return value.name
            return value.image if isinstance(value, api_pb2.ImageSpec) else str(value)
    return getattr(getattr(request, "filter", None), "id", "")


async def _each(items: object) -> AsyncGenerator[object, None]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    elif isinstance(items, Iterable):
        for item in items:
            yield item
