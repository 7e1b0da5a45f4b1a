"""Connection to the runtime's socket: calls with deadlines, concurrent calls, and errors with a hint for the operator.

After an error or a cancellation of concurrent calls, all others are cancelled and awaited, since the connection may be
closed next.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

import grpc.aio
from google.protobuf.message import Message

from nodeagent.errors import (
    ConfigError,
    RuntimeNotFoundError,
    RuntimeRequestError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    RuntimeUnsupportedError,
)
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.settings.settings import Settings


CallObserver = Callable[[str, float, str], None]
Metadata = Sequence[tuple[str, str]]


Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

READ_DEADLINE_S = 10.0
CONTAINERD_SERVICES = "/containerd.services."
K3S_SOCKET = "run/k3s/containerd/containerd.sock"
CONTAINERD_SOCKET = "run/containerd/containerd.sock"
KNOWN_SOCKETS = (
    K3S_SOCKET,  # also the socket of rke2
    "run/k0s/containerd.sock",
    "var/snap/microk8s/common/run/containerd.sock",
    CONTAINERD_SOCKET,
    "run/crio/crio.sock",
)
"""Known sockets in search order.

Sockets of distributions precede containerd's default socket, which on nodes of these distributions is Docker's socket.
"""

MAX_ANSWER_BYTES = 256 << 20
"""Maximum size of a message from the runtime; a list of 20,000 containers with 4 KiB of labels each has 90 MiB."""

# By default grpc sends the percent-encoded path as authority, which some servers reject.
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a reopened channel must not continue the back-off of the closed channel
)
_NEVER_SENT = ("failed to connect", "no such file", "connection refused", "permission denied")


class Method(Record, Generic[Request, Response], eq=False):
    """One remote method.

    Attributes:
        path: ``/package.Service/Method`` as on the wire.
        request: request message.
        response: response message, single or streamed.
        deadline_s: default deadline of the whole call in seconds; ``None`` for no deadline.
        changes: whether the method changes state, so that the effect is unknown if the response is lost.
    """

    path: str
    request: type[Request]
    response: type[Response]
    deadline_s: float | None = READ_DEADLINE_S
    changes: bool = False

    @property
    def name(self) -> str:
        """Name in errors, deadlines and metrics: ``ListImages`` of CRI, ``images.List`` of a service of containerd."""
        service, _, name = self.path.rpartition("/")
        return f"{service.split('.')[2]}.{name}" if service.startswith(CONTAINERD_SERVICES) else name


class RuntimeConnection:
    """A channel to one unix socket, opened by the first call and reopened automatically after a runtime restart.

    The connection is bound to the event loop of its first call. Use the connection as an async context manager, or call
    :meth:`close`.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        deadlines: Mapping[str, float] | None = None,
        observer: CallObserver | None = None,
    ) -> None:
        """Create a connection without opening it.

        Args:
            endpoint: ``unix:///path`` or an absolute path.
            deadlines: deadlines in seconds by method name, such as ``RemoveImage``, which replace the default deadline.
            observer: called after every call with method name, seconds and gRPC status name.

        Raises:
            ConfigError: the endpoint is not a unix socket.
        """
        self.socket = _socket_path(endpoint)
        self.endpoint = f"unix://{self.socket}"
        self._deadlines = dict(deadlines or {})
        self._observer = observer
        self._channel: grpc.aio.Channel | None = None
        self._unary: dict[str, grpc.aio.UnaryUnaryMultiCallable[Message, Message]] = {}
        self._stream: dict[str, grpc.aio.UnaryStreamMultiCallable[Message, Message]] = {}
        self._answer_bytes: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; calls in progress fail. A later call opens a new channel."""
        channel, self._channel = self._channel, None
        self._unary.clear()
        self._stream.clear()
        if channel is not None:
            await channel.close(None)

    async def unary(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        target: str = "",
        deadline_s: float | None = None,
        metadata: Metadata | None = None,
    ) -> Response:
        """Call a method with a single response.

        Args:
            method: path and message types of the call.
            request: the request message.
            target: id or reference of the affected object, for the error text.
            deadline_s: deadline in seconds, which overrides the configured and the default deadline.
            metadata: request headers.

        Raises:
            RuntimeUnavailableError: no connection, or connection lost; the text states an unknown effect.
            RuntimeTimeoutError: deadline exceeded.
            RuntimeNotFoundError: the target is absent.
            RuntimeUnsupportedError: the server does not implement the method.
            RuntimeRequestError: any other error of the server.
        """
        rpc = self._unary.get(method.path)
        if rpc is None:
            rpc = self._unary[method.path] = self._open().unary_unary(
                method.path, method.request.SerializeToString, self._decoder(method)
            )
        timeout_s = self.deadline_s(method) if deadline_s is None else deadline_s
        with self._watched(method, target):
            response: Message = await rpc(request, timeout=timeout_s, metadata=metadata, wait_for_ready=False)
        return response  # type: ignore[return-value]  # the deserialiser is this method's own

    async def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        target: str = "",
        metadata: Metadata | None = None,
    ) -> AsyncGenerator[Response, None]:
        """Yield the responses of a streaming method; the deadline is for the whole stream. Raises as :meth:`unary`.

        Close the iterator (``contextlib.aclosing``) if not exhausted, to cancel the call.
        """
        rpc = self._stream.get(method.path)
        if rpc is None:
            rpc = self._stream[method.path] = self._open().unary_stream(
                method.path, method.request.SerializeToString, method.response.FromString
            )
        with self._watched(method, target):
            call = rpc(request, timeout=self.deadline_s(method), metadata=metadata, wait_for_ready=False)
            try:
                async for response in call:
                    yield response  # type: ignore[misc]  # the deserialiser is this method's own
            finally:
                call.cancel()

    def answer_bytes(self, method: Method[Request, Response]) -> int:
        """Return the size in bytes of the last answer of a method with a single response; 0 before the first answer.

        Rejected: ``Message.ByteSize``, which takes as long as the decoding of a large answer.
        """
        return self._answer_bytes.get(method.path, 0)

    def deadline_s(self, method: Method[Request, Response]) -> float | None:
        """Return the deadline in seconds of calls of a method, configured or default; ``None`` for no deadline."""
        return self._deadlines.get(method.name, method.deadline_s)

    def _decoder(self, method: Method[Request, Response]) -> Callable[[bytes], Message]:
        def decode(answer: bytes) -> Message:
            self._answer_bytes[method.path] = len(answer)
            return method.response.FromString(answer)

        return decode

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.endpoint, options=_OPTIONS)
        return self._channel

    @contextmanager
    def _watched(self, method: Method[Request, Response], target: str) -> Iterator[None]:
        """Translate the exceptions of a call and report its status to the observer."""
        started_s, status = time.monotonic(), "OK"
        try:
            yield
        except grpc.aio.AioRpcError as error:
            status = error.code().name
            raise self._translated(method, target, error) from error
        except asyncio.CancelledError as error:
            status = "CANCELLED"
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # grpc reports a channel closed during a call as a cancellation of the task.
            raise RuntimeUnavailableError(
                f"{method.name}: the connection to the container runtime at {self.socket} was closed"
            ) from error
        except GeneratorExit:
            status = "CANCELLED"
            raise
        finally:
            if self._observer is not None:
                self._observer(method.name, time.monotonic() - started_s, status)

    def _translated(
        self, method: Method[Request, Response], target: str, error: grpc.aio.AioRpcError
    ) -> RuntimeRequestError | RuntimeUnavailableError:
        code, detail = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE:
            return RuntimeUnavailableError(_unavailable_text(method.name, target, self.socket, detail, method.changes))
        kind = _ERRORS.get(code, RuntimeRequestError)
        if kind is RuntimeUnsupportedError and "unknown service runtime.v1" in detail:
            detail += " (its CRI plugin is disabled, or supports only CRI versions before v1)"
        if kind is RuntimeTimeoutError and detail == _DEADLINE:
            detail = f"no answer from {self.socket} in time; is the runtime stopped or overloaded?"
        return kind(method.name, target, code.name, detail)


_DEADLINE: Final = "Deadline Exceeded"
"""Error text of grpc after a deadline that the client has set."""
_ERRORS: dict[grpc.StatusCode, type[RuntimeRequestError]] = {
    grpc.StatusCode.NOT_FOUND: RuntimeNotFoundError,
    grpc.StatusCode.DEADLINE_EXCEEDED: RuntimeTimeoutError,
    grpc.StatusCode.UNIMPLEMENTED: RuntimeUnsupportedError,
}


def discover_endpoint(configured: str | None, root: Path = Path("/")) -> str:
    """Return the endpoint of the runtime: the configured endpoint, else the first well-known socket with a listener.

    Without a listener on any socket, the first existing socket is returned, since its runtime may be restarting. A
    socket without permission counts as a socket with a listener, so that the first call reports the missing permission.

    Raises:
        ConfigError: the configured endpoint is not a unix socket.
        RuntimeUnavailableError: no endpoint is configured and no well-known socket exists.
    """
    if configured:
        return f"unix://{_socket_path(configured)}"
    candidates = [root / name for name in KNOWN_SOCKETS]
    existing = [each for each in candidates if _exists(each)]
    if existing:
        return f"unix://{next(filter(_is_served, existing), existing[0])}"
    tried = ", ".join(str(candidate) for candidate in candidates)
    raise RuntimeUnavailableError(
        f"no container runtime found: none of {tried} exists; start the runtime or set runtime.endpoint"
    )


def check_permission(configured: str | None) -> None:
    """Check that this user may connect to the runtime. A runtime that does not listen yet is no error.

    Root always passes: a security module may deny access to a confined process, and permit the access later.

    Raises:
        RuntimeUnavailableError: permission denied.
    """
    if os.geteuid() == 0:
        return
    try:
        path = _socket_path(discover_endpoint(configured))
    except RuntimeUnavailableError:
        return
    if isinstance(_connection_error(path), PermissionError):
        raise RuntimeUnavailableError(_unavailable_text("", "", path, "permission denied", False))


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _is_served(path: Path) -> bool:
    """Return whether a process listens on a socket; a socket file alone may remain from a crashed server."""
    error = _connection_error(str(path))
    return error is None or isinstance(error, PermissionError | BlockingIOError)  # BlockingIOError: full backlog


def _connection_error(path: str) -> OSError | None:
    """Return the error of a connection to a unix socket; ``None`` if the connection succeeds."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        try:
            connection.connect(path)
        except OSError as error:
            return error
    return None


