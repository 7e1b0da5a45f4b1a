"""The control server: the control socket, access to its operations, and the translation of errors.

The kernel records the credentials of a caller when it connects. Access is decided on the request line, before a body is
read. The service and its documents are imported with the first request, since most daemons receive no request.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent import errors
from nodeagent.api.operations import OPERATIONS, Access, ProblemType, method_name
from nodeagent.daemon.control.requests import CALLER, Caller, DocumentLines, access_of, run_exclusively
from nodeagent.daemon.http import connection
from nodeagent.daemon.http.connection import Deadlines, Router, Service
from nodeagent.daemon.http.server import ROOT, ConnectionLimits, HttpServer
from nodeagent.host.sockets import Peer, group_number, is_stale_socket
from nodeagent.loops.passes import wait_for_any
from nodeagent.text import encodable

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.control.service import ControlService
    from nodeagent.settings.settings import ControlSettings


class ControlUnavailableError(errors.NodeAgentError):
    """The control socket cannot be created, or another agent is listening on it."""


def open_socket(path: Path, group: str) -> socket.socket:
    """Return the control socket, bound to a path with access for root and a group.

    Only root can connect if the group does not exist or the group of the socket cannot be changed.

    Raises:
        ControlUnavailableError: the directory does not exist, or the path is another agent's socket or not a socket.
        OSError: the socket cannot be created.
    """
    if not path.parent.is_dir():
        raise ControlUnavailableError(f"{path.parent}: no such directory; run systemd-tmpfiles --create")
    _remove_stale_socket(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        os.fchmod(made.fileno(), 0o600)  # bind derives the file mode from this mode, so that access is never wider
        made.bind(str(path))
        number = group_number(group)
        if number is not None and _set_group(path, number):
            path.chmod(0o660)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def refuse_second_agent(path: Path | None) -> None:
    """Raise an error if another agent is listening on the control socket; two agents would both remove and evict.

    A socket without a listener, such as that of a killed agent, is replaced by :func:`open_socket`, which also reports
    a socket that this user cannot access.

    Raises:
        ControlUnavailableError: another agent is running.
    """
    if path is None:
        return
    try:
        if is_stale_socket(str(path)):
            return
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except OSError:  # a listener exists, but accepts no connection
        pass
    raise ControlUnavailableError(
        f"another agent is running: it is listening on control socket {path}; stop it (systemctl stop nodeagent), or "
        "set another control.socket and state.directory"
    )


def socket_users(path: Path, group: str) -> str:
    """Return the users with access to a socket, as text."""
    if os.stat(path).st_mode & stat.S_IWGRP:  # noqa: PTH116 - a file on tmpfs does not block
        return f"root and group {group}"
    why = "cannot change its group" if group_number(group) is not None else "no such group"
    return f"root only, not group {group}: {why}"


def _set_group(path: Path, group: int) -> bool:
    if os.lstat(path).st_gid == group:
        return True
    try:
        os.chown(path, -1, group)
    except OSError:
        return False
    return True


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of a killed agent; any other file is an error."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ControlUnavailableError(f"{path}: not a socket; remove the file or set control.socket")
    try:
        stale = is_stale_socket(str(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ControlUnavailableError(f"{path}: cannot connect to the agent that owns it: {error}") from error
    if not stale:
        raise ControlUnavailableError(f"{path}: another agent is listening")
    path.unlink(missing_ok=True)


LIMITS: Final = ConnectionLimits(total=48, per_user=16, root=16)
JSON_LINES: Final = "application/jsonl"
_DEADLINES: Final = Deadlines(read_s=10.0, answer_s=1000.0, write_s=30.0)
"""A response may take as long as a triggered loop; shorter operations have their own limits."""
_POLL_S: Final = 60.0
_RETRY_S: Final = 30.0
_CLOSE_GRACE_S: Final = 65.0
"""Time limit of the remaining requests after a change of the control settings; a reload takes up to 60 s."""
_LONG: Final = frozenset(
    {
        *("Plan", "Pods", "History", "PreviewReload", "Images", "ImageLayers", "Containers", "PodList", "Explain"),
        *("DiskUsage", "Leaks", "NodeReport", "EvictionPreview", "ShutdownPlan", "ShutdownStatus"),
    }
)
"""Read operations that are cancelled when the client disconnects, since other requests wait for their locks."""
_FIRST_EVENT_WITHIN_S: Final = 0.5
_NAMES_WITHIN_S: Final = 10.0
_PROBLEMS: Final[Mapping[type[errors.NodeAgentError], tuple[HTTPStatus, str]]] = {
    errors.UsageError: (HTTPStatus.BAD_REQUEST, ProblemType.USAGE),
    errors.ConfigError: (HTTPStatus.BAD_REQUEST, ProblemType.USAGE),
    errors.RuntimeTimeoutError: (HTTPStatus.SERVICE_UNAVAILABLE, ProblemType.RUNTIME),
    errors.RuntimeUnavailableError: (HTTPStatus.SERVICE_UNAVAILABLE, ProblemType.RUNTIME),
    errors.PassBusyError: (HTTPStatus.CONFLICT, ProblemType.BUSY),
}


class ControlServer:
    """Listens on the control socket of the settings in force; reopens the socket after a reload that changes them."""

    def __init__(self, context: DaemonContext) -> None:
        """Create a control server that is not listening yet."""
        self._context = context
        self._service: ControlService | None = None
        self._loading = asyncio.Lock()
        self._naming = asyncio.Lock()
        self._closing: set[asyncio.Future[None]] = set()
        self._reported = ""
        self._operations = {(each.path, each.method): name for name, each in OPERATIONS.items()}
        self._http = Service(Router(self._routes()), self._authorise, self._fail, _DEADLINES)

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until the daemon stops; retry if the socket is unavailable."""
        try:
            await self._run(stop)
        finally:
            for each in self._closing:
                each.cancel()
            if self._closing:
                await asyncio.wait(self._closing)

    async def _run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            settings = self._context.settings.control
            if settings.socket is None:
                await self._while_configured(settings, stop)
                continue
            try:
                await self._listen(settings, settings.socket, stop)
            except (ControlUnavailableError, OSError) as error:
                if str(error) != self._reported:
                    self._context.logger.warning("control_unavailable", socket=str(settings.socket), error=str(error))
                self._reported = str(error)
                await wait_for_any(_RETRY_S, stop)

    async def _listen(self, settings: ControlSettings, path: Path, stop: asyncio.Event) -> None:
        server = HttpServer(self._http, LIMITS)
        bound, inode, who = await asyncio.to_thread(_open, path, settings.group)
        await server.start(bound)
        self._context.logger.info("control_listening", socket=str(path), who=who)
        self._reported = ""
        try:
            await self._while_configured(settings, stop)
        finally:
            server.stop_listening()
            with suppress(OSError):
                if os.lstat(path).st_ino == inode:  # another daemon may have replaced the socket
                    path.unlink()  # noqa: ASYNC240 - a file on tmpfs does not block
            if stop.is_set():
                await server.close()
            else:  # the response to a reload over this socket is sent before the close
                closing = asyncio.ensure_future(server.close(grace_s=_CLOSE_GRACE_S))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def _while_configured(self, settings: ControlSettings, stop: asyncio.Event) -> None:
        """Wait until the daemon stops or other control settings are in force."""
        while not stop.is_set() and self._context.settings.control == settings:
            await self._context.wait_while(lambda: self._context.settings.control == settings, _POLL_S, stop)

    # ---- requests

    def _routes(self) -> Mapping[str, connection.Route]:
        routes: dict[str, connection.Route] = {}
        for path in dict.fromkeys(each.path for each in OPERATIONS.values()):
            here = {name: each for name, each in OPERATIONS.items() if each.path == path}
            routes[path] = connection.Route(
                {each.method: partial(self._answer, name) for name, each in here.items()},
                {each.method: each.body_bytes for each in here.values()},
                frozenset(each.method for name, each in here.items() if each.streams or name in _LONG),
            )
        return {**routes, **connection.probe_routes(self._context)}

    async def _authorise(self, request: connection.Request) -> None:
        """Check the access of the caller, set ``CALLER``, and log a request that changes state.

        Raises:
            RefusedRequestError: the caller has no access to the operation.
        """
        method = "GET" if request.method == "HEAD" else request.method
        name, peer = self._operations.get((request.route, method), request.route), request.peer
        if peer is None:  # only clients over TCP have no credentials; this server does not use TCP
            raise connection.RefusedRequestError(
                connection.problem(HTTPStatus.FORBIDDEN, "unknown caller", kind=ProblemType.ACCESS)
            )
        settings = self._context.settings.control
        needed = Access.READ if name in connection.PROBES else OPERATIONS[name].access
        group, user = (None, "root") if peer.uid == ROOT else await self._names(peer, settings.group)
        if (access := access_of(peer, settings, group)) < needed:
            cause = (
                f"access requires root or membership in group {settings.group}"
                if access is Access.NOTHING
                else f"members of group {settings.group} may only read; control.group_may_act = true lets them act"
            )
            self._context.logger.warning("control_refused", method=name, user=user, uid=peer.uid, pid=peer.pid)
            detail = f"{name} denied to {user}: {cause}"
            raise connection.RefusedRequestError(
                connection.problem(HTTPStatus.FORBIDDEN, detail, kind=ProblemType.ACCESS)
            )
        if needed is Access.ACT:
            self._context.logger.info("control_request", method=name, user=user, uid=peer.uid, pid=peer.pid)
        CALLER.set(Caller(user, peer.uid == ROOT))

    async def _names(self, peer: Peer, group: str) -> tuple[int | None, str]:
        """Return the GID of a group and the name of the caller, from a user database that may be remote.

        At most one thread waits for the user database: a lookup holds the lock until it finishes, even if its request
        was cancelled.

        Raises:
            RefusedRequestError: the user database did not answer within 10 s.
        """
        try:
            async with asyncio.timeout(_NAMES_WITHIN_S):
                lookup = asyncio.to_thread(lambda: (group_number(group), peer.name))
                return await run_exclusively(self._naming, lookup)
        except TimeoutError as error:
            detail = f"no answer of the user database within {_NAMES_WITHIN_S:g} s; root has access without it"
            raise connection.RefusedRequestError(connection.problem(HTTPStatus.SERVICE_UNAVAILABLE, detail)) from error

    async def _answer(self, name: str, request: connection.Request) -> connection.Response:
        async with self._loading:
            if self._service is None:
                self._service = (await asyncio.to_thread(_load))(self._context)
        from nodeagent.api.requests import parse_request, request_type  # noqa: PLC0415 - imported with the service

        operation = OPERATIONS[name]
        if operation.streams and request.method == "HEAD":
            return connection.Response(HTTPStatus.OK, media_type=JSON_LINES)
        if both := sorted(request.query.keys() & request.variables.keys()):
            raise errors.UsageError(f"{both[0]}: given in the path and in the query")
        texts = {**request.query, **request.variables}
        fields = parse_request(request_type(name), texts, request.body)
        method = getattr(self._service, method_name(name))
        if not operation.streams:
            return connection.Response(HTTPStatus.OK, (await method(fields)).encode(), connection.JSON)
        lines = DocumentLines(method(fields), partial(self._problem, name))
        await lines.start(None if operation.body_bytes else _FIRST_EVENT_WITHIN_S)
        return connection.Response(HTTPStatus.OK, lines, JSON_LINES)

    def _fail(self, request: connection.Request, error: Exception) -> connection.Response:
        return self._problem(self._operations.get((request.route, request.method), "?"), error)

    def _problem(self, name: str, error: Exception) -> connection.Response:
        if isinstance(error, errors.NodeAgentError):
            found = next((each for kind, each in _PROBLEMS.items() if isinstance(error, kind)), None)
            status, kind = found or (HTTPStatus.CONFLICT, ProblemType.FAILED)
            return connection.problem(status, encodable(str(error)), kind=kind)
        self._context.logger.error("control_failed", method=name, exc_info=error)
        detail = f"this is a bug, see the daemon's log: {error!r}"
        return connection.problem(HTTPStatus.INTERNAL_SERVER_ERROR, encodable(detail), kind=ProblemType.BUG)


def _open(path: Path, group: str) -> tuple[socket.socket, int, str]:
    """Return the control socket, its inode number and its users as text; blocking."""
    bound = open_socket(path, group)
    try:
        return bound, os.stat(path).st_ino, socket_users(path, group)  # noqa: PTH116
    except OSError:
        bound.close()
        raise


def _load() -> type[ControlService]:
    from nodeagent.daemon.control.service import ControlService  # noqa: PLC0415 - imported with the first request

    return ControlService
