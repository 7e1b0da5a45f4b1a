"""History of passes and node stops, for operators.

The history is a separate database beside that of image usage: it grows, is pruned, and no decision depends on it. A
pass is written before its first removal and again when the pass has finished; see ``write_ahead``. While the file
cannot be written, the latest passes are kept in memory and written with the next pass. A record with values that cannot
be stored is dropped and reported, so that it does not block the other records.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.model.stops import NodeStop, PodOutcome, ProcessIdentity, StopEnd, StopKind, StoppedPod
from nodeagent.record import replace
from nodeagent.store import sqlite, write_ahead
from nodeagent.store.clock_record import PLAUSIBLE_FROM
from nodeagent.store.pass_tables import (
    EVICTION_TABLES,
    PASS_INDEXES,
    PASS_TABLES,
    SETTLE_TABLE,
    CountedPass,
    PastAction,
    PastPass,
    Retention,
    count_passes,
    has_passes,
    insert_pass,
    prune_passes,
    read_passes,
)
from nodeagent.store.write_ahead import InterruptedPass, UnfinishedPass

if TYPE_CHECKING:
    from nodeagent.settings.settings import Settings

__all__ = ["FILE_NAME", "MIGRATIONS", "CountedPass", "History", "PastAction", "PastPass", "Retention"]

FILE_NAME: Final = "history.db"
_MAX_WAITING: Final = 200
_MAX_WAITING_ACTIONS: Final = 20_000
_MAX_NOTICES: Final = 20
_STOP_TABLES: Final = (
    (
        "CREATE TABLE node_stops (id TEXT PRIMARY KEY NOT NULL, boot_id TEXT NOT NULL, kind TEXT NOT NULL,"
        " started_us INTEGER NOT NULL, started_s REAL NOT NULL, granted_ms INTEGER NOT NULL, end TEXT NOT NULL,"
        " ended_us INTEGER, dry_run INTEGER NOT NULL) WITHOUT ROWID"
    ),
    "CREATE INDEX node_stops_by_time ON node_stops (started_us)",
    (
        "CREATE TABLE stopped_pods (stop_id TEXT NOT NULL REFERENCES node_stops (id) ON DELETE CASCADE,"
        " position INTEGER NOT NULL, uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,"
        " phase TEXT NOT NULL, why TEXT NOT NULL, outcome TEXT, asked_ms INTEGER NOT NULL, took_ms INTEGER,"
        " detail TEXT NOT NULL, PRIMARY KEY (stop_id, position)) WITHOUT ROWID"
    ),
)

_OPERATION_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS node_stop_operations (stop_id TEXT PRIMARY KEY NOT NULL REFERENCES node_stops (id)"
    " ON DELETE CASCADE, operation TEXT NOT NULL) WITHOUT ROWID"
)
MIGRATIONS: Final = (PASS_TABLES, EVICTION_TABLES, _STOP_TABLES)
ADDITIONS: Final = (*PASS_INDEXES, write_ahead.WRITER_TABLE, SETTLE_TABLE, _OPERATION_TABLE)
_UNREADABLE: Final = (*sqlite.BROKEN, ValueError, OverflowError, TypeError)
_NO_PROCESS: Final = ProcessIdentity(0, "", 0)


def configured_retention(settings: Settings) -> Retention:
    """Return the configured retention of the history."""
    return Retention(timedelta(seconds=settings.history_age_s), settings.history_bytes, settings.history_records)


def _running(_: ProcessIdentity) -> bool:
    return True


class History:
    """History of passes and node stops on this node. Its methods block and may be called from any thread.

    Writing never raises: a failure is reported in ``problem``, and the record is written with a later record. Reading
    acquires no lock, so that a hanging write blocks no reader.

    Attributes:
        problem: error because of which records are not on disk; empty after a successful write.
        dropped: number of records dropped since they could not be stored.
    """

    def __init__(
        self,
        directory: Path,
        *,
        writer: ProcessIdentity = _NO_PROCESS,
        is_running: Callable[[ProcessIdentity], bool] = _running,
    ) -> None:
        """Store the history in ``directory``, which is created with the first record.

        Args:
            directory: the state directory.
            writer: identity of this process, required to begin a pass.
            is_running: function that returns whether the writer of an unfinished pass still runs; an unfinished pass of
                an ended process is read as interrupted. Without this function all unfinished passes are read as
                running.
        """
        self._path = directory / FILE_NAME
        self._writer = writer
        self._is_running = is_running
        self._lock = threading.Lock()
        self._connection = sqlite.WriteConnection(self._path, MIGRATIONS, ADDITIONS)
        self._unfinished: dict[str, UnfinishedPass] = {}
        self._waiting: deque[PastPass] = deque()
        self._notices: deque[str] = deque(maxlen=_MAX_NOTICES)
        self.problem = ""
        self.dropped = 0

    def take_notices(self) -> tuple[str, ...]:
        """Return notices of the quarantined files and dropped records since the last call."""
        notices = []
        while self._notices:
            notices.append(self._notices.popleft())
        return tuple(notices)

    def begin(self, past: PastPass) -> None:
        """Write and sync a pass with its planned removals, before the first removal."""
        with self._lock:
            self._unfinished[past.id] = UnfinishedPass(past)
            self._write(durable=True)

    def extend(self, pass_id: str, actions: Sequence[PastAction]) -> None:
        """Write and sync the planned removals of a further round of a pass, before the first removal of that round."""
        with self._lock:
            if (unfinished := self._unfinished.get(pass_id)) is not None:
                unfinished.extend(actions)
                self._write(durable=True)

    def update(self, pass_id: str, outcomes: Mapping[int, PastAction], duration_s: float) -> None:
        """Write removals with their outcome, by position in the pass.

        ``duration_s`` is the duration of the pass so far.
        """
        with self._lock:
            if (unfinished := self._unfinished.get(pass_id)) is not None:
                unfinished.update(outcomes, duration_s)
                self._write()

    def add(self, past: PastPass, retention: Retention, *, clock_trusted: bool = True) -> None:
        """Write a finished pass and prune the history.

        Args:
            past: the pass; its record replaces the record written before the first removal.
            retention: limits of the history.
            clock_trusted: whether ages by the wall clock are valid; otherwise nothing is deleted by age.
        """
        with self._lock:
            self._unfinished.pop(past.id, None)
            self._enqueue(past)

            def prune(connection: sqlite3.Connection) -> None:
                running = self._unfinished.keys()
                prune_passes(connection, retention, past.started_at, clock_trusted=clock_trusted, running=running)
                if clock_trusted:
                    _prune_stops(connection, past.started_at - retention.maximum_age, 0)
                connection.execute("PRAGMA incremental_vacuum").fetchall()

            self._write(prune)
            if not self._unfinished:
                self._connection.close()

    def interrupt(self, pass_id: str, cause: str, retention: Retention, *, clock_trusted: bool = True) -> None:
        """Record an unfinished pass of this process as interrupted; ``cause`` is, for example, ``cancelled``.

        Passes of other processes and finished passes are ignored.
        """
        with self._lock:
            unfinished = self._unfinished.get(pass_id)
        if unfinished is not None:
            past = write_ahead.interrupted(unfinished.past, cause)
            self.add(past, retention, clock_trusted=clock_trusted)

    def close_interrupted(self) -> tuple[InterruptedPass, ...]:
        """Record the unfinished passes of ended processes as interrupted, and return these passes.

        Passes of running processes are unchanged. If a running pass is wrongly recorded as interrupted, for example
        because its process is in another PID namespace, the record of the finished pass replaces that record.
        """
        with self._lock:
            ended = self._ended()
            closed: list[InterruptedPass] = []

            def close(connection: sqlite3.Connection) -> None:
                found = (write_ahead.close_unfinished(connection, each, write_ahead.KILLED) for each in ended)
                closed.extend(each for each in found if each is not None)

            if not ended or not self._write(close):
                return ()
            if not self._unfinished:
                self._connection.close()
            return tuple(closed)

    def add_stop(self, stop: NodeStop, retention: Retention, now: datetime, *, clock_trusted: bool = True) -> None:
        """Write a node stop, replacing its earlier record, and prune the node stops by age and number."""
        with self._lock:

            def write(connection: sqlite3.Connection) -> None:
                with self._dropping(connection, f"node stop {stop.id}"):
                    _insert_stop(connection, stop)
                before = now - retention.maximum_age if clock_trusted else None
                _prune_stops(connection, before, retention.maximum_records)

            self._write(write)
            if not self._unfinished:
                self._connection.close()

    def drop(self, record: str, cause: str) -> None:
        """Count a record that cannot be stored, and add a notice with the cause."""
        self.dropped += 1
        self._notices.append(f"{self._path}: {record} cannot be recorded and was dropped: {cause}")

    def read(
        self, *, since: datetime | None = None, image: str = "", limit: int = 100, quiet: bool = False
    ) -> tuple[PastPass, ...]:
        """Return passes with their actions, newest first.

        Args:
            since: omit passes that started earlier.
            image: return only passes and actions on images and pods with this text in their id or in one of their
                names.
            limit: maximum number of passes.
            quiet: include passes without removals. Refused passes are always included; passes requested by a user are
                always included unless no removal was needed.

        Raises:
            StoreError: the file exists but cannot be read.
        """
        with self._reading() as connection:
            if connection is None:
                return ()
            writers = write_ahead.read_writers(connection)
            found = read_passes(connection, since, image, limit, quiet=quiet)
            return tuple(write_ahead.as_found(each, writers, self._is_running) for each in found)

    def count(self, *, limit: int) -> tuple[CountedPass, ...]:
        """Return passes with the number of their removals, newest first; omit passes of the daemon without removals.

        Raises:
            StoreError: the file exists but cannot be read.
        """
        with self._reading() as connection:
            if connection is None:
                return ()
            writers = write_ahead.read_writers(connection)
            return tuple(
                replace(each, past=write_ahead.as_found(each.past, writers, self._is_running))
                for each in count_passes(connection, limit)
            )

    def read_stops(self, *, since: datetime | None = None, limit: int = 20) -> tuple[NodeStop, ...]:
        """Return the node stops, newest first.

        Raises:
            StoreError: the file exists but cannot be read.
        """
        with self._reading() as connection:
            return () if connection is None else tuple(_read_stops(connection, since, limit))

    def check(self) -> None:
        """Check the integrity of the whole history file.

        Raises:
            StoreError: the file exists but is corrupt or cannot be read.
        """
        with self._reading() as connection:
            if connection is not None:
                sqlite.check(connection)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Yield a connection in a read transaction; ``None`` if the file does not exist or has no tables."""
        try:
            if not self._path.exists():
                yield None
                return
            with closing(sqlite.open_for_reading(self._path)) as connection:
                connection.execute("BEGIN")
                sqlite.check_version(connection, len(MIGRATIONS))
                yield connection if has_passes(connection) else None
        except _UNREADABLE as error:
            raise StoreError(f"cannot read history {self._path}: {error}") from error

    def _ended(self) -> list[str]:
        """Return the ids of unfinished passes of ended processes; none if the file cannot be read."""
        try:
            with self._reading() as connection:
                writers = {} if connection is None else write_ahead.read_writers(connection)
        except StoreError:
            return []
        return [identity for identity, writer in writers.items() if not self._is_running(writer)]

    def _write(self, work: Callable[[sqlite3.Connection], None] = lambda _: None, *, durable: bool = False) -> bool:
        """Write the queued records, then execute ``work`` in the same transaction; return whether the commit succeeded.

        If the file is corrupt, it is quarantined, and the transaction is repeated on a new file.
        """
        try:
            try:
                self._write_records(work, durable=durable)
            except sqlite3.DatabaseError as error:
                if not sqlite.is_corrupt(error):
                    raise
                self._quarantine(error)
                self._write_records(work, durable=durable)
        except sqlite.BROKEN as error:
            self.problem = f"cannot write history {self._path}: {error}; continuing in memory"
            return False
        self.problem = ""
        return True

    def _write_records(self, work: Callable[[sqlite3.Connection], None], *, durable: bool) -> None:
        with self._connection.transaction(durable=durable) as (connection, number):
            for past in self._waiting:
                with self._dropping(connection, f"pass {past.id}"):
                    insert_pass(connection, past)
            for identity, unfinished in list(self._unfinished.items()):
                with self._dropping(connection, f"pass {identity}", partial(self._unfinished.pop, identity)):
                    unfinished.write(connection, number, self._writer)
            work(connection)
        self._waiting.clear()
        for unfinished in self._unfinished.values():
            unfinished.written(number)

    def _quarantine(self, error: sqlite3.DatabaseError) -> None:
        try:
            self._notices.append(sqlite.quarantine(self._path, error))
        except OSError as failure:
            why = failure.strerror or failure
            raise StoreError(f"cannot quarantine the corrupt file ({error}): {why}") from failure

    def _enqueue(self, past: PastPass) -> None:
        """Queue a finished pass for writing; above the limits of the queue, the oldest passes are dropped."""
        waiting, actions = self._waiting, len(past.actions) + sum(len(each.actions) for each in self._waiting)
        while waiting and (len(waiting) >= _MAX_WAITING or actions > _MAX_WAITING_ACTIONS):
            dropped = waiting.popleft()
            actions -= len(dropped.actions)
            self.drop(f"pass {dropped.id}", "too many passes wait for writing")
        waiting.append(past)

    @contextmanager
    def _dropping(
        self, connection: sqlite3.Connection, record: str, forget: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        """Roll back and drop one record that cannot be stored; an error of the file itself is raised."""
        connection.execute("SAVEPOINT record")
        try:
            yield
        except Exception as error:  # an error of one record must not prevent the writing of the other records
            if sqlite.is_of_file(error):
                raise
            connection.execute("ROLLBACK TO record")
            self.drop(record, repr(error))
            forget()
        connection.execute("RELEASE record")


def _insert_stop(connection: sqlite3.Connection, stop: NodeStop) -> None:
    """Write a node stop with its pods, replacing its earlier record."""
    connection.execute("DELETE FROM stopped_pods WHERE stop_id = ?", (stop.id,))
    connection.execute(
        "INSERT OR REPLACE INTO node_stops VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        sqlite.storable(
            stop.id,
            stop.boot_id,
            stop.kind.value,
            sqlite.micros(stop.started_at),
            stop.started_s,
            stop.granted_ms,
            stop.end.value,
            None if stop.ended_at is None else sqlite.micros(stop.ended_at),
            stop.dry_run,
        ),
    )
    connection.execute(
        "INSERT OR REPLACE INTO node_stop_operations VALUES (?, ?)", sqlite.storable(stop.id, stop.operation)
    )
    connection.executemany(
        "INSERT INTO stopped_pods VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            sqlite.storable(
                stop.id,
                position,
                pod.uid,
                pod.namespace,
                pod.name,
                pod.phase,
                pod.why,
                pod.outcome.value if pod.outcome else None,
                pod.requested_at_ms,
                pod.took_ms,
                pod.detail,
            )
            for position, pod in enumerate(stop.pods)
        ],
    )


