"""Common operations on the agent's SQLite files."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.text import encodable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BUSY_TIMEOUT_S: Final = 2.0
BROKEN: Final = (OSError, StoreError, sqlite3.DatabaseError)
"""Exceptions of any use of a file."""

_MAX_INTEGER: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Migrations = tuple[tuple[str, ...], ...]
"""Statements for each schema version that migrate from the previous version."""


def connect(path: Path, migrations: Migrations) -> sqlite3.Connection:
    """Return a connection for writing; the file is created and its schema migrated.

    Raises:
        StoreError: a newer version of the agent wrote it.
        OSError: its directory cannot be created.
        sqlite3.DatabaseError: the file cannot be opened or is corrupt.
    """
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _migrate(connection, migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def check_version(connection: sqlite3.Connection, newest: int) -> int:
    """Return the schema version of a file.

    Raises:
        StoreError: a newer version of the agent wrote it.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > newest:
        raise StoreError(f"written by a newer agent (schema {version}, supported up to {newest})")
    return int(version)


def check(connection: sqlite3.Connection) -> None:
    """Check the integrity of a file.

    Raises:
        sqlite3.DatabaseError: the file is corrupt.
    """
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"malformed: {verdict}")


def fault_of(path: Path) -> str:
    """Return the fault of a file, opened read-only and checked completely; empty without one."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
            check(connection)
    except BROKEN as error:
        return str(error)
    return ""


def is_corrupt(error: sqlite3.DatabaseError) -> bool:
    """Return whether an error means a corrupt file, not one that is inaccessible for now."""
    if isinstance(error, sqlite3.OperationalError):
        return False
    name = getattr(error, "sqlite_errorname", "")  # absent on errors raised here
    return name in ("SQLITE_CORRUPT", "SQLITE_NOTADB") or "malformed" in str(error)


def is_of_file(error: Exception) -> bool:
    """Return whether an error of a statement is caused by the file or its disk, not by the written values."""
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return is_corrupt(error)
    return isinstance(error, BROKEN)


def storable(*values: object) -> tuple[object, ...]:
    """Return values that SQLite can store: texts escaped to valid UTF-8, integers capped at 64 bits."""
    return tuple(
        encodable(each)
        if isinstance(each, str)
        else max(-_MAX_INTEGER - 1, min(_MAX_INTEGER, each))
        if isinstance(each, int)
        else each
        for each in values
    )


def quarantine(path: Path, error: sqlite3.DatabaseError) -> str:
    """Rename a corrupt file with its ``-wal`` and ``-shm`` files; return a sentence for operators.

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
    """Return a time in whole microseconds since 1970."""
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
