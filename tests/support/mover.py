"""A process that hides data from directory walks.

It observes directories by inotify and moves all data into each one as soon as it was read. The method is ``files`` for
renames of the files, ``directory`` for renames of one directory with all files, ``allocation`` for the truncation of
the file with the data and an allocation in a file of the read directory.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

IN_ACCESS: Final = 0x1  # Source: inotify(7)
_EVENT: Final = struct.Struct("iIII")
_FILES: Final = tuple(f"f{each:04d}" for each in range(30))
_SIZE: Final = 160 << 20


def directories(root: str) -> list[str]:
    """Return the directories that hold the data in turn."""
    return sorted(f"{root}/{name}" for name in os.listdir(root))  # noqa: PTH208 - texts


def fill(root: str, method: str, *, number: int = 20, size_bytes: int = _SIZE) -> None:
    """Create the directories, each with 300 empty files, which delay a walk, and all data in the last one."""
    for each in range(number):
        os.makedirs(f"{root}/d{each:02d}")  # noqa: PTH103
        for decoy in range(300):
            os.close(os.open(f"{root}/d{each:02d}/.{decoy}", os.O_WRONLY | os.O_CREAT, 0o600))
    data = f"{root}/d{number - 1:02d}"
    if method == "directory":
        data = f"{data}/moving"
        os.mkdir(data)  # noqa: PTH102
    names = ["data"] if method == "allocation" else _FILES
    for name in names:
        descriptor = os.open(f"{data}/{name}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.posix_fallocate(descriptor, 0, size_bytes // len(names))
        os.close(descriptor)


def move(method: str, source: str, target: str) -> None:
    """Move all data from one directory into another one."""
    if method == "allocation":
        os.truncate(f"{source}/data", 0)
        descriptor = os.open(f"{target}/data", os.O_WRONLY | os.O_CREAT, 0o600)
        os.posix_fallocate(descriptor, 0, _SIZE)
        os.close(descriptor)
        return
    for name in _FILES if method == "files" else ["moving"]:
        with suppress(OSError):
            os.rename(f"{source}/{name}", f"{target}/{name}")  # noqa: PTH104


def hide(root: str, method: str, on_ready: Callable[[], object]) -> None:
    """Create directories with data below ``root`` and move it until the process is killed."""
    fill(root, method)
    places = directories(root)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init()
    watched = {libc.inotify_add_watch(descriptor, os.fsencode(path), IN_ACCESS): path for path in places}
    current = places[-1]
    on_ready()
    while True:
        events, offset = os.read(descriptor, 1 << 16), 0
        while offset < len(events):
            watch, _, _, length = _EVENT.unpack_from(events, offset)
            offset += _EVENT.size + length
            if watched[watch] != current:
                move(method, current, watched[watch])
                current = watched[watch]
