"""Freed space on Btrfs, which is available only after a commit of the transaction, by default within 30 s."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.host.filesystems import filesystem_type

if TYPE_CHECKING:
    from collections.abc import Iterable

_START_SYNC: Final = 0x80089418
"""``BTRFS_IOC_START_SYNC``. Source: kernel, include/uapi/linux/btrfs.h."""


def start_commits(paths: Iterable[str]) -> None:
    """Start a commit on each Btrfs filesystem of these paths, without waiting for its end.

    A removed path is replaced by its nearest existing parent. Other filesystems and unreadable paths are skipped.
    """
    existing = dict.fromkeys(_existing(Path(each)) for each in paths)
    for path in existing:
        if filesystem_type(path) != "btrfs":
            continue
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(descriptor, _START_SYNC, struct.pack("Q", 0))
            finally:
                os.close(descriptor)


def _existing(path: Path) -> str:
    """Return a path or its nearest existing parent."""
    return str(next((each for each in (path, *path.parents) if os.path.lexists(each)), path))
