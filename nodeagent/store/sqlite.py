"""Common operations on the agent's SQLite files."""

from __future__ import annotations

import errno
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from nodeagent.errors import StoreError
from nodeagent.text import encodable, raw_bytes

BUSY_TIMEOUT_S: Final = 2.0
BROKEN: Final = (OSError, StoreError, sqlite3.DatabaseError)
"""Exceptions raised when a database file cannot be opened, read or written."""

_MAX_INTEGER: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Migrations = tuple[tuple[str, ...], ...]
"""For each schema version, the SQL statements that migrate a file from the previous version."""


def connect(path: Path, migrations: Migrations, additions: Sequence[str] = ()) -> sqlite3.Connection:
    """Return a connection for writing; the file is created if necessary, and its schema is migrated.

    Any thread may use the connection, but only one thread at a time.

    Args:
        path: the file; its directory is created if necessary.
        migrations: statements for each schema version.
        additions: statements that create tables and indexes unless they exist. Older versions of the agent ignore these
            tables and indexes; a new schema version is unnecessary, and older versions would refuse it.

    Raises:
        StoreError: a newer version of the agent wrote it.
        OSError: the directory of the file cannot be created.
        sqlite3.DatabaseError: the file cannot be opened or is corrupt.
    """
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    identity(path)  # refuses a pipe
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _migrate(connection, migrations)
        for statement in additions:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode number of a file; ``None`` if the file does not exist.

    Raises:
        OSError: the directory of the file is inaccessible, or the file is not a regular file, such as a pipe, whose
            opening could block.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return found.st_dev, found.st_ino


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Return a read-only connection to an existing file.

    Raises:
        OSError: the file is not a regular file.
        sqlite3.DatabaseError: the file cannot be opened.
    """
    identity(path)
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)


def check_version(connection: sqlite3.Connection, newest: int) -> int:
    """Return the schema version of a database file; 0 for a file without tables.

    Raises:
        StoreError: a newer version of the agent wrote it.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > newest:
        raise StoreError(f"written by a newer agent (schema {version}, supported up to {newest})")
    return int(version)


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether a database file has a table."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
    return found.fetchone() is not None


def check(connection: sqlite3.Connection) -> None:
    """Check the integrity of a database file.

    Raises:
        sqlite3.DatabaseError: the file is corrupt.
    """
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"malformed: {verdict}")


def fault_of(path: Path) -> str:
    """Return the error of a complete read-only check of a database file; empty if the file is valid."""
    try:
        with closing(open_for_reading(path)) as connection:
            check(connection)
    except BROKEN as error:
        return str(error)
    return ""


def is_corrupt(error: sqlite3.DatabaseError) -> bool:
    """Return whether an error indicates a corrupt file and not a temporarily inaccessible file."""
    if isinstance(error, sqlite3.OperationalError):
        return False
    name = getattr(error, "sqlite_errorname", "")  # absent in errors raised by this module
    return name in ("SQLITE_CORRUPT", "SQLITE_NOTADB") or "malformed" in str(error)


def is_of_file(error: Exception) -> bool:
    """Return whether the cause of a failed statement is the file or its disk, and not the written values."""
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return is_corrupt(error)
    return isinstance(error, BROKEN)


def storable(*values: object) -> tuple[object, ...]:
    """Return values that SQLite can store: integers limited to 64 bits, texts that are not UTF-8 as bytes.

    :func:`stored_text` restores such a text from its bytes, so that file names are stored exactly.
    """
    return tuple(
        _storable_text(each)
        if isinstance(each, str)
        else max(-_MAX_INTEGER - 1, min(_MAX_INTEGER, each))
        if isinstance(each, int)
        else each
        for each in values
    )


def stored_text(value: object) -> str:
    """Return the text of a stored value; bytes that are not UTF-8 are decoded as surrogates."""
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def _storable_text(text: str) -> str | bytes:
    raw = raw_bytes(text)
    return encodable(text) if raw is None else raw


def quarantine(path: Path, error: sqlite3.DatabaseError) -> str:
    """Rename a corrupt file with its ``-wal`` and ``-shm`` files; return a notice for operators.

    Raises:
        OSError: the file cannot be renamed.
    """
    target = path.with_name(f"{path.name}.corrupt-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    path.rename(target)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
    return f"database {path} is corrupt ({error}); quarantined as {target.name}, continuing with an empty one"


def micros(moment_: datetime) -> int:
    """Return a time as whole microseconds since 1970."""
    delta = moment_ - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def moment(since_epoch_us: int) -> datetime:
    """Return the time ``since_epoch_us`` microseconds after 1970, aware UTC."""
    return _EPOCH + timedelta(microseconds=since_epoch_us)


def _migrate(connection: sqlite3.Connection, migrations: Sequence[Sequence[str]]) -> None:
    for number in range(check_version(connection, len(migrations)), len(migrations)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in migrations[number]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


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
