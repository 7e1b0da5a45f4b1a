"""Connection for writing, kept open between transactions."""

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
"""Device, inode, size, and time of the last change of content in nanoseconds."""


class WriteConnection:
    """Opens a file with the first transaction and keeps it open until closed, or until the file was replaced.

    The last connection of a file copies the write-ahead log into it and syncs both when it is closed. A new connection
    per transaction would repeat this with each batch of a pass.

    Only its closing writes to the file itself, except for a log of more than 4 MiB. A file that changed otherwise is
    checked with the next transaction: a backup that was copied over it while it was open has made it corrupt, which a
    transaction notices only if it reads the damaged pages.
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
        """Yield the connection inside a transaction, with its number; another number can indicate another file.

        Args:
            durable: whether the transaction is synced before the block ends. Without it, it survives the end of the
                process and can be lost in a power failure.

        Raises:
            StoreError, OSError, sqlite3.DatabaseError: as ``connect``; the connection is closed.
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
        """Close the connection; the next transaction opens another."""
        connection, self._connection, self._file = self._connection, None, None
        if connection is not None:
            is_unchanged = self._state is not None and self._state == _state(self._path)
            connection.close()
            self._state = _state(self._path) if is_unchanged else None

    def _open(self) -> sqlite3.Connection:
        # The inode number of an open file is not reused.
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
    """Return the state of the file; ``None`` if it cannot be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
