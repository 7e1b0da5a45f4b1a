"""Where metrics and health are served, in the terms of the daemon."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

LISTEN_FORM: Final = '"ADDRESS:PORT" such as "127.0.0.1:20310" or "[::1]:20310", "unix:///PATH", or "off"'
OFF: Final = "off"
_LONGEST_PATH: Final = 107
"""Source: unix(7), ``sun_path`` with its final zero."""
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<four>[^\[\]:]+)):(?P<port>\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Listen:
    """A place to listen at.

    Attributes:
        host: an address, not a name; empty for a unix socket.
        port: 1 to 65535; 0 for a unix socket.
        path: of a unix socket, absolute; empty otherwise.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def text(self) -> str:
        """As it would be written in the configuration."""
        if self.path:
            return f"unix://{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT_LISTEN: Final = Listen("127.0.0.1", 20310)


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Checked settings.

    Attributes:
        listen: ``None`` for nowhere.
    """

    listen: Listen | None = DEFAULT_LISTEN


def parse_listen(text: str) -> Listen | None:
    """Return the place that a text names, ``None`` for none.

    Raises:
        ValueError: it names none; the sentence says what is allowed.
    """
    if text == OFF:
        return None
    if text.startswith("unix:"):
        return Listen(path=_socket_path(text))
    import ipaddress  # noqa: PLC0415 - not for the daemon

    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError(f"must be {LISTEN_FORM}")
    host, port = found["six"] or found["four"], int(found["port"])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{host!r} is no address (names are not looked up): write {LISTEN_FORM}") from None
    if (address.version == 6) is (found["six"] is None):
        raise ValueError(f"brackets are for addresses of IPv6: write {LISTEN_FORM}")
    if not 1 <= port <= 65535:
        raise ValueError("the port must be from 1 to 65535")
    return Listen(str(address), port)


def _socket_path(text: str) -> str:
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        path = path.removeprefix("//")
    if not path.startswith("/") or "\0" in path or path != os.path.normpath(path) or path == "/":
        raise ValueError("must be an absolute path after unix:, such as unix:///run/nodeagent/metrics.sock")
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ValueError(f"the path of a socket has at most {_LONGEST_PATH} bytes")
    return path
