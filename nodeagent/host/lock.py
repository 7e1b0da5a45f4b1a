"""One process acts on a node at a time."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nodeagent.errors import PassBusyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def process_lock(path: Path) -> Iterator[str]:
    """Hold the lock file while a pass acts, so that a command and the daemon never delete at the same time.

    The kernel drops the lock with the process, however that ends. Yields a warning, empty normally: where the file
    cannot be made (a read-only or full directory) the pass goes on without it, since tidying up is what such a node
    needs, and every removal is guarded by itself.

    Raises:
        PassBusyError: another process holds it; the text names its pid.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        yield f"no lock against a second agent: {path}: {error.strerror or error}"
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise PassBusyError(f"another pass is running on this node (pid {holder}); try again later") from error
        yield _sign(descriptor)
    finally:
        os.close(descriptor)


def _sign(descriptor: int) -> str:
    """Write our pid for whoever finds the lock taken; a full disk only costs that."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        return ""
    return ""
