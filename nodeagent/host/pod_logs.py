"""Pod log directories and the symlinks to container logs: their list, complete readings of directories, and removal.

A reading has the newest change, a digest, and whether a process has a file open. Directories below the log root are
opened by descriptor: symlinks are not followed and mounts are not crossed.

Open files are detected by leases: the kernel grants a write lease only if no other descriptor of the file is open, and
a read lease only if no descriptor is open for writing, in any process, container and mount namespace. ``/proc/*/fd``
was rejected: for a process with more capabilities than the agent it requires ``CAP_SYS_PTRACE``, which the agent's unit
does not have, and containerd, which writes the container logs, is such a process. A lease requires only the ownership
of the file.

Source: fcntl(2), ``F_SETLEASE``; kernel ``check_conflicting_open``.

This is the only module that deletes log files. They are removed through directory descriptors, one level at a time,
opened without following symlinks and compared by device and mount with the log root. A concurrent rename, or
replacement by a symlink, at worst aborts the removal; it cannot redirect the removal out of the log root.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError, ObservationError
from nodeagent.files import closing_descriptor
from nodeagent.host.filesystems import mount_id
from nodeagent.model.node import ContainerLogLink, LogOpeners, LogSpace, LogTree, PodLogDirectory
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.units import Clock

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z.-]{3,252}")
_CONTAINER_ID = re.compile(r"[0-9a-f]{6,128}")

FAR_FUTURE: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""Time of an entry with an unknown or unrepresentable time, so that the entry counts as changed just now."""


def pod_uid(name: str) -> str:
    """Return the pod UID in the name of a pod log directory; empty if the name has no known form.

    The forms are ``NAMESPACE_NAME_UID`` and, for old kubelets, only the UID. Source: kubelet ``BuildPodLogsDirectory``.
    """
    parts = name.split("_")
    if len(parts) not in (1, 3) or not all(parts):
        return ""
    uid = parts[-1]
    if len(parts) == 1 and not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", uid):
        return ""
    return uid if _UID.fullmatch(uid) else ""


def link_container_id(name: str) -> str:
    """Return the container id in the name of a log link; empty without an id.

    Source: kubelet ``getContainerIDFromLegacyLogSymlink``.
    """
    stem = name.removesuffix(".log")
    container_id = stem.rpartition("-")[2]
    return container_id if stem != name and _CONTAINER_ID.fullmatch(container_id) else ""


def list_pod_log_directories(root: Path) -> tuple[PodLogDirectory, ...]:
    """Return the entries of the pod log root by name, without their trees; empty if the root does not exist.

    Raises:
        ObservationError: the root exists but cannot be read.
    """
    with open_log_root(root) as descriptor:
        if descriptor is None:
            return ()
        with os.scandir(descriptor) as entries:
            found = [_directory(descriptor, entry.name) for entry in entries]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.name))


def _directory(root: int, name: str) -> PodLogDirectory | None:
    try:
        status = os.stat(name, dir_fd=root, follow_symlinks=False)
    except OSError:
        return None
    return PodLogDirectory(name, pod_uid(name), stat.S_ISDIR(status.st_mode))


def list_dead_log_links(root: Path) -> tuple[ContainerLogLink, ...]:
    """Return the dangling ``*.log`` symlinks by name; empty if the directory does not exist.

    Raises:
        ObservationError: the root exists but cannot be read.
    """
    with open_log_root(root) as descriptor:
        if descriptor is None:
            return ()
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".log") and entry.is_symlink()]
        found = [_dead_link(descriptor, name) for name in names]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.name))


def _dead_link(root: int, name: str) -> ContainerLogLink | None:
    try:
        target = os.readlink(name, dir_fd=root)
        created = os.stat(name, dir_fd=root, follow_symlinks=False).st_mtime
    except OSError:
        return None
    if has_target(root, name):
        return None
    return ContainerLogLink(name, link_container_id(name), target, _moment(created))


