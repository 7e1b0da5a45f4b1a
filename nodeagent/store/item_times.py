"""First observations of items whose own time contradicts the clock.

The runtime and the kernel write the creation, exit and change times of items under any wall clock. Such a
time is valid if it is, by the current wall clock, not in the future and not before the boot or the last jump: then it
was written under this clock. Otherwise the item counts from its first observation with that time, on the boot clock.
An item that was observed in an earlier boot counts from the start of this one, and so does one with an earlier time at
the first reading: then the agent has not seen a jump that would contradict it.

A jump back that is undone before the next reading leaves no other trace than such times: an item that a reading lacks
and the next one has cannot be older than the former. It counts from its first observation too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record
from nodeagent.store.clock_record import TOLERANCE_S, later

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from nodeagent.store.clock_record import ClockReading

ItemKey = tuple[str, str]
"""Kind of the time and id of the item."""

FirstSeen = tuple[int, str, float]
"""Time of the item in microseconds since 1970 or number of its state; boot and boot time of its first observation."""


class _KindReading(Record):
    """Items of one kind at one reading: the ids of all, and the states of those that can change."""

    at: ClockReading
    ids: Collection[str]
    states: Mapping[str, int]


class ItemReadings:
    """Items of the previous reading of each kind by this process. Not thread-safe."""

    def __init__(self) -> None:
        self._latest: dict[str, _KindReading] = {}

    def add(
        self,
        items: Mapping[ItemKey, datetime],
        listed: Mapping[str, Collection[str]],
        at: ClockReading,
        states: Mapping[ItemKey, int],
    ) -> set[ItemKey]:
        """Return the items that appeared or changed since the previous reading with an earlier time than that.

        The parameters are those of ``Store.first_seen``. Kinds that are not listed are not compared. A reading from
        before the previous one of its kind is compared, but not stored.
        """
        before = {
            kind: last
            for kind in listed
            if (last := self._latest.get(kind)) is not None and last.at.boot_id == at.boot_id
        }
        read_at = {
            kind: later(at.wall, last.at.boottime_s - at.boottime_s - TOLERANCE_S) for kind, last in before.items()
        }
        found = set()
        for key, stamp in items.items():
            kind, item = key
            last = before.get(kind)
            if last is None or stamp >= read_at[kind]:
                continue
            if item not in last.ids or (item in last.states and last.states[item] != states.get(key)):
                found.add(key)
        for kind, ids in listed.items():
            if kind not in before or before[kind].at.boottime_s <= at.boottime_s:
                own = {item: state for (each, item), state in states.items() if each == kind} if states else {}
                self._latest[kind] = _KindReading(at, ids, own)
        return found


def update_first_seen(
    known: Mapping[ItemKey, FirstSeen],
    contradictory: Mapping[ItemKey, int],
    listed: Mapping[str, Collection[str]],
    at: ClockReading,
    since_boot: Collection[ItemKey] = (),
) -> dict[ItemKey, FirstSeen]:
    """Return the first observations after a reading.

    Args:
        known: first observations before.
        contradictory: time or state of each item whose time contradicts the clock.
        listed: ids of all items that exist, by kind; entries of other items of these kinds are dropped.
        at: the reading.
        since_boot: items that exist since the boot or longer.
    """
    updated = {key: seen for key, seen in known.items() if key[0] not in listed or key[1] in listed[key[0]]}
    for key, state in contradictory.items():
        before = known.get(key)
        if before is None or before[0] != state:
            updated[key] = (state, at.boot_id, 0.0 if key in since_boot else at.boottime_s)
        elif before[1] != at.boot_id:
            updated[key] = (state, at.boot_id, 0.0 if before[1] and at.boot_id else at.boottime_s)
        elif before[2] > at.boottime_s:
            updated[key] = (state, at.boot_id, at.boottime_s)
    return updated
