"""Tables of passes in the history: schema, insertion, pruning, queries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.store.sqlite import micros, moment, storable
from nodeagent.text import encodable

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

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
_QUIET_PERIOD: Final = timedelta(days=1)
_NOTEWORTHY: Final = "(actions > 0 OR (result <> 'nothing-to-do' AND trigger NOT IN ('interval', 'eviction')))"
"""Passes without removals that a user requested are kept and shown unless they had nothing to do. Passes of
the daemon would fill the history: without removable items, each of them misses its target."""


@dataclass(frozen=True, slots=True)
class PastAction:
    """One planned removal and its outcome.

    Attributes:
        kind: kind of the item, as in a plan.
        item_id: the runtime's id, or the name of a log.
        name: name for display.
        references: further names of an image.
        outcome: outcome, as in a report.
        detail: cause of the outcome; may be empty.
        reason: code of the reason for the removal, in the words of the version that recorded it.
        sentence: the reason as a sentence.
        frees_bytes: bytes that the removal was predicted to free; ``None`` if unknown.
        duration_s: duration of the removal.
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
    """A recorded pass.

    Attributes:
        id: id of the pass.
        started_at: start, aware UTC.
        trigger: ``interval``, ``once``, ``command``, ``apply``, ``leaks`` or ``eviction``.
        scope: kinds of items.
        plan_id: id of its first plan.
        dry_run: whether removals were only reported.
        result: result, as in a report.
        detail: cause of the result, such as the shortfall.
        predicted_bytes: bytes that the completed removals were predicted to free.
        freed_bytes: measured bytes; ``None`` without a measurement.
        percent_before: usage of the image filesystem before the pass; ``None`` without a reading.
        percent_after: usage of the image filesystem after the pass; ``None`` without a reading.
        actions: all planned removals.
        eviction: JSON document of an eviction; empty for other passes.
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
    """Limits of the history.

    Attributes:
        maximum_age: passes that started earlier are dropped; passes with nothing to do, one a minute, after a day.
        maximum_bytes: the oldest passes are dropped while the file is larger.
    """

    maximum_age: timedelta
    maximum_bytes: int


def insert_pass(connection: sqlite3.Connection, past: PastPass) -> None:
    """Write a pass, replacing an earlier record of it."""
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


def prune_passes(connection: sqlite3.Connection, retention: Retention, now: datetime) -> None:
    """Drop passes above the maximum age, then the oldest until the used pages of the file fit the maximum size."""
    connection.execute("DELETE FROM passes WHERE started_us < ?", (micros(now - retention.maximum_age),))
    connection.execute(
        f"DELETE FROM passes WHERE NOT {_NOTEWORTHY} AND started_us < ?",  # noqa: S608 - constants only
        (micros(now - _QUIET_PERIOD),),
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


def read_passes(
    connection: sqlite3.Connection, since: datetime | None, image: str, limit: int, *, quiet: bool
) -> Iterator[PastPass]:
    """Yield passes with their actions, newest first; see :meth:`nodeagent.store.history.History.read`."""
    pattern = f"%{_escaped(encodable(image))}%"
    condition = "item_id LIKE :like ESCAPE '\\' OR name LIKE :like ESCAPE '\\' OR refs LIKE :like ESCAPE '\\'"
    matching = f"kind IN ('image', 'pod') AND ({condition})" if image else "1"
    rows = connection.execute(
        "SELECT id, started_us, duration_s, trigger, scope, plan_id, dry_run, result, detail, predicted_bytes,"  # noqa: S608 - constants only
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
    # The first version of the agent had no evictions, and reading does not migrate the file.
    has_evictions = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'evictions'").fetchone() is not None
    for row in rows:
        actions = connection.execute(
            "SELECT kind, item_id, name, refs, outcome, detail, reason, sentence, frees_bytes, duration_s FROM actions"  # noqa: S608 - constants only
            f" WHERE pass_id = :pass AND {matching} ORDER BY position",
            {"pass": row[0], "like": pattern},
        )
        document = None
        if has_evictions:
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
    """Return a LIKE pattern that matches the text literally."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
