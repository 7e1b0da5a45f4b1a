"""History of passes and node stops, for operators.

The history is a separate database beside that of image usage: it grows, is pruned, and no decision depends on it. A
pass is written before its first removal and again when the pass has finished. While the file cannot be written, the
latest passes are kept in memory and written with the next pass. A record with values that cannot be stored is dropped
and reported, so that it does not block the other records.

A pass is written with its planned removals before the first removal, and these records are synced: the runtime makes
its removals durable, so that after a power failure an unsynced record of a removal could be missing. Outcomes are
written without a sync. They survive the end of the process, and an outcome lost in a power failure is read as unknown.

The process that writes an unfinished pass is recorded by pid, boot id and start time. Once that process has ended, the
pass is interrupted, and removals without an outcome have the outcome ``unknown``.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nodeagent.errors import StoreError
from nodeagent.model.stops import NodeStop, PodOutcome, ProcessIdentity, StopEnd, StopKind, StoppedPod
from nodeagent.record import Record, replace
from nodeagent.store import sqlite
from nodeagent.store.clock_record import PLAUSIBLE_FROM
from nodeagent.store.sqlite import has_table, micros, moment, storable, stored_text
from nodeagent.text import encodable, raw_bytes

if TYPE_CHECKING:
    from nodeagent.settings.settings import Settings


class PastAction(Record):
    """Planned removal of a pass and its outcome.

    Attributes:
        kind: kind of the item, as in a plan.
        item_id: id of the item in the runtime, or name of a log.
        name: name for display.
        references: further names of an image.
        outcome: outcome code, as in a pass report.
        detail: cause of the outcome; may be empty.
        reason: code of the reason for the removal, as defined by the version of the agent that recorded the pass.
        sentence: the reason as a sentence.
        frees_bytes: bytes that the removal was predicted to free; ``None`` if unknown.
        duration_s: duration of the removal, in seconds.
    """

    kind: str
    item_id: str
    name: str
    references: tuple[str, ...]
    outcome: str
    detail: str
    reason: str
    sentence: str
    frees_bytes: int | None = None
    duration_s: float = 0.0


class PastPass(Record):
    """A recorded pass.

    Attributes:
        id: id of the pass.
        started_at: start, aware UTC.
        trigger: cause of the pass, a :class:`~nodeagent.gc.executor.PassTrigger`.
        scope: kinds of items that the pass may remove.
        plan_id: id of the first plan of the pass.
        dry_run: whether removals were reported without being carried out.
        result: result code, as in a pass report.
        detail: cause of the result, such as the shortfall.
        predicted_bytes: bytes that the completed removals were predicted to free.
        freed_bytes: measured number of freed bytes; ``None`` without a measurement.
        percent_before: usage of the image filesystem before the pass, in percent; ``None`` without a reading.
        percent_after: usage of the image filesystem after the pass, in percent; ``None`` without a reading.
        actions: all planned removals.
        eviction: JSON document of an eviction; empty for other passes.
        settled_s: part of the duration, in seconds, spent waiting for container creations in progress.
    """

    id: str
    started_at: datetime
    duration_s: float
    trigger: str
    scope: str
    plan_id: str
    dry_run: bool
    result: str
    detail: str = ""
    predicted_bytes: int = 0
    freed_bytes: int | None = None
    percent_before: int | None = None
    percent_after: int | None = None
    actions: tuple[PastAction, ...] = ()
    eviction: str = ""
    settled_s: float = 0.0


class CountedPass(Record):
    """A recorded pass without its actions.

    Attributes:
        past: the pass; its actions and the document of an eviction are empty.
        removed: number of removed items.
        planned: number of planned removals.
    """

    past: PastPass
    removed: int
    planned: int


class Retention(Record):
    """Limits of the history.

    Attributes:
        maximum_age: older passes are dropped; passes of the daemon without removals are dropped after a day.
        maximum_bytes: the oldest passes are dropped while the used pages of the file exceed this size.
        maximum_records: maximum number of passes and of node stops; the oldest are dropped. 0 for no limit.
    """

    maximum_age: timedelta
    maximum_bytes: int
    maximum_records: int = 10_000


PASS_TABLES: Final = (
    (
        "CREATE TABLE passes (id TEXT PRIMARY KEY NOT NULL, started_us INTEGER NOT NULL, duration_s REAL NOT NULL,"
        " trigger TEXT NOT NULL, scope TEXT NOT NULL, plan_id TEXT NOT NULL, dry_run INTEGER NOT NULL,"
        " result TEXT NOT NULL, detail TEXT NOT NULL, predicted_bytes INTEGER NOT NULL, freed_bytes INTEGER,"
        " percent_before INTEGER, percent_after INTEGER, actions INTEGER NOT NULL) WITHOUT ROWID"
    ),
    "CREATE INDEX passes_by_time ON passes (started_us)",
    (
        "CREATE TABLE actions (pass_id TEXT NOT NULL REFERENCES passes (id) ON DELETE CASCADE,"
        " position INTEGER NOT NULL, kind TEXT NOT NULL, item_id TEXT NOT NULL, name TEXT NOT NULL,"
        " refs TEXT NOT NULL, outcome TEXT NOT NULL, detail TEXT NOT NULL, reason TEXT NOT NULL,"
        " sentence TEXT NOT NULL, frees_bytes INTEGER, duration_s REAL NOT NULL,"
        " PRIMARY KEY (pass_id, position)) WITHOUT ROWID"
    ),
)
EVICTION_TABLES: Final = (
    (
        "CREATE TABLE evictions (pass_id TEXT PRIMARY KEY NOT NULL REFERENCES passes (id) ON DELETE CASCADE,"
        " document TEXT NOT NULL) WITHOUT ROWID"
    ),
)
SETTLE_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS settle_times (pass_id TEXT PRIMARY KEY NOT NULL REFERENCES passes (id)"
    " ON DELETE CASCADE, settled_s REAL NOT NULL) WITHOUT ROWID"
)
"""Waiting times of passes for container creations; a separate table, so that earlier versions can read and write
passes.
"""
_QUIET_PERIOD: Final = timedelta(days=1)
_NOTEWORTHY: Final = (
    "(actions > 0 OR result = 'interrupted'"
    " OR (result <> 'nothing-to-do' AND trigger NOT IN ('interval', 'trigger', 'eviction')))"
)
"""Passes without removals that a user requested are kept and shown unless none was needed. Passes of
the daemon would fill the history: without removable items, each of them misses its target."""
_SHOWN: Final = f"({_NOTEWORTHY} OR result = 'refused')"
"""Refused passes are shown, since they contain the reason why no item is removed, but they are kept only for a day."""
PASS_INDEXES: Final = (
    f"CREATE INDEX IF NOT EXISTS passes_quiet ON passes (started_us) WHERE NOT {_NOTEWORTHY}",
    f"CREATE INDEX IF NOT EXISTS passes_noteworthy ON passes (started_us) WHERE {_NOTEWORTHY}",
)
_DONE: Final = "('done', 'gone', 'restored')"
_COLUMNS: Final = (
    "id, started_us, duration_s, trigger, scope, plan_id, dry_run, result, detail, predicted_bytes, freed_bytes,"
    " percent_before, percent_after"
)


def insert_pass(connection: sqlite3.Connection, past: PastPass) -> None:
    """Write a pass, replacing its earlier record."""
    connection.execute(
        "DELETE FROM passes WHERE id = ?", storable(past.id)
    )  # the foreign keys also delete the rows of the pass in all other tables
    connection.execute(
        "INSERT INTO passes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        storable(
            past.id,
            micros(past.started_at),
            past.duration_s,
            past.trigger,
            past.scope,
            past.plan_id,
            past.dry_run,
            past.result,
            past.detail,
            past.predicted_bytes,
            past.freed_bytes,
            past.percent_before,
            past.percent_after,
            len(past.actions),
        ),
    )
    write_actions(connection, past.id, enumerate(past.actions))
    if past.eviction:
        connection.execute("INSERT INTO evictions VALUES (?, ?)", storable(past.id, past.eviction))
    if past.settled_s:
        connection.execute("INSERT INTO settle_times VALUES (?, ?)", storable(past.id, past.settled_s))


def write_actions(connection: sqlite3.Connection, pass_id: str, actions: Iterable[tuple[int, PastAction]]) -> None:
    """Write actions of a recorded pass, each with its position; earlier records at these positions are replaced."""
    connection.executemany(
        "INSERT OR REPLACE INTO actions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            storable(
                pass_id,
                position,
                each.kind,
                each.item_id,
                each.name,
                "\n".join(each.references),
                each.outcome,
                each.detail,
                each.reason,
                each.sentence,
                each.frees_bytes,
                each.duration_s,
            )
            for position, each in actions
        ),
    )


def prune_passes(
    connection: sqlite3.Connection,
    retention: Retention,
    now: datetime,
    *,
    clock_trusted: bool,
    running: Collection[str] = (),
) -> None:
    """Delete passes above the limits: by age, by number, then by the size of the used pages of the file.

    A pass that started before 2026 was recorded with a wrong wall clock, so that its age is
    unknown.

    Args:
        connection: inside a transaction, with foreign keys enabled.
        retention: the limits.
        now: current wall time.
        clock_trusted: whether ages by the wall clock are valid; otherwise no pass is deleted by age.
        running: ids of unfinished passes of this process, which are kept.
    """
    kept = json.dumps(list(running))
    finished = "id NOT IN (SELECT value FROM json_each(:kept))"
    if clock_trusted:
        connection.execute(
            f"DELETE FROM passes WHERE started_us BETWEEN :plausible AND :before AND {finished}",  # noqa: S608 - constants only
            {"before": micros(now - retention.maximum_age) - 1, "plausible": micros(PLAUSIBLE_FROM), "kept": kept},
        )
        connection.execute(
            f"DELETE FROM passes WHERE NOT {_NOTEWORTHY} AND started_us < :before AND {finished}",  # noqa: S608
            {"before": micros(now - _QUIET_PERIOD), "kept": kept},
        )
    oldest = (
        "DELETE FROM passes WHERE id IN (SELECT id FROM passes"  # noqa: S608 - constants only
        f" WHERE {finished} ORDER BY started_us LIMIT :surplus)"
    )
    surplus = _count(connection) - retention.maximum_records
    if retention.maximum_records and surplus > 0:
        connection.execute(oldest, {"surplus": surplus, "kept": kept})
    while _used_bytes(connection) > retention.maximum_bytes:
        count = _count(connection)
        if count <= 1:
            return
        surplus = min(max(1, count // 10), count - 1)
        if not connection.execute(oldest, {"surplus": surplus, "kept": kept}).rowcount:
            return


def _count(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(*) FROM passes").fetchone()
    return int(count)


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def read_passes(
    connection: sqlite3.Connection, since: datetime | None, image: str, limit: int, *, quiet: bool
) -> list[PastPass]:
    """Return passes with their actions, newest first; see :meth:`nodeagent.store.history.History.read`."""
    matching, values = _matching(image)
    found = [_past_pass(row) for row in _select_passes(connection, since, image, limit, quiet=quiet)]
    return _with_actions(connection, found, matching, values)


def read_evictions(connection: sqlite3.Connection, since: datetime, limit: int) -> list[PastPass]:
    """Return the evictions with their actions and documents, newest first."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM passes WHERE scope = 'pods' AND started_us >= ? ORDER BY started_us DESC LIMIT ?",  # noqa: S608 - constants only
        (micros(since), limit),
    )
    return _with_actions(connection, list(map(_past_pass, rows)), "1", {})


