"""The sqlite file, and going on without it."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.errors import StoreError
from nodeagent.model import ImageUsage
from nodeagent.store.clock_jumps import ClockJump, Reading, find_jump, shifted
from nodeagent.store.sqlite import (
    BROKEN,
    BUSY_TIMEOUT_S,
    check,
    check_version,
    connect,
    is_corrupt,
    micros,
    moment,
    set_aside,
)
from nodeagent.store.usage import merge_usage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime
    from pathlib import Path

FILE_NAME: Final = "nodeagent.db"
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
    """What a committed snapshot occupies, and when it was made, which tells it from a later one of the same name."""

    created_s: int
    created_ns: int
    size_bytes: int
    inodes: int


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """Whether the memory is on disk. ``problem`` is empty when it is; else it says why not and what that means."""

    problem: str = ""

    @property
    def persistent(self) -> bool:
        """Whether what is remembered survives a restart."""
        return not self.problem


class Store:
    """Remembers image use. Its methods block and may be called from any thread; none raises.

    The memory is the truth while the agent runs; the file follows it. When the file cannot be read or written,
    ``health`` says why, every later write tries again, and the first that works writes everything.
    """

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        """Read what is remembered under ``directory``; with ``read_only`` nothing is ever made or written there."""
        self._path = directory / FILE_NAME
        self._read_only = read_only
        self._lock = threading.Lock()
        self._usage: dict[str, ImageUsage] = {}
        self._reading: Reading | None = None
        self._written: dict[str, ImageUsage] | None = None
        self._loaded = False
        self._notices: list[str] = []
        self.health = StoreHealth()
        with self._lock:
            self._load()

    def take_notices(self) -> tuple[str, ...]:
        """Return what happened that an operator should know, such as a file set aside; each is returned once."""
        with self._lock:
            notices, self._notices = tuple(self._notices), []
            return notices

    def usage(self) -> dict[str, ImageUsage]:
        """Return what is remembered, by image id."""
        with self._lock:
            return dict(self._usage)

    def remember(
        self, listed: Mapping[str, datetime | None], in_use: Collection[str], now: datetime
    ) -> dict[str, ImageUsage]:
        """Note a detection and return the usage of every listed image after it; see ``merge_usage``."""
        with self._lock:
            if not self._loaded:
                self._load()
            self._usage = merge_usage(self._usage, listed, in_use, now)
            if self._loaded and not self._read_only:
                self._write()
            return dict(self._usage)

    def snapshot_usage(self) -> dict[tuple[str, str], SnapshotFigures]:
        """Return what is remembered of committed snapshots, by snapshotter and key; nothing if it cannot be read."""
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
        self, learned: Mapping[tuple[str, str], SnapshotFigures], gone: Collection[tuple[str, str]]
    ) -> None:
        """Keep what was learned of committed snapshots, which saves a call for each after a restart.

        It can all be read anew from the runtime, so a write that fails is not told; ``health`` tells of the next.
        """
        with self._lock:
            if self._read_only or not self._loaded:
                return
            with suppress(*BROKEN), closing(connect(self._path, _MIGRATIONS)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("DELETE FROM snapshot_usage WHERE snapshotter = ? AND key = ?", gone)
                connection.executemany(
                    "INSERT OR REPLACE INTO snapshot_usage VALUES (?, ?, ?, ?, ?, ?)",
                    [(*name, *figures) for name, figures in learned.items()],
                )
                connection.execute("COMMIT")

    def note_clocks(self, boot_id: str, boottime_s: float, wall: datetime) -> ClockJump | None:
        """Note both clocks; after a jump of the wall clock move all remembered times along and return the jump."""
        now = Reading(boot_id, boottime_s, wall)
        with self._lock:
            jump = find_jump(self._reading, now)
            if jump is not None:
                self._usage = shifted(self._usage, jump)
            self._reading = now
            return jump

    def _load(self) -> None:
        """Read the file; a broken one is set aside. Merges below what a time without the file left in memory."""
        try:
            if not _exists(self._path):
                self._loaded = True
                self.health = StoreHealth()
                return
            with closing(self._open_for_reading()) as connection:
                check(connection)
                usage, reading = _read(connection)
        except sqlite3.DatabaseError as error:
            self._on_broken(error)
            return
        except (OSError, StoreError) as error:
            self._fail(str(error))
            return
        self._usage = {**usage, **{key: _combined(each, usage.get(key)) for key, each in self._usage.items()}}
        self._reading = self._reading or reading
        self._written = usage
        self._loaded = True
        self.health = StoreHealth()

    def _open_for_reading(self) -> sqlite3.Connection:
        """Open the file so that nothing beside it is made, unless a log of unfinished writes has to be read, too."""
        unfinished = _exists(self._path.with_name(f"{FILE_NAME}-wal"))
        uri = f"{self._path.absolute().as_uri()}?{'mode=ro' if unfinished else 'immutable=1'}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)

    def _on_broken(self, error: sqlite3.DatabaseError) -> None:
        """Tell a broken file from one that cannot be reached just now."""
        if self._read_only or not is_corrupt(error):
            self._fail(str(error))
            return
        try:
            notice = set_aside(self._path, error)
        except OSError as moving:
            self._fail(f"{error}, and it cannot be set aside: {moving.strerror or moving}")
            return
        self._loaded = True
        self._written = None
        self._notices.append(notice)
        self.health = StoreHealth()

    def _fail(self, why: str) -> None:
        self._written = None
        self.health = StoreHealth(
            f"{self._path}: {why}; first detection and last use of images are kept in memory only until this is mended"
        )

    def _write(self) -> None:
        try:
            with closing(connect(self._path, _MIGRATIONS)) as connection:
                if self._written is None:
                    check(connection)
                _write(connection, self._usage, self._written, self._reading)
        except sqlite3.DatabaseError as error:
            self._on_broken(error)
            return
        except (OSError, StoreError) as error:
            self._fail(str(error))
            return
        self._written = dict(self._usage)
        self.health = StoreHealth()


def _exists(path: Path) -> bool:
    """Return whether there is such a file; raises OSError where that cannot be told."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def _combined(memory: ImageUsage, file: ImageUsage | None) -> ImageUsage:
    """Return what both know of an image: the earlier detection, the later use."""
    if file is None:
        return memory
    uses = [used for used in (memory.last_used, file.last_used) if used is not None]
    return ImageUsage(min(memory.first_detected, file.first_detected), max(uses, default=None))


