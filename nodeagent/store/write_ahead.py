"""Write-ahead records of unfinished passes: the planned removals before the first removal, then each outcome.

A pass is written with its planned removals before the first removal, and these records are synced: the runtime makes
its removals durable, so that after a power failure an unsynced record of a removal could be missing. Outcomes are
written without a sync. They survive the end of the process, and an outcome lost in a power failure is read as unknown.

The process that writes an unfinished pass is recorded by pid, boot id and start time. Once that process has ended, the
pass is interrupted, and removals without an outcome have the outcome ``unknown``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.model.stops import ProcessIdentity
from nodeagent.record import Record, replace
from nodeagent.store.pass_tables import PastAction, PastPass, insert_pass, read_pass, write_actions
from nodeagent.store.sqlite import has_table, storable, stored_text

if TYPE_CHECKING:
    import sqlite3


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
