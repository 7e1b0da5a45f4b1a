"""Users that serve a TCP port of this node, from the kernel's socket tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nodeagent.host.listeners import LISTEN, read_sockets

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