def read_pass(connection: sqlite3.Connection, pass_id: str) -> PastPass | None:
    """Return one pass with its actions; ``None`` if the pass is not recorded."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM passes WHERE id = ?", storable(pass_id)).fetchone()  # noqa: S608
    return None if row is None else _with_actions(connection, [_past_pass(row)], "1", {})[0]


def _with_actions(
    connection: sqlite3.Connection, found: Sequence[PastPass], matching: str, values: Mapping[str, object]
) -> list[PastPass]:
    """Return the passes with those actions that match the condition; one query reads the actions of all passes."""
    ids = {"ids": json.dumps([each.id for each in found])}
    listed = "pass_id IN (SELECT value FROM json_each(:ids))"
    actions: dict[str, list[PastAction]] = {}
    for pass_id, *row in connection.execute(
        "SELECT pass_id, kind, item_id, name, refs, outcome, detail, reason, sentence, frees_bytes, duration_s"  # noqa: S608 - constants only
        f" FROM actions WHERE {listed} AND {matching} ORDER BY pass_id, position",
        {**ids, **values},
    ):
        actions.setdefault(pass_id, []).append(_action(row))
    documents = _pairs(connection, "evictions", f"SELECT pass_id, document FROM evictions WHERE {listed}", ids)  # noqa: S608
    settled = _pairs(connection, "settle_times", f"SELECT pass_id, settled_s FROM settle_times WHERE {listed}", ids)  # noqa: S608
    return [
        replace(
            each,
            actions=tuple(actions.get(each.id, ())),
            eviction=stored_text(documents.get(each.id, "")),
            settled_s=settled.get(each.id, 0.0),
        )
        for each in found
    ]


def _pairs(connection: sqlite3.Connection, table: str, query: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Return the pairs of a query; empty for a file of a version without the table, since reading does not migrate."""
    return dict(connection.execute(query, values).fetchall()) if has_table(connection, table) else {}


