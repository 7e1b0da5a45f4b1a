"""Identity of processes, for the check whether the writer of a record is still running."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from nodeagent.host.node import boot_id
from nodeagent.model.stops import ProcessIdentity

_ROOT: Final = Path("/")
_ENDED: Final = frozenset({"Z", "X", "x"})


class ProcessStat(NamedTuple):
    """State letter, PID of the parent, and start in clock ticks since boot, of a process."""

    pid: int
    state: str
    parent: int
    started_ticks: int


def read_stat(pid: int, root: Path = _ROOT) -> ProcessStat:
    """Return state, parent and start of a process.

    psutil is not used, since it offers no start since boot: ``create_time`` is wall time, which changes whenever the
    clock is set, and reads ``/proc/stat`` for each process.

    Raises:
        OSError: the process cannot be read.

    Source: proc(5), state, ppid and starttime of ``/proc/PID/stat``.
    """
    text = (root / f"proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()  # the name in parentheses may contain spaces
    try:
        return ProcessStat(pid, fields[0], int(fields[1]), int(fields[19]))
    except (IndexError, ValueError) as error:
        raise OSError(f"/proc/{pid}/stat is malformed") from error


def own_process(root: Path = _ROOT) -> ProcessIdentity:
    """Return the identity of this process."""
    pid = os.getpid()
    try:
        return ProcessIdentity(pid, boot_id(root), read_stat(pid, root).started_ticks)
    except OSError:
        return ProcessIdentity(pid, boot_id(root), 0)


def started_s() -> float:
    """Return the start of this process, in seconds since boot, suspend included; 0 if it cannot be read."""
    return own_process().started_ticks / os.sysconf("SC_CLK_TCK")


def is_running(process: ProcessIdentity, root: Path = _ROOT) -> bool:
    """Return whether a process of this machine still runs; true if unknown. A zombie counts as ended."""
    current = boot_id(root)
    if current and process.boot_id and process.boot_id != current:
        return False
    try:
        found = read_stat(process.pid, root)
    except (FileNotFoundError, ProcessLookupError):
        return _exists(process.pid)
    except OSError:
        return True
    return found.state not in _ENDED and process.started_ticks in (0, found.started_ticks)


def _exists(pid: int) -> bool:
    """Return whether a process exists, even if hidden in ``/proc``, unlike ``psutil.pid_exists``.

    Source: proc(5), ``hidepid``; kill(2).
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
