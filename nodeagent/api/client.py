"""Client of the control API: HTTP/1.1 over the unix socket. To keep commands fast, it imports no document types."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from nodeagent import __version__
from nodeagent.api.operations import OPERATIONS, Operation, ProblemType, path_variables
from nodeagent.config.paths import read_socket_path
from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError, UsageError
from nodeagent.host.sockets import read_peer
from nodeagent.http_exchange import HttpExchange, HttpProtocolError, SocketResponse, TruncatedResponseError
from nodeagent.parsing import parse_json
from nodeagent.text import encodable, escape

if TYPE_CHECKING:
    from os import PathLike


ANSWER_WITHIN_S: Final = 30.0
_PROBE_WITHIN_S: Final = 5.0
_CONNECT_WITHIN_S: Final = 2
_DEFAULT_GROUP: Final = "nodeagent"
_TIME_VALUE: Final = struct.Struct("ll")
_PROBLEM: Final = b'{"problem": '
"""Start of the last line of a failed stream, which contains a problem document."""
_UNRESERVED: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
"""Characters that are never percent-encoded in a URL. Source: RFC 3986, section 2.3."""


class DaemonUnavailableError(NodeAgentError):
    """The daemon does not respond on the control socket."""


class DaemonAbsentError(DaemonUnavailableError):
    """No daemon listens on the control socket: the socket does not exist, or refuses connections."""


class DaemonRefusedError(NodeAgentError):
    """The daemon denies this user access."""


class ControlClient:
    """Client of the daemon on a control socket. Each request uses a new connection."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Set the path of the control socket; the first request connects."""
        self._path = os.fspath(path)

    def probe(self) -> None:
        """Check that a daemon is listening.

        Raises:
            DaemonAbsentError: no daemon is listening.
            DaemonUnavailableError: a daemon is listening but accepts no connection.
            DaemonRefusedError: this user may not connect, or the daemon is run neither by root nor by this user.
        """
        _connect(self._path).close()

    def call(
        self,
        name: str,
        fields: Mapping[str, object] | None = None,
        *,
        within_s: float = ANSWER_WITHIN_S,
    ) -> str:
        """Return the document of an operation's response, as JSON.

        Args:
            name: name of the operation.
            fields: fields of the request.
            within_s: time limit of each read, in seconds.

        Raises:
            DaemonAbsentError: no daemon is listening.
            DaemonUnavailableError: the daemon closed the connection.
            DaemonRefusedError: this user has no access.
            UsageError: the daemon rejects the request.
            RuntimeUnavailableError: the container runtime is unavailable.
            PassBusyError: another pass is running.
            NodeAgentError: the operation failed, or the response is not from a compatible daemon.
        """
        with self._exchange(name, fields or {}, within_s) as parts:
            return b"".join(parts).decode()

    def stream(self, name: str, fields: Mapping[str, object] | None = None) -> Iterator[str]:
        """Yield the documents of a streaming operation as they arrive.

        Raises:
            NodeAgentError: see ``call``.
        """
        with self._exchange(name, fields or {}, None) as parts:
            rest = b""
            for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line.startswith(_PROBLEM):
                        raise _error(_object(line)["problem"])
                    yield line.decode()

    def _unsupported(self, name: str) -> str:
        """Return the error text for an operation unknown to the daemon, with the daemon's version."""
        try:
            version = _object(self.call("Status").encode())["agent"]["version"] if name != "Status" else "unknown"
        except (NodeAgentError, KeyError, TypeError):
            version = "unknown"
        return (
            f"daemon version {version} does not support {name}, command version {__version__} does; restart the daemon"
        )

    @contextmanager
    def _exchange(
        self,
        name: str,
        fields: Mapping[str, object],
        within_s: float | None,
    ) -> Iterator[Iterator[bytes]]:
        """Send a request; provide the body of a successful response in parts. Errors are those of ``call``."""
        operation = OPERATIONS[name]
        target, body = encode_request(operation, fields)
        with _responding(self._path, (operation.method, target, body), within_s) as response:
            if response.status in (404, 405):
                raise NodeAgentError(self._unsupported(name))
            if response.status != 200:
                raise _error(_object(b"".join(response.parts())))
            yield response.parts()


def probe(target: str) -> int:
    """Print the daemon's response to a probe of the container; return the exit code: 0 if the status is 200."""
    try:
        with _responding(read_socket_path(None) or "", ("GET", target, b""), _PROBE_WITHIN_S) as response:
            text = b"".join(response.parts()).decode(errors="replace")
    except NodeAgentError as error:
        sys.stdout.write(f"{escape(str(error))}\n")
        return 1
    sys.stdout.write(text)
    return int(response.status != 200)


