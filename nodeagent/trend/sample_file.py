"""The record of a node's resources: one line of readings a minute, thinned out with age.

Each line has a number. Of the newest 360 lines (6 h) all are kept, of the newest 10,080 (7 d) every tenth, and of the
newest 129,600 (90 d) every sixtieth; parts only for the newest 10,080. Numbers count recorded minutes: neither a jump
of the clock nor a stopped agent deletes anything.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nodeagent.errors import StoreError
from nodeagent.record import Record
from nodeagent.store.clock_record import ClockReading
from nodeagent.store.sqlite import (
    BROKEN,
    check_version,
    connect,
    is_corrupt,
    micros,
    moment,
    open_for_reading,
    quarantine,
    storable,
    stored_text,
)
from nodeagent.trend.plan.forecast import NO_PARTS, Sample

if TYPE_CHECKING:
    from nodeagent.trend.plan.readings import ResourceReading

T = TypeVar("T")

FILE_NAME: Final = "trend.db"
PARTS_EVERY: Final = 5
"""Lines from one reading of the parts to the next; a divisor of the steps of kept lines."""
_KEPT: Final = ((60, 129_600), (10, 10_080), (1, 360))
"""Step of the kept lines, and the number of newest lines in which they are kept."""
_PARTS_KEPT: Final = 10_080
_JUMP_S: Final = 30.0
_REBOOT_RESETS: Final = ("memory.", "allocatableMemory.", "pid.", "swap.")
_CACHE_KIB: Final = 256
_OTHER_SCHEMA: Final = "SQLITE_ERROR"
"""Error of a statement that names a missing table or column, since the statements are constant."""
_PARTS_READ: Final = 1_440
"""Newest lines of which the parts are read: growth is attributed for the last day."""

MIGRATIONS: Final = (
    (
        (
            "CREATE TABLE lines (number INTEGER PRIMARY KEY NOT NULL, at_us INTEGER NOT NULL, boot_id TEXT NOT NULL,"
            " boottime_s REAL NOT NULL, jumped INTEGER NOT NULL)"
        ),
        (
            "CREATE TABLE samples (resource BLOB NOT NULL, number INTEGER NOT NULL, used REAL NOT NULL,"
            " capacity REAL NOT NULL, freeable REAL, PRIMARY KEY (resource, number)) WITHOUT ROWID"
        ),
        (
            "CREATE TABLE parts (resource BLOB NOT NULL, number INTEGER NOT NULL, part BLOB NOT NULL,"
            " amount REAL NOT NULL, PRIMARY KEY (resource, number, part)) WITHOUT ROWID"
        ),
    ),
)


class RecordedLine(Record):
    """The readings of one minute; ``at`` is their time on both clocks."""

    at: ClockReading
    readings: tuple[ResourceReading, ...]


class Series(Record):
    """The record of one resource, oldest first; ``capacity`` is that of the newest sample."""

    resource: str
    capacity: float
    samples: tuple[Sample, ...]


class SampleFile:
    """The file of the record. Its methods block.

    Rows with a damaged value are omitted; a file that cannot be read at all is replaced by the next write.
    """

    def __init__(self, state_directory: Path) -> None:
        """Use the file in a state directory; it is created by the first write."""
        self.path = state_directory / FILE_NAME
        self._is_damaged = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """Whether readings so far omitted damaged rows, as a text for display."""
        return (f"{self.path}: damaged values are omitted; the record is incomplete",) if self._is_damaged else ()

    def _sound(self, rows: Iterable[tuple[Any, ...]], parse: Callable[..., T]) -> Iterator[T]:
        """Yield the parsed rows, without those with a damaged value."""
        for row in rows:
            try:
                yield parse(*row)
            except (ValueError, OverflowError, TypeError):
                self._is_damaged = True

    def append(self, lines: Iterable[RecordedLine]) -> str:
        """Append lines and delete those that are no longer kept; return a notice if a corrupt file was replaced.

        Raises:
            StoreError: the file cannot be written, or a newer version of the agent wrote it.
        """
        lines = tuple(lines)
        try:
            self._append(lines)
        except sqlite3.DatabaseError as error:
            if not (is_corrupt(error) or getattr(error, "sqlite_errorname", "") == _OTHER_SCHEMA):
                raise StoreError(f"cannot write {self.path}: {error}") from error
            try:
                notice = quarantine(self.path, error)
                self._append(lines)
            except BROKEN as second:
                raise StoreError(f"cannot write {self.path}: {second}") from second
            return notice
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror or error}") from error
        return ""

    def _append(self, lines: Iterable[RecordedLine]) -> None:
        with closing(connect(self.path, MIGRATIONS)) as connection:
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            connection.text_factory = bytes  # as for reading
            connection.execute("BEGIN IMMEDIATE")
            newest = _newest(connection)
            for line in lines:
                newest = _insert(connection, line, newest)
            _thin_out(connection, 0 if newest is None else newest[0])
            connection.execute("COMMIT")

    def last_number(self) -> int:
        """Return the number of the newest line; 0 without one.

        Raises:
            StoreError: the file cannot be read, or a newer version of the agent wrote it.
        """
        with self._reading() as connection:
            newest = None if connection is None else _newest(connection)
            return 0 if newest is None else newest[0]

    def read(self) -> tuple[Series, ...]:
        """Return the series of every resource, by name.

        Raises:
            StoreError: the file cannot be read, or a newer version of the agent wrote it.
        """
        return tuple(self.read_each(self.read_names()))

    def read_names(self, newest: int = _KEPT[0][1]) -> tuple[str, ...]:
        """Return the names of the resources with a reading in the newest lines, sorted; by default of all lines.

        Raises:
            StoreError: the file cannot be read, or a newer version of the agent wrote it.
        """
        with self._reading() as connection:
            if connection is None:
                return ()
            names = connection.execute(
                "SELECT DISTINCT resource FROM samples WHERE number > (SELECT max(number) FROM lines) - ?", (newest,)
            ).fetchall()
        return tuple(sorted(stored_text(name) for (name,) in names))

    def read_each(self, resources: Iterable[str]) -> Iterator[Series]:
        """Yield the series of resources, one at a time: the whole record of a node with many has several MiB.

        Raises:
            StoreError: the file cannot be read, or a newer version of the agent wrote it.
        """
        with self._reading() as connection:
            if connection is None:
                return
            rows = connection.execute("SELECT number, at_us, boot_id, jumped FROM lines")
            lines = dict(self._sound(rows, _line))
            for each in resources:
                yield self._series(connection, each, lines)

    def read_boots(self, since: datetime) -> tuple[datetime, ...]:
        """Return the time of the first line of each boot after the first, since a time.

        Raises:
            StoreError: the file cannot be read, or a newer version of the agent wrote it.
        """
        with self._reading() as connection:
            if connection is None:
                return ()
            rows = connection.execute(
                "SELECT number, at_us, boot_id, jumped FROM lines WHERE boot_id != '' ORDER BY number"
            )
            lines = [found for _, found in self._sound(rows, _line)]
        boots = [at for (_, before, _), (at, boot_id, _) in pairwise(lines) if boot_id != before]
        return tuple(each for each in boots if each >= since)

    def _series(self, connection: sqlite3.Connection, resource: str, lines: _Lines) -> Series:
        """Return one series; an unknown freeable amount is that of the sample before."""
        resets = resource.startswith(_REBOOT_RESETS)
        (name,) = storable(resource)
        oldest = max(lines, default=0) - _PARTS_READ
        parts: dict[int, dict[str, float]] = {}
        rows = connection.execute(
            "SELECT number, part, amount FROM parts WHERE resource = ? AND number > ?", (name, oldest)
        )
        for number, part, amount in self._sound(rows, _part):
            parts.setdefault(number, {})[part] = amount
        samples: list[Sample] = []
        capacity, boot_id, last_freeable = 0.0, None, 0.0
        rows = connection.execute(
            "SELECT number, used, capacity, freeable FROM samples WHERE resource = ? ORDER BY number", (name,)
        )
        for number, used, size, freeable in self._sound(rows, _sample):
            if number not in lines:  # recorded after the lines were read, or the line is damaged
                continue
            at, boot, is_new = lines[number]
            is_new = is_new or (resets and boot_id not in (None, boot))
            capacity, boot_id = size, boot
            last_freeable = last_freeable if freeable is None else freeable
            samples.append(Sample(at, used, min(last_freeable, used), parts.get(number, NO_PARTS), is_new))
        return Series(resource, capacity, tuple(samples))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Yield a connection for reading; ``None`` without a file or without lines."""
        try:
            if not self.path.exists():
                yield None
                return
            with closing(open_for_reading(self.path)) as connection:
                connection.text_factory = bytes  # text in a damaged row is not UTF-8
                connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                yield connection if check_version(connection, len(MIGRATIONS)) else None
        except (OSError, sqlite3.DatabaseError, ValueError, OverflowError, TypeError) as error:
            raise StoreError(f"cannot read {self.path}: {error}") from error


