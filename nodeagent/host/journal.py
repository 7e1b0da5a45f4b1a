"""Writing to journald by its native protocol: an entry is a set of named fields, not a line.

Source: systemd's documentation of the native journal protocol; memfd_create(2), sealing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final

from nodeagent.text import encodable

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET: Final = "/run/systemd/journal/socket"
_NAME: Final = re.compile(r"[^A-Z0-9_]")
_LONGEST_NAME: Final = 64
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Journal:
    """A connection to journald. Sending never blocks; what cannot be sent is told by the return value."""

    def __init__(self, path: str = SOCKET) -> None:
        """Connect to the socket at ``path``, with the first entry."""
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self.dropped = 0

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send one entry; return whether it went out, or counts as dropped."""
        data = encode(fields)
        try:
            self._socket.sendto(data, self._path)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                self.dropped += 1
                return False
            return self._send_large(data)
        return True

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def _send_large(self, data: bytes) -> bool:
        """Send an entry that is too large for a datagram as a sealed file."""
        handed = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handed, view) :]
            fcntl.fcntl(handed, fcntl.F_ADD_SEALS, _SEALS)
            rights = struct.pack("i", handed)
            self._socket.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0, self._path)
        except OSError:
            self.dropped += 1
            return False
        finally:
            os.close(handed)
        return True


def encode(fields: Mapping[str, str]) -> bytes:
    """Return an entry as it goes over the socket; a value of several lines carries its length."""
    parts = []
    for name, value in fields.items():
        raw = encodable(value).encode()
        key = field_name(name).encode()
        parts.append(
            key + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n" if b"\n" in raw else key + b"=" + raw + b"\n"
        )
    return b"".join(parts)


def field_name(key: str) -> str:
    """Return a name that journald takes: capitals, digits and underscores, not at the start, 64 at most."""
    return _NAME.sub("_", key.upper()).lstrip("_0123456789")[:_LONGEST_NAME] or "UNNAMED"


def is_connected_to_stderr(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether standard error goes to journald. Source: systemd.exec(5), ``JOURNAL_STREAM``."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        told = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(told.st_dev), str(told.st_ino))