def count_passes(connection: sqlite3.Connection, limit: int) -> list[CountedPass]:
    """Return passes with the number of their removals, newest first; omit passes of the daemon without removals."""
    found = [_past_pass(row) for row in _select_passes(connection, None, "", limit, quiet=False)]
    counts: dict[str, tuple[int, int]] = {
        pass_id: (removed, planned)
        for pass_id, removed, planned in connection.execute(
            f"SELECT pass_id, sum(outcome IN {_DONE}), count(*) FROM actions"  # noqa: S608 - constants only
            " WHERE pass_id IN (SELECT value FROM json_each(?)) GROUP BY pass_id",
            (json.dumps([each.id for each in found]),),
        )
    }
    return [CountedPass(each, *counts.get(each.id, (0, 0))) for each in found]


def has_passes(connection: sqlite3.Connection) -> bool:
    """Return whether the file has the tables of passes; false if the writer was killed while it created the file."""
    return has_table(connection, "passes") and has_table(connection, "actions")


def _select_passes(
    connection: sqlite3.Connection, since: datetime | None, image: str, limit: int, *, quiet: bool
) -> sqlite3.Cursor:
    matching, values = _matching(image)
    conditions = ["started_us >= :since"]
    if not (quiet and not image):
        conditions.append(_SHOWN)
    if image:
        conditions.append(f"EXISTS (SELECT 1 FROM actions WHERE pass_id = passes.id AND {matching})")  # noqa: S608
    return connection.execute(
        f"SELECT {_COLUMNS} FROM passes WHERE {' AND '.join(conditions)}"  # noqa: S608 - constants only
        " ORDER BY started_us DESC, id DESC LIMIT :limit",
        {"since": micros(since) if since else -(2**63), "limit": limit, **values},
    )