_Newest = tuple[int, ClockReading | None] | None
"""Number and time of the newest line; the time is ``None`` if it is damaged."""
_LARGEST_NUMBER: Final = 1 << 62
"""Larger than any number of a line."""


def _newest(connection: sqlite3.Connection) -> _Newest:
    row = connection.execute(
        "SELECT number, boot_id, boottime_s, at_us FROM lines ORDER BY number DESC LIMIT 1"
    ).fetchone()
    if row is None:
        return None
    number, boot_id, boottime_s, at_us = row
    if number >= _LARGEST_NUMBER:
        raise sqlite3.DatabaseError(f"malformed: line {number}")
    try:
        return number, ClockReading(stored_text(boot_id), float(boottime_s), moment(at_us))
    except (ValueError, OverflowError, TypeError):
        return number, None


def _insert(connection: sqlite3.Connection, line: RecordedLine, newest: _Newest) -> tuple[int, ClockReading]:
    number = 1 if newest is None else newest[0] + 1
    jumped = newest is not None and (newest[1] is None or has_jumped(newest[1], line.at))
    connection.execute(
        "INSERT INTO lines VALUES (?, ?, ?, ?, ?)",
        (number, micros(line.at.wall), line.at.boot_id, line.at.boottime_s, jumped),
    )
    for each in line.readings:
        (name,) = storable(each.resource)
        connection.execute(
            "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?)",
            (name, number, each.used, each.capacity, each.freeable),
        )
        connection.executemany(
            "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)",
            [(name, number, *storable(part), amount) for part, amount in each.parts.items()],
        )
    return number, line.at


