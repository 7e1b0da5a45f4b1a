"""Lock files that exclude concurrent passes and concurrent daemons on one node."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from nodeagent.errors import PassBusyError
from nodeagent.files import closing_descriptor
from nodeagent.host.node import boot_id


def process_lock(path: Path) -> AbstractContextManager[str]:
    """Hold the lock file during a pass, so that a command and the daemon never remove items at the same time.

    The kernel releases the lock when the process ends. Yields a warning, which is empty unless the file cannot be
    created (read-only or full directory). The pass then runs without the lock: a full node needs the removals, and each
    removal is checked individually.

    Raises:
        PassBusyError: another process has locked the file; the text contains its PID.
    """
    return _locked(path, "another pass is running on this node (pid {pid}); try again later")


def lock_identity(path: Path) -> str:
    """Return the boot id, device and inode of a lock file, which identify the file; empty if it does not exist.

    A path is not sufficient: in containers, different files can have the same path.
    """
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return ""
    return f"{boot_id()} {found.st_dev}:{found.st_ino}"


def daemon_lock(state_directory: Path) -> AbstractContextManager[str]:
    """Hold the daemon lock of a state directory; two daemons would each evict a pod for the same shortage.

    Yields a warning as :func:`process_lock`.

    Raises:
        PassBusyError: another daemon holds the lock; the text contains its PID.
    """
    text = f"another daemon (pid {{pid}}) is running with state directory {state_directory}; stop it first"
    return _locked(state_directory / "daemon.lock", text)


@contextmanager
def _locked(path: Path, busy: str) -> Iterator[str]:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        yield f"cannot lock against other processes: {path}: {error.strerror or error}"
        return
    with closing_descriptor(descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise PassBusyError(busy.replace("{pid}", holder)) from error
        with suppress(OSError):  # a full disk: the error message of other processes reports the PID as unknown
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield ""
