"""Detection of processes that have a file open, by file leases.

The kernel grants a write lease only if no other descriptor of the file is open, and a read lease only if no descriptor
is open for writing, in any process, container and mount namespace. ``/proc/*/fd`` was rejected: for a process with more
capabilities than the agent it requires ``CAP_SYS_PTRACE``, which the agent's unit does not have, and containerd, which
writes the container logs, is such a process. A lease requires only the ownership of the file.

Source: fcntl(2), ``F_SETLEASE``; kernel ``check_conflicting_open``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from typing import Final

from nodeagent.model import LogOpeners

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def find_openers(directory: int, name: str) -> tuple[LogOpeners, str]:
    """Return the kind of other open descriptors of a regular file, and the cause if the kind is unknown.

    The leases are released immediately: another process that opens the file meanwhile waits for microseconds.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:
        return LogOpeners.UNKNOWN, f"cannot open: {error.strerror or error}"
    try:
        # A broken lease is announced by SIGIO, which would end the process; SIGURG is ignored by default.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        if _is_granted(descriptor, fcntl.F_WRLCK):
            return LogOpeners.NONE, ""
        return (LogOpeners.READERS if _is_granted(descriptor, fcntl.F_RDLCK) else LogOpeners.WRITERS), ""
    except OSError as error:
        return LogOpeners.UNKNOWN, f"no file lease: {error.strerror or error}"
    finally:
        os.close(descriptor)


def _is_granted(descriptor: int, kind: int) -> bool:
    """Return whether the kernel grants a lease of that kind; the lease is released immediately."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return False
        raise
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True
