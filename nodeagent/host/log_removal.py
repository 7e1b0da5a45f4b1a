"""Removal of pod logs and of symlinks to them, the only module that deletes log files.

Files are removed through directory descriptors, one level at a time, opened without following symlinks and compared by
device and mount with the log root. A concurrent rename, or replacement by a symlink, at worst aborts the removal; it
cannot redirect the removal out of the log root.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from nodeagent.errors import ObservationError
from nodeagent.host.pod_logs import (
    FAR_FUTURE,
    MAX_DEPTH,
    Place,
    RemovalRefusedError,
    changed,
    has_target,
    link_container_id,
    open_below,
    open_log_root,
    place_of,
    pod_uid,
)
from nodeagent.model.node import LogSpace
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path


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
        descriptor = open_below(top, name, place, root / name)
        try:
            _check_tree(descriptor, place, root / name, 0)
            freed = _empty(descriptor, _Limits(place, changed_at), root / name, 0)
        finally:
            os.close(descriptor)
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
    try:
        yield descriptor
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RemovalRefusedError(f"cannot remove below {root}: {error.strerror or error}") from error
    finally:
        os.close(descriptor)


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
        try:
            _check_tree(descriptor, place, where / name, depth + 1)
        finally:
            os.close(descriptor)


class _Limits(Record):
    """Limits of a removal: entries of one mount, unchanged since their reading."""

    place: Place
    changed_at: datetime


def _empty(directory: int, limits: _Limits, where: Path, depth: int) -> LogSpace:
    """Remove the content of a directory; return the freed space. A new mount point aborts the removal."""
    if depth > MAX_DEPTH:
        raise RemovalRefusedError(f"{where}: deeper than {MAX_DEPTH} levels")
    with os.scandir(directory) as entries:
        found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    freed = LogSpace()
    for name, is_directory in found:
        if not is_directory:
            freed = freed.plus(_unlink(directory, name, where, limits.changed_at))
            continue
        try:
            descriptor = open_below(directory, name, limits.place, where)
        except FileNotFoundError:
            continue
        try:
            freed = freed.plus(_empty(descriptor, limits, where / name, depth + 1))
        finally:
            os.close(descriptor)
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