def _read(connection: sqlite3.Connection) -> tuple[dict[str, ImageUsage], Reading | None]:
    """Return what the file holds; a file without tables yet holds nothing.

    Raises:
        StoreError: a newer agent wrote it.
        sqlite3.DatabaseError: it is broken, also if it holds values no agent writes.
    """
    if check_version(connection, len(_MIGRATIONS)) == 0:
        return {}, None
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"image_usage", "meta"} <= tables:
        raise sqlite3.DatabaseError("malformed: tables are missing")
    try:
        return _read_tables(connection)
    except (ValueError, OverflowError, TypeError) as error:
        raise sqlite3.DatabaseError(f"malformed: {error}") from error


def _read_tables(connection: sqlite3.Connection) -> tuple[dict[str, ImageUsage], Reading | None]:
    rows = connection.execute("SELECT image_id, first_detected_us, last_used_us FROM image_usage")
    usage = {
        image_id: ImageUsage(moment(first), moment(used) if used is not None else None)
        for image_id, first, used in rows
    }
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    if {"boot_id", "boottime_s", "wall_us"} <= meta.keys():
        return usage, Reading(meta["boot_id"], float(meta["boottime_s"]), moment(int(meta["wall_us"])))
    return usage, None


def _write(
    connection: sqlite3.Connection,
    usage: Mapping[str, ImageUsage],
    written: Mapping[str, ImageUsage] | None,
    reading: Reading | None,
) -> None:
    """Write what differs from what was written last; all of it when that is not known."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if written is None:
            connection.execute("DELETE FROM image_usage")
            written = {}
        gone = [(image_id,) for image_id in written.keys() - usage.keys()]
        connection.executemany("DELETE FROM image_usage WHERE image_id = ?", gone)
        connection.executemany(
            "INSERT INTO image_usage VALUES (?, ?, ?) ON CONFLICT (image_id) DO UPDATE SET"
            " first_detected_us = excluded.first_detected_us, last_used_us = excluded.last_used_us",
            [
                (image_id, micros(each.first_detected), micros(each.last_used) if each.last_used else None)
                for image_id, each in usage.items()
                if written.get(image_id) != each
            ],
        )
        if reading is not None:
            values = {
                "boot_id": reading.boot_id,
                "boottime_s": str(reading.boottime_s),
                "wall_us": str(micros(reading.wall)),
            }
            connection.executemany(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", values.items()
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
