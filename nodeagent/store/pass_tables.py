"""Tables of passes in the history database: schema, insertion, pruning and queries."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from nodeagent.record import Record, replace
from nodeagent.store.clock_record import PLAUSIBLE_FROM
from nodeagent.store.sqlite import has_table, micros, moment, storable, stored_text
from nodeagent.text import encodable, raw_bytes

if TYPE_CHECKING:
    import sqlite3


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
        trigger: ``interval``, ``trigger``, ``once``, ``command``, ``control``, ``apply``, ``leaks``, ``undo`` or
            ``eviction``.
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