def _moment(seconds: float) -> datetime:
    """Return a file's time; a time beyond the calendar becomes the far future, so that the file is kept."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return FAR_FUTURE


def changed(status: os.stat_result) -> datetime:
    """Return the time of the last modification or status change of a file, whichever is later."""
    return _moment(max(status.st_mtime, status.st_ctime))


def has_target(root: int, name: str) -> bool:
    """Return whether the target of a link exists; an inaccessible target counts as existing."""
    try:
        os.stat(name, dir_fd=root)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def open_log_root(root: Path) -> Iterator[int | None]:
    """Yield a descriptor of a log root, ``None`` if it does not exist.

    Symlinks in its path are followed, since /var/log is a symlink on some nodes.

    Raises:
        ObservationError: the log root cannot be read.
    """
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise ObservationError(f"cannot read {root}: {error.strerror or error}") from error
    with closing_descriptor(descriptor):
        try:
            yield descriptor
        except OSError as error:
            raise ObservationError(f"cannot read {root}: {error.strerror or error}") from error


_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

MAX_DEPTH: Final = 256
"""Maximum depth of readable and removable log trees."""


class RemovalRefusedError(NodeAgentError):
    """An entry has an unexpected type or mount and was not removed; the text contains the reason."""


class Place(Record):
    """Filesystem and mount of a descriptor; bind mounts of one filesystem have the same device."""

    device: int
    mount_id: str


def place_of(descriptor: int) -> Place:
    """Return filesystem and mount of a descriptor.

    Raises:
        RemovalRefusedError: the kernel does not report the mount.
    """
    mount = mount_id(descriptor)
    if not mount:
        raise RemovalRefusedError("mount of a directory unknown: no mnt_id in /proc/self/fdinfo")
    return Place(os.fstat(descriptor).st_dev, mount)


def open_below(parent: int, name: str, place: Place, where: Path) -> int:
    """Return a descriptor of a subdirectory on the same mount.

    Raises:
        RemovalRefusedError: the entry is a symlink, not a directory, or a mount point.
        FileNotFoundError: the entry does not exist.
    """
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:
        raise RemovalRefusedError(f"{where}: {name} is not a directory") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RemovalRefusedError(f"{where}: {name}: {error.strerror or error}") from error
    try:
        same = place_of(descriptor) == place
    except BaseException:
        os.close(descriptor)
        raise
    if not same:
        os.close(descriptor)
        raise RemovalRefusedError(f"{where}: {name} is a mount point; not removed")
    return descriptor


_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def find_openers(directory: int, name: str) -> tuple[LogOpeners, str]:
    """Return the kind of other open descriptors of a regular file, and the cause if the kind is unknown.

    The leases are released immediately: another process that opens the file meanwhile waits for microseconds.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:
        return LogOpeners.UNKNOWN, f"cannot open: {error.strerror or error}"
    try:
        # A broken lease is announced by SIGIO, which would end the process; SIGURG is ignored by default.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        if _is_granted(descriptor, fcntl.F_WRLCK):
            return LogOpeners.NONE, ""
        return (LogOpeners.READERS if _is_granted(descriptor, fcntl.F_RDLCK) else LogOpeners.WRITERS), ""
    except OSError as error:
        return LogOpeners.UNKNOWN, f"no file lease: {error.strerror or error}"
    finally:
        os.close(descriptor)


