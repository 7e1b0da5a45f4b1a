"""Execution of a test as an unprivileged user, in the test process."""

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
    """Run the block with an effective user id; requires root.

    Daemons of earlier tests have locked the memory of this process. Above the limit of locked memory, an unprivileged
    process cannot allocate a thread stack, and ``Thread.start()`` waits forever. The memory is therefore unlocked
    first. Source: mlockall(2), ``RLIMIT_MEMLOCK``.
    """
    ctypes.CDLL(None).munlockall()
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
