"""Atomic writes: after a crash the path has either the complete old or the complete new file.

Each function except ``overwrite_file`` writes a temporary file ``.NAME-XXXXXXXX`` beside its target, and syncs file and
directory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedReader
    from os import PathLike

_RANDOM_BYTES = 4


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[int]:
    """Yield an open file descriptor, and close it at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(path: Path) -> str:
    """Return the text of a regular file; a pipe in its place is an error and does not block.

    Raises:
        OSError: the file does not exist, cannot be read, or is not a regular file.
        UnicodeDecodeError: the file is not UTF-8.
    """
    with open_regular(path) as file:
        return file.read().decode()


def read_text(path: Path, max_bytes: int = 1 << 20, *, errors: str = "strict") -> str:
    """Return the text of a file that another program owns.

    Args:
        path: the file.
        max_bytes: maximum size of the file.
        errors: treatment of bytes that are not UTF-8, as in ``bytes.decode``.

    Raises:
        OSError: the file does not exist, cannot be read, is not a regular file, is larger than ``max_bytes``, or is not
            UTF-8; ``strerror`` is the cause.
    """
    try:
        with open_regular(path) as file:
            raw = file.read(max_bytes + 1)
        if len(raw) > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(path))
        return raw.decode(errors=errors)
    except ValueError as error:  # not UTF-8, or a null character in the path
        raise OSError(errno.EILSEQ, "not UTF-8 text", str(path)) from error


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file; a pipe in its place is an error and does not block.

    Raises:
        OSError: the file does not exist, cannot be read, or is not a regular file.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def replace_file(path: Path, text: str, *, like: os.stat_result | None = None, mode: int = 0o600) -> None:
    """Write a file atomically, replacing an existing file.

    Args:
        path: the file; a symbolic link is itself replaced.
        text: content of the file.
        like: status with the owner, group and mode for the new file; ``None`` for the process's owner and ``mode``.
        mode: mode of the new file if ``like`` is ``None``.

    Raises:
        OSError: the file cannot be written; the existing file is unchanged.
    """
    with _temporary_file(path, text, like, mode) as temporary:
        temporary.replace(path)


def overwrite_file(path: Path, text: str) -> None:
    """Overwrite a file within its allocated blocks, which is possible on a full filesystem; not atomic.

    After a crash the file may be a mixture of both texts. A shorter text is padded with spaces before the file is
    truncated, so that a JSON document is also valid before the truncation.

    Raises:
        OSError: the file is absent, is a symbolic link, has too few blocks, or cannot be written.
    """
    content = text.encode()
    with closing_descriptor(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)) as descriptor:
        status = os.fstat(descriptor)
        if len(content) > status.st_blocks * 512:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.pwrite(descriptor, content.ljust(status.st_size), 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)


def create_file(path: Path, text: str, *, mode: int = 0o600) -> bool:
    """Write a file unless the path exists; return whether it was written.

    Raises:
        OSError: the file cannot be written.
    """
    with _temporary_file(path, text, None, mode) as temporary:
        try:
            os.link(temporary, path)  # unlike a rename, fails if the name exists: the first writer wins
        except FileExistsError:
            return False
    return True


@contextmanager
def _temporary_file(path: Path, text: str, like: os.stat_result | None, mode: int) -> Iterator[Path]:
    """Provide a synced temporary file beside a path; the file is removed afterwards unless the caller renamed it."""
    # The tempfile module is not used: with shutil, bz2 and lzma it takes 1 MiB of the daemon's memory.
    temporary = path.with_name(f".{path.name}-{os.urandom(_RANDOM_BYTES).hex()}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if like is not None and (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), mode if like is None else stat.S_IMODE(like.st_mode))
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    with suppress(OSError):  # absent after a rename
        temporary.unlink()
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    with closing_descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        os.fsync(descriptor)


FileStamp = tuple[int, int, int]


def file_stamp(path: str | PathLike[str]) -> FileStamp:
    """Return inode, size in bytes and modification time in nanoseconds of a file; zeros if it cannot be read.

    Symbolic links are followed, since Kubernetes renews a mounted Secret by replacing a link.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - a single call, without a Path object
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)
