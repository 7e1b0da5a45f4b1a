"""Revision of containerd's metadata database, which changes with its records.

Every change of an image name, blob, snapshot, container record or lease is a transaction of this bbolt database, and
each transaction increments the number in one of the two meta pages of the file. Equal revisions therefore mean equal
lists. The file is trusted only if the process that listens on the runtime's socket has locked it, as bbolt does: a path
can name another file in the mount namespace of the agent, or the database of an earlier process.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from nodeagent.files import closing_descriptor
from nodeagent.host.sockets import read_listener
from nodeagent.record import Record

_META: Final = struct.Struct("=16xIII36xQ")
"""Magic number, version, page size and transaction of a meta page. Source: bbolt, ``page`` and ``common.Meta``."""
_MAGIC: Final = 0xED0CDAED
_VERSION: Final = 2
_MAX_PAGE_BYTES: Final = 1 << 16
_LOCKS: Final = "proc/locks"


class DatabaseRevision(Record):
    """Revision of a database, which differs after a change of process, file or transaction."""

    pid: int
    device: int
    inode: int
    transaction: int


def read_database_revision(runtime_socket: str, path: str, root: Path = Path("/")) -> DatabaseRevision | None:
    """Return the revision of a runtime's metadata database; ``None`` if it cannot be determined. Blocking.

    Args:
        runtime_socket: path of the socket on which the runtime listens.
        path: path of the database file.
        root: directory that contains ``proc``.
    """
    try:
        pid = read_listener(runtime_socket)
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with closing_descriptor(opened) as descriptor:
            found = os.fstat(descriptor)
            transaction = _transaction(descriptor)
        locks = (root / _LOCKS).read_text(encoding="ascii", errors="replace")
    except (OSError, ValueError, struct.error):
        return None
    if pid <= 0 or transaction is None or not _is_locked(locks, pid, found):
        return None
    return DatabaseRevision(pid, found.st_dev, found.st_ino, transaction)


def _transaction(descriptor: int) -> int | None:
    """Return the number of the last transaction; ``None`` if a meta page has an unknown format."""
    first = _meta_page(descriptor, 0)
    if first is None or not 0 < first[0] <= _MAX_PAGE_BYTES:
        return None
    second = _meta_page(descriptor, first[0])
    return None if second is None else max(first[1], second[1])


def _meta_page(descriptor: int, offset: int) -> tuple[int, int] | None:
    """Return page size and transaction of a meta page; ``None`` for an unknown format."""
    magic, version, page_bytes, transaction = _META.unpack(os.pread(descriptor, _META.size, offset))
    return (page_bytes, transaction) if (magic, version) == (_MAGIC, _VERSION) else None


def _is_locked(locks: str, pid: int, file: os.stat_result) -> bool:
    """Return whether a process has an exclusive lock of a file. Source: proc(5), ``/proc/locks``; flock(2)."""
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    wanted = ["FLOCK", "ADVISORY", "WRITE", str(pid), name]
    return any(line.split()[1:6] == wanted for line in locks.splitlines())
