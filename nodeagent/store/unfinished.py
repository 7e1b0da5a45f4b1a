"""Unfinished passes of this process in the history, and the part of each pass that is already written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import replace
from nodeagent.store.write_ahead import insert_unfinished, update_unfinished

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from nodeagent.model.process import ProcessIdentity
    from nodeagent.store.pass_records import PastAction, PastPass


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
