"""Identity of processes, for the check whether the writer of a record is still running."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from nodeagent.host.node import boot_id
from nodeagent.model.stops import ProcessIdentity

_ROOT: Final = Path("/")
_ENDED: Final = frozenset({"Z", "X", "x"})


def own_process(root: Path = _ROOT) -> ProcessIdentity:
    """Return the identity of this process."""
    pid = os.getpid()
    try:
        _, started_ticks = _read_stat(root, pid)
    except OSError:
        started_ticks = 0
    return ProcessIdentity(pid, boot_id(root), started_ticks)


def is_running(process: ProcessIdentity, root: Path = _ROOT) -> bool:
    """Return whether a process of this machine still runs; true if unknown.

    A zombie counts as ended. Source: proc(5), state and starttime of ``/proc/PID/stat``.
    """
    current = boot_id(root)
    if current and process.boot_id and process.boot_id != current:
        return False
    try:
        state, started_ticks = _read_stat(root, process.pid)
    except (FileNotFoundError, ProcessLookupError):
        return _exists(process.pid)
    except OSError:
        return True
    if state in _ENDED:
        return False
    return not (process.started_ticks and started_ticks) or process.started_ticks == started_ticks


def _exists(pid: int) -> bool:
    """Return whether a process exists, even if hidden in ``/proc``. Source: proc(5), ``hidepid``; kill(2)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _read_stat(root: Path, pid: int) -> tuple[str, int]:
    """Return state and start time of a process; 0 for a start time that cannot be parsed."""
    text = (root / f"proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()  # the name in parentheses may contain spaces
    started = fields[19] if len(fields) > 19 else ""
    return (fields[0] if fields else ""), int(started) if started.isdecimal() else 0
