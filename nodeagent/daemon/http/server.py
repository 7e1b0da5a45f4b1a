"""The HTTP server: a listening socket, the credentials of clients, and the admission of connections.

Admission of connections: limits per user and in total, with capacity reserved for root.

A server that is full sheds the connection that has been sending its request for the longest time: a complete request
arrives within milliseconds, so an unfinished request is the most likely to be slow or hostile. The connection of a
complete request is never shed. The bodies of all users but root share one limit: above it, unfinished requests of the
user with the most bytes are shed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nodeagent.daemon.http.connection import HEAD_BYTES, HttpConnection, Receipt, Service, problem
from nodeagent.host.sockets import Peer, is_stale_socket, read_peer
from nodeagent.record import Record

if TYPE_CHECKING:
    import ssl

    from nodeagent.settings.settings import Listen

ROOT: Final = 0
_SMALL_BODY_BYTES: Final = 16 << 10
"""A body up to this size is always received, so that large bodies of one user block no request of another user."""
KeyT = TypeVar("KeyT")


class ConnectionLimits(Record):
    """Limits of one server.

    Attributes:
        total: connections of all users but root.
        per_user: connections of one user but root. Clients over TCP count as one user.
        root: connections of root, in addition to ``total``.
        body_bytes: bytes of bodies received so far for unanswered requests of all users but root; larger than the limit
            of one body.
    """

    total: int
    per_user: int
    root: int
    body_bytes: int = 16 << 20


@dataclass(slots=True)
class _Admitted:
    uid: int | None
    unfinished: bool = True
    body_bytes: int = 0

    @property
    def is_large(self) -> bool:
        """Whether the request can be shed for the body of another request."""
        return self.unfinished and self.body_bytes > _SMALL_BODY_BYTES


class Admission(Generic[KeyT]):
    """The admitted connections of one server, by a key of the caller's choice, in the order of their admission."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """Create an admission without connections."""
        self._limits = limits
        self._admitted: dict[KeyT, _Admitted] = {}

    def __len__(self) -> int:
        """Return the number of admitted connections."""
        return len(self._admitted)

    def admit(self, key: KeyT, uid: int | None) -> tuple[bool, tuple[KeyT, ...]]:
        """Admit a connection within the limits, or in place of a connection that is shed.

        Returns:
            Whether the connection is admitted, and the connections to close in its place, which no longer count.
        """
        shed: list[KeyT] = []
        for pool, limit in self._pools(uid):
            inside = [each for each, admitted in self._admitted.items() if pool(admitted.uid) and each not in shed]
            if len(inside) >= limit:
                oldest = next((each for each in inside if self._admitted[each].unfinished), None)
                if oldest is None:
                    return False, ()
                shed.append(oldest)
        for each in shed:
            del self._admitted[each]
        self._admitted[key] = _Admitted(uid)
        return True, tuple(shed)

    def finish_request(self, key: KeyT) -> None:
        """Record that the request of a connection was received completely; the connection is no longer shed."""
        if key in self._admitted:
            self._admitted[key].unfinished = False

    def receive(self, key: KeyT, size_bytes: int) -> tuple[bool, tuple[KeyT, ...]]:
        """Count the next part of a body; above the limit, shed unfinished requests with large bodies.

        Returns:
            Whether to receive more of the body, and the connections to close in its place, which no longer count.
        """
        own = self._admitted.get(key)
        if own is None:  # the connection was shed before
            return False, ()
        own.body_bytes += size_bytes
        shed: list[KeyT] = []
        if own.uid == ROOT or own.body_bytes <= _SMALL_BODY_BYTES:
            return True, ()
        while self._body_bytes() > self._limits.body_bytes:
            heaviest = max((each.uid for each in self._admitted.values() if each.uid != ROOT), key=self._body_bytes)
            oldest = next((each for each, one in self._admitted.items() if one.uid == heaviest and one.is_large), None)
            if oldest is None or oldest == key:
                return False, tuple(shed)
            shed.append(oldest)
            del self._admitted[oldest]
        return True, tuple(shed)

    def _body_bytes(self, *users: int | None) -> int:
        """Return the total bytes of the bodies of ``users``, or of all users but root."""
        pool = users or {each.uid for each in self._admitted.values()} - {ROOT}
        return sum(each.body_bytes for each in self._admitted.values() if each.uid in pool)

    def release(self, key: KeyT) -> None:
        """Remove a connection; ignore a connection that was shed before."""
        self._admitted.pop(key, None)

    def _pools(self, uid: int | None) -> Iterator[tuple[Callable[[int | None], bool], int]]:
        """Yield whose connections count against each limit, and the limit."""
        if uid == ROOT:
            yield lambda each: each == ROOT, self._limits.root
            return
        yield lambda each: each == uid, self._limits.per_user
        yield lambda each: each != ROOT, self._limits.total


_BACKLOG: Final = 64
_SOCKET_MODE: Final = 0o660
_MOST_REFUSALS: Final = 16
"""Maximum number of refused clients with a pending response; further clients are disconnected immediately."""
_CLOSE_WITHIN_S: Final = 10.0


