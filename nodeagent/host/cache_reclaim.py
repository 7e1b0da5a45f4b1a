"""Page cache of cgroups, and its reclaim by ``memory.reclaim``."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.host.cgroups import read_file_cache, read_memory_low, read_memory_stall_us, read_working_set

if TYPE_CHECKING:
    from collections.abc import Iterable

_INCOMPLETE: Final = frozenset({errno.EAGAIN, errno.EIO})


class CgroupCache(NamedTuple):
    """Page cache, working set, ``memory.low`` and memory stall time of cgroups."""

    active_bytes: int
    inactive_bytes: int
    working_set_bytes: int
    low_bytes: int
    stall_us: int


def read_cache(directories: Iterable[str]) -> CgroupCache | None:
    """Return the sums over cgroups; ``None`` if a value cannot be read. Without PSI the stall time is 0."""
    total = CgroupCache(0, 0, 0, 0, 0)
    for each in directories:
        file, used, low = read_file_cache(each), read_working_set(each), read_memory_low(each)
        if file is None or used is None or low is None:
            return None
        added = (*file, used, low, read_memory_stall_us(each) or 0)
        total = CgroupCache(*(one + other for one, other in zip(total, added, strict=True)))
    return total


def is_writable(directory: str) -> bool:
    """Return whether ``memory.reclaim`` is writable: not in a read-only tree, and not before Linux 5.19."""
    try:
        os.close(os.open(f"{directory}/memory.reclaim", os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def reclaim_cache(directory: str, size_bytes: int, *, swap: bool) -> str:
    """Reclaim page cache of a cgroup; return the error, empty even if less was reclaimed. Blocks.

    Without swap only page cache can be reclaimed. With swap a swappiness of 0 is requested, which the kernel accepts
    since 6.11; an older kernel reclaims nothing.

    Source: kernel cgroup-v2.rst, ``memory.reclaim``.
    """
    text = f"{size_bytes} swappiness=0" if swap else str(size_bytes)
    try:
        descriptor = os.open(f"{directory}/memory.reclaim", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return "cgroup removed, or no memory.reclaim"
    except OSError as error:
        return "" if error.errno in _INCOMPLETE else f"memory.reclaim: {error.strerror}"
    return ""
