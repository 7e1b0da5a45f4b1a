"""The process of a test in the role of an unprivileged user."""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

UNPRIVILEGED_UID = 65534


@contextmanager
def as_other_user(uid: int = UNPRIVILEGED_UID) -> Iterator[None]:
    """Run the block with this effective user; requires root.

    Daemons of earlier tests have locked this process into memory. Above its limit of locked memory an unprivileged
    process can allocate no stack for a thread, and ``Thread.start()`` waits forever, so the memory is unlocked first.
    Source: mlockall(2), ``RLIMIT_MEMLOCK``.
    """
    ctypes.CDLL(None).munlockall()
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
