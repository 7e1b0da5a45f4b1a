"""Giving memory back to the node.

A pass makes a short-lived heap of messages and values. glibc keeps it, spread over an arena per thread; a daemon
that sleeps for minutes between passes returns it instead.
"""

from __future__ import annotations

import ctypes
import gc

_M_ARENA_MAX = -8  # Source: malloc.h of glibc


def limit_arenas() -> None:
    """Let all threads share two heaps; without glibc nothing happens. Call before threads are started."""
    libc = _libc()
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 2)


def give_back() -> None:
    """Return free heap memory to the kernel; without glibc nothing happens. Source: malloc_trim(3)."""
    gc.collect()
    libc = _libc()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
