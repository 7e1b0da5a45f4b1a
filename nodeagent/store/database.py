"""Database of image and snapshot usage, with a fallback to memory."""

from __future__ import annotations

import math
import sqlite3
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.errors import StoreError
from nodeagent.model import ImageUsage, ImageUseRecord
from nodeagent.store.clock_jumps import ClockReading, find_jump, shifted
from nodeagent.store.image_usage import merge_usage
from nodeagent.store.observation import GapLimits, Observation, ObservationTracker
from nodeagent.store.sqlite import (
    BROKEN,
    BUSY_TIMEOUT_S,
    check,
    check_version,
    connect,
    is_corrupt,
    micros,
    moment,
    quarantine,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

FILE_NAME: Final = "nodeagent.db"
_DEFAULT_GAPS: Final = GapLimits()
_MIGRATIONS: Final = (
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


class SnapshotFigures(NamedTuple):
    """Usage of a committed snapshot; its creation time distinguishes it from a later snapshot of the same name."""

    created_s: int
    created_ns: int
    size_bytes: int
    inodes: int


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """Health of the database.

    Attributes:
        problem: reason that the usage is not on disk, with the consequence; empty otherwise.
    """

    problem: str = ""

    @property
    def persistent(self) -> bool:
        """Whether the usage survives a restart."""
        return not self.problem


class Store:
    """Usage of images and snapshots. Its methods block, may be called from any thread, and never raise.

    The state in memory is authoritative while the agent runs; the file is a copy. If the file cannot be read or
    written, ``health`` has the cause; each later write is a retry, and the first successful one writes the whole state.
    """

    def __init__(self, directory: Path, *, read_only: bool = False, gaps: GapLimits = _DEFAULT_GAPS) -> None:
        """Read the database in ``directory``.

        Args:
            directory: state directory; created with the first write.
            read_only: whether writing is disabled.
            gaps: longest gaps between detections that continue the observation of image use.
        """
        self._path = directory / FILE_NAME
        self._read_only = read_only
        self._lock = threading.Lock()
        self._usage: dict[str, ImageUsage] = {}
        self._anchor: ClockReading | None = None  # reference of all stored wall times
        self._tracker = ObservationTracker(gaps)
        self._written: dict[str, ImageUsage] | None = None
        self._loaded = False
        self._notices: list[str] = []
        self.health = StoreHealth()
        with self._lock:
            self._load()

    def take_notices(self) -> tuple[str, ...]:
        """Return the notices for operators since the last call, such as a quarantined file."""
        with self._lock:
            notices, self._notices = tuple(self._notices), []
            return notices

    def usage(self) -> dict[str, ImageUsage]:
        """Return the usage by image id."""
        with self._lock:
            return dict(self._usage)

    def observe(
        self, listed: Mapping[str, datetime | None], in_use: Collection[str], at: ClockReading
    ) -> ImageUseRecord:
        """Record a detection and return the usage of every listed image after it; see ``merge_usage``.

        After a jump of the wall clock all stored times are shifted by it.
        """
        with self._lock:
            if not self._loaded:
                self._load()
            if self._tracker.current is not None and self._tracker.is_late(at):
                return self._observe_late(listed, in_use, at, self._tracker.current)
            self._follow_clock(at)
            previous_at = self._tracker.extend(at)
            self._usage = merge_usage(self._usage, listed, in_use, at.wall, previous_at=previous_at)
            if self._loaded and not self._read_only:
                self._write()
            return ImageUseRecord(dict(self._usage), self._observed_since(at))

    def observed_since(self, at: ClockReading) -> datetime | None:
        """Return the start of the gapless observation of image use, by the wall clock of ``at``.

        ``None`` before the first detection, after too long a gap, or while the file is unavailable. The method acquires
        no lock, so that a hanging disk does not block the status.
        """
        return self._observed_since(at) if self._tracker.would_continue(at) else None

    def snapshot_usage(self) -> dict[tuple[str, str], SnapshotFigures]:
        """Return the usage of committed snapshots by snapshotter and key; empty if it cannot be read."""
        with self._lock:
            if not self._loaded or self._written is None:
                return {}
            try:
                with closing(self._open_for_reading()) as connection:
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

        A failed write is ignored, since the runtime can report the usage again; ``health`` reports the next failure.
        """
        with self._lock:
            if self._read_only or not self._loaded:
                return
            with suppress(*BROKEN), closing(connect(self._path, _MIGRATIONS)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("DELETE FROM snapshot_usage WHERE snapshotter = ? AND key = ?", removed)
                connection.executemany(
                    "INSERT OR REPLACE INTO snapshot_usage VALUES (?, ?, ?, ?, ?, ?)",
                    [(*name, *figures) for name, figures in measured.items()],
                )
                connection.execute("COMMIT")

    def _observe_late(
        self, listed: Mapping[str, datetime | None], in_use: Collection[str], at: ClockReading, last: Observation
    ) -> ImageUseRecord:
        """Record a detection that finished after a later one: only its images in use are new information."""
        usage = merge_usage(self._usage, listed, in_use, last.last_at, previous_at=last.last_at)
        self._usage.update({key: usage[key] for key in self._usage.keys() & usage.keys() if key in in_use})
        jumped = find_jump(at, ClockReading(last.boot_id, last.last_s, last.last_at)) is not None
        return ImageUseRecord(usage, None if jumped else self._observed_since(at))

    def _follow_clock(self, at: ClockReading) -> None:
        jump = find_jump(self._anchor, at)
        if jump is not None:
            self._usage = shifted(self._usage, jump)
            self._tracker.shift(jump)
        if jump is not None or self._anchor is None or self._anchor.boot_id != at.boot_id:
            self._anchor = at

    def _observed_since(self, at: ClockReading) -> datetime | None:
        observation = self._tracker.current
        if observation is None or not self._loaded or not self.health.persistent:
            return None
        return at.wall - timedelta(seconds=at.boottime_s - observation.since_s)

    def _load(self) -> None:
        """Read the file and merge it with the state in memory, which is newer; a corrupt file is quarantined."""
        try:
            if not _exists(self._path):
                self._loaded = True
                self.health = StoreHealth()
                return
            with closing(self._open_for_reading()) as connection:
                check(connection)
                usage, anchor, observation = _read(connection)
        except sqlite3.DatabaseError as error:
            self._handle_error(error)
            return
        except (OSError, StoreError) as error:
            self._fail(str(error))
            return
        self._written = usage
        jump = find_jump(anchor, self._anchor) if self._anchor is not None else None
        if jump is not None:  # the clock jumped while the file was unavailable
            usage = shifted(usage, jump)
        self._usage = {**usage, **{key: _combined(each, usage.get(key)) for key, each in self._usage.items()}}
        self._anchor = self._anchor or anchor
        self._tracker.restore(observation)
        self._loaded = True
        self.health = StoreHealth()

    def _open_for_reading(self) -> sqlite3.Connection:
        """Return a read-only connection, which creates ``-wal`` and ``-shm`` files only to read a ``-wal``."""
        unfinished = _exists(self._path.with_name(f"{FILE_NAME}-wal"))
        uri = f"{self._path.absolute().as_uri()}?{'mode=ro' if unfinished else 'immutable=1'}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)

    def _handle_error(self, error: sqlite3.DatabaseError) -> None:
        """Quarantine a corrupt file; otherwise report it as inaccessible."""
        if self._read_only or not is_corrupt(error):
            self._fail(str(error))
            return
        try:
            notice = quarantine(self._path, error)
        except OSError as failure:
            self._fail(f"{error}; cannot quarantine the file: {failure.strerror or failure}")
            return
        self._loaded = True
        self._written = None
        self._notices.append(notice)
        self.health = StoreHealth()

    def _fail(self, cause: str) -> None:
        self._written = None
        self.health = StoreHealth(
            f"cannot use state database {self._path}: {cause}; continuing in memory, a restart would lose the usage "
            "of images"
        )

    def _write(self) -> None:
        try:
            with closing(connect(self._path, _MIGRATIONS)) as connection:
                if self._written is None:
                    check(connection)
                _write(connection, self._usage, self._written, _encoded(self._anchor, self._tracker.current))
        except sqlite3.DatabaseError as error:
            self._handle_error(error)
            return
        except (OSError, StoreError) as error:
            self._fail(str(error))
            return
        self._written = dict(self._usage)
        self.health = StoreHealth()


def _exists(path: Path) -> bool:
    """Return whether a file exists.

    Raises:
        OSError: its directory is inaccessible.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def _combined(memory: ImageUsage, file: ImageUsage | None) -> ImageUsage:
    """Return the merged usage of an image: the earlier detection and the later use."""
    if file is None:
        return memory
    uses = [used for used in (memory.last_used, file.last_used) if used is not None]
    return ImageUsage(min(memory.first_detected, file.first_detected), max(uses, default=None))


_Stored = tuple[dict[str, ImageUsage], ClockReading | None, Observation | None]


def _read(connection: sqlite3.Connection) -> _Stored:
    """Return the content of the file; empty for a file without tables.

    Raises:
        StoreError: a newer version of the agent wrote it.
        sqlite3.DatabaseError: the file is corrupt, or contains impossible values.
    """
    if check_version(connection, len(_MIGRATIONS)) == 0:
        return {}, None, None
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"image_usage", "meta"} <= tables:
        raise sqlite3.DatabaseError("malformed: tables are missing")
    try:
        return _read_tables(connection)
    except (ValueError, OverflowError, TypeError) as error:
        raise sqlite3.DatabaseError(f"malformed: {error}") from error


def _read_tables(connection: sqlite3.Connection) -> _Stored:
    rows = connection.execute("SELECT image_id, first_detected_us, last_used_us FROM image_usage")
    usage = {
        image_id: ImageUsage(moment(first), moment(used) if used is not None else None)
        for image_id, first, used in rows
    }
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    anchor = None
    if {"boot_id", "boottime_s", "wall_us"} <= meta.keys():
        anchor = ClockReading(meta["boot_id"], float(meta["boottime_s"]), moment(int(meta["wall_us"])))
    return usage, anchor, _decoded_observation(meta)


_OBSERVATION_KEYS: Final = ("observed_boot_id", "observed_since_s", "observed_last_s", "observed_last_us")


def _decoded_observation(meta: Mapping[str, str]) -> Observation | None:
    """Return the stored observation; ``None`` in files of 0.1, which recorded none.

    Raises:
        ValueError: the values are impossible.
    """
    if any(key not in meta for key in _OBSERVATION_KEYS):
        return None
    boot_id, since, last, last_us = (meta[key] for key in _OBSERVATION_KEYS)
    since_s, last_s = float(since), float(last)
    if not (math.isfinite(last_s) and 0 <= since_s <= last_s):
        raise ValueError(f"impossible observation from {since} s to {last} s")
    return Observation(boot_id, since_s, last_s, moment(int(last_us)))


def _encoded(anchor: ClockReading | None, observation: Observation | None) -> dict[str, str]:
    """Return the rows of ``meta``; older versions do not delete unknown rows."""
    values: dict[str, str] = {}
    if anchor is not None:
        values |= {
            "boot_id": anchor.boot_id,
            "boottime_s": str(anchor.boottime_s),
            "wall_us": str(micros(anchor.wall)),
        }
    if observation is not None:
        columns = (observation.boot_id, observation.since_s, observation.last_s, micros(observation.last_at))
        values |= dict(zip(_OBSERVATION_KEYS, map(str, columns), strict=True))
    return values


def _write(
    connection: sqlite3.Connection,
    usage: Mapping[str, ImageUsage],
    written: Mapping[str, ImageUsage] | None,
    meta: Mapping[str, str],
) -> None:
    """Write the differences to ``written``; the whole state if that is ``None``."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if written is None:
            connection.execute("DELETE FROM image_usage")
            written = {}
        removed = [(image_id,) for image_id in written.keys() - usage.keys()]
        connection.executemany("DELETE FROM image_usage WHERE image_id = ?", removed)
        connection.executemany(
            "INSERT INTO image_usage VALUES (?, ?, ?) ON CONFLICT (image_id) DO UPDATE SET"
            " first_detected_us = excluded.first_detected_us, last_used_us = excluded.last_used_us",
            [
                (image_id, micros(each.first_detected), micros(each.last_used) if each.last_used else None)
                for image_id, each in usage.items()
                if written.get(image_id) != each
            ],
        )
        connection.executemany(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", meta.items()
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