def _matching(image: str) -> tuple[str, dict[str, object]]:
    """Return the SQL condition, with parameters, on actions with a text in the id or a name of an image or pod.

    LIKE ignores case, but cannot compare bytes that are not UTF-8; ``instr`` compares these. Version 0.1 stored such
    bytes in escaped form.
    """
    if not image:
        return "1", {}
    columns = ("item_id", "name", "refs")
    conditions = [f"{column} LIKE :like ESCAPE '\\'" for column in columns]
    values: dict[str, object] = {"like": f"%{_escaped(encodable(image))}%"}
    raw = raw_bytes(image)
    if raw is not None:
        conditions += [f"instr(CAST({column} AS BLOB), :raw)" for column in columns]
        values["raw"] = raw
    return f"kind IN ('image', 'pod') AND ({' OR '.join(conditions)})", values


def _past_pass(row: Sequence[Any]) -> PastPass:
    identity, started_us, duration_s, trigger, scope, plan_id, dry_run, *end = row
    result, detail, predicted_bytes, freed_bytes, before, after = end
    return PastPass(
        id=stored_text(identity),
        started_at=moment(started_us),
        duration_s=duration_s,
        trigger=stored_text(trigger),
        scope=stored_text(scope),
        plan_id=stored_text(plan_id),
        dry_run=bool(dry_run),
        result=stored_text(result),
        detail=stored_text(detail),
        predicted_bytes=predicted_bytes,
        freed_bytes=None if freed_bytes is None or freed_bytes < 0 else freed_bytes,  # negative in version 0.2.0
        percent_before=before,
        percent_after=after,
    )


