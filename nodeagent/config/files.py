"""Values of the configuration file and its drop-ins, merged but not validated.

Trust in configuration files: only root and the user of the process may have write access.

The agent runs as root. A user with write access to the configuration, or to a directory or symbolic link in its path,
controls the removals of root: a ``config.d`` writable by all users allows any user to switch off ``dry_run``.

Every path component is opened relative to the descriptor of its parent and checked by its own descriptor; the file is
read from the last descriptor. A check by path could check one file and read another one: in ``/tmp`` any user
can create a missing file between the check and the opening.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nodeagent.config.paths import CONFIG_FILE
from nodeagent.errors import ConfigError
from nodeagent.files import closing_descriptor

UNTRUSTED: Final = "not trusted: "
"""Text contained in every error about an untrusted path."""

_MAX_LINKS: Final = 40
_CONFIG_MAP_LINK: Final = "..data"
_STEP: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_trusted(path: Path, *, directory: bool = False, own_uid: int | None = None) -> int:
    """Return a readable descriptor of a regular file or a directory that no other user can write or replace.

    The path, its parent directories and the targets of symbolic links are checked. Their owner must be root or the user
    of the process, and no other user may have write access; for root, no group except 0 either. A parent directory with
    the sticky bit, such as ``/tmp``, is trusted: its entries can be replaced by their owners only. Access control lists
    are visible as their mask, which is the group's access in the mode.

    Args:
        path: the file or directory, relative to the working directory if not absolute.
        directory: whether the path must be a directory, not a regular file.
        own_uid: uid of the process; ``None`` for the effective uid.

    Raises:
        ConfigError: the path is not trusted, or is not a regular file; the message names the untrusted component and
            the command to correct it.
        OSError: the path does not exist, is not the expected directory, or cannot be read.
    """
    own_uid = os.geteuid() if own_uid is None else own_uid
    pending = _reversed_parts(str(absolute_path(path)))
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
                    entry, current = current, entry  # the parent is closed below
            finally:
                os.close(entry)
        return _reopened(path, current, directory=directory)
    finally:
        os.close(current)


def absolute_path(path: Path) -> Path:
    """Return a path that is valid in every working directory; symbolic links and ``..`` are not resolved.

    Raises:
        ConfigError: the path is relative and the current directory was deleted or is unreachable.
    """
    try:
        return path.absolute()
    except OSError as error:
        raise ConfigError(f"cannot resolve {path}: current directory unavailable: {error}") from error


def _reversed_parts(path: str) -> list[str]:
    """Return the components of a path in reverse order; the root of an absolute path is the component ``/``."""
    return ["/" if each.startswith("/") else each for each in reversed(Path(path).parts)]


def _reopened(path: Path, descriptor: int, *, directory: bool) -> int:
    """Return a readable descriptor of the same file; special files are refused: opening one can block."""
    mode = os.fstat(descriptor).st_mode
    if directory and not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not directory and not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: not a regular file")
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # callers treat FileNotFoundError as a missing configuration file
        raise ConfigError(f"{path}: cannot be read without /proc; mount it") from None


def _problem(descriptor: int, path: Path, status: os.stat_result, own_uid: int, *, is_last: bool) -> str:
    """Return the users with write access to a component, and the correction; empty if the component is trusted."""
    if status.st_uid not in (0, own_uid):
        # No chown of a parent directory: its owner may need write access to other files there.
        correction = f"run: chown {own_uid} {path}" if is_last else "use a directory of root"
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
    """Return whether a directory is a ConfigMap volume: world-writable by its mode, but mounted read-only.

    The volume has a link ``..data`` that is owned by root. The owner alone is no proof: in a world-writable directory
    any user can rename a link of root to ``..data``.
    """
    try:
        link = os.stat(_CONFIG_MAP_LINK, dir_fd=directory, follow_symlinks=False)
        read_only = bool(os.fstatvfs(directory).f_flag & os.ST_RDONLY)
    except OSError:
        return False
    return read_only and stat.S_ISLNK(link.st_mode) and link.st_uid == 0 and link.st_nlink == 1


DEFAULT_PATH: Final = Path(CONFIG_FILE)


def read_files(path: Path | None) -> tuple[Path | None, dict[str, object], dict[str, str]]:
    """Return the file, the values merged with those of its drop-ins, and their sources.

    Raises:
        ConfigError: a file cannot be read, is not trusted or is not TOML; one line per file.
    """
    document: dict[str, object] = {}
    origins: dict[str, str] = {}
    errors: list[str] = []
    source = None
    dropins: tuple[Path, ...] = ()
    try:
        dropins = _dropins(path or DEFAULT_PATH)
    except ConfigError as error:
        errors.append(str(error))
    for each in (path, *dropins):
        try:
            file, values = _read(each)
        except ConfigError as error:
            errors.append(str(error))
            continue
        source = file if each is path else source
        _merge(document, values, str(file), origins)
    if errors:
        raise ConfigError("\n".join(errors))
    return source, document, origins


def _merge(
    table: dict[str, object], values: Mapping[str, object], source: str, origins: dict[str, str], prefix: str = ""
) -> None:
    """Merge the values of a file, or of a table in it, over those of earlier files, and record their source."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if not isinstance(value, dict):
            table[key] = value
            origins[name] = source
            continue
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            inner = table[key] = {}
        _merge(inner, value, source, origins, f"{name}.")


def _dropins(path: Path) -> tuple[Path, ...]:
    directory = path.with_name(f"{path.stem}.d")
    try:
        with closing_descriptor(open_trusted(directory, directory=True)) as descriptor:
            names = os.listdir(descriptor)  # noqa: PTH208 - pathlib does not list a descriptor
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigError(f"{directory}: cannot read directory: {error.strerror or error}") from error
    # Hidden files are locks and backups of editors, or the ``..data`` links of a mounted ConfigMap.
    found = (directory / name for name in names if not name.startswith("."))
    return tuple(sorted(each for each in found if each.suffix == ".toml"))


def read_document(path: Path) -> Mapping[str, object]:
    """Return the values of one file, without validation and without its drop-ins.

    Raises:
        ConfigError: the file cannot be read, or is not TOML.
    """
    return _read(path)[1]


def _read(path: Path | None) -> tuple[Path | None, dict[str, object]]:
    chosen = path if path is not None else DEFAULT_PATH
    try:
        with open(open_trusted(chosen), "rb") as file:
            text = file.read().decode()
    except FileNotFoundError as error:
        if path is None:
            return None, {}
        raise ConfigError(f"{chosen}: no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{chosen}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{chosen}: cannot read file: {error.strerror or error}") from error
    import tomllib  # noqa: PLC0415 - needed only for an existing file

    try:
        return chosen, tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a value out of range such as a date
        raise ConfigError(f"{chosen}: invalid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{chosen}: invalid TOML: nested too deeply") from error
