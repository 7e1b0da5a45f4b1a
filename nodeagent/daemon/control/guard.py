"""The rights of the control API's methods, and the guard that authorises every call.

A method with the right ``READ`` changes nothing; every call of another method is logged with its user.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from nodeagent._proto.control.v1 import control_pb2 as api
from nodeagent.daemon.control.access import Access, access_of
from nodeagent.errors import (
    ConfigError,
    NodeAgentError,
    PassBusyError,
    RuntimeUnavailableError,
    UsageError,
)
from nodeagent.host.peer import group_number
from nodeagent.text import encodable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping

    from google.protobuf.message import Message

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.host.peer import Peer

    Context = grpc.aio.ServicerContext[Message, Message]


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a call. Only root may loosen the configuration or end root's holds and pauses."""

    name: str
    is_root: bool


_UNKNOWN: Final = Caller("?", is_root=False)
CALLER: Final[ContextVar[Caller]] = ContextVar("caller", default=_UNKNOWN)
"""The caller of the method that runs in this context."""

RIGHTS: Final[Mapping[str, Access]] = {
    "Status": Access.READ,
    "Pressure": Access.READ,
    "Plan": Access.READ,
    "Pods": Access.READ,
    "History": Access.READ,
    "Holds": Access.READ,
    "Events": Access.READ,
    "PreviewReload": Access.READ,
    "AddHold": Access.ACT,
    "RemoveHold": Access.ACT,
    "Pause": Access.ACT,
    "Resume": Access.ACT,
    "Trigger": Access.ACT,
    "Reload": Access.ACT,
    "Apply": Access.ACT,
}
"""The right that each method needs. A method that is missing here is refused."""

SOCKET_PREFIX: Final = "unix-abstract:"
_MAX_CALLS_PER_USER: Final = 16
"""Concurrent calls of one user other than root, so that root can always make one."""
_CODES: Final[Mapping[type[NodeAgentError], grpc.StatusCode]] = {
    UsageError: grpc.StatusCode.INVALID_ARGUMENT,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    RuntimeUnavailableError: grpc.StatusCode.UNAVAILABLE,
    PassBusyError: grpc.StatusCode.ABORTED,
}


class Guard:
    """Authorises every call, translates errors into gRPC statuses, and confines a bug to its call."""

    def __init__(self, service: object, context: DaemonContext, peer_of: Callable[[str], Peer | None]) -> None:
        self._service = service
        self._context = context
        self._peer_of = peer_of
        self._calls: Counter[int] = Counter()
        self._naming = asyncio.Lock()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler of every method that has a right; it parses a request after authorising its caller."""
        handlers = {}
        for method in api.DESCRIPTOR.services_by_name["Control"].methods:
            if method.name not in RIGHTS:
                continue
            kind = message_factory.GetMessageClass(method.input_type)
            implementation = getattr(self._service, method.name)
            if method.server_streaming:
                stream = self._stream(method.name, kind, implementation)
                handlers[method.name] = grpc.unary_stream_rpc_method_handler(
                    stream, response_serializer=api.Document.SerializeToString
                )
            else:
                single = self._single(method.name, kind, implementation)
                handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                    single, response_serializer=api.Document.SerializeToString
                )
        return grpc.method_handlers_generic_handler("nodeagent.control.v1.Control", handlers)

    def _single(
        self, name: str, kind: type[Message], method: Callable[[Any, Context], Awaitable[api.Document]]
    ) -> Callable[[bytes, Context], Coroutine[object, object, api.Document]]:
        async def handle(request: bytes, context: Context) -> api.Document:
            with self._counted(await self._authorise(name, context)):
                try:
                    return await method(_parsed(kind, request), context)
                except Exception as error:  # noqa: BLE001 - translated or logged by _refuse
                    return await self._refuse(name, context, error)

        return handle

    def _stream(
        self, name: str, kind: type[Message], method: Callable[[Any, Context], AsyncIterator[api.Document]]
    ) -> Callable[[bytes, Context], AsyncIterator[api.Document]]:
        async def handle(request: bytes, context: Context) -> AsyncIterator[api.Document]:
            with self._counted(await self._authorise(name, context)):
                try:
                    async for each in method(_parsed(kind, request), context):
                        yield each
                except Exception as error:  # noqa: BLE001 - translated or logged by _refuse
                    await self._refuse(name, context, error)

        return handle

    @contextmanager
    def _counted(self, peer: Peer) -> Iterator[None]:
        """Count a call while it is in progress."""
        self._calls[peer.uid] += 1
        try:
            yield
        finally:
            self._calls[peer.uid] -= 1
            if not self._calls[peer.uid]:
                del self._calls[peer.uid]

    async def _authorise(self, name: str, context: Context) -> Peer:
        """Return the caller. Abort a call that is not allowed; log one that changes something."""
        peer = self._peer_of(context.peer().removeprefix(SOCKET_PREFIX))
        settings = self._context.settings.control
        needed = RIGHTS[name]
        if peer is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "caller unknown")
        group, user = (None, "root") if peer.uid == 0 else await self._names(peer, settings.group)
        has = access_of(peer, settings, group)
        if has < needed:
            why = (
                f"it takes root or a member of group {settings.group}"
                if has is Access.NOTHING
                else f"members of group {settings.group} may only read; control.group_may_act = true lets them act"
            )
            self._context.logger.warning("control_refused", method=name, user=user, uid=peer.uid, pid=peer.pid)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{user} may not do that: {why}")
        if peer.uid and self._calls[peer.uid] >= _MAX_CALLS_PER_USER:
            message = f"{user} has {_MAX_CALLS_PER_USER} calls in progress; retry when one has finished"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        if needed is Access.ACT:
            self._context.logger.info("control_request", method=name, user=user, uid=peer.uid, pid=peer.pid)
        CALLER.set(Caller(user, is_root=peer.uid == 0))
        return peer

    async def _names(self, peer: Peer, group: str) -> tuple[int | None, str]:
        """Return the group's id and the caller's user name; the name service may be remote and slow."""
        async with self._naming:  # one thread at most, even if the name service hangs
            return await asyncio.to_thread(lambda: (group_number(group), peer.name))

    async def _refuse(self, name: str, context: Context, error: Exception) -> NoReturn:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if isinstance(error, NodeAgentError):
            code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
            await context.abort(code or grpc.StatusCode.FAILED_PRECONDITION, encodable(str(error)))
        self._context.logger.error("control_failed", method=name, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, f"internal error, see the agent's log: {error!r}")


def _parsed(kind: type[Message], request: bytes) -> Message:
    try:
        return kind.FromString(request)
    except DecodeError as error:
        raise UsageError(f"cannot parse request: {error}") from error
