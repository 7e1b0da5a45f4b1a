"""History of passes and node stops, for operators.

It is a database of its own beside that of image usage: it grows, is pruned, and no decision depends on it. While it
cannot be written, the latest passes wait in memory and are written with the next pass. A record that can never be
written is dropped and reported, so that it does not block the others.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.store import shutdown_history as node_stops
from nodeagent.store.pass_history import (
    EVICTION_TABLES,
    PASS_TABLES,
    PastAction,
    PastPass,
    Retention,
    insert_pass,
    prune_passes,
    read_passes,
)
from nodeagent.store.sqlite import (
    BROKEN,
    BUSY_TIMEOUT_S,
    check,
    check_version,
    connect,
    is_corrupt,
    is_of_file,
    quarantine,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from nodeagent.config.settings import Settings
    from nodeagent.model.node_stop import NodeStop

__all__ = ["FILE_NAME", "MIGRATIONS", "History", "PastAction", "PastPass", "Retention"]

FILE_NAME: Final = "history.db"
_MAX_WAITING: Final = 200
_MAX_NOTICES: Final = 20
MIGRATIONS: Final = (PASS_TABLES, EVICTION_TABLES, node_stops.TABLES)


def configured_retention(settings: Settings) -> Retention:
    """Return the configured retention of the history."""
    return Retention(timedelta(seconds=settings.history_age_s), settings.history_bytes)


class History:
    """History of this node. Its methods block and may be called from any thread.

    Attributes:
        problem: reason that records are not on disk; empty otherwise.
    """

    def __init__(self, directory: Path) -> None:
        """Store the history in ``directory``, which is created with the first record."""
        self._path = directory / FILE_NAME
        self._lock = threading.Lock()
        self._waiting: deque[PastPass] = deque(maxlen=_MAX_WAITING)
        self._notices: deque[str] = deque(maxlen=_MAX_NOTICES)
        self.problem = ""

    def take_notices(self) -> tuple[str, ...]:
        """Return the dropped records since the last call, as sentences."""
        with self._lock:
            notices = tuple(self._notices)
            self._notices.clear()
            return notices

    def add(self, past: PastPass, retention: Retention) -> None:
        """Write a pass and prune the history; a failure is reported in ``problem`` and never raised."""
        with self._lock:
            self._waiting.append(past)
            try:
                self._write(retention, past.started_at)
            except BROKEN as error:
                self.problem = self._handle(error)
                return
            self._waiting.clear()
            self.problem = ""

    def add_stop(self, stop: NodeStop, retention: Retention, now: datetime) -> None:
        """Write a node stop, replacing an earlier record of it; failures are reported as by :meth:`add`."""
        with self._lock:
            try:
                with closing(connect(self._path, MIGRATIONS)) as connection:
                    connection.execute("PRAGMA foreign_keys = ON")
                    connection.execute("BEGIN IMMEDIATE")
                    with self._dropping(connection, f"node stop {stop.id}"):
                        node_stops.insert_stop(connection, stop)
                    node_stops.prune_stops(connection, now - retention.maximum_age)
                    connection.execute("COMMIT")
            except BROKEN as error:
                self.problem = self._handle(error)

    def read_stops(self, *, since: datetime | None = None, limit: int = 20) -> tuple[NodeStop, ...]:
        """Return the node stops, newest first.

        Raises:
            StoreError: the file exists but cannot be read.
        """
        with self._lock:
            try:
                if not self._path.exists():
                    return ()
                with closing(self._open_for_reading()) as connection:
                    return tuple(node_stops.read_stops(connection, since, limit))
            except (*BROKEN, ValueError) as error:
                raise StoreError(f"cannot read history {self._path}: {error}") from error

    def _open_for_reading(self) -> sqlite3.Connection:
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)

    def _handle(self, error: Exception) -> str:
        """Quarantine a corrupt file; return the problem for operators."""
        if isinstance(error, sqlite3.DatabaseError) and is_corrupt(error):
            try:
                return quarantine(self._path, error)
            except OSError as failure:
                return f"cannot quarantine corrupt history {self._path} ({error}): {failure.strerror or failure}"
        return f"cannot write history {self._path}: {error}; continuing in memory"

    def read(
        self, *, since: datetime | None = None, image: str = "", limit: int = 100, quiet: bool = False
    ) -> tuple[PastPass, ...]:
        """Return passes with their actions, newest first.

        Args:
            since: omit passes that started earlier.
            image: only passes and actions on images and pods with this text in their id or one of their names.
            limit: maximum number of passes.
            quiet: include passes without removals; passes requested by a user are always included unless they had
                nothing to do.

        Raises:
            StoreError: the file exists but cannot be read.
        """
        with self._lock:
            try:
                if not self._path.exists():
                    return ()
                with closing(self._open_for_reading()) as connection:
                    check(connection)
                    check_version(connection, len(MIGRATIONS))
                    return tuple(read_passes(connection, since, image, limit, quiet=quiet))
            except BROKEN as error:
                raise StoreError(f"cannot read history {self._path}: {error}") from error

    def _write(self, retention: Retention, now: datetime) -> None:
        with closing(connect(self._path, MIGRATIONS)) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            for past in self._waiting:
                with self._dropping(connection, f"pass {past.id}"):
                    insert_pass(connection, past)
            prune_passes(connection, retention, now)
            connection.execute("COMMIT")
            connection.execute("PRAGMA incremental_vacuum").fetchall()

    @contextmanager
    def _dropping(self, connection: sqlite3.Connection, record: str) -> Iterator[None]:
        """Roll back and drop one record that cannot be written; an error of the file itself is raised."""
        connection.execute("SAVEPOINT record")
        try:
            yield
        except Exception as error:  # no error of one record may prevent the others
            if is_of_file(error):
                raise
            connection.execute("ROLLBACK TO record")
            self._notices.append(f"{self._path}: {record} cannot be recorded and was dropped: {error!r}")
        connection.execute("RELEASE record")
