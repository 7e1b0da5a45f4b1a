"""Who is at the other end of a local socket. Source: unix(7), ``SO_PEERCRED``; socket(7), ``SO_PEERGROUPS``."""

from __future__ import annotations

import grp
import pwd
import socket
import struct
from dataclasses import dataclass
from typing import Final

_CONNECT_WITHIN_S: Final = 1.0
_CREDENTIALS: Final = struct.Struct("3i")
_SO_PEERGROUPS: Final = 59
_GROUP: Final = struct.Struct("I")
_MOST_GROUPS: Final = 256
"""Python reads so much of a socket's option. Who is in more groups counts as in the own group only."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, as it was then.

    Attributes:
        groups: its own group and its further ones, as far as they could be told.
    """

    pid: int
    uid: int
    groups: frozenset[int]

    @property
    def name(self) -> str:
        """The user's name, or number where it has none."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)


def nobody_listens(path: str) -> bool:
    """Return whether a socket was left behind by a process that is gone.

    Raises:
        OSError: that cannot be told.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(_CONNECT_WITHIN_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False


def group_number(name: str) -> int | None:
    """Return the number of a group; ``None`` if no group has that name. It blocks where a directory service answers."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def read_peer(connection: socket.socket) -> Peer:
    """Return who connected.

    Raises:
        OSError: the kernel does not tell.
    """
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        told = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS * _GROUP.size)
    except OSError:
        told = b""
    return Peer(pid, uid, frozenset((gid, *(number for (number,) in _GROUP.iter_unpack(told)))))
