"""Request that a command sends to the daemon before its imports.

The daemon observes the node for about as long as the command imports its modules. The client of the control API takes
the connection later; it sends the request itself if there is none.
"""

from __future__ import annotations

import _socket  # socket imports enum and selectors, which take longer than the request
import os
import sys

from nodeagent.config.socket_path import has_settings, read_socket_path
from nodeagent.errors import ConfigError

_connections: dict[tuple[str, str], int] = {}
"""Descriptors by path of the socket and request target."""


def send(target: str) -> None:
    """Send a GET request to the daemon of the default configuration; every failure is left to the client.

    With settings in the environment the command reads the node itself, and nothing is sent.

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
        connection.setblocking(False)  # connecting does not wait for a daemon with a full backlog
        connection.connect(path)
        if not is_trusted(listener_uid(connection)):
            raise PermissionError
        connection.send(request_head("GET", target, 0))
        connection.setblocking(True)
    except (OSError, ValueError):  # ValueError: a path with a null character
        connection.close()
    else:
        _connections[path, target] = connection.detach()


def take(path: str, target: str) -> int | None:
    """Return the descriptor of the connection with that request and forget it; ``None`` if none was sent."""
    return _connections.pop((path, target), None)


def listener_uid(connection: _socket.socket) -> int:
    """Return the user of the process that called listen(). Source: unix(7), ``SO_PEERCRED``: pid, uid and gid."""
    return int.from_bytes(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)[4:8], sys.byteorder)


def is_trusted(uid: int) -> bool:
    """Return whether a daemon of a user may receive requests: one of root or of this user."""
    return uid in (0, os.geteuid(), os.getuid())


def request_head(method: str, target: str, body_bytes: int) -> bytes:
    """Return the head of a request, whose connection the server closes after its response."""
    lines = f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {body_bytes}", "Connection: close"
    return "\r\n".join((*lines, "\r\n")).encode()
