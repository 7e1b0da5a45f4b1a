"""Processes: identity, isolated child processes, and SIGKILL without the container runtime.

The identity shows whether the writer of a record is still running.

Commands may run as root in directories that other users can write to. Python puts the current directory first in the
module search path for ``-c`` and ``-m``, and an empty or relative entry of ``PATH`` resolves programs there. Therefore
every child is started in ``/``, programs are resolved by the absolute entries of ``PATH`` only, and interpreters run in
isolated mode, which also ignores ``PYTHON*`` variables and the user's site directory.

Source: Python command line, ``-I``; environ(7), ``PATH``.

On a node without free memory or PIDs a container runtime may be unable to start the program that stops a container,
while the kernel's OOM killer chooses a process of any pod. The processes of cgroups are therefore killed directly,
through pidfds: the PID of an ended process may be reused. ``cgroup.kill`` was rejected: the cgroup tree is read-only
for the daemon.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.host.cgroups import read_processes
from nodeagent.host.node import boot_id
from nodeagent.model.stops import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

WORKING_DIRECTORY: Final = "/"
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path if the environment has no absolute entry."""
TIMEOUT_S: Final = 600.0


def child_environment(additions: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child: without ``PYTHON*`` variables, with only the absolute entries of ``PATH``.

    ``PYTHON*`` variables are removed although isolated mode ignores them, because pip starts interpreters itself.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    entries = [entry for entry in kept.get("PATH", "").split(os.pathsep) if os.path.isabs(entry)]  # noqa: PTH117
    return kept | {"PATH": os.pathsep.join(entries) or DEFAULT_PATH} | dict(additions or {})


def _without_manager(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment without the service manager's socket, to which systemd's programs report failures."""
    return {name: value for name, value in environment.items() if name != "NOTIFY_SOCKET"}


def python_command(*arguments: str, interpreter: str = "") -> list[str]:
    """Return the command line of an isolated interpreter; by default this process's interpreter."""
    return [interpreter or sys.executable, "-I", *arguments]


def run(
    *words: str, within_s: float = TIMEOUT_S, additions: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Return the completed command with its output as text.

    Args:
        words: the program, resolved by the absolute entries of ``PATH``, and its arguments.
        within_s: deadline in seconds.
        additions: environment variables for the child only.

    Returns:
        ``None`` if the program does not exist, cannot be started or misses the deadline.
    """
    import shutil  # noqa: PLC0415 - loads bz2 and lzma, unused by the idle daemon

    environment = _without_manager(child_environment(additions))
    program = shutil.which(words[0], path=environment["PATH"])
    if program is None:
        return None
    try:
        return subprocess.run(  # noqa: S603 - a fixed program with separate arguments
            [program, *words[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
            check=False,
            cwd=WORKING_DIRECTORY,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


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
