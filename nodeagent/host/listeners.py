"""TCP ports with a listener, from the kernel's socket tables.

The listening process is not determined: that requires ``CAP_SYS_PTRACE``, which the unit drops. Listeners are therefore
reported, and are no trace of a kubelet.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

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