@contextmanager
def _responding(
    path: str,
    request: tuple[str, str, bytes],
    within_s: float | None,
) -> Iterator[SocketResponse]:
    """Send a request over a new connection; provide the response. Errors are those of ``ControlClient.call``.

    ``request`` is method, target and body.
    """
    exchange, responded = HttpExchange(), False
    method, target, body = request
    with _connect(path) as connection:
        connection.settimeout(within_s)
        try:
            headers = ("Host", "localhost"), ("Connection", "close")
            _send(connection, exchange.encode(method, target, headers, body))
            response = SocketResponse(connection, exchange)
            responded = True
            yield response
        except TimeoutError as error:
            raise NodeAgentError(f"{path}: no response within {within_s:g} s") from error
        except OSError as error:
            raise DaemonUnavailableError(f"{path}: connection to the daemon lost: {error.strerror or error}") from error
        except TruncatedResponseError as error:
            lost = "connection to the daemon lost" if responded else "the daemon closed the connection"
            raise DaemonUnavailableError(f"{path}: {lost}") from error
        except HttpProtocolError as error:
            raise NodeAgentError(
                f"{path}: no HTTP response ({error}); a daemon of version 0.1 may be running: restart the daemon"
            ) from error


def encode_request(operation: Operation, fields: Mapping[str, object]) -> tuple[str, bytes]:
    """Return the request target and the body of a request; false values, the defaults, are omitted.

    Raises:
        UsageError: a text is not UTF-8.
    """
    for key, value in fields.items():
        if isinstance(value, str) and encodable(value) != value:
            raise UsageError(f"invalid request: {key} is not UTF-8")
    rest = {key: value for key, value in fields.items() if value not in ("", 0, False, None)}
    path = operation.path
    for each in path_variables(path):
        path = path.replace(f"{{{each}}}", _quote(rest.pop(each, "")))
    if operation.body_bytes:
        return path, json.dumps(rest).encode()
    query = "&".join(
        f"{key}={_quote(str(value).lower() if isinstance(value, bool) else value)}" for key, value in rest.items()
    )
    return (f"{path}?{query}" if query else path), b""


def _quote(value: object) -> str:
    """Return a value with all characters invalid in a URL percent-encoded."""
    return "".join(chr(each) if each in _UNRESERVED else f"%{each:02X}" for each in str(value).encode())


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # not settimeout: a non-blocking connect to a full backlog fails immediately
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME_VALUE.pack(_CONNECT_WITHIN_S, 0))
        connection.connect(path)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME_VALUE.pack(0, 0))
    except BlockingIOError as error:
        connection.close()
        raise DaemonUnavailableError(
            f"{path}: connection not accepted by the daemon in {_CONNECT_WITHIN_S} s"
        ) from error
    except PermissionError as error:
        connection.close()
        raise DaemonRefusedError(
            f"cannot connect to control socket {path}: permission denied: {_required_access(path)}"
        ) from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        connection.close()
        raise DaemonAbsentError(
            f"no agent listening on control socket {path}; check it with: systemctl status nodeagent"
        ) from error
    except OSError as error:
        connection.close()
        raise DaemonUnavailableError(f"{path}: {error.strerror or error}") from error
    owner = read_peer(connection).uid  # of the process that called listen(): root, or the user of this process
    if owner not in (0, os.geteuid(), os.getuid()):
        connection.close()
        raise DaemonRefusedError(
            f"{path}: uid {owner} is listening, not root; check control.socket: nodeagent config show --effective"
        )
    return connection


def _send(connection: socket.socket, data: bytes) -> None:
    """Send a request. A lost connection is ignored: a server can respond with an error before it reads the body."""
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError as error:
        raise NodeAgentError(f"the daemon's response is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise NodeAgentError("the daemon's response is not a JSON object")
    return found


def _error(problem: Mapping[str, Any]) -> NodeAgentError:
    """Return the error of a problem document."""
    detail = str(problem.get("detail") or problem.get("title") or problem)
    kinds: dict[object, type[NodeAgentError]] = {
        ProblemType.ACCESS: DaemonRefusedError,
        ProblemType.USAGE: UsageError,
        ProblemType.BUSY: PassBusyError,
        ProblemType.RUNTIME: RuntimeUnavailableError,
    }
    return kinds.get(problem.get("type"), NodeAgentError)(detail)


def _required_access(path: str) -> str:
    """Return the users with access to a control socket, and the command that grants access, as text."""
    group = _DEFAULT_GROUP
    for each, mode in ((path, stat.S_IWGRP), (os.path.dirname(path), stat.S_IXGRP)):  # noqa: PTH120 - pathlib is slow
        try:
            found = os.stat(each)  # noqa: PTH116
        except OSError:  # no access to the directory of the socket
            continue
        if not (found.st_gid and found.st_mode & mode):
            return "only root has access; use sudo"
        import grp  # noqa: PLC0415 - needed only after a refusal

        with suppress(KeyError):
            group = grp.getgrgid(found.st_gid).gr_name
        break
    return (
        f"only root and members of group {group} have access; use sudo, or 'usermod -aG {group} {user_name()}' and log "
        "in again"
    )


def user_name() -> str:
    """Return the name of the user of this process; the uid without a name."""
    import getpass  # noqa: PLC0415 - needed only after a refusal

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
