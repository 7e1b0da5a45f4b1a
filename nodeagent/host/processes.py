"""Processes: identity, and SIGKILL without the container runtime.

The identity shows whether the writer of a record is still running.

On a node without free memory or PIDs a container runtime may be unable to start the program that stops a container,
while the kernel's OOM killer chooses a process of any pod. The processes of cgroups are therefore killed directly,
through pidfds: the PID of an ended process may be reused. ``cgroup.kill`` was rejected: the cgroup tree is read-only
for the daemon.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from nodeagent.files import closing_descriptor
from nodeagent.host.cgroups import read_processes
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


_ROUNDS: Final = 50
_PROCESS_MRELEASE: Final = 448  # on all architectures except alpha and mips, where the call fails


def free_memory_of_killed(pid: int) -> bool:
    """Free the memory of a killed process from the calling thread; return whether the kernel did.

    A dying process frees its memory with its own share of the processors, which for a pod with a low CPU request takes
    seconds on a busy node. Other processes and older kernels are no error. The call may wait for a lock of the process.

    Source: process_mrelease(2), Linux 5.15; it fails with EINVAL unless the process is dying.
    """
    try:
        with closing_descriptor(os.pidfd_open(pid)) as descriptor:
            call = ctypes.CDLL(None).syscall
            return bool(call(ctypes.c_long(_PROCESS_MRELEASE), ctypes.c_int(descriptor), ctypes.c_uint(0)) == 0)
    except OSError:
        return False


def kill_processes(
    directories: Iterable[str],
    proc: Path = Path("/proc"),
    free_memory: Callable[[int], object] = free_memory_of_killed,
) -> str:
    """Send SIGKILL to the processes in cgroups and their descendants; return the last error, or an empty text.

    Processes that start meanwhile are killed too. The calling process and PID 1 are never killed. The processes end
    asynchronously; another thread frees their memory.

    Args:
        directories: cgroup directories with unique names, such as those of containers.
        proc: the kernel's ``proc`` directory.
        free_memory: frees the memory of a killed process.

    Source: pidfd_open(2), pidfd_send_signal(2); kernel cgroup-v2.rst, ``cgroup.procs``.
    """
    listed = tuple(directories)
    excluded = {1, os.getpid()}
    names = {Path(each).name for each in listed}
    error = ""
    killed: list[int] = []
    for _ in range(_ROUNDS):
        pids = read_processes(listed)
        if pids is None:
            error = error or "processes in the cgroups unreadable"
            break
        fresh = pids - excluded
        if not fresh:
            break
        excluded |= fresh
        for pid in sorted(fresh):
            refused = signal_member(pid, signal.SIGKILL, lambda each: bool(names & read_cgroup_names(each, proc)))
            error = refused or error
            if refused == "":
                killed.append(pid)
    if killed:
        threading.Thread(target=lambda: [free_memory(pid) for pid in killed], daemon=True).start()
    return error


def read_cgroup_names(pid: int, proc: Path) -> frozenset[str]:
    """Return the names of the cgroups of a process and of their parents; empty if unreadable.

    Source: proc(5), ``/proc/PID/cgroup``, which psutil does not read.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(name for line in lines for name in line.split(":", 2)[-1].split("/"))


def signal_member(pid: int, number: int, is_member: Callable[[int], bool]) -> str | None:
    """Signal a process if it is a member of a container after its pidfd was opened; never signal a reused PID.

    Returns:
        The error, empty if the process was signalled; ``None`` if it ended or is not a member.
    """
    call = "pidfd_open"
    try:
        with closing_descriptor(os.pidfd_open(pid)) as descriptor:
            if not is_member(pid):
                return None
            call = "pidfd_send_signal"
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return None
    except OSError as refused:
        return f"{call}: {refused.strerror}"
    return ""
