"""First observations of items whose own time contradicts the clock.

The runtime and the kernel write the creation, exit and change times of items by the wall clock at that time, which may
have been wrong. A time is valid if, by the current wall clock, it is not in the future and not before the boot or the
last jump: the current setting of the clock then wrote it. Otherwise the item counts from its first observation with
that time, on the boot clock. An item that was observed in an earlier boot counts from the start of the current boot. An
item in the first reading with a time before the boot also counts from the start of the boot, unless the wall clock has
jumped since.

A backward jump that is undone before the next reading can be detected only by the times of items: an item that is
missing in one reading and present in the next cannot be older than the first of the two. An item with an older time
therefore also counts from its first observation.
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
"""Kind of the item's time (creation, exit or change) and id of the item."""

FirstSeen = tuple[int, str, float]
"""Time of an item in microseconds since 1970 or number of its state; boot id and boot time of its first observation."""


class _KindReading(Record):
    """Items of one kind at one reading: the ids of all items, and the states of items that can change."""

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
        """Return the items that appeared or changed since the previous reading but have a time before that reading.

        The arguments are those of ``Store.first_seen``. Kinds that are not listed are not compared. A reading that is
        older than the previous reading of its kind is compared, but not stored.
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
    """Return the first observations of items whose timestamps contradict the clock, updated by a clock reading.

    Args:
        known: first observations before the reading.
        contradictory: time or state of each item whose time contradicts the clock.
        listed: ids of all existing items, by kind; entries of other items of these kinds are dropped.
        at: reading of the clocks.
        since_boot: contradictory items that were created before the boot.
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
