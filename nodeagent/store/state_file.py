"""Database file of image and snapshot usage: reading, writing and health."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from nodeagent.errors import StoreError
from nodeagent.record import Record
from nodeagent.store.sqlite import BUSY_TIMEOUT_S, check, connect, identity, is_corrupt, quarantine
from nodeagent.store.usage_file import ADDITIONS, MIGRATIONS, StoredUsage, last_write, read_usage, write_usage
from nodeagent.store.write_interval import is_due

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class StoreHealth(Record):
    """Health of the database file.

    Attributes:
        problem: error because of which the usage is not on disk, with the consequence; empty while the file is usable.
    """

    problem: str = ""

    @property
    def persistent(self) -> bool:
        """Whether the usage survives a restart."""
        return not self.problem


class StateFile:
    """Database file with a copy of the state in memory. Its methods block; ``read`` and ``write`` never raise.

    Attributes:
        written: last content read from or written to the file; ``None`` if the next write has to be complete.
        loaded: whether the file was read, did not exist, or was quarantined.
        health: health of the file, with the cause while the file cannot be read or written.
    """

    def __init__(self, path: Path, *, read_only: bool, on_lost: Callable[[], None]) -> None:
        """Configure the file without reading it; ``on_lost`` is called when the content cannot be read."""
        self._path = path
        self._read_only = read_only
        self._on_lost = on_lost
        self._identity: tuple[int, int] | None = None
        self._last_write = ""
        self._notices: list[str] = []
        self.written: StoredUsage | None = None
        self.loaded = False
        self.health = StoreHealth()

    @property
    def writable(self) -> bool:
        """Whether the file may be written: it is not read-only and ``loaded`` is true."""
        return self.loaded and not self._read_only

    def take_notices(self) -> tuple[str, ...]:
        """Return the notices for operators since the last call, such as a quarantined file."""
        notices, self._notices = tuple(self._notices), []
        return notices

    def read(self) -> StoredUsage | None:
        """Return the content of the file; ``None`` if it does not exist or cannot be read.

        A corrupt file is quarantined.
        """
        try:
            file = identity(self._path)
            if file is None:
                self.loaded = True
                self.health = StoreHealth()
                return None
            with closing(self.open_for_reading()) as connection:
                check(connection)
                stored = read_usage(connection)
                self._last_write = last_write(connection)
        except sqlite3.DatabaseError as error:
            self._handle_error(error)
            return None
        except (OSError, StoreError) as error:
            self._fail(str(error))
            return None
        self.written, self._identity = stored, file
        self.loaded = True
        self.health = StoreHealth()
        return stored

    def write(self, now: StoredUsage, *, only_if_due: bool = False) -> None:
        """Write the changes since the last write; with ``only_if_due``, only if ``write_interval.is_due``."""
        if not self.writable:
            return
        try:
            if only_if_due and not is_due(now, self.written) and identity(self._path) == self._identity:
                return
            with closing(self.open_for_writing()) as connection:
                if self.written is not None and last_write(connection) != self._last_write:
                    self._forget_written("overwritten")
                if self.written is None:
                    check(connection)
                write_id = os.urandom(8).hex()
                write_usage(connection, now, self.written, write_id)
        except sqlite3.DatabaseError as error:
            self._handle_error(error)
            return
        except (OSError, StoreError) as error:
            self._fail(str(error))
            return
        self.written, self._last_write = now, write_id
        self.health = StoreHealth()

    def open_for_reading(self) -> sqlite3.Connection:
        """Return a read-only connection; it creates no ``-wal`` and ``-shm`` files unless a ``-wal`` file exists."""
        unfinished = identity(self._path.with_name(f"{self._path.name}-wal")) is not None
        uri = f"{self._path.absolute().as_uri()}?{'mode=ro' if unfinished else 'immutable=1'}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)

    def open_for_writing(self) -> sqlite3.Connection:
        """Return a connection for writing; after a removal or replacement of the file, the next write is complete."""
        file = identity(self._path)
        if self.written is not None and file != self._identity:
            self._forget_written("removed or replaced")
        connection = connect(self._path, MIGRATIONS, ADDITIONS)
        self._identity = file or identity(self._path)
        return connection

    def _forget_written(self, change: str) -> None:
        """Make the next write complete and add a notice, since another program changed the file.

        An example is a restored backup.
        """
        self.written = None
        self._notices.append(
            f"state database {self._path} was {change}; writing the complete usage of images from memory"
        )

    def _handle_error(self, error: sqlite3.DatabaseError) -> None:
        """Quarantine the file if it is corrupt and not read-only; otherwise set ``health`` to the error."""
        if self._read_only or not is_corrupt(error):
            self._fail(str(error))
            return
        try:
            notice = quarantine(self._path, error)
        except OSError as failure:
            self._fail(f"{error}; cannot quarantine the file: {failure.strerror or failure}")
            return
        self.loaded = True
        self.written = None
        self._on_lost()
        self._notices.append(notice)
        self.health = StoreHealth()

    def _fail(self, cause: str) -> None:
        self.written = None
        if not self.loaded:
            self._on_lost()
        self.health = StoreHealth(
            f"cannot use state database {self._path}: {cause}; continuing in memory, a restart would lose the usage "
            "of images"
        )