class Tls(Record):
    """TLS settings of a server.

    Attributes:
        context: server certificate, and CA of the client certificates.
        report: called with the error of a failed handshake.
    """

    context: ssl.SSLContext
    report: Callable[[OSError], None]


class HttpServer:
    """Serves one service on one socket. A failure of one connection never affects another connection."""

    def __init__(self, service: Service, limits: ConnectionLimits) -> None:
        """Create a server that is not listening yet."""
        self._service = service
        self._tls: Tls | None = None
        self._admission: Admission[asyncio.Task[None]] = Admission(limits)
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._refusals = 0
        self._closed = False

    def use_tls(self, tls: Tls) -> None:
        """Set the TLS settings of new connections; they can be replaced while the server is listening."""
        self._tls = tls

    async def start(self, bound: socket.socket) -> None:
        """Listen on a bound socket, which is closed with the server.

        Raises:
            OSError: the socket cannot listen.
        """
        start = asyncio.start_unix_server if bound.family == socket.AF_UNIX else asyncio.start_server
        try:
            self._server = await start(self._serve, sock=bound, limit=HEAD_BYTES, backlog=_BACKLOG)
        except OSError:
            bound.close()
            raise

    def stop_listening(self) -> None:
        """Stop accepting connections; a socket file is kept."""
        if self._server is not None:
            self._server.close()

    async def close(self, *, grace_s: float = 0) -> None:
        """Stop listening and close the connections that are still open after ``grace_s``.

        A handler that does not end within 10 s after its cancellation is abandoned.
        """
        self.stop_listening()
        try:
            if grace_s and self._connections:
                await asyncio.wait(self._connections, timeout=grace_s)
        finally:
            self._closed = True
            for each in tuple(self._connections):
                each.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=_CLOSE_WITHIN_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection in a separate task."""
        task = asyncio.current_task()
        if task is None or self._closed:  # the task of a connection may start after the close
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            peer = _peer(writer)
            admitted, shed = self._admission.admit(task, None if peer is None else peer.uid)
            for each in shed:
                each.cancel()
            receipt = Receipt(partial(self._admission.finish_request, task), partial(self._receive_body, task))
            if self._tls is not None:
                if not admitted:
                    return  # a refused client receives no response, since that would require a handshake
                await self._handshake(writer, self._tls)
            connection = HttpConnection(self._service, reader, writer, peer, receipt)
            if admitted:
                await connection.serve()
            elif self._refusals < _MOST_REFUSALS:
                await self._refuse(connection)
        except asyncio.CancelledError:
            if not task.cancelling():
                raise
        except (OSError, TimeoutError):
            pass  # the client disconnected or was too slow
        finally:
            self._admission.release(task)
            self._connections.discard(task)
            writer.transport.abort()

    async def _handshake(self, writer: asyncio.StreamWriter, tls: Tls) -> None:
        """Encrypt an accepted connection. Until then it has no complete request and can be shed.

        Rejected: the ``ssl`` argument of ``start_server``, since its handshakes precede the limits of connections.

        Raises:
            OSError: the handshake failed or was too slow, or the client disconnected.
        """
        try:
            await writer.start_tls(tls.context, ssl_handshake_timeout=self._service.deadlines.read_s)
        except OSError as error:
            tls.report(error)
            raise

    def _receive_body(self, task: asyncio.Task[None], size_bytes: int) -> bool:
        received, shed = self._admission.receive(task, size_bytes)
        for each in shed:
            each.cancel()
        return received

    async def _refuse(self, connection: HttpConnection) -> None:
        self._refusals += 1
        try:
            await connection.send(problem(HTTPStatus.TOO_MANY_REQUESTS, "too many connections; try again later"))
        finally:
            self._refusals -= 1


def _peer(writer: asyncio.StreamWriter) -> Peer | None:
    """Return the credentials of a client; ``None`` over TCP.

    Raises:
        OSError: the kernel does not report the credentials.
    """
    connection: socket.socket = writer.get_extra_info("socket")
    return read_peer(connection) if connection.family == socket.AF_UNIX else None


def bind(listen: Listen) -> socket.socket:
    """Return a socket bound to an address or path; replace the socket file of a dead process.

    Raises:
        OSError: the address or path cannot be bound.
    """
    if listen.path:
        return _bind_path(listen.path)
    bound = socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((listen.host, listen.port))
    except OSError:
        bound.close()
        raise
    return bound


def _bind_path(path: str) -> socket.socket:
    """Return a socket bound to a path, in place of the socket of a dead process."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(bound.fileno(), _SOCKET_MODE)  # bind derives the file mode from this mode: access is never wider
        try:
            bound.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_stale(path):
                raise
            Path(path).unlink()
            bound.bind(path)
        Path(path).chmod(_SOCKET_MODE)  # the umask must not narrow the mode
    except OSError:
        bound.close()
        raise
    return bound


def _is_stale(path: str) -> bool:
    """Return whether a path is a socket without a listening process."""
    try:
        return Path(path).is_socket() and is_stale_socket(path)
    except OSError:
        return False
