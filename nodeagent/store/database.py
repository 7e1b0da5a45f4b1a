"""Database of image and snapshot usage, with a fallback to memory.

All times in the database are in node time (see ``clock_record``); the arguments and results of ``Store`` are in wall
time except for ``usage``.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.runtime import GapCause, ImageUsage, ImageUseRecord, ObservationGap
from nodeagent.record import replace
from nodeagent.store import observation
from nodeagent.store.clock_record import PLAUSIBLE_FROM, TOLERANCE_S, ClockReading, ClockRecord, advance, later, trust
from nodeagent.store.past_uses import PastUse, note_uses
from nodeagent.store.sqlite import BROKEN, micros
from nodeagent.store.state_file import StateFile, StoredUsage, merge_usage

if TYPE_CHECKING:
    from nodeagent.model.clock import ClockTrust

FILE_NAME: Final = "nodeagent.db"
_DEFAULT_GAPS: Final = observation.GapLimits()
_NO_STATES: Final[Mapping[observation.ItemKey, int]] = MappingProxyType({})


class SnapshotFigures(NamedTuple):
    """Usage of a committed snapshot; its creation time distinguishes it from a later snapshot of equal key."""

    created_s: int
    created_ns: int
    size_bytes: int
    inodes: int


class Store:
    """Store of the usage of images and snapshots. Its methods block, may be called from any thread, and never raise.

    The state in memory is authoritative while the agent runs; the file is a copy. If the file cannot be read or
    written, ``problem`` has the cause; each later write is a retry, and the first successful write writes everything.
    """

    def __init__(
        self, directory: Path, *, read_only: bool = False, gaps: observation.GapLimits = _DEFAULT_GAPS
    ) -> None:
        """Read the database in ``directory``.

        Args:
            directory: state directory; created with the first write.
            read_only: whether writes to the file are disabled.
            gaps: longest gaps between two detections that do not restart the observation of image use.
        """
        self._file = StateFile(directory / FILE_NAME, read_only=read_only, on_lost=self._lose)
        self._lock = threading.Lock()
        self._usage: dict[str, ImageUsage] = {}
        self._clock: ClockRecord | None = None
        self._is_lost = False
        self._tracker = observation.ObservationTracker(gaps)
        self._first_seen: dict[observation.ItemKey, observation.FirstSeen] = {}
        self._items = observation.ItemReadings()
        self._past_uses: dict[str, PastUse] = {}
        self._read_kinds: frozenset[tuple[str, str]] = frozenset()
        with self._lock:
            self._load()

    def take_notices(self) -> tuple[str, ...]:
        """Return the notices for operators since the last call, such as a quarantined file."""
        with self._lock:
            return self._file.take_notices()

    @property
    def problem(self) -> str:
        """Error because of which the usage is not on disk, with the consequence; empty while the file is usable."""
        return self._file.problem

    def usage(self) -> dict[str, ImageUsage]:
        """Return the image usage by image id, in node time."""
        with self._lock:
            return dict(self._usage)

    def read_clock(self, at: ClockReading) -> ClockTrust:
        """Record a reading of the clocks and return the trust in the wall clock at that reading.

        The record is written immediately after a jump or the first reading of a boot, otherwise with the next
        detection.
        """
        with self._lock:
            if not self._file.loaded:
                self._load()
            record = self._advance(at)
            written = self._file.written.clock if self._file.written is not None else None
            if _is_new(record, written):
                self._write()
            return trust(record, at)

    def first_seen(
        self,
        items: Mapping[observation.ItemKey, datetime],
        listed: Mapping[str, Collection[str]],
        at: ClockReading,
        states: Mapping[observation.ItemKey, int] = _NO_STATES,
    ) -> dict[observation.ItemKey, datetime]:
        """Return the first observation of each item whose own time contradicts the clock, by the wall clock of ``at``.

        A time before the boot is valid if the first reading of the item's kind contains the item, unless the clock has
        jumped since the boot; after a jump the item counts from the boot. A time before the previous reading of this
        process is also contradictory if that reading lacks the item or contains it in another state; the time then
        remains contradictory.

        Args:
            items: the creation, exit or change time of each item.
            listed: ids of all existing items, by kind; the records of other items of these kinds are dropped.
            at: the reading of the clocks at the observation.
            states: state number of each item that can change without a change of its time, such as a directory tree
                with a file time in the future; the item counts from the first observation of its current state.
        """
        with self._lock:
            record = self._advance(at)
            oldest = later(at.wall, record.valid_since_s - at.boottime_s)
            hidden = self._items.add(items, listed, at, states)
            before = self._first_seen

            def state_of(key: observation.ItemKey, stamp: datetime) -> int:
                return states[key] if key in states else micros(stamp)

            contradictory = {
                key: state_of(key, stamp)
                for key, stamp in items.items()
                if not oldest <= stamp <= at.wall
                or key in hidden
                or (key in before and before[key][0] == state_of(key, stamp))
            }
            new_kinds = {kind for kind in listed if (at.boot_id, kind) not in self._read_kinds}
            self._read_kinds = self._read_kinds.union((at.boot_id, kind) for kind in listed)
            earlier = {key for key in contradictory if key[0] in new_kinds and PLAUSIBLE_FROM <= items[key] < oldest}
            since_boot = frozenset() if record.jumped_s is not None else frozenset(earlier)
            self._first_seen = observation.update_first_seen(before, contradictory, listed, at, since_boot)
            if self._first_seen != before:
                self._write()
            seen, jumped = self._first_seen, record.jumped_s is not None
            first = {
                key: later(at.wall, min(0.0, seen[key][2] - at.boottime_s))
                for key in contradictory
                if jumped or seen[key][2] > 0 or not PLAUSIBLE_FROM <= items[key] <= at.wall
            }
            return {key: max(since, items[key]) if items[key] <= at.wall else since for key, since in first.items()}

    def observe(
        self, listed: Mapping[str, datetime | None], in_use: Collection[str], at: ClockReading
    ) -> ImageUseRecord:
        """Record a detection and return the usage of every listed image after the detection; see ``merge_usage``."""
        with self._lock:
            if not self._file.loaded:
                self._load()
            record = self._advance(at)
            last, node_time = self._tracker.current, record.node_time(at.boottime_s)
            if last is not None and self._tracker.is_late(at):
                # A detection that started later was recorded before this one: only the images in use are new
                # information.
                usage = merge_usage(self._usage, listed, in_use, last.last_at, previous_at=last.last_at)
                self._usage.update({key: usage[key] for key in self._usage.keys() & usage.keys() if key in in_use})
                return self._use_record(usage, record, at)
            extension = self._tracker.extend(at, node_time)
            known = self._usage
            if extension.uncounted_s:
                known = _moved(known, timedelta(seconds=extension.uncounted_s))
            jumped_at = trust(record, at).jumped_at
            self._usage = merge_usage(
                known,
                listed,
                in_use,
                node_time,
                previous_at=extension.previous_at,
                ahead=at.wall - node_time,
                **({} if jumped_at is None else {"pulls_valid_since": jumped_at}),
            )
            self._past_uses = note_uses(self._past_uses, known, self._usage, in_use, extension.previous_at)
            self._write(only_if_due=True)
            return self._use_record(self._usage, record, at)

    def interrupt(self, cause: GapCause) -> None:
        """Record the cause of a gap in the observation that begins now; a detection in time discards the cause."""
        with self._lock:
            self._tracker.interrupt(cause)

    def stop(self, at: ClockReading) -> None:
        """Record that the agent stops during a shutdown of the node, if the wall clock is trusted; see ``observe``."""
        with self._lock:
            if self._file.loaded and trust(self._advance(at), at).expiry_now is not None:
                self._tracker.stop(at)
                self._write()

    def observed_since(self, at: ClockReading) -> datetime | None:
        """Return the start of the gapless observation of image use, by the wall clock of ``at``.

        ``None`` before the first detection, after a gap above the limit, or while the file cannot be read or written.
        The method acquires no lock, so that a hanging disk does not block the status.
        """
        return self._observed_since(at) if self._tracker.would_continue(at) else None

    def gaps(self, at: ClockReading) -> tuple[ObservationGap, ...]:
        """Return the latest gaps in the observation of image use, oldest first, without acquiring a lock."""
        record = self._clock
        if record is None:
            return ()
        ahead = at.wall - advance(record, at).node_time(at.boottime_s)
        return tuple(
            replace(each, started_at=each.started_at and each.started_at + ahead, ended_at=each.ended_at + ahead)
            for each in self._tracker.gaps
        )

    def clock(self, at: ClockReading) -> ClockTrust:
        """Return the trust in the wall clock of ``at``, without recording the reading or acquiring a lock."""
        return trust(advance(self._clock, at, is_lost=self._is_lost), at)

    def is_wall_trusted(self, at: ClockReading) -> bool:
        """Return whether ages by the wall clock of ``at`` are valid across boots, without acquiring a lock."""
        expiry_now = self.clock(at).expiry_now
        return expiry_now is not None and (at.wall - expiry_now).total_seconds() <= TOLERANCE_S

    def snapshot_usage(self) -> dict[tuple[str, str], SnapshotFigures]:
        """Return the usage of committed snapshots by snapshotter and key; empty if the file cannot be read."""
        with self._lock:
            if not self._file.loaded or self._file.written is None:
                return {}
            try:
                with closing(self._file.open_for_reading()) as connection:
                    rows = connection.execute(
                        "SELECT snapshotter, key, created_s, created_ns, size_bytes, inodes FROM snapshot_usage"
                    )
                    return {(snapshotter, key): SnapshotFigures(*figures) for snapshotter, key, *figures in rows}
            except (OSError, sqlite3.DatabaseError, TypeError):
                return {}

    def note_snapshot_usage(
        self, measured: Mapping[tuple[str, str], SnapshotFigures], removed: Collection[tuple[str, str]]
    ) -> None:
        """Store the usage of committed snapshots, which saves one call per snapshot after a restart.

        A failed write is ignored, since the runtime can report the usage again; ``problem`` reports the next failure.
        """
        with self._lock:
            if not self._file.writable:
                return
            with suppress(*BROKEN), closing(self._file.open_for_writing()) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("DELETE FROM snapshot_usage WHERE snapshotter = ? AND key = ?", removed)
                connection.executemany(
                    "INSERT OR REPLACE INTO snapshot_usage VALUES (?, ?, ?, ?, ?, ?)",
                    [(*name, *figures) for name, figures in measured.items()],
                )
                connection.execute("COMMIT")

    def _advance(self, at: ClockReading) -> ClockRecord:
        self._clock = advance(self._clock, at, is_lost=self._is_lost)
        return self._clock

    def _use_record(self, usage: Mapping[str, ImageUsage], record: ClockRecord, at: ClockReading) -> ImageUseRecord:
        """Return the usage, given in node time, as a record in wall time by the clock of ``at``."""
        ahead = at.wall - record.node_time(at.boottime_s)
        moved = _moved(usage, ahead) if ahead else dict(usage)
        for image_id, past in self._past_uses.items():
            if past.pauses_s and image_id in moved:
                moved[image_id] = replace(moved[image_id], pauses_s=past.pauses_s)
        return ImageUseRecord(
            moved,
            self._observed_since(at),
            trust(record, at),
        )

    def _observed_since(self, at: ClockReading) -> datetime | None:
        settled = self.clock(at).expiry_now is not None
        observed_s = self._tracker.observed_s(at, is_wall_settled=settled)
        if observed_s is None or not self._file.loaded or self.problem:
            return None
        return later(at.wall, observed_s - at.boottime_s)

    def _merge(self, stored: StoredUsage) -> None:
        """Merge the content of the file with the state in memory, which starts with this process."""
        if self._clock is not None and stored.clock is not None:
            known = advance(stored.clock, self._clock.anchor)
            ahead = known.node_zero - self._clock.node_zero
            self._usage = _moved(self._usage, ahead)
            self._past_uses = {
                key: each._replace(last_used=later(each.last_used, ahead.total_seconds()))
                for key, each in self._past_uses.items()
            }
            self._tracker.move(ahead)
            self._clock = replace(
                self._clock,
                node_zero=known.node_zero,
                known_node=later(self._clock.known_node, ahead.total_seconds()),
            )
        self._clock = self._clock or stored.clock
        usage = stored.usage
        self._usage = {**usage, **{key: _combined(each, usage.get(key)) for key, each in self._usage.items()}}
        self._first_seen = {**stored.first_seen, **self._first_seen}
        self._past_uses = {**stored.past_uses, **self._past_uses}
        self._tracker.restore(stored.observation, stored.gaps)

    def _load(self) -> None:
        """Read the file and merge its content with the state in memory, which is newer."""
        stored = self._file.read()
        if stored is not None:
            self._merge(stored)

    def _lose(self) -> None:
        """Record that the content of the existing file cannot be read."""
        self._is_lost = True
        self._tracker.interrupt(GapCause.STATE_LOST)

    def _write(self, *, only_if_due: bool = False) -> None:
        now = StoredUsage(
            dict(self._usage),
            self._clock,
            self._tracker.current,
            self._tracker.gaps,
            dict(self._first_seen),
            self._past_uses,
        )
        self._file.write(now, only_if_due=only_if_due)


def _is_new(record: ClockRecord, written: ClockRecord | None) -> bool:
    """Return whether a first reading of a boot, a jump or a first ``calendar_zero`` is not written yet."""
    if written is None:
        return True
    fields = (record.boot_id, record.node_zero, record.jumped_s, record.calendar_zero is None)
    return fields != (written.boot_id, written.node_zero, written.jumped_s, written.calendar_zero is None)


class _MovedTimes(dict["datetime", "datetime"]):
    """Cache of times moved by a fixed duration, limited to the range of ``datetime``.

    Equal times become one object: most images of a node have equal times, and the comparison of identical objects is
    fast.
    """

    def __init__(self, by: timedelta) -> None:
        super().__init__()
        self._by = by

    def __missing__(self, moment: datetime) -> datetime:
        try:
            moved = moment + self._by
        except OverflowError:
            moved = later(moment, self._by.total_seconds())
        self[moment] = moved
        return moved


def _moved(usage: Mapping[str, ImageUsage], by: timedelta) -> dict[str, ImageUsage]:
    """Return the usage with all times moved except pull times, which are by the clock of the runtime."""
    times = _MovedTimes(by)
    return {
        image_id: ImageUsage(
            times[each.first_detected],
            None if each.last_used is None else times[each.last_used],
            each.pulled_at,
            None if each.present_since is None else times[each.present_since],
        )
        for image_id, each in usage.items()
    }


def _combined(memory: ImageUsage, file: ImageUsage | None) -> ImageUsage:
    """Return the usage of an image merged from memory and file: the earlier first detection and the later use."""
    if file is None:
        return memory
    uses = [used for used in (memory.last_used, file.last_used) if used is not None]
    first = min(memory.first_detected, file.first_detected)
    return ImageUsage(first, max(uses, default=None), memory.pulled_at, file.present_since)