def _is_granted(descriptor: int, kind: int) -> bool:
    """Return whether the kernel grants a lease of that kind; the lease is released immediately."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return False
        raise
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


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
    with closing_descriptor(descriptor):
        status = os.fstat(descriptor)
        reading.add(b".", status)
        reading.count(status, (), "")
        _read(reading, descriptor, place, where, ())
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
                with closing_descriptor(open_below(directory, name, place, where)) as descriptor:
                    _read(reading, descriptor, place, where / name, (*parents, name))
            elif stat.S_ISREG(status.st_mode) and reading.openers is not LogOpeners.WRITERS:
                openers, cause = find_openers(directory, name)
                reading.opened(openers, f"{where / name}: {cause}" if cause else str(where / name))
        except FileNotFoundError as error:  # the entry was renamed or removed: the tree is in use
            raise _IncompleteError(f"{where / name} changed during the reading") from error


def remove_pod_log_directory(root: Path, name: str, expected_uid: str, changed_at: datetime) -> LogSpace:
    """Remove one pod log directory with its content; return the freed space.

    Symlinks in the directory are removed without following them.

    Args:
        root: the pod log root.
        name: the directory's name.
        expected_uid: the pod UID in the name.
        changed_at: newest change of the tree when it was read; a file changed later is kept.

    Raises:
        RemovalRefusedError: the name is not that pod's log directory, or contains a mount point, and nothing was
            removed; or the directory changed during the removal, and the rest is kept.
        FileNotFoundError: the directory does not exist.
    """
    _check_name(name)
    if not expected_uid or pod_uid(name) != expected_uid:
        raise RemovalRefusedError(f"{root / name} is not a log directory of pod {expected_uid or '(none)'}")
    with _opened(root) as top:
        place = place_of(top)
        with closing_descriptor(open_below(top, name, place, root / name)) as descriptor:
            _check_tree(descriptor, place, root / name, 0)
            freed = _empty(descriptor, place, changed_at, root / name, 0)
        return freed.plus(_remove_directory(top, name, root / name))


def remove_container_logs(root: Path, log_path: Path) -> LogSpace:
    """Remove a container's log ``N.log`` and its rotated files ``N.log.*``; return the freed space.

    Raises:
        RemovalRefusedError: the path is not below the log root, or a directory of it is a symlink or mount point.
    """
    try:
        parts = log_path.relative_to(root).parts
    except ValueError as error:
        raise RemovalRefusedError(f"{log_path} is not below the log root {root}") from error
    if len(parts) < 2 or ".." in parts or "\0" in str(log_path):
        raise RemovalRefusedError(f"{log_path} is not a container's log below {root}")
    with _opened(root) as top, ExitStack() as opened:
        place, directory = place_of(top), top
        for part in parts[:-1]:
            try:
                directory = open_below(directory, part, place, log_path)
            except FileNotFoundError:
                return LogSpace()
            opened.callback(os.close, directory)
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if _is_log_of(entry.name, parts[-1]))
        freed = LogSpace()
        for each in names:
            freed = freed.plus(_unlink(directory, each, log_path))
        return freed


def _is_log_of(name: str, current: str) -> bool:
    return name == current or name.startswith(f"{current}.")


def remove_dead_log_link(root: Path, name: str) -> bool:
    """Remove a container log symlink unless its target exists; return whether it was removed.

    Raises:
        RemovalRefusedError: the entry is not a symlink.
        FileNotFoundError: the entry does not exist.
    """
    _check_name(name)
    with _opened(root) as top:
        status = os.stat(name, dir_fd=top, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode) or not name.endswith(".log"):
            raise RemovalRefusedError(f"{root / name} is not a container log link")
        if has_target(top, name):
            return False
        os.unlink(name, dir_fd=top)
        return True


def remove_links_of(root: Path, container_id: str) -> int:
    """Remove the dangling symlinks to a container's log; return the number of removed symlinks.

    Raises:
        RemovalRefusedError: the links cannot be read or removed.
    """
    removed = 0
    try:
        with open_log_root(root) as descriptor:
            names = os.listdir(descriptor) if descriptor is not None else []  # noqa: PTH208 - by descriptor
    except ObservationError as error:
        raise RemovalRefusedError(str(error)) from error
    for name in sorted(names):
        if link_container_id(name) == container_id:
            try:
                removed += remove_dead_log_link(root, name)
            except FileNotFoundError:
                continue
    return removed


def _check_name(name: str) -> None:
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise RemovalRefusedError(f"{name!r} is not the name of an entry")


@contextmanager
def _opened(root: Path) -> Iterator[int]:
    """Open a log root for removal; an OSError other than FileNotFoundError becomes a refusal."""
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RemovalRefusedError(f"cannot open {root}: {error.strerror or error}") from error
    with closing_descriptor(descriptor):
        try:
            yield descriptor
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RemovalRefusedError(f"cannot remove below {root}: {error.strerror or error}") from error


def _check_tree(directory: int, place: Place, where: Path, depth: int) -> None:
    """Refuse a tree that contains a mount point or is too deep, before any removal."""
    if depth > MAX_DEPTH:
        raise RemovalRefusedError(f"{where}: deeper than {MAX_DEPTH} levels")
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        try:
            descriptor = open_below(directory, name, place, where)
        except FileNotFoundError:
            continue
        with closing_descriptor(descriptor):
            _check_tree(descriptor, place, where / name, depth + 1)


def _empty(directory: int, place: Place, changed_at: datetime, where: Path, depth: int) -> LogSpace:
    """Remove the content of a directory; return the freed space.

    An entry changed after ``changed_at``, or a new mount point, aborts the removal.
    """
    if depth > MAX_DEPTH:
        raise RemovalRefusedError(f"{where}: deeper than {MAX_DEPTH} levels")
    with os.scandir(directory) as entries:
        found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    freed = LogSpace()
    for name, is_directory in found:
        if not is_directory:
            freed = freed.plus(_unlink(directory, name, where, changed_at))
            continue
        try:
            descriptor = open_below(directory, name, place, where)
        except FileNotFoundError:
            continue
        with closing_descriptor(descriptor):
            freed = freed.plus(_empty(descriptor, place, changed_at, where / name, depth + 1))
        freed = freed.plus(_remove_directory(directory, name, where / name))
    return freed


def _unlink(directory: int, name: str, where: Path, changed_at: datetime = FAR_FUTURE) -> LogSpace:
    """Remove a file or symlink (not its target), unless it changed after ``changed_at``; return the freed space."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            raise RemovalRefusedError(f"{where}: {name} became a directory")
        if changed(status) > changed_at:
            raise RemovalRefusedError(f"{where}: {name} changed after it was read")
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return LogSpace()
    except OSError as error:
        raise RemovalRefusedError(f"{where}: {name}: {error.strerror or error}") from error
    return LogSpace(status.st_blocks * 512, 1) if status.st_nlink == 1 else LogSpace()


def _remove_directory(parent: int, name: str, where: Path) -> LogSpace:
    """Remove an empty directory and return the freed space; refuse a directory that was refilled or replaced."""
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return LogSpace()
    except OSError as error:
        raise RemovalRefusedError(f"{where}: {error.strerror or error}") from error
    return LogSpace(0, 1)
