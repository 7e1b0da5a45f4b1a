"""Database file of image and snapshot usage: tables, reading, writing and errors.

Each write syncs the disk, which takes longer than all other parts of an observation, and every read request of the
control API is an observation. If only times have changed since the written observation, the write is therefore deferred
to a later observation. A process that ends before that write leaves slightly earlier times of use in the file. A first
detection, the first use of an image, a gap or a jump of the clock is written immediately.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from nodeagent.errors import StoreError
from nodeagent.model.runtime import GapCause, ImageUsage, ObservationGap
from nodeagent.parsing import parse_json
from nodeagent.record import Record, field, replace
from nodeagent.store.clock_record import ClockReading, ClockRecord, later
from nodeagent.store.observation import FirstSeen, ItemKey, ObservationPeriod
from nodeagent.store.past_uses import PastUse, decoded, encoded
from nodeagent.store.sqlite import (
    BUSY_TIMEOUT_S,
    check,
    check_version,
    connect,
    identity,
    is_corrupt,
    micros,
    moment,
    quarantine,
)

MIGRATIONS: Final = (
    (
        (
            "CREATE TABLE image_usage (image_id TEXT PRIMARY KEY NOT NULL,"
            " first_detected_us INTEGER NOT NULL, last_used_us INTEGER) WITHOUT ROWID"
        ),
        "CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID",
    ),
    (
        (
            "CREATE TABLE snapshot_usage (snapshotter TEXT NOT NULL, key TEXT NOT NULL, created_s INTEGER NOT NULL,"
            " created_ns INTEGER NOT NULL, size_bytes INTEGER NOT NULL, inodes INTEGER NOT NULL,"
            " PRIMARY KEY (snapshotter, key)) WITHOUT ROWID"
        ),
    ),
)
ADDITIONS: Final = (
    (
        "CREATE TABLE IF NOT EXISTS image_times (image_id TEXT PRIMARY KEY NOT NULL,"
        " first_detected_us INTEGER NOT NULL, pulled_us INTEGER, present_us INTEGER) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE IF NOT EXISTS observation_gaps (ended_us INTEGER NOT NULL, started_us INTEGER,"
        " cause TEXT NOT NULL)"
    ),
    (
        "CREATE TABLE IF NOT EXISTS item_times (kind TEXT NOT NULL, id BLOB NOT NULL, state INTEGER NOT NULL,"
        " boot_id TEXT NOT NULL, seen_s REAL NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID"
    ),
)
"""Tables that 0.1 ignores. A row of ``image_times`` is valid only with the first detection in ``image_usage``: 0.1 can
have detected the image again since."""

_ADDED_TABLES: Final = frozenset({"image_times", "observation_gaps", "item_times"})
_CLOCK: Final = "clock"
_LAST_WRITE: Final = "last_write"
_FORMER_CLOCK_KEYS: Final = ("boot_id", "boottime_s", "wall_us")
_REBOOTS: Final = "observed_reboots"
"""Row of table ``meta`` that version 0.2 ignores: the stop of the agent and the observation of earlier boots. It is
valid only for the observation of the other rows, which 0.2 can have written since."""
_SHM_REGION_BYTES: Final = 32 << 10  # Source: SQLite, WALINDEX_PGSZ
_PAST_USES: Final = "past_image_uses"
"""Row of table ``meta`` that version 0.2 ignores."""
_OBSERVATION_KEYS: Final = ("observed_boot_id", "observed_since_s", "observed_last_s", "observed_last_us")


class StoredUsage(Record):
    """Content of the image usage database, with all times in node time.

    Attributes:
        clock: the clock record; ``None`` if the file contains none.
        first_seen: first observations of items whose own time contradicts the clock.
        past_uses: past uses of images; empty if malformed, since the other rows do not depend on them.
    """

    usage: Mapping[str, ImageUsage] = field(default_factory=dict)
    clock: ClockRecord | None = None
    observation: ObservationPeriod | None = None
    gaps: tuple[ObservationGap, ...] = ()
    first_seen: Mapping[ItemKey, FirstSeen] = field(default_factory=dict)
    past_uses: Mapping[str, PastUse] = field(default_factory=dict)
    has_malformed_past_uses: bool = False


def read_usage(connection: sqlite3.Connection) -> StoredUsage:
    """Return the content of the database; empty for a file without tables.

    Raises:
        StoreError: a newer version of the agent wrote it.
        sqlite3.DatabaseError: the file is corrupt, or contains values that no version writes.
    """
    if check_version(connection, len(MIGRATIONS)) == 0:
        return StoredUsage()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"image_usage", "meta"} <= tables:
        raise sqlite3.DatabaseError("malformed: tables are missing")
    try:
        return _read_tables(connection, complete=tables >= _ADDED_TABLES)
    except (ValueError, OverflowError, TypeError, KeyError) as error:
        raise sqlite3.DatabaseError(f"malformed: {error}") from error


def last_write(connection: sqlite3.Connection) -> str:
    """Return the id of the last write to the file; empty if the file has none, as in files of version 0.1."""
    if check_version(connection, len(MIGRATIONS)) == 0:
        return ""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (_LAST_WRITE,)).fetchone()
    return "" if row is None else str(row[0])


def write_usage(
    connection: sqlite3.Connection, now: StoredUsage, written: StoredUsage | None, write_id: str = ""
) -> None:
    """Write the differences between ``now`` and ``written``, and ``write_id``.

    If ``written`` is ``None``, all of ``now`` is written.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        if written is None:
            for table in ("image_usage", *_ADDED_TABLES):
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 - constants only
            written = StoredUsage()
        _write_images(connection, now.usage, written.usage)
        _write_items(connection, now.first_seen, written.first_seen)
        if now.gaps != written.gaps:
            connection.execute("DELETE FROM observation_gaps")
            connection.executemany(
                "INSERT INTO observation_gaps VALUES (?, ?, ?)",
                [(micros(each.ended_at), _micros(each.started_at), each.cause.value) for each in now.gaps],
            )
        outdated = [*_FORMER_CLOCK_KEYS, *((*_OBSERVATION_KEYS, _REBOOTS) if now.observation is None else ())]
        outdated += [] if now.past_uses else [_PAST_USES]
        connection.executemany("DELETE FROM meta WHERE key = ?", [(key,) for key in outdated])
        connection.executemany(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (
                _encoded(now.clock, now.observation)
                | ({_PAST_USES: encoded(now.past_uses)} if now.past_uses != written.past_uses else {})
                | {_LAST_WRITE: write_id}
            ).items(),
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _read_tables(connection: sqlite3.Connection, *, complete: bool) -> StoredUsage:
    more, join = ("pulled_us, present_us", " LEFT JOIN image_times USING (image_id, first_detected_us)")
    if not complete:
        more, join = "NULL, NULL", ""
    rows = connection.execute(f"SELECT image_id, first_detected_us, last_used_us, {more} FROM image_usage{join}")  # noqa: S608 - constants only
    usage = {
        image_id: ImageUsage(moment(first), _moment(used), _moment(pulled_us), _moment(present_us))
        for image_id, first, used, pulled_us, present_us in rows
    }
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    gaps: tuple[ObservationGap, ...] = ()
    items: dict[ItemKey, FirstSeen] = {}
    if complete:
        found = connection.execute("SELECT started_us, ended_us, cause FROM observation_gaps ORDER BY ended_us, rowid")
        gaps = tuple(ObservationGap(_moment(start), moment(end), GapCause(cause)) for start, end, cause in found)
        seen = connection.execute("SELECT kind, id, state, boot_id, seen_s FROM item_times")
        items = {
            (kind, _text(item)): (int(state), str(boot_id), _finite(seen_s))
            for kind, item, state, boot_id, seen_s in seen
        }
    past = decoded(meta[_PAST_USES]) if _PAST_USES in meta else {}
    of_past = past or {}, past is None
    former = _former_clock(meta)
    if former is not None and _CLOCK in meta:  # version 0.1 wrote the file last, in wall time
        return StoredUsage(usage, former, None, gaps, items, *of_past)
    clock = _decoded_clock(meta[_CLOCK]) if _CLOCK in meta else former
    return StoredUsage(usage, clock, _decoded_observation(meta), gaps, items, *of_past)


def _former_clock(meta: Mapping[str, str]) -> ClockRecord | None:
    """Return the clock record of a file of version 0.1, which moved all times at every jump; ``None`` without one."""
    if any(key not in meta for key in _FORMER_CLOCK_KEYS):
        return None
    boot_id, boottime_s, wall_us = (meta[key] for key in _FORMER_CLOCK_KEYS)
    anchor = ClockReading(boot_id, _finite(float(boottime_s)), moment(int(wall_us)))
    zero = later(anchor.wall, -anchor.boottime_s)
    return ClockRecord(
        boot_id, anchor.boottime_s, anchor.boottime_s, anchor, zero, known_wall=anchor.wall, known_node=anchor.wall
    )


def _decoded_observation(meta: Mapping[str, str]) -> ObservationPeriod | None:
    """Return the stored observation; ``None`` if the file has none, as files of version 0.1.

    Raises:
        ValueError: the stored times are impossible.
    """
    if any(key not in meta for key in _OBSERVATION_KEYS):
        return None
    boot_id, since, last, last_us = (meta[key] for key in _OBSERVATION_KEYS)
    since_s, last_s = float(since), float(last)
    if not (math.isfinite(last_s) and 0 <= since_s <= last_s):
        raise ValueError(f"impossible observation from {since} s to {last} s")
    found = ObservationPeriod(boot_id, since_s, last_s, moment(int(last_us)))
    if _REBOOTS not in meta:
        return found
    more: dict[str, Any] = parse_json(meta[_REBOOTS])
    if (more["boot_id"], more["since_s"], more["last_s"]) != (boot_id, since_s, last_s):
        return found
    stopped_s, before_s = more["stopped_s"], _finite(more["before_s"])
    return replace(
        found,
        stopped_s=None if stopped_s is None else _finite(stopped_s),
        stopped_at=_moment(more["stopped_us"]),
        before_s=max(0.0, before_s),
        rebooted_at=_moment(more["rebooted_us"]),
    )


def _encoded(clock: ClockRecord | None, observation: ObservationPeriod | None) -> dict[str, str]:
    """Return the rows of table ``meta`` for the clock record and the observation, by key."""
    values: dict[str, str] = {}
    if clock is not None:
        values[_CLOCK] = _encoded_clock(clock)
    if observation is not None:
        columns = (observation.boot_id, observation.since_s, observation.last_s, micros(observation.last_at))
        values |= dict(zip(_OBSERVATION_KEYS, map(str, columns), strict=True))
        more = {
            "boot_id": observation.boot_id,
            "since_s": observation.since_s,
            "last_s": observation.last_s,
            "stopped_s": observation.stopped_s,
            "stopped_us": _micros(observation.stopped_at),
            "before_s": observation.before_s,
            "rebooted_us": _micros(observation.rebooted_at),
        }
        values[_REBOOTS] = json.dumps(more)
    return values


def _encoded_clock(record: ClockRecord) -> str:
    document = {
        "boot_id": record.boot_id,
        "first_s": record.first_s,
        "last_s": record.last_s,
        "anchor_s": record.anchor.boottime_s,
        "anchor_us": micros(record.anchor.wall),
        "node_zero_us": micros(record.node_zero),
        "jumped_s": record.jumped_s,
        "jump_s": record.jump_s,
        "known_wall_us": _micros(record.known_wall),
        "known_node_us": micros(record.known_node),
        "calendar_zero_us": _micros(record.calendar_zero),
    }
    return json.dumps(document)


def _decoded_clock(text: str) -> ClockRecord:
    values: dict[str, Any] = parse_json(text)
    boot_id = values["boot_id"]
    if not isinstance(boot_id, str):
        raise TypeError(f"boot id is {boot_id!r}, not text")
    jumped = values["jumped_s"]
    return ClockRecord(
        boot_id,
        _finite(values["first_s"]),
        _finite(values["last_s"]),
        ClockReading(boot_id, _finite(values["anchor_s"]), moment(int(values["anchor_us"]))),
        moment(int(values["node_zero_us"])),
        None if jumped is None else _finite(jumped),
        _finite(values["jump_s"]),
        _moment(values["known_wall_us"]),
        moment(int(values["known_node_us"])),
        _moment(values["calendar_zero_us"]),
    )


def _write_images(
    connection: sqlite3.Connection, usage: Mapping[str, ImageUsage], written: Mapping[str, ImageUsage]
) -> None:
    removed = [(image_id,) for image_id in written.keys() - usage.keys()]
    connection.executemany("DELETE FROM image_usage WHERE image_id = ?", removed)
    connection.executemany("DELETE FROM image_times WHERE image_id = ?", removed)
    changed = {key: each for key, each in usage.items() if _columns(written.get(key)) != _columns(each)}
    connection.executemany(
        "INSERT INTO image_usage VALUES (?, ?, ?) ON CONFLICT (image_id) DO UPDATE SET"
        " first_detected_us = excluded.first_detected_us, last_used_us = excluded.last_used_us",
        [(key, micros(each.first_detected), _micros(each.last_used)) for key, each in changed.items()],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO image_times VALUES (?, ?, ?, ?)",
        [
            (key, micros(each.first_detected), _micros(each.pulled_at), _micros(each.present_since))
            for key, each in changed.items()
        ],
    )


def _columns(usage: ImageUsage | None) -> tuple[datetime | None, ...]:
    return () if usage is None else (usage.first_detected, usage.last_used, usage.pulled_at, usage.present_since)


def _write_items(
    connection: sqlite3.Connection, items: Mapping[ItemKey, FirstSeen], written: Mapping[ItemKey, FirstSeen]
) -> None:
    removed = [(kind, _blob(item)) for kind, item in written.keys() - items.keys()]
    connection.executemany("DELETE FROM item_times WHERE kind = ? AND id = ?", removed)
    connection.executemany(
        "INSERT OR REPLACE INTO item_times VALUES (?, ?, ?, ?, ?)",
        [(key[0], _blob(key[1]), *seen) for key, seen in items.items() if written.get(key) != seen],
    )


def _blob(name: str) -> bytes:
    """Return a name as bytes, since file names need not be UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _finite(value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"impossible time {value} s")
    return number


def _micros(at: datetime | None) -> int | None:
    return None if at is None else micros(at)


def _moment(since_epoch_us: int | None) -> datetime | None:
    return None if since_epoch_us is None else moment(since_epoch_us)


UNWRITTEN_S: Final = 5.0
"""Maximum difference of the current and the written times, in seconds."""


def is_due(now: StoredUsage, written: StoredUsage | None) -> bool:
    """Return whether a state has to be written: not if only times changed, by less than ``UNWRITTEN_S`` seconds."""
    if written is None or now.observation is None or written.observation is None:
        return True
    before, after = written.observation, now.observation
    return not (
        (after.boot_id, after.since_s, after.stopped_s) == (before.boot_id, before.since_s, before.stopped_s)
        and 0 <= after.last_s - before.last_s < UNWRITTEN_S
        and now.gaps == written.gaps
        and now.first_seen == written.first_seen
        and now.past_uses == written.past_uses
        and _fixed_clock(now.clock) == _fixed_clock(written.clock)
        and now.usage.keys() == written.usage.keys()
        and all(_adds_little(usage, written.usage[image_id]) for image_id, usage in now.usage.items())
    )


def _fixed_clock(record: ClockRecord | None) -> tuple[object, ...]:
    """Return the fields of a clock record that do not change with every reading."""
    if record is None:
        return ()
    known = (record.known_wall is None, record.calendar_zero is None)
    return record.boot_id, record.first_s, record.anchor, record.node_zero, record.jumped_s, record.jump_s, *known


def _adds_little(now: ImageUsage, written: ImageUsage) -> bool:
    fixed = now.first_detected, now.pulled_at, now.present_since
    if fixed != (written.first_detected, written.pulled_at, written.present_since):
        return False
    if now.last_used is None or written.last_used is None:
        return now.last_used is written.last_used
    return abs((now.last_used - written.last_used).total_seconds()) < UNWRITTEN_S


class StateFile:
    """Database file with a copy of the state in memory. Its methods block; ``read`` and ``write`` never raise.

    Attributes:
        written: last content read from or written to the file; ``None`` if the next write has to be complete.
        loaded: whether the file was read, did not exist, or was quarantined.
        problem: error because of which the usage is not on disk, with the consequence; empty while the file is usable.
    """

    def __init__(self, path: Path, *, read_only: bool, on_lost: Callable[[], None]) -> None:
        """Configure the file without reading it; ``on_lost`` is called when the content cannot be read."""
        self._path = path
        self._read_only = read_only
        self._on_lost = on_lost
        self._identity: tuple[int, int] | None = None
        self._last_write = ""
        self._notices: list[str] = []
        self.written: StoredUsage | None = None
        self.loaded = False
        self.problem = ""

    @property
    def writable(self) -> bool:
        """Whether the file may be written: it is not read-only and ``loaded`` is true."""
        return self.loaded and not self._read_only

    def take_notices(self) -> tuple[str, ...]:
        """Return the notices for operators since the last call, such as a quarantined file."""
        notices, self._notices = tuple(self._notices), []
        return notices

    def read(self) -> StoredUsage | None:
        """Return the content of the file; ``None`` if it does not exist or cannot be read.

        A corrupt file is quarantined.
        """
        try:
            file = identity(self._path)
            if file is None:
                self.loaded = True
                self.problem = ""
                return None
            with closing(self.open_for_reading()) as connection:
                check(connection)
                stored = read_usage(connection)
                self._last_write = last_write(connection)
        except sqlite3.DatabaseError as error:
            self._handle_error(error)
            return None
        except (OSError, StoreError) as error:
            self._fail(str(error))
            return None
        if stored.has_malformed_past_uses:
            self._notices.append(f"state database {self._path}: malformed past uses of images were dropped")
        self.written, self._identity = stored, file
        self.loaded = True
        self.problem = ""
        return stored

    def write(self, now: StoredUsage, *, only_if_due: bool = False) -> None:
        """Write the changes since the last write; with ``only_if_due``, only if ``write_interval.is_due``."""
        if not self.writable:
            return
        try:
            if only_if_due and not is_due(now, self.written) and identity(self._path) == self._identity:
                return
            with closing(self.open_for_writing()) as connection:
                if self.written is not None and last_write(connection) != self._last_write:
                    self._forget_written("overwritten")
                if self.written is None:
                    check(connection)
                write_id = os.urandom(8).hex()
                write_usage(connection, now, self.written, write_id)
        except sqlite3.DatabaseError as error:
            self._handle_error(error)
            return
        except (OSError, StoreError) as error:
            self._fail(str(error))
            return
        self.written, self._last_write = now, write_id
        self.problem = ""

    def open_for_reading(self) -> sqlite3.Connection:
        """Return a read-only connection; it creates no ``-wal`` and ``-shm`` files unless there is a write to read.

        A failed write on a full disk leaves an empty ``-wal`` file and a ``-shm`` file of a few bytes, as there is no
        space for its first region. Every program that is writing has that region.
        """
        wal, shm = (self._path.with_name(f"{self._path.name}-{each}") for each in ("wal", "shm"))
        unfinished = identity(wal) is not None and (_size_bytes(wal) > 0 or _size_bytes(shm) >= _SHM_REGION_BYTES)
        uri = f"{self._path.absolute().as_uri()}?{'mode=ro' if unfinished else 'immutable=1'}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)

    def open_for_writing(self) -> sqlite3.Connection:
        """Return a connection for writing; after a removal or replacement of the file, the next write is complete."""
        file = identity(self._path)
        if self.written is not None and file != self._identity:
            self._forget_written("removed or replaced")
        connection = connect(self._path, MIGRATIONS, ADDITIONS)
        self._identity = file or identity(self._path)
        return connection

    def _forget_written(self, change: str) -> None:
        """Make the next write complete and add a notice, since another program changed the file.

        An example is a restored backup.
        """
        self.written = None
        self._notices.append(
            f"state database {self._path} was {change}; writing the complete usage of images from memory"
        )

    def _handle_error(self, error: sqlite3.DatabaseError) -> None:
        """Quarantine the file if it is corrupt and not read-only; otherwise set ``problem`` to the error."""
        if self._read_only or not is_corrupt(error):
            self._fail(str(error))
            return
        try:
            notice = quarantine(self._path, error)
        except OSError as failure:
            self._fail(f"{error}; cannot quarantine the file: {failure.strerror or failure}")
            return
        self.loaded = True
        self.written = None
        self._on_lost()
        self._notices.append(notice)
        self.problem = ""

    def _fail(self, cause: str) -> None:
        self.written = None
        if not self.loaded:
            self._on_lost()
        self.problem = (
            f"cannot use state database {self._path}: {cause}; continuing in memory, a restart would lose the usage "
            "of images"
        )


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # also since the last program with the database open has just closed it
        return 0


_RESOLUTION: Final = timedelta(microseconds=1)
_ALWAYS: Final = datetime.min.replace(tzinfo=UTC)


def merge_usage(  # noqa: PLR0913 - the arguments are the facts of one detection
    known: Mapping[str, ImageUsage],
    listed: Mapping[str, datetime | None],
    in_use: Collection[str],
    now: datetime,
    *,
    previous_at: datetime | None = None,
    ahead: timedelta = timedelta(0),
    pulls_valid_since: datetime = _ALWAYS,
) -> dict[str, ImageUsage]:
    """Return the usage of every listed image after a detection at ``now``; other images are dropped.

    The first detection of a new image is ``now``, never its pull time, since use was not observed between the two
    times. The pull time is only the start of the minimum age, unless it is in the future, or the image was missing in
    the previous detection although that detection was after the pull. A known image with another pull time than in the
    previous detection was pulled again and has a new first detection. Times in the future are set to ``now``, so that
    ages restart at zero.

    Args:
        known: usage after the previous detection.
        listed: ids of the listed images with the time of the last pull, which is the creation time of the newest name
            in the runtime; ``None`` if the runtime does not report that time. Pull times may be by another clock than
            ``now``.
        in_use: ids of the images in use.
        now: time of this detection.
        previous_at: time of the previous detection; ``None`` if use was not observed since then. An image in use at
            ``previous_at`` and unused at ``now`` may have been used until a moment before ``now``.
        ahead: difference of two clocks: that of the pull times minus that of all other times.
        pulls_valid_since: start of the current setting of the pull clock; earlier pull times are ignored.

    Source: kubelet image manager, ``detectImages``.
    """
    merged = {}
    for image_id, reported_at in listed.items():
        pulled_at = reported_at
        before = known.get(image_id)
        if before is None:
            first, used = now, None
            present = now
            if pulled_at is not None and pulls_valid_since <= pulled_at <= now + ahead:
                present = pulled_at - ahead
            if previous_at is not None and present < previous_at:
                present = now
        else:
            first = min(now, before.first_detected)
            present = before.present_since or first
            present = min(now, present)
            if pulled_at is None:
                pulled_at = before.pulled_at
            elif before.pulled_at is not None and pulled_at != before.pulled_at:
                first = present = now
            used = min(before.last_used, now) if before.last_used is not None else None
            if used is not None and previous_at is not None and used >= previous_at:
                used = now - _RESOLUTION  # a last use equal to ``now`` would count as use in the next detection
        merged[image_id] = ImageUsage(first, now if image_id in in_use else used, pulled_at, present)
    return merged
