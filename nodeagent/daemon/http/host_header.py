"""Check of the ``Host`` header at a loopback address."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeagent.config.metrics import Listen


def is_own_host(host: str, listen: Listen) -> bool:
    """Return whether a ``Host`` header is valid for a request to the agent's own address.

    A web page can resolve a name of its own to 127.0.0.1 and read the responses through a local browser (DNS
    rebinding); the header then contains that name. At a loopback address the header must be an IP address,
    ``localhost``, or the name of the node. Unix sockets and other addresses accept every host: clients reach these by
    any name.

    Source: RFC 9110, 7.2.
    """
    if not listen.is_loopback:
        return True
    name = host.removesuffix(f":{host.rpartition(':')[2]}") if _has_port(host) else host
    if name.startswith("[") and name.endswith("]"):
        return _is_address(name[1:-1], socket.AF_INET6)
    node = os.uname().nodename.lower()
    names = {"localhost", node, node.partition(".")[0]}
    return name.lower().rstrip(".") in names or _is_address(name, socket.AF_INET)


def _has_port(host: str) -> bool:
    rest, _, port = host.rpartition(":")
    return bool(rest) and port.isdecimal() and (":" not in rest or rest.endswith("]"))


def _is_address(text: str, family: socket.AddressFamily) -> bool:
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):
        return False
    return True