def _socket_path(endpoint: str) -> str:
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix://") else endpoint.removeprefix("unix:")
    if not path.startswith("/"):
        raise ConfigError(f"runtime.endpoint = {endpoint!r}: expected unix:///path/of/a.sock or an absolute path")
    return path


def _unavailable_text(method: str, target: str, socket: str, detail: str, changes: bool) -> str:  # noqa: FBT001 - private
    """Return the error text of an unavailable runtime, with a hint."""
    lowered = detail.lower()
    if not any(phrase in lowered for phrase in _NEVER_SENT):
        object_text = f" of {target}" if target else ""
        effect = f"; effect of {method}{object_text} unknown" if changes else ""
        return f"connection to the container runtime at {socket} lost during {method}{effect}: {detail}"
    if "permission denied" in lowered:
        hint = f"permission denied for user {os.geteuid()}; run as root"
    elif "no such file" in lowered:
        hint = "no such socket; is the runtime running, and is runtime.endpoint correct?"
    elif "connection refused" in lowered:
        hint = "not listening; the runtime is stopped or starting"
    else:
        hint = detail
    return f"cannot reach the container runtime at {socket}: {hint}"


_READ_METHODS: Final = (
    "Version",
    "Status",
    "ListImages",
    "ImageStatus",
    "ImageFsInfo",
    "ListPodSandbox",
    "PodSandboxStatus",
    "ListContainers",
    "ContainerStatus",
    "ListContainerStats",
)
_REMOVE_METHODS: Final = (
    "RemoveImage",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
    "images.Delete",
    "leases.Delete",
)


