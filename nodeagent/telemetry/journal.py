"""Entries for journald in its native protocol, in which an entry is a set of named fields.

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
    """A connection to journald. Sending never blocks; ``send`` returns false for an entry that cannot be sent."""

    def __init__(self, path: str = SOCKET) -> None:
        """Prepare a socket for entries to ``path``."""
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send one entry; return false if it was dropped."""
        data = encode(fields)
        try:
            self._socket.sendto(data, self._path)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                return False
            return self._send_large(data)
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send_large(self, data: bytes) -> bool:
        """Send an entry that is too large for a datagram as a sealed file; return false if it was dropped."""
        memory_file = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(memory_file, view) :]
            fcntl.fcntl(memory_file, fcntl.F_ADD_SEALS, _SEALS)
            rights = struct.pack("i", memory_file)
            self._socket.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0, self._path)
        except OSError:
            return False
        finally:
            os.close(memory_file)
        return True


def encode(fields: Mapping[str, str]) -> bytes:
    """Return the serialised entry; a value with line breaks is preceded by its length."""
    parts = []
    for name, value in fields.items():
        raw = encodable(value).encode()
        key = field_name(name).encode()
        parts.append(
            key + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n" if b"\n" in raw else key + b"=" + raw + b"\n"
        )
    return b"".join(parts)


def field_name(key: str) -> str:
    """Return a valid field name: at most 64 capitals, digits and underscores, starting with a capital."""
    return _NAME.sub("_", key.upper()).lstrip("_0123456789")[:_LONGEST_NAME] or "UNNAMED"


def is_connected_to_stderr(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether standard error is connected to journald. Source: systemd.exec(5), ``JOURNAL_STREAM``."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))
