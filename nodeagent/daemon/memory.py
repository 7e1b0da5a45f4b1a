"""Giving memory back to the node.

A pass makes a short-lived heap of messages and values. glibc keeps it, spread over an arena per thread; a daemon
that sleeps for minutes between passes returns it instead.
"""

from __future__ import annotations

import ctypes
import gc
import os

_M_ARENA_MAX = -8  # Source: malloc.h of glibc
_MCL_CURRENT_FUTURE_ONFAULT = 1 | 2 | 4  # Source: mlockall(2), Linux


def limit_arenas() -> None:
    """Let all threads share two heaps; without glibc nothing happens. Call before threads are started."""
    libc = _libc()
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 2)


def keep_resident() -> str:
    """Keep what the process has touched, and will touch, in memory; return why not, empty if it is kept.

    When memory runs out the kernel drops file pages first, the agent's own code among them: reading it back while
    everything stalls takes seconds. Source: mlockall(2), ``MCL_ONFAULT``.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mlockall"):
        return "this system has no mlockall"
    if libc.mlockall(_MCL_CURRENT_FUTURE_ONFAULT) != 0:
        return f"mlockall: {os.strerror(ctypes.get_errno())}; the unit's LimitMEMLOCK= allows it"
    return ""


def give_back() -> None:
    """Return free heap memory to the kernel; without glibc nothing happens. Source: malloc_trim(3)."""
    gc.collect()
    libc = _libc()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