def _prune_stops(connection: sqlite3.Connection, before: datetime | None, maximum: int) -> None:
    """Delete the node stops that started before ``before`` and the oldest above a number; ``None`` and 0 for no limit.

    A stop that started before 2026 was recorded with a wrong wall clock, so that its age is unknown.
    """
    if before is not None:
        connection.execute(
            "DELETE FROM node_stops WHERE started_us >= ? AND started_us < ?",
            (sqlite.micros(PLAUSIBLE_FROM), sqlite.micros(before)),
        )
    if maximum:
        connection.execute(
            "DELETE FROM node_stops WHERE id IN (SELECT id FROM node_stops ORDER BY started_us DESC LIMIT -1 OFFSET ?)",
            (maximum,),
        )


def _read_stops(connection: sqlite3.Connection, since: datetime | None, limit: int) -> Iterator[NodeStop]:
    """Yield the node stops with their pods, newest first; none if the database lacks the table."""
    if not sqlite.has_table(connection, "node_stops"):
        return
    operations: dict[str, str] = {}
    if sqlite.has_table(connection, "node_stop_operations"):  # absent in files of the first versions
        operations = dict(connection.execute("SELECT stop_id, operation FROM node_stop_operations"))
    rows = connection.execute(
        "SELECT id, boot_id, kind, started_us, started_s, granted_ms, end, ended_us, dry_run FROM node_stops"
        " WHERE started_us >= ? ORDER BY started_us DESC, id DESC LIMIT ?",
        (sqlite.micros(since) if since else 0, limit),
    ).fetchall()
    for identity, boot_id, kind, started_us, started_s, granted_ms, end, ended_us, dry_run in rows:
        pods = connection.execute(
            "SELECT uid, namespace, name, phase, why, outcome, asked_ms, took_ms, detail FROM stopped_pods"
            " WHERE stop_id = ? ORDER BY position",
            (identity,),
        )
        yield NodeStop(
            boot_id=boot_id,
            kind=StopKind(kind),
            started_at=sqlite.moment(started_us),
            started_s=started_s,
            granted_ms=granted_ms,
            end=StopEnd(end),
            ended_at=None if ended_us is None else sqlite.moment(ended_us),
            dry_run=bool(dry_run),
            pods=tuple(
                StoppedPod(
                    uid=sqlite.stored_text(uid),
                    namespace=sqlite.stored_text(namespace),
                    name=sqlite.stored_text(name),
                    phase=sqlite.stored_text(phase),
                    why=sqlite.stored_text(why),
                    outcome=PodOutcome(outcome) if outcome else None,
                    requested_at_ms=asked_ms,
                    took_ms=took_ms,
                    detail=sqlite.stored_text(detail),
                )
                for uid, namespace, name, phase, why, outcome, asked_ms, took_ms, detail in pods
            ),
            operation=sqlite.stored_text(operations.get(identity, "")),
        )
