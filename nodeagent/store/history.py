"""What every pass did, kept for operators.

A database of its own beside the memory of image use: it grows, it is pruned, and losing it costs no decision. When
it cannot be written, passes wait in memory, as many as fit, and are written with the next one that works. A record
that could never be written is dropped and reported; it does not hold up the others.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.store import shutdown_history as node_stops
from nodeagent.store.sqlite import (
    BROKEN,
    BUSY_TIMEOUT_S,
    check,
    check_version,
    connect,
    is_corrupt,
    is_of_file,
    micros,
    moment,
    set_aside,
    storable,
)
from nodeagent.text import encodable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nodeagent.config.settings import Settings
    from nodeagent.model.node_stop import NodeStop

FILE_NAME: Final = "history.db"
WAITING_PASSES: Final = 200
_MOST_NOTICES: Final = 20
QUIET_FOR: Final = timedelta(days=1)
_MIGRATIONS: Final = (
    (
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
    ),
    (
        (
            "CREATE TABLE evictions (pass_id TEXT PRIMARY KEY NOT NULL REFERENCES passes (id) ON DELETE CASCADE,"
            " document TEXT NOT NULL) WITHOUT ROWID"
        ),
    ),
    node_stops.TABLES,
)
_NOTEWORTHY: Final = "(actions > 0 OR (result <> 'nothing-to-do' AND trigger NOT IN ('interval', 'eviction')))"
"""A pass without removals that somebody asked for and that missed its target, say, is kept and shown as others are. The
daemon's own would fill the history: they end so at every interval for as long as nothing is removable."""
_WITH_EVICTIONS: Final = 2  # the schema that has them


