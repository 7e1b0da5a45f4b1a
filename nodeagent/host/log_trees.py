"""Complete readings of pod log directories: newest change, digest, and open files."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.host.confinement import MAX_DEPTH, Place, RemovalRefusedError, open_below, place_of
from nodeagent.host.open_files import find_openers
from nodeagent.host.podlogs import FAR_FUTURE, changed, open_log_root
from nodeagent.model import LogOpeners, LogTree
from nodeagent.model.logs import LogSpace

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from nodeagent.clock import Clock

MAX_ENTRIES: Final = 100_000
"""Maximum number of entries in a readable log tree."""

MAX_TREE_S: Final = 5.0
"""Time limit in seconds for one log tree; reading a container log directory with 10,000 files takes 0.1 s."""

_WEIGHT: Final = {LogOpeners.NONE: 0, LogOpeners.READERS: 1, LogOpeners.UNKNOWN: 2, LogOpeners.WRITERS: 3}


class _IncompleteError(Exception):
    """The tree was not read completely; the text contains the reason."""


def read_log_tree(root: Path, name: str, clock: Clock, *, within_s: float = MAX_TREE_S) -> LogTree | None:
    """Return a reading of one pod log directory; ``None`` if it does not exist.

    The tree is read by descriptors, without following symlinks and without crossing mounts. A reading that fails, that
    finds a mount point, or that exceeds ``MAX_ENTRIES``, ``MAX_DEPTH`` or ``within_s`` is incomplete.
    """
    reading = _Reading(clock.monotonic_s, clock.monotonic_s() + within_s)
    problem = ""
    try:
        with open_log_root(root) as top:
            if top is None or not _read_below(reading, top, name, root / name):
                return None
    except (_IncompleteError, RemovalRefusedError, ObservationError) as error:
        problem = str(error)
    return LogTree(
        FAR_FUTURE if reading.newest is None else reading.newest,
        reading.digest.hexdigest(),
        problem,
        reading.openers,
        reading.openers_detail,
        size=reading.size,
        container_logs=reading.container_logs,
    )


class _Reading:
    """State of the reading of one tree."""

    def __init__(self, monotonic_s: Callable[[], float], deadline_s: float) -> None:
        import hashlib  # noqa: PLC0415 - loads OpenSSL, which a list of images does not need

        self.monotonic_s = monotonic_s
        self.deadline_s = deadline_s
        self.digest = hashlib.blake2b(digest_size=16)
        self.entries = 0
        self.newest: datetime | None = None
        self.openers = LogOpeners.NONE
        self.openers_detail = ""
        self.size = LogSpace()
        self.container_logs: dict[str, LogSpace] = {}

    def count(self, status: os.stat_result, parents: tuple[str, ...], name: str) -> None:
        """Add the size of one entry; a file with other links frees nothing.

        ``parents`` are the directories of the entry below the pod's directory. A file ``N.log`` or ``N.log.SUFFIX`` in
        the directory of a container is one of the logs of its attempt ``N``.
        """
        if not stat.S_ISDIR(status.st_mode) and status.st_nlink > 1:
            return
        own = LogSpace(status.st_blocks * 512, 1)
        self.size = self.size.plus(own)
        attempt, is_log, suffix = name.partition(".log")
        if len(parents) == 1 and is_log and (not suffix or suffix.startswith(".")):
            key = f"{parents[0]}/{attempt}.log"
            self.container_logs[key] = self.container_logs.get(key, LogSpace()).plus(own)

    def add(self, name: bytes, status: os.stat_result) -> None:
        """Add one entry to the digest and the newest change; raise ``_IncompleteError`` above a limit."""
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            raise _IncompleteError(f"more than {MAX_ENTRIES} entries")
        if self.monotonic_s() > self.deadline_s:
            raise _IncompleteError(f"not read in time; {self.entries} entries read")
        changed_at = changed(status)
        self.newest = changed_at if self.newest is None else max(self.newest, changed_at)
        facts = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        self.digest.update(b"%d %b %b\n" % (len(name), name, repr(facts).encode()))

    def opened(self, openers: LogOpeners, detail: str) -> None:
        """Record the openers of one file if their weight exceeds the weight of the recorded openers."""
        if _WEIGHT[openers] > _WEIGHT[self.openers]:
            self.openers, self.openers_detail = openers, detail


def _read_below(reading: _Reading, top: int, name: str, where: Path) -> bool:
    """Read one directory of the log root; return false if it does not exist."""
    place = place_of(top)
    try:
        descriptor = open_below(top, name, place, where)
    except FileNotFoundError:
        return False
    try:
        status = os.fstat(descriptor)
        reading.add(b".", status)
        reading.count(status, (), "")
        _read(reading, descriptor, place, where, ())
    finally:
        os.close(descriptor)
    return True


def _read(reading: _Reading, directory: int, place: Place, where: Path, parents: tuple[str, ...]) -> None:
    if len(parents) > MAX_DEPTH:
        raise _IncompleteError(f"deeper than {MAX_DEPTH} levels")
    for name in sorted(os.listdir(directory)):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            reading.add(os.fsencode(str(where / name)), status)
            reading.count(status, parents, name)
            if stat.S_ISDIR(status.st_mode):
                descriptor = open_below(directory, name, place, where)
                try:
                    _read(reading, descriptor, place, where / name, (*parents, name))
                finally:
                    os.close(descriptor)
            elif stat.S_ISREG(status.st_mode) and reading.openers is not LogOpeners.WRITERS:
                openers, cause = find_openers(directory, name)
                reading.opened(openers, f"{where / name}: {cause}" if cause else str(where / name))
        except FileNotFoundError as error:  # the entry was renamed or removed: the tree is in use
            raise _IncompleteError(f"{where / name} changed during the reading") from error
