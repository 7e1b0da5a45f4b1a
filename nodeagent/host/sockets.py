"""TCP ports with a listener, from the kernel's socket tables.

The listening process is not determined: that requires ``CAP_SYS_PTRACE``, which the unit drops. Listeners are therefore
reported, and are no trace of a kubelet.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_NETWORKS: Final = ("proc/1/net", "proc/self/net")
"""Network directories of process 1 and of the agent, normally of the same network namespace."""

_EVERY_S: Final = 60.0
_HEADER: Final = b"  sl "
LISTEN: Final = b"0A"
_READ_BYTES: Final = 16384
_MAX_SOCKETS: Final = 400_000


class ListenerReader:
    """Repeated readings of the listeners on given ports.

    For each reading the kernel walks its complete table of connections, empty slots included: 3.4 ms were measured for
    262144 slots. Therefore the tables are read once a minute.
    """

    def __init__(self, root: Path, ports: Iterable[int], uids: frozenset[int]) -> None:
        """Create a reader of the listeners.

        Args:
            root: parent of ``proc``.
            ports: ports to report.
            uids: users whose listeners count.
        """
        self._directories = tuple(str(root / each) for each in _NETWORKS)
        self._uids = uids
        self._ports = {f"{port:04X}".encode(): port for port in ports}
        self._read_s: float | None = None
        self._found: tuple[int, ...] = ()

    def read(self, now_s: float) -> tuple[int, ...]:
        """Return the ports with a listener in the readable tables, ascending. Blocks.

        Args:
            now_s: current monotonic time in seconds.
        """
        if self._read_s is None or not 0 <= now_s - self._read_s < _EVERY_S:
            self._found, self._read_s = self._read_tables(), now_s
        return self._found

    def _networks(self) -> Iterator[str]:
        """Yield one directory for each network namespace; the inode of a file identifies its namespace."""
        inodes = set()
        for directory in self._directories:
            try:
                table = os.stat(f"{directory}/tcp")  # noqa: PTH116 - directories are texts here
            except OSError:
                continue
            if (table.st_dev, table.st_ino) not in inodes:
                inodes.add((table.st_dev, table.st_ino))
                yield directory

    def _read_tables(self) -> tuple[int, ...]:
        found: set[int] = set()
        for directory in self._networks():
            for name in ("tcp", "tcp6"):  # the second one is absent without IPv6
                with suppress(OSError, ValueError):
                    found |= self._listeners(f"{directory}/{name}")
        return tuple(sorted(found))

    def _listeners(self, path: str) -> set[int]:
        """Return the ports with a listener in one table; raises the errors of :func:`read_sockets`."""
        found: set[int] = set()
        for fields in read_sockets(path):
            if fields[3] != LISTEN:  # the kernel lists listeners first
                break
            port = self._ports.get(fields[1][-4:])
            if port is not None and int(fields[7]) in self._uids:
                found.add(port)
        return found


def read_sockets(path: str) -> Iterator[list[bytes]]:
    """Yield the columns of each socket in a TCP table, listeners first. Blocks.

    The columns are slot, local and remote address (which end with the port), state, queues, timer, retransmits, user.
    psutil is not used, since it omits the user, and searches the descriptors of all processes.

    Raises:
        OSError: the table cannot be read.
        ValueError: the file is not a table of at most ``_MAX_SOCKETS`` sockets.

    Source: proc(5), ``net/tcp``.
    """
    with open(path, "rb", _READ_BYTES) as table:  # noqa: PTH123 - paths are texts here
        if not table.readline().startswith(_HEADER):
            raise ValueError(f"{path}: not a table of sockets")
        for number, row in enumerate(table):
            if number == _MAX_SOCKETS:
                raise ValueError(f"{path}: more than {_MAX_SOCKETS} sockets")
            fields = row.split(None, 8)
            if len(fields) > 7:
                yield fields


_ESTABLISHED: Final = b"01"


def port_owners(port: int, client_port: int, root: Path = Path("/")) -> frozenset[int]:
    """Return the UIDs of the listeners on a port, and of the server end of the connection from ``client_port``.

    Addresses are not compared: a connection over IPv4 to a listener on ``::`` is in the IPv6 table. A connection that
    was not accepted yet has UID 0; its listener has the real UID. Blocks.

    Raises:
        OSError: no table can be read.
        ValueError: a file is not a socket table, or is too large.
    """
    local, remote = f":{port:04X}".encode(), f":{client_port:04X}".encode()
    owners: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            for fields in read_sockets(str(root / "proc/self/net" / name)):
                is_connection = fields[3] == _ESTABLISHED and fields[2].endswith(remote)
                if fields[1].endswith(local) and (is_connection or fields[3] == LISTEN):
                    owners.add(int(fields[7]))
        except FileNotFoundError:
            if name == "tcp":  # tcp6 is absent on a kernel without IPv6
                raise
    return frozenset(owners)


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


def read_listener(path: str) -> int:
    """Return the PID of the process that listens on a Unix socket; 0 for a process outside of this PID namespace.

    Raises:
        OSError: no process accepts a connection within 1 s.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_CONNECT_WITHIN_S)
        connection.connect(path)
        return read_peer(connection).pid


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
