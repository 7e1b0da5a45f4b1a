"""TCP ports with a listener, from the kernel's socket tables.

The listening process is not determined: that requires ``CAP_SYS_PTRACE``, which the unit drops. Listeners are therefore
reported, and are no trace of a kubelet.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_NETWORKS: Final = ("proc/1/net", "proc/self/net")
"""Network directories of process 1 and of the agent, normally of the same network namespace."""

_EVERY_S: Final = 60.0
_ON_CHANGE_EVERY_S: Final = 30.0
_IN_USE: Final = re.compile(rb"^TCP6?: inuse (\d+)", re.MULTILINE)
_HEADER: Final = b"  sl "
_LISTEN: Final = b"0A"
_READ_BYTES: Final = 4096
_MAX_TABLE_BYTES: Final = 16 << 20


class ListenerReader:
    """Repeated readings of the listeners on given ports.

    For each reading the kernel walks its complete table of connections, empty slots included: 3.4 ms were measured for
    262144 slots. Therefore the tables are read once a minute, and every 30 s while the number of sockets changes.
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
        # Columns: slot, local and remote address, state, queues, timer, retransmits, user. Source: proc(5), net/tcp.
        self._listener = re.compile(
            rb"^ *\d+: [0-9A-F]+:(" + b"|".join(self._ports) + rb") [0-9A-F]+:[0-9A-F]{4} 0A "
            rb"[0-9A-F:]+ [0-9A-F:]+ [0-9A-F]+ +(\d+) ",
            re.MULTILINE,
        )
        self._read_s: float | None = None
        self._in_use: tuple[bytes, ...] | None = None
        self._found: tuple[int, ...] = ()

    def read(self, now_s: float) -> tuple[int, ...]:
        """Return the ports with a listener in the readable tables, ascending. Blocks.

        Args:
            now_s: current monotonic time in seconds.
        """
        networks = tuple(self._networks())
        in_use = _in_use(networks)
        age_s = None if self._read_s is None else now_s - self._read_s
        every_s = _EVERY_S if in_use is not None and in_use == self._in_use else _ON_CHANGE_EVERY_S
        if age_s is None or not 0 <= age_s < every_s:
            self._read_tables(networks)
            self._read_s, self._in_use = now_s, in_use
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

    def _read_tables(self, networks: Iterable[str]) -> None:
        found: set[int] = set()
        for directory in networks:
            for name in ("tcp", "tcp6"):  # the second one is absent without IPv6
                with suppress(OSError, ValueError):
                    found |= self._listeners(f"{directory}/{name}")
        self._found = tuple(sorted(found))

    def _listeners(self, path: str) -> set[int]:
        """Return the ports with a listener in one table.

        The kernel lists listeners first, so reading stops at the first socket in another state.

        Raises:
            OSError: the table cannot be read.
            ValueError: the table does not start with the header of a socket table, or is too large.
        """
        found: set[int] = set()
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            rest, total = os.read(descriptor, _READ_BYTES), 0
            if not rest.startswith(_HEADER):
                raise ValueError("not a socket table")
            while True:
                rows, _, rest = rest.rpartition(b"\n")
                for match in self._listener.finditer(rows):
                    if int(match[2]) in self._uids:
                        found.add(self._ports[match[1]])
                last = rows.rpartition(b"\n")[2].split()
                if len(last) > 3 and last[0] != b"sl" and last[3] != _LISTEN:
                    return found
                more = os.read(descriptor, 16 * _READ_BYTES)
                total += len(more)
                if not more:
                    return found
                if total > _MAX_TABLE_BYTES:
                    raise ValueError(f"more than {_MAX_TABLE_BYTES} bytes of listeners")
                rest += more
        finally:
            os.close(descriptor)


def _in_use(networks: Iterable[str]) -> tuple[bytes, ...] | None:
    """Return the numbers of sockets in use; ``None`` if unreadable. Source: proc(5), ``net/sockstat``."""
    found: list[bytes] = []
    for directory in networks:
        for name in ("sockstat", "sockstat6"):
            try:
                descriptor = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                if name == "sockstat":
                    return None
                continue
            try:
                found += _IN_USE.findall(os.read(descriptor, _READ_BYTES))
            except OSError:
                return None
            finally:
                os.close(descriptor)
    return tuple(found)
