"""Stamps of files that are read again when they change, such as certificates."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

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
