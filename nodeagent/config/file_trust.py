"""Trust in configuration files: no user except root, and the user of the process, may be able to write them.

The agent runs as root. A user with write access to its configuration, or to a directory or symbolic link on the way to
it, controls the removals of root: a ``config.d`` writable by all users allows any user to switch off ``dry_run``.

Every component is opened relative to the descriptor of its parent and checked by its own descriptor, and the file is
read from the last one. A check by path could read another file than it has checked: in ``/tmp`` any user can create
the absent file between the two.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from nodeagent.errors import ConfigError

UNTRUSTED: Final = "not trusted: "
"""Part of the text of every error of an untrusted path."""

_MAX_LINKS: Final = 40
_CONFIG_MAP_LINK: Final = "..data"
_STEP: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_trusted(path: Path, *, directory: bool = False, own_uid: int | None = None) -> int:
    """Return a readable descriptor of a regular file or a directory that no other user can write or replace.

    Checked are the path, its parent directories and the targets of symbolic links: their owner is root or the user of
    the process, and no other user has write access; for root, no group except 0 either. A parent directory with the
    sticky bit, such as ``/tmp``, is trusted: its entries can be replaced by their owners only. Access control lists
    are visible as their mask, which is the group's access in the mode.

    Args:
        path: the file or directory, relative to the working directory if not absolute.
        directory: a directory is expected, not a file.
        own_uid: user of the process; ``None`` to read it.

    Raises:
        ConfigError: the path is not trusted, or is not a regular file; the text has the untrusted component and the
            command that corrects it.
        OSError: the path does not exist, is not the expected directory, or cannot be read.
    """
    own_uid = os.geteuid() if own_uid is None else own_uid
    pending = _reversed_parts(str(Path.cwd() / path))
    shown, current, links = Path("/"), os.open("/", _STEP), 0
    try:
        while pending:
            part = pending.pop()
            shown = Path("/") if part == "/" else shown.parent if part == ".." else shown / part
            entry = os.open(part, _STEP, dir_fd=None if part == "/" else current)
            try:
                status = os.fstat(entry)
                problem = _problem(entry, shown, status, own_uid, is_last=not pending)
                if problem:
                    raise ConfigError(f"{path}: {UNTRUSTED}{problem}")
                if stat.S_ISLNK(status.st_mode):
                    links += 1
                    if links > _MAX_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                    pending += _reversed_parts(os.readlink("", dir_fd=entry))
                    shown = shown.parent
                else:
                    entry, current = current, entry  # the parent is closed
            finally:
                os.close(entry)
        return _reopened(path, current, directory=directory)
    finally:
        os.close(current)


def _reversed_parts(path: str) -> list[str]:
    """Return the components of a path, the first one last; the first one of an absolute path is ``/``."""
    return ["/" if each.startswith("/") else each for each in reversed(Path(path).parts)]


def _reopened(path: Path, descriptor: int, *, directory: bool) -> int:
    """Return a readable descriptor of the same file; other kinds are not opened: opening one can block."""
    mode = os.fstat(descriptor).st_mode
    if directory and not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not directory and not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: not a regular file")
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # not that of an absent file, which callers replace by the defaults
        raise ConfigError(f"{path}: cannot be read without /proc; mount it") from None


def _problem(descriptor: int, path: Path, status: os.stat_result, own_uid: int, *, is_last: bool) -> str:
    """Return the users with write access to a component, and the correction; empty if it is trusted."""
    if status.st_uid not in (0, own_uid):
        # Another owner of a directory above it would break what that user does there.
        correction = f"run: chown {own_uid} {path}" if is_last else "move the configuration to a directory of root"
        return f"{path} is owned by uid {status.st_uid}; {correction}"
    is_directory = stat.S_ISDIR(status.st_mode)
    if stat.S_ISLNK(status.st_mode) or (is_directory and status.st_mode & stat.S_ISVTX and not is_last):
        return ""
    if is_directory and _is_config_map(descriptor):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"{path} is writable by all users; run: chmod o-w {path}"
    if own_uid == 0 and status.st_mode & stat.S_IWGRP and status.st_gid != 0:
        return f"{path} is writable by group {status.st_gid}; run: chmod g-w {path}"
    return ""


def _is_config_map(directory: int) -> bool:
    """Return whether a directory is a volume of Kubernetes, which is writable by its mode and mounted read-only.

    The link to its current version belongs to root. That alone is no proof: in a directory that all users can write,
    any user can move a link of root to this name.
    """
    try:
        link = os.stat(_CONFIG_MAP_LINK, dir_fd=directory, follow_symlinks=False)
        read_only = bool(os.fstatvfs(directory).f_flag & os.ST_RDONLY)
    except OSError:
        return False
    return read_only and stat.S_ISLNK(link.st_mode) and link.st_uid == 0 and link.st_nlink == 1
