"""Database file of image and snapshot usage: reading, writing and errors.

Interval between writes of image usage if only times have changed.

Each write syncs the disk, which takes longer than all other parts of an observation, and every read request of the
control API is an observation. If only times have changed since the written observation, the write is therefore deferred
to a later observation. A process that ends before that write leaves slightly earlier times of use in the file. A first
detection, the first use of an image, a gap or a jump of the clock is written immediately.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.model import ImageUsage
from nodeagent.store.sqlite import BUSY_TIMEOUT_S, check, connect, identity, is_corrupt, quarantine
from nodeagent.store.usage_file import ADDITIONS, MIGRATIONS, StoredUsage, last_write, read_usage, write_usage

if TYPE_CHECKING:
    from nodeagent.store.clock_record import ClockRecord

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
        """Return a read-only connection; it creates no ``-wal`` and ``-shm`` files unless a ``-wal`` file exists."""
        unfinished = identity(self._path.with_name(f"{self._path.name}-wal")) is not None
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
