"""Tables of node stops in the history database: schema, insertion, pruning and queries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.model.stops import NodeStop, PodOutcome, StopEnd, StopKind, StoppedPod
from nodeagent.store.clock_record import PLAUSIBLE_FROM
from nodeagent.store.sqlite import has_table, micros, moment, storable, stored_text

if TYPE_CHECKING:
    import sqlite3

TABLES: Final = (
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

OPERATION_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS node_stop_operations (stop_id TEXT PRIMARY KEY NOT NULL REFERENCES node_stops (id)"
    " ON DELETE CASCADE, operation TEXT NOT NULL) WITHOUT ROWID"
)


def insert_stop(connection: sqlite3.Connection, stop: NodeStop) -> None:
    """Write a node stop with its pods, replacing its earlier record."""
    connection.execute("DELETE FROM stopped_pods WHERE stop_id = ?", (stop.id,))
    connection.execute(
        "INSERT OR REPLACE INTO node_stops VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        storable(
            stop.id,
            stop.boot_id,
            stop.kind.value,
            micros(stop.started_at),
            stop.started_s,
            stop.granted_ms,
            stop.end.value,
            None if stop.ended_at is None else micros(stop.ended_at),
            stop.dry_run,
        ),
    )
    connection.execute("INSERT OR REPLACE INTO node_stop_operations VALUES (?, ?)", storable(stop.id, stop.operation))
    connection.executemany(
        "INSERT INTO stopped_pods VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            storable(
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


def prune_stops(connection: sqlite3.Connection, before: datetime | None, maximum: int) -> None:
    """Delete the node stops that started before ``before`` and the oldest above a number; ``None`` and 0 for no limit.

    A stop that started before 2026 was recorded with a wrong wall clock, so that its age is
    unknown.
    """
    if before is not None:
        connection.execute(
            "DELETE FROM node_stops WHERE started_us >= ? AND started_us < ?", (micros(PLAUSIBLE_FROM), micros(before))
        )
    if maximum:
        connection.execute(
            "DELETE FROM node_stops WHERE id IN (SELECT id FROM node_stops ORDER BY started_us DESC LIMIT -1 OFFSET ?)",
            (maximum,),
        )


def read_stops(connection: sqlite3.Connection, since: datetime | None, limit: int) -> Iterator[NodeStop]:
    """Yield the node stops with their pods, newest first; none if the database lacks the table."""
    if not has_table(connection, "node_stops"):
        return
    operations: dict[str, str] = {}
    if has_table(connection, "node_stop_operations"):  # absent in files of the first versions
        operations = dict(connection.execute("SELECT stop_id, operation FROM node_stop_operations"))
    rows = connection.execute(
        "SELECT id, boot_id, kind, started_us, started_s, granted_ms, end, ended_us, dry_run FROM node_stops"
        " WHERE started_us >= ? ORDER BY started_us DESC, id DESC LIMIT ?",
        (micros(since) if since else 0, limit),
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
            started_at=moment(started_us),
            started_s=started_s,
            granted_ms=granted_ms,
            end=StopEnd(end),
            ended_at=None if ended_us is None else moment(ended_us),
            dry_run=bool(dry_run),
            pods=tuple(
                StoppedPod(
                    uid=stored_text(uid),
                    namespace=stored_text(namespace),
                    name=stored_text(name),
                    phase=stored_text(phase),
                    why=stored_text(why),
                    outcome=PodOutcome(outcome) if outcome else None,
                    requested_at_ms=asked_ms,
                    took_ms=took_ms,
                    detail=stored_text(detail),
                )
                for uid, namespace, name, phase, why, outcome, asked_ms, took_ms, detail in pods
            ),
            operation=stored_text(operations.get(identity, "")),
        )