def configured_connection(
    settings: Settings,
    *,
    read_timeout_s: float | None = None,
    with_removals: bool = False,
    observer: CallObserver | None = None,
) -> RuntimeConnection:
    """Return a connection to the configured endpoint, or to the first well-known socket.

    Args:
        settings: source of the endpoint and of ``runtime.timeout``, the deadline of reading calls.
        read_timeout_s: deadline of reading calls in seconds; ``None`` for the configured deadline.
        with_removals: whether removing calls have ``runtime.removal_timeout`` as deadline. If false, the deadline of
            each method applies: a node shutdown must not wait for the longer deadline of garbage collection.
        observer: called after every call; see ``RuntimeConnection``.

    Raises:
        RuntimeUnavailableError: no endpoint is configured and no well-known socket exists.
        ConfigError: the configured endpoint is not a unix socket.
    """
    read_s = settings.timeout_s if read_timeout_s is None else read_timeout_s
    deadlines = dict.fromkeys(_READ_METHODS, read_s)
    if with_removals:
        deadlines |= dict.fromkeys(_REMOVE_METHODS, settings.removal_timeout_s)
    return RuntimeConnection(discover_endpoint(settings.endpoint or None), deadlines=deadlines, observer=observer)


Item = TypeVar("Item")
Result = TypeVar("Result")

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")

MAX_CALLS = 8


@overload
async def gather_all(first: Awaitable[A], second: Awaitable[B], /) -> tuple[A, B]: ...


@overload
async def gather_all(
    first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], fourth: Awaitable[D], /
) -> tuple[A, B, C, D]: ...


@overload
async def gather_all(
    first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], fourth: Awaitable[D], fifth: Awaitable[E], /
) -> tuple[A, B, C, D, E]: ...


async def gather_all(*calls: Awaitable[Any]) -> tuple[Any, ...]:
    """Return the results of all calls; the first error is raised after the others have been cancelled and ended."""
    tasks = [asyncio.ensure_future(each) for each in calls]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        await _end(tasks)


async def run_bounded(
    call: Callable[[Item], Awaitable[Result]], items: Sequence[Item], limit: int = MAX_CALLS
) -> list[Result]:
    """Return the results of ``call`` in item order, with at most ``limit`` calls at a time.

    The first error is raised after the other calls have been cancelled and ended.
    """
    results: dict[int, Result] = {}
    pending = iter(enumerate(items))

    async def work() -> None:
        for index, item in pending:
            results[index] = await call(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(limit, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        await _end(workers)
    return [results[index] for index in range(len(items))]


async def _end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel the tasks in progress and wait for their end; no effect if all tasks have ended."""
    pending = [each for each in tasks if not each.done()]
    for each in pending:
        each.cancel()
    if pending:
        await asyncio.wait(pending)