@dataclass(frozen=True, slots=True)
class PastAction:
    """One planned removal and what became of it.

    Attributes:
        kind: what it was, as in a plan.
        item_id: the runtime's id, or a log's name.
        name: what to call it.
        references: an image's other names.
        outcome: what became of it, as in a report.
        detail: why, where the outcome alone does not say.
        reason: code of the reason it was to go.
        sentence: that reason in words.
        frees_bytes: what its removal was expected to free.
        duration_s: how long it took.
    """

    kind: str
    item_id: str
    name: str
    references: tuple[str, ...]
    outcome: str
    detail: str
    reason: str
    sentence: str
    frees_bytes: int | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class PastPass:
    """One pass.

    Attributes:
        id: the pass's own.
        started_at: aware UTC.
        trigger: who asked: ``interval``, ``once``, ``command``, ``apply`` or ``leaks``.
        scope: what it was about.
        plan_id: the plan it carried out first.
        dry_run: whether nothing was touched.
        result: how it ended, as in a report.
        detail: what was missing or went wrong.
        predicted_bytes: what the removals that were done were expected to free.
        freed_bytes: what was measured; ``None`` where it was not.
        percent_before: usage of the image filesystem; ``None`` where it was not read.
        percent_after: likewise afterwards.
        actions: every planned removal.
        eviction: what an eviction was decided by, as JSON; empty for other passes.
    """

    id: str
    started_at: datetime
    duration_s: float
    trigger: str
    scope: str
    plan_id: str
    dry_run: bool
    result: str
    detail: str
    predicted_bytes: int
    freed_bytes: int | None
    percent_before: int | None
    percent_after: int | None
    actions: tuple[PastAction, ...] = ()
    eviction: str = ""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept.

    Attributes:
        maximum_age: older passes go. A pass that found nothing to do goes after a day, as there is one a minute.
        maximum_bytes: the oldest go once the file has grown beyond this.
    """

    maximum_age: timedelta
    maximum_bytes: int


def configured_retention(settings: Settings) -> Retention:
    """Return the configured retention of the history."""
    return Retention(timedelta(seconds=settings.history_age_s), settings.history_bytes)


class History:
    """The passes of this node. Its methods block and may be called from any thread."""

    def __init__(self, directory: Path) -> None:
        """Keep the history under ``directory``; nothing is made there before the first pass."""
        self._path = directory / FILE_NAME
        self._lock = threading.Lock()
        self._waiting: deque[PastPass] = deque(maxlen=WAITING_PASSES)
        self._notices: deque[str] = deque(maxlen=_MOST_NOTICES)
        self.problem = ""

    def take_notices(self) -> tuple[str, ...]:
        """Return which records were dropped and why, each once."""
        with self._lock:
            notices = tuple(self._notices)
            self._notices.clear()
            return notices

    def add(self, past: PastPass, retention: Retention) -> None:
        """Write a pass and drop what need not be kept; where that fails ``problem`` says why. Never raises."""
        with self._lock:
            self._waiting.append(past)
            try:
                self._write(retention, past.started_at)
            except BROKEN as error:
                self.problem = self._after(error)
                return
            self._waiting.clear()
            self.problem = ""

    def add_stop(self, stop: NodeStop, retention: Retention, now: datetime) -> None:
        """Write how the node went down, in place of what is there of it; as :meth:`add`. Never raises."""
        with self._lock:
            try:
                with closing(connect(self._path, _MIGRATIONS)) as connection:
                    connection.execute("PRAGMA foreign_keys = ON")
                    connection.execute("BEGIN IMMEDIATE")
                    with self._dropping(connection, f"node stop {stop.id}"):
                        node_stops.insert_stop(connection, stop)
                    node_stops.prune_stops(connection, now - retention.maximum_age)
                    connection.execute("COMMIT")
            except BROKEN as error:
                self.problem = self._after(error)

    def read_stops(self, *, since: datetime | None = None, limit: int = 20) -> tuple[NodeStop, ...]:
        """Return how the node went down, newest first.

        Raises:
            StoreError: there is a file and it cannot be read.
        """
        with self._lock:
            try:
                if not self._path.exists():
                    return ()
                with closing(self._reading()) as connection:
                    return tuple(node_stops.read_stops(connection, since, limit))
            except (*BROKEN, ValueError) as error:
                raise StoreError(f"{self._path}: the history cannot be read: {error}") from error

    def _reading(self) -> sqlite3.Connection:
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)

    def _after(self, error: Exception) -> str:
        """Set a broken file aside; return what an operator should know."""
        if isinstance(error, sqlite3.DatabaseError) and is_corrupt(error):
            try:
                return set_aside(self._path, error)
            except OSError as moving:
                return f"{self._path}: {error}, and it cannot be set aside: {moving.strerror or moving}"
        return f"{self._path}: {error}; history is kept in memory only until this is mended"

    def read(
        self, *, since: datetime | None = None, image: str = "", limit: int = 100, quiet: bool = False
    ) -> tuple[PastPass, ...]:
        """Return passes with their actions, newest first.

        Args:
            since: passes that started before are left out.
            image: only passes that are about an image or a pod whose id or one of whose names contains this; of their
                actions only those.
            limit: at most so many passes.
            quiet: also those that planned nothing, unless they were asked for and ended otherwise than with nothing to
                do.

        Raises:
            StoreError: there is a file and it cannot be read.
        """
        with self._lock:
            try:
                if not self._path.exists():
                    return ()
                with closing(self._reading()) as connection:
                    check(connection)
                    return tuple(_passes(connection, since, image, limit, quiet=quiet))
            except BROKEN as error:
                raise StoreError(f"{self._path}: the history cannot be read: {error}") from error

    def _write(self, retention: Retention, now: datetime) -> None:
        with closing(connect(self._path, _MIGRATIONS)) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            for past in self._waiting:
                with self._dropping(connection, f"pass {past.id}"):
                    _insert(connection, past)
            _prune(connection, retention, now)
            connection.execute("COMMIT")
            connection.execute("PRAGMA incremental_vacuum").fetchall()

    @contextmanager
    def _dropping(self, connection: sqlite3.Connection, what: str) -> Iterator[None]:
        """Undo and drop one record that cannot be written; an error of the file itself is raised."""
        connection.execute("SAVEPOINT record")
        try:
            yield
        except Exception as error:  # whatever is wrong with one record, the others have to be written
            if is_of_file(error):
                raise
            connection.execute("ROLLBACK TO record")
            self._notices.append(f"{self._path}: {what} cannot be recorded and was dropped: {error!r}")
        connection.execute("RELEASE record")


def _insert(connection: sqlite3.Connection, past: PastPass) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO passes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
    connection.executemany(
        "INSERT OR REPLACE INTO actions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            storable(
                past.id,
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
            for position, each in enumerate(past.actions)
        ],
    )
    if past.eviction:
        connection.execute("INSERT OR REPLACE INTO evictions VALUES (?, ?)", storable(past.id, past.eviction))


def _prune(connection: sqlite3.Connection, retention: Retention, now: datetime) -> None:
    """Drop what is too old, then the oldest until the file's pages in use fit."""
    connection.execute("DELETE FROM passes WHERE started_us < ?", (micros(now - retention.maximum_age),))
    connection.execute(
        f"DELETE FROM passes WHERE NOT {_NOTEWORTHY} AND started_us < ?",  # noqa: S608 - no outside text
        (micros(now - QUIET_FOR),),
    )
    while _used_bytes(connection) > retention.maximum_bytes:
        (count,) = connection.execute("SELECT count(*) FROM passes").fetchone()
        if count <= 1:
            return
        connection.execute(
            "DELETE FROM passes WHERE id IN (SELECT id FROM passes ORDER BY started_us LIMIT ?)", (max(1, count // 10),)
        )


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _passes(
    connection: sqlite3.Connection, since: datetime | None, image: str, limit: int, *, quiet: bool
) -> Iterator[PastPass]:
    pattern = f"%{_escaped(encodable(image))}%"
    about = "item_id LIKE :like ESCAPE '\\' OR name LIKE :like ESCAPE '\\' OR refs LIKE :like ESCAPE '\\'"
    matching = f"kind IN ('image', 'pod') AND ({about})" if image else "1"
    rows = connection.execute(
        "SELECT id, started_us, duration_s, trigger, scope, plan_id, dry_run, result, detail, predicted_bytes,"  # noqa: S608 - no outside text
        " freed_bytes, percent_before, percent_after FROM passes WHERE started_us >= :since"
        f" AND (:quiet OR {_NOTEWORTHY})"
        f" AND (:all OR EXISTS (SELECT 1 FROM actions WHERE pass_id = passes.id AND {matching}))"
        " ORDER BY started_us DESC, id DESC LIMIT :limit",
        {
            "since": micros(since) if since else 0,
            "quiet": quiet and not image,
            "all": not image,
            "like": pattern,
            "limit": limit,
        },
    ).fetchall()
    keeps_evictions = check_version(connection, len(_MIGRATIONS)) >= _WITH_EVICTIONS  # an older agent may have made it
    for row in rows:
        actions = connection.execute(
            "SELECT kind, item_id, name, refs, outcome, detail, reason, sentence, frees_bytes, duration_s FROM actions"  # noqa: S608 - likewise
            f" WHERE pass_id = :pass AND {matching} ORDER BY position",
            {"pass": row[0], "like": pattern},
        )
        document = None
        if keeps_evictions:
            document = connection.execute("SELECT document FROM evictions WHERE pass_id = ?", (row[0],)).fetchone()
        identity, started_us, duration_s, trigger, scope, plan_id, dry_run, *end = row
        result, detail, predicted_bytes, freed_bytes, before, after = end
        yield PastPass(
            id=identity,
            started_at=moment(started_us),
            duration_s=duration_s,
            trigger=trigger,
            scope=scope,
            plan_id=plan_id,
            dry_run=bool(dry_run),
            result=result,
            detail=detail,
            predicted_bytes=predicted_bytes,
            freed_bytes=freed_bytes,
            percent_before=before,
            percent_after=after,
            actions=tuple(map(_action, actions)),
            eviction=str(document[0]) if document else "",
        )


def _action(row: Sequence[object]) -> PastAction:
    kind, item_id, name, refs, outcome, detail, reason, sentence, frees_bytes, duration_s = row
    return PastAction(
        str(kind),
        str(item_id),
        str(name),
        tuple(filter(None, str(refs).split("\n"))),
        str(outcome),
        str(detail),
        str(reason),
        str(sentence),
        frees_bytes if isinstance(frees_bytes, int) else None,
        duration_s if isinstance(duration_s, float) else 0.0,
    )


def _escaped(text: str) -> str:
    """Return a text that stands for itself in a LIKE pattern."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