def has_jumped(before: ClockReading, now: ClockReading) -> bool:
    """Return whether the wall clock was set between two readings; after a reboot, whether it runs backwards."""
    wall_s = (now.wall - before.wall).total_seconds()
    if not before.boot_id or before.boot_id != now.boot_id:
        return wall_s < 0
    return abs(wall_s - (now.boottime_s - before.boottime_s)) > _JUMP_S


def _thin_out(connection: sqlite3.Connection, newest: int) -> None:
    """Delete the lines that are no longer kept. A deleted jump is kept by the next kept line."""
    steps = " OR ".join(f"(number % {step} = 0 AND number > {newest - lines})" for step, lines in _KEPT)
    kept = f"({steps})"
    jumps = [number for (number,) in connection.execute(f"SELECT number FROM lines WHERE jumped AND NOT {kept}")]  # noqa: S608 - numbers only
    for number in jumps:
        connection.execute(
            f"UPDATE lines SET jumped = 1 WHERE number = (SELECT min(number) FROM lines WHERE number > ? AND {kept})",  # noqa: S608 - numbers only
            (number,),
        )
    for table, condition in (
        ("parts", f"{kept} AND number > {newest - _PARTS_KEPT}"),
        ("samples", kept),
        ("lines", kept),
    ):
        connection.execute(f"DELETE FROM {table} WHERE NOT ({condition})")  # noqa: S608 - constants and numbers only


_Lines = Mapping[int, tuple[datetime, str, bool]]
"""Time, boot and whether the clock jumped, by the number of the line."""


def _line(number: int, at_us: int, boot_id: object, jumped: int) -> tuple[int, tuple[datetime, str, bool]]:
    return number, (moment(at_us), stored_text(boot_id), bool(jumped))


def _part(number: int, part: object, amount: object) -> tuple[int, str, float]:
    return number, stored_text(part), _amount(amount)


def _sample(number: int, used: object, capacity: object, freeable: object) -> tuple[int, float, float, float | None]:
    return number, _amount(used), _amount(capacity), None if freeable is None else _amount(freeable)


def _amount(value: object) -> float:
    if not isinstance(value, float) or not 0 <= value < inf:
        raise ValueError(f"not an amount: {value!r}")
    return value
