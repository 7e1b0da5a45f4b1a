"""Users that serve a TCP port of this node, from the kernel's socket tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_TABLES: Final = ("proc/self/net/tcp", "proc/self/net/tcp6")
_HEADER: Final = b"  sl "
_LISTEN, _ESTABLISHED = b"0A", b"01"
_MAX_BYTES: Final = 64 << 20


def port_owners(port: int, client_port: int, root: Path = Path("/")) -> frozenset[int]:
    """Return the UIDs of the listeners on a port, and of the server end of the connection from ``client_port``.

    Addresses are not compared: a connection over IPv4 to a listener on ``::`` is in the IPv6 table. A connection that
    was not accepted yet has UID 0; its listener has the real UID. Blocks.

    Raises:
        OSError: no table can be read.
        ValueError: a file is not a socket table, or is too large.

    Source: proc(5), ``net/tcp``: slot, local and remote address, state, queues, timer, retransmits, user.
    """
    local, remote = f":{port:04X}".encode(), f":{client_port:04X}".encode()
    owners: set[int] = set()
    for number, name in enumerate(_TABLES):
        try:
            with (root / name).open("rb") as file:
                table = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            if number:  # a kernel without IPv6
                continue
            raise
        if not table.startswith(_HEADER) or len(table) > _MAX_BYTES:
            raise ValueError(f"/{name}: not a table of at most {_MAX_BYTES} bytes of sockets")
        for row in table.splitlines()[1:]:
            fields = row.split(None, 8)
            if len(fields) < 8 or not fields[1].endswith(local):
                continue
            if fields[3] == _LISTEN or (fields[3] == _ESTABLISHED and fields[2].endswith(remote)):
                owners.add(int(fields[7]))
    return frozenset(owners)
