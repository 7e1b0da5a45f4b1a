"""Early request to the daemon, sent before a command imports its modules.

The import takes about as long as the daemon's observation of the node. Later the client of the control API reads the
response from the same connection; without an early request, the client sends the request itself.
"""

from __future__ import annotations

import _socket  # socket imports enum and selectors, which take longer than the request
import os
import sys

from nodeagent.config.socket_path import has_settings, read_socket_path
from nodeagent.errors import ConfigError

_PROBE_WITHIN_S = 5.0
_connections: dict[tuple[str, str], int] = {}
"""File descriptors of connections with a sent request, by socket path and request target."""


def send(target: str) -> None:
    """Send a GET request to the daemon of the default configuration; after a failure, the client sends it again.

    No request is sent if the environment contains settings, since the command then observes the node itself.

    Args:
        target: path of the operation.
    """
    if has_settings(os.environ):
        return
    try:
        path = read_socket_path(None)
        if path is None:
            return
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    except (ConfigError, OSError):
        return
    try:
        connection.setblocking(False)  # no wait for a daemon with a full backlog
        connection.connect(path)
        if not is_trusted(listener_uid(connection)):
            raise PermissionError
        connection.send(request_head("GET", target, 0))
        connection.setblocking(True)
    except (OSError, ValueError):  # ValueError: a path with a null character
        connection.close()
    else:
        _connections[path, target] = connection.detach()


def probe(target: str) -> int:
    """Print the daemon's response to a probe of the container; return the exit code: 0 if the status is 200."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(_PROBE_WITHIN_S)
    response = b""
    try:
        connection.connect(read_socket_path(None) or "")
        connection.send(request_head("GET", target, 0))
        while part := connection.recv(4096):
            response += part
    except (ConfigError, OSError) as error:
        response = str(error).encode()
    os.write(1, response.rpartition(b"\r\n\r\n")[2])
    return int(not response.startswith(b"HTTP/1.1 200 "))


def take(path: str, target: str) -> int | None:
    """Return and discard the file descriptor of the connection with this request; ``None`` if it was not sent."""
    return _connections.pop((path, target), None)


def listener_uid(connection: _socket.socket) -> int:
    """Return the UID of the process that called listen(). Source: unix(7), ``SO_PEERCRED``: pid, uid and gid."""
    return int.from_bytes(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)[4:8], sys.byteorder)


def is_trusted(uid: int) -> bool:
    """Return whether a daemon with this UID may receive requests: root, or the user of this process."""
    return uid in (0, os.geteuid(), os.getuid())


def request_head(method: str, target: str, body_bytes: int) -> bytes:
    """Return the request line and headers of a request; the server closes the connection after its response."""
    lines = f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {body_bytes}", "Connection: close"
    return "\r\n".join((*lines, "\r\n")).encode()
