"""SIGKILL for all processes in cgroups, without the container runtime.

On a node without free memory or PIDs a container runtime may be unable to start the program that stops a container,
while the kernel's OOM killer chooses a process of any pod. Processes are killed through pidfds: the PID of an ended
process may be reused. ``cgroup.kill`` was rejected: the cgroup tree is read-only for the daemon.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.host.cgroups import read_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ROUNDS: Final = 50
_PROCESS_MRELEASE: Final = 448  # on all architectures except alpha and mips, where the call fails


def free_memory_of_killed(pid: int) -> bool:
    """Free the memory of a killed process from the calling thread; return whether the kernel did.

    A dying process frees its memory with its own share of the processors, which for a pod with a low CPU request takes
    seconds on a busy node. Other processes and older kernels are no error. The call may wait for a lock of the process.

    Source: process_mrelease(2), Linux 5.15; it fails with EINVAL unless the process is dying.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        call = ctypes.CDLL(None).syscall
        return bool(call(ctypes.c_long(_PROCESS_MRELEASE), ctypes.c_int(descriptor), ctypes.c_uint(0)) == 0)
    finally:
        os.close(descriptor)


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
        descriptor = os.pidfd_open(pid)
        try:
            if not is_member(pid):
                return None
            call = "pidfd_send_signal"
            signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    except ProcessLookupError:
        return None
    except OSError as refused:
        return f"{call}: {refused.strerror}"
    return ""