def _action(row: Sequence[object]) -> PastAction:
    kind, item_id, name, refs, outcome, detail, reason, sentence, frees_bytes, duration_s = row
    return PastAction(
        stored_text(kind),
        stored_text(item_id),
        stored_text(name),
        tuple(filter(None, stored_text(refs).split("\n"))),
        stored_text(outcome),
        stored_text(detail),
        stored_text(reason),
        stored_text(sentence),
        frees_bytes if isinstance(frees_bytes, int) else None,
        duration_s if isinstance(duration_s, float) else 0.0,
    )


def _escaped(text: str) -> str:
    """Return a LIKE pattern that matches the text literally."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


WRITER_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS writers (pass_id TEXT PRIMARY KEY NOT NULL REFERENCES passes (id) ON DELETE CASCADE,"
    " pid INTEGER NOT NULL, boot_id TEXT NOT NULL, started_ticks INTEGER NOT NULL) WITHOUT ROWID"
)
RUNNING: Final = "running"
INTERRUPTED: Final = "interrupted"
PLANNED: Final = "planned"
UNKNOWN: Final = "unknown"
KILLED: Final = "killed"
_GONE: Final = frozenset({"done", "gone"})


class InterruptedPass(Record):
    """Pass without a result because its process ended.

    Attributes:
        removed: number of items recorded as removed.
        unknown: number of planned removals without a recorded outcome.
    """

    id: str
    started_at: datetime
    trigger: str
    scope: str
    removed: int
    unknown: int


def insert_unfinished(connection: sqlite3.Connection, past: PastPass, writer: ProcessIdentity) -> None:
    """Write an unfinished pass and its writer, replacing an earlier record of the pass."""
    insert_pass(connection, past)
    connection.execute(
        "INSERT INTO writers VALUES (?, ?, ?, ?)",
        storable(past.id, writer.pid, writer.boot_id, writer.started_ticks),
    )


def update_unfinished(
    connection: sqlite3.Connection, pass_id: str, actions: Mapping[int, PastAction], duration_s: float, total: int
) -> bool:
    """Write actions of an unfinished pass, by position; return whether the pass is recorded as unfinished.

    Args:
        connection: inside a transaction.
        pass_id: id of the pass.
        actions: new and changed actions, by position.
        duration_s: duration of the pass so far.
        total: number of planned removals so far.
    """
    changed = connection.execute(
        "UPDATE passes SET duration_s = ?, actions = ? WHERE id = ? AND result = ?",
        storable(duration_s, total, pass_id, RUNNING),
    )
    if not changed.rowcount:
        return False
    write_actions(connection, pass_id, actions.items())
    return True


def read_writers(connection: sqlite3.Connection) -> dict[str, ProcessIdentity]:
    """Return the writer of each unfinished pass by pass id; empty for files of version 0.1."""
    if not has_table(connection, "writers"):
        return {}
    rows = connection.execute("SELECT pass_id, pid, boot_id, started_ticks FROM writers")
    return {
        stored_text(pass_id): ProcessIdentity(pid, stored_text(boot_id), started_ticks)
        for pass_id, pid, boot_id, started_ticks in rows
    }


def close_unfinished(connection: sqlite3.Connection, pass_id: str, cause: str) -> InterruptedPass | None:
    """Record an unfinished pass as interrupted and return its summary; ``None`` if it is not recorded as unfinished.

    Args:
        connection: inside a transaction.
        pass_id: id of the pass.
        cause: cause of the interruption, such as ``killed``.
    """
    past = read_pass(connection, pass_id)
    if past is None or past.result != RUNNING:
        connection.execute("DELETE FROM writers WHERE pass_id = ?", storable(pass_id))
        return None
    past = interrupted(past, cause)
    insert_pass(connection, past)
    return summary_of(past)


def interrupted(past: PastPass, cause: str) -> PastPass:
    """Return an unfinished pass as interrupted: planned removals without an outcome have the outcome ``unknown``."""
    unknown = f"outcome unknown, {cause} before the result was recorded"
    actions = tuple(
        replace(each, outcome=UNKNOWN, detail=unknown) if each.outcome == PLANNED else each for each in past.actions
    )
    done = [each for each in actions if each.outcome in _GONE]
    return replace(
        past,
        result=INTERRUPTED,
        detail=f"{cause} before the pass finished",
        predicted_bytes=sum(each.frees_bytes or 0 for each in done),
        actions=actions,
    )


def summary_of(past: PastPass) -> InterruptedPass:
    """Return the summary of an interrupted pass: the numbers of removed items and of unknown outcomes."""
    return InterruptedPass(
        past.id,
        past.started_at,
        past.trigger,
        past.scope,
        sum(each.outcome in _GONE for each in past.actions),
        sum(each.outcome == UNKNOWN for each in past.actions),
    )


def as_found(
    past: PastPass, writers: Mapping[str, ProcessIdentity], is_running: Callable[[ProcessIdentity], bool]
) -> PastPass:
    """Return a pass as interrupted if its record is unfinished and its writer has ended."""
    if past.result != RUNNING:
        return past
    writer = writers.get(past.id)
    return past if writer is not None and is_running(writer) else interrupted(past, KILLED)


class UnfinishedPass:
    """Unfinished pass with its planned removals and the outcomes so far."""

    def __init__(self, past: PastPass) -> None:
        self._past = past
        self._actions = list(past.actions)
        self._changed: set[int] = set()
        self._written_to = 0

    @property
    def past(self) -> PastPass:
        """Record of the pass with the outcomes so far."""
        return replace(self._past, actions=tuple(self._actions))

    def extend(self, actions: Sequence[PastAction]) -> None:
        """Add the planned removals of a further round of the pass."""
        self._changed.update(range(len(self._actions), len(self._actions) + len(actions)))
        self._actions.extend(actions)

    def update(self, outcomes: Mapping[int, PastAction], duration_s: float) -> None:
        """Replace planned removals by removals with an outcome, by position in the pass."""
        known = [position for position in outcomes if position < len(self._actions)]
        for position in known:
            self._actions[position] = outcomes[position]
        self._changed.update(known)
        self._past = replace(self._past, duration_s=duration_s)

    def write(self, connection: sqlite3.Connection, number: int, writer: ProcessIdentity) -> None:
        """Write the changes since the last commit, or the whole pass if the file may lack it; see :meth:`written`.

        Args:
            connection: inside a transaction.
            number: number of the connection, which changes when the file is reopened.
            writer: identity of this process.
        """
        if number == self._written_to:
            if not self._changed:
                return
            changed = {position: self._actions[position] for position in sorted(self._changed)}
            if update_unfinished(connection, self._past.id, changed, self._past.duration_s, len(self._actions)):
                return
        insert_unfinished(connection, self.past, writer)

    def written(self, number: int) -> None:
        """Record that the transaction of :meth:`write` was committed on the connection with this number."""
        self._written_to = number
        self._changed.clear()


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
ADDITIONS: Final = (*PASS_INDEXES, WRITER_TABLE, SETTLE_TABLE, _OPERATION_TABLE)
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
            past = interrupted(unfinished.past, cause)
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
                found = (close_unfinished(connection, each, KILLED) for each in ended)
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
            writers = read_writers(connection)
            found = read_passes(connection, since, image, limit, quiet=quiet)
            return tuple(as_found(each, writers, self._is_running) for each in found)

    def count(self, *, limit: int) -> tuple[CountedPass, ...]:
        """Return passes with the number of their removals, newest first; omit passes of the daemon without removals.

        Raises:
            StoreError: the file exists but cannot be read.
        """
        with self._reading() as connection:
            if connection is None:
                return ()
            writers = read_writers(connection)
            return tuple(
                replace(each, past=as_found(each.past, writers, self._is_running))
                for each in count_passes(connection, limit)
            )

    def read_evictions(self, *, since: datetime, limit: int) -> tuple[PastPass, ...]:
        """Return the evictions with their documents, newest first.

        Raises:
            StoreError: the file exists but cannot be read.
        """
        with self._reading() as connection:
            return () if connection is None else tuple(read_evictions(connection, since, limit))

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
                writers = {} if connection is None else read_writers(connection)
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
