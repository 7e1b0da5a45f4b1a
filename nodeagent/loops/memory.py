"""Memory use of the daemon: fewer gaps in the heap, release of free heap to the kernel, locked code.

A pass allocates short-lived messages and values. glibc keeps the freed memory in one arena per thread; the daemon,
which sleeps for minutes between passes, returns the memory to the kernel.
"""

from __future__ import annotations

import ctypes
import gc
import os

_M_MMAP_THRESHOLD = -3  # Source: malloc.h of glibc
_M_ARENA_MAX = -8
_MAPPED_FROM_BYTES = 32 << 10
_MCL_CURRENT_FUTURE_ONFAULT = 1 | 2 | 4  # Source: mlockall(2), Linux


def configure_malloc() -> None:
    """Limit malloc to one arena, and allocate blocks of at least 32 KiB with mmap; a no-op without glibc.

    Freed blocks of this size return to the kernel immediately, and leave no gaps between smaller blocks. By default
    glibc raises this threshold with each freed block. Call before threads are started. Source: mallopt(3).
    """
    libc = _libc()
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)


def lock_memory() -> str:
    """Lock every page that the process has touched or will touch; return the error, empty on success.

    Under memory pressure the kernel drops file pages first, including the agent's own code: reading the code again
    during a stall takes seconds. Source: mlockall(2), ``MCL_ONFAULT``.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mlockall"):
        return "mlockall is unavailable on this system"
    if libc.mlockall(_MCL_CURRENT_FUTURE_ONFAULT) != 0:
        return f"mlockall: {os.strerror(ctypes.get_errno())}; set LimitMEMLOCK= in the unit"
    return ""


def release_memory() -> None:
    """Return free heap memory to the kernel; a no-op without glibc. Source: malloc_trim(3)."""
    gc.collect()
    libc = _libc()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
