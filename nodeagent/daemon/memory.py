"""Giving memory back to the node.

A pass makes a short-lived heap of messages and values. glibc keeps it, spread over an arena per thread; a daemon
that sleeps for minutes between passes returns it instead.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_M_ARENA_MAX = -8  # Source: malloc.h of glibc
_MCL_CURRENT_FUTURE_ONFAULT = 1 | 2 | 4  # Source: mlockall(2), Linux


_OPENSSL: Final = ("ssl", "_hashlib")
_OWN_HASHES: Final = (("_md5",), ("_sha1",), ("_sha2", "_sha256"), ("_sha2", "_sha512"), ("_sha3",), ("_blake2",))


@contextmanager
def without_openssl() -> Iterator[None]:
    """Let asyncio and hashlib be imported without OpenSSL, 4 MiB, which whoever speaks TLS imports later on.

    Without it asyncio has no TLS of its own, and hashes are Python's; where Python was built without those, OpenSSL
    is taken after all.
    """
    has_hashes = all(any(importlib.util.find_spec(name) for name in names) for names in _OWN_HASHES)
    kept_out = [name for name in _OPENSSL if has_hashes and name not in sys.modules]
    for name in kept_out:
        sys.modules[name] = cast("ModuleType", None)  # import statements take this for "not installed"
    try:
        yield
    finally:
        for name in kept_out:
            del sys.modules[name]


def limit_arenas() -> None:
    """Let all threads share two heaps; without glibc nothing happens. Call before threads are started."""
    libc = _libc()
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 2)


def lock_memory() -> str:
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


def release_memory() -> None:
    """Return free heap memory to the kernel; without glibc nothing happens. Source: malloc_trim(3)."""
    gc.collect()
    libc = _libc()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
