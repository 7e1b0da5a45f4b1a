"""Credentials of the peer of a unix socket. Source: unix(7), ``SO_PEERCRED``; socket(7), ``SO_PEERGROUPS``."""

from __future__ import annotations

import grp
import pwd
import socket
import struct
from typing import Final, NamedTuple

_CONNECT_WITHIN_S: Final = 1.0
_CREDENTIALS: Final = struct.Struct("=iII")
_SO_PEERGROUPS: Final = 59
_GROUP: Final = struct.Struct("I")
_MAX_GROUPS: Final = 256
"""Python limits the size of a socket option. A peer in more groups counts only as a member of its primary group."""


class Peer(NamedTuple):
    """Credentials of a connecting process when it connected.

    Attributes:
        groups: its primary group and the supplementary groups that the kernel reports.
    """

    pid: int
    uid: int
    groups: frozenset[int]

    @property
    def name(self) -> str:
        """User name of the peer; the UID if the user database has no name."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)


def is_stale_socket(path: str) -> bool:
    """Return whether a socket has no listener, such as after a crash of its process.

    Raises:
        OSError: the socket is inaccessible or does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(_CONNECT_WITHIN_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False


def group_number(name: str) -> int | None:
    """Return the GID of a group; ``None`` if no group has that name. A directory service can block the call."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def read_peer(connection: socket.socket) -> Peer:
    """Return the credentials of a connection's peer.

    Raises:
        OSError: the kernel does not report the credentials.
    """
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS * _GROUP.size)
    except OSError:
        groups = b""
    return Peer(pid, uid, frozenset((gid, *(number for (number,) in _GROUP.iter_unpack(groups)))))
