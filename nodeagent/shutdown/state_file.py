"""Shutdown state that survives a crash of the agent: the shutdown in progress, and the last record of the boot.

The state is in two small files instead of database tables: the files are written while pods are being stopped, are read
by the process that resumes the shutdown after a crash, and must not be lost with a quarantined database. Each file is
replaced atomically and synced; in a full filesystem it is overwritten in place.

If the state directory cannot store a stop, for example because it is read-only, the stop is written to the runtime
directory. Other processes of the boot read it there: without it, the stop hook would repeat a complete shutdown and
record wrong outcomes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from nodeagent.errors import StoreError
from nodeagent.files import closing_descriptor, overwrite_file, replace_file
from nodeagent.model.stops import BootRecord, NodeStop, StoppedPod
from nodeagent.record import replace
from nodeagent.schemas import SchemaId
from nodeagent.store.json_file import JsonFile

T = TypeVar("T")

STOP_FILE: Final = "shutdown.json"
BOOT_FILE: Final = "boot.json"
LOCK_FILE: Final = "shutdown.lock"
_LOCK_POLL_S: Final = 0.25


class ShutdownFiles:
    """Files of the shutdown state of this node. Methods block and may be called from any thread or process."""

    def __init__(self, directory: Path, runtime_directory: Path | None = None) -> None:
        """Use files under the given directories.

        Args:
            directory: the state directory, created at the first write.
            runtime_directory: an existing directory that is kept until power-off, for a stop that the state directory
                cannot store; ``None`` for no such directory.
        """
        self._directory = directory
        self.runtime_directory = runtime_directory
        self._stop = JsonFile(directory / STOP_FILE, SchemaId.SHUTDOWN_FILE, NodeStop)
        self._boot = JsonFile(directory / BOOT_FILE, SchemaId.BOOT_FILE, BootRecord)

    def read_stop(self) -> NodeStop | None:
        """Return the last node stop, finished or not; ``None`` if no file exists.

        A file in the runtime directory has precedence over the file in the state directory, since it is written only if
        the write to the state directory fails, and removed by the next successful write.

        Raises:
            StoreError: the file cannot be read, or its content is invalid.
        """
        if self.runtime_directory is not None:
            with suppress(StoreError):  # may be the file of an agent of another user with another state directory
                copy = JsonFile(self.runtime_directory / STOP_FILE, SchemaId.SHUTDOWN_FILE, NodeStop).read()
                if copy is not None:
                    return copy
        return self._stop.read()

    def write_stop(self, stop: NodeStop) -> None:
        """Replace the stored node stop.

        Raises:
            StoreError: the file cannot be written to the state directory. The previous file is kept there, and the stop
                is written to the runtime directory if that is writable.
        """
        copy = self.runtime_directory / STOP_FILE if self.runtime_directory is not None else None
        try:
            _write(self._stop, stop)
        except StoreError:
            if copy is not None:
                with suppress(OSError):
                    replace_file(copy, self._stop.text_of(stop))
            raise
        if copy is not None:
            with suppress(OSError):
                copy.unlink(missing_ok=True)

    def read_boot(self) -> BootRecord | None:
        """Return the last record of this or an earlier boot; ``None`` if the file does not exist.

        Raises:
            StoreError: as for :meth:`read_stop`.
        """
        return self._boot.read()

    def write_boot(self, record: BootRecord) -> None:
        """Replace the record of the boot.

        Raises:
            StoreError: as for :meth:`write_stop`.
        """
        named = tuple(StoppedPod(each.uid, each.namespace, each.name) for each in record.pods)
        _write(self._boot, replace(record, pods=named))

    @contextmanager
    def claim(self, within_s: float = 0.0, take_over: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Acquire the lock on stopping pods; yield whether it was acquired within ``within_s`` seconds.

        The kernel releases the lock when the process ends. If no lock file can be opened, the block runs as if the lock
        were acquired, since stopping pods is more important than the lock.

        Args:
            within_s: maximum wait in seconds.
            take_over: called at intervals while another process holds the lock; returns whether that process stops no
                further pods, so that the block runs as if the lock were acquired.
        """
        descriptor = self._open_lock()
        if descriptor is None:
            yield True
            return
        with closing_descriptor(descriptor):
            yield _lock(descriptor, time.monotonic() + within_s, take_over)

    def _open_lock(self) -> int | None:
        """Return a descriptor of the lock file; ``None`` if it cannot be opened.

        An existing file is opened even in a read-only state directory.
        """
        with suppress(OSError):
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        created = os.O_RDWR | os.O_CREAT
        for directory, access in (
            (self._directory, created),
            (self._directory, os.O_RDONLY),
            (self.runtime_directory, created),
        ):
            if directory is not None:
                with suppress(OSError):
                    return os.open(directory / LOCK_FILE, access | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return None


def _write(file: JsonFile[T], record: T) -> None:
    """Write a record; in a full filesystem overwrite the file, since an outdated record would be an unclean stop."""
    try:
        file.write(record)
    except StoreError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT):
            with suppress(OSError):
                overwrite_file(file.path, file.text_of(record))
                return
        raise


def _lock(descriptor: int, until_s: float, take_over: Callable[[], bool]) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if take_over():
                return True
            if time.monotonic() >= until_s:
                return False
            time.sleep(_LOCK_POLL_S)  # polling, since a blocking flock has no timeout
        except OSError:
            return True
        else:
            return True
