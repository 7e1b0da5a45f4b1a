"""SQLite connection for writing, kept open between transactions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from nodeagent.store.sqlite import check, connect, identity

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nodeagent.store.sqlite import Migrations


_FileState = tuple[int, int, int, int]
"""Device, inode number, size in bytes, and modification time in nanoseconds of a file."""


class WriteConnection:
    """Connection opened by the first transaction, and kept until it is closed or the file is replaced.

    When the last connection to a file is closed, SQLite copies the write-ahead log into the file and syncs both. A new
    connection per transaction would repeat the copy and the syncs with each batch of a pass.

    SQLite writes to the file itself only at that time or when the write-ahead log exceeds 4 MiB. A file that changed at
    any other time is checked at the next transaction: a backup copied over an open file corrupts it, and a transaction
    detects the corruption only if it reads a damaged page.
    """

    def __init__(self, path: Path, migrations: Migrations, additions: Sequence[str]) -> None:
        self._path = path
        self._migrations = migrations
        self._additions = additions
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._opened = 0
        self._state: _FileState | None = None

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[tuple[sqlite3.Connection, int]]:
        """Yield the connection inside a transaction, with its number.

        After a change of the number, the file may be another file.

        Args:
            durable: whether the transaction is synced before the block ends. An unsynced transaction survives the end
                of the process but can be lost in a power failure.

        Raises:
            StoreError, OSError, sqlite3.DatabaseError: the transaction fails or a condition of ``sqlite.connect``
                applies; the connection is closed.
        """
        try:
            connection = self._open()
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            yield connection, self._opened
            connection.execute("COMMIT")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next transaction opens a new connection."""
        connection, self._connection, self._file = self._connection, None, None
        if connection is not None:
            is_unchanged = self._state is not None and self._state == _state(self._path)
            connection.close()
            self._state = _state(self._path) if is_unchanged else None

    def _open(self) -> sqlite3.Connection:
        # Comparing inode numbers is sufficient: the inode number of an open file is not reused.
        if self._connection is not None and self._file == identity(self._path):
            if self._state != _state(self._path):
                check(self._connection)
                self._state = _state(self._path)
            return self._connection
        self.close()
        self._opened += 1
        is_checked = self._state is not None and self._state == _state(self._path)
        self._connection = connect(self._path, self._migrations, self._additions)
        if not is_checked:
            check(self._connection)
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._state = _state(self._path)
        self._file = identity(self._path)
        if self._file is None:
            raise FileNotFoundError(2, "deleted during the opening", str(self._path))
        return self._connection


def _state(path: Path) -> _FileState | None:
    """Return the device, inode number, size and modification time of the file; ``None`` if they cannot be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
