"""Removal of all resources of a private containerd, found only by its base directory.

Processes are found by the paths in their arguments, mounts by /proc/self/mountinfo, loop devices by their backing file.
The code therefore works after a normal exit, after a crash of containerd, and after a killed test run.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BASE_PREFIX = "nactd-"
CGROUP_PREFIX = "nodeagent-"

_CGROUPS = Path("/sys/fs/cgroup")
_MNT_DETACH = 2
_PATIENCE_S = 60.0  # a copy of a mount in the namespace of another process keeps its loop device


class ReclaimError(Exception):
    """Failure to remove resources of a private containerd; the text lists the remaining resources."""


def make_base() -> Path:
    """Create a base directory named after this process, with a short path: socket paths have at most 107 bytes."""
    pid = os.getpid()
    return Path(tempfile.mkdtemp(prefix=f"{BASE_PREFIX}{pid}-{_start_time(pid)}-"))


def cgroup_parent(base: Path) -> str:
    """Return the default parent cgroup of the pods of a base directory."""
    return f"/{CGROUP_PREFIX}{base.name.removeprefix(BASE_PREFIX)}"


def poll(state: str, ready: Callable[[], bool], *, timeout_s: float = _PATIENCE_S, interval_s: float = 0.01) -> None:
    """Wait until a condition is true.

    Raises:
        TimeoutError: the condition is false after ``timeout_s``; the text contains its description ``state``.
    """
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {timeout_s:g} s; expected: {state}")
        time.sleep(interval_s)


def suspend(pid: int) -> None:
    """Send SIGSTOP to a process and wait until all its threads have stopped.

    On a busy machine the other threads run until the thread that receives the signal does.
    """
    os.kill(pid, signal.SIGSTOP)
    poll(f"all threads of process {pid} have stopped", lambda: _thread_states(pid) == {"T"})


def reclaim(base: Path, cgroup_parents: Iterable[str] = ()) -> None:
    """Kill, unmount, detach and remove all resources of ``base``.

    Raises:
        ReclaimError: resources remain.
    """
    sockets = shim_sockets(base)
    cgroups = {_CGROUPS / path.lstrip("/") for path in (cgroup_parent(base), *cgroup_parents)}
    kill_all(base)
    _unmount_all(base)
    _detach_loops(base)
    for socket in sockets:
        socket.unlink(missing_ok=True)
    for cgroup in cgroups:
        _remove_cgroup("/" + str(cgroup.relative_to(_CGROUPS)))
    shutil.rmtree(base, ignore_errors=True)
    if left := leftovers(base):
        raise ReclaimError(f"cannot remove {base}: remaining: {'; '.join(left)}")


def leftovers(base: Path) -> list[str]:
    """Return descriptions of the remaining processes, mounts, loop devices, cgroups and files of a base directory."""
    return [
        *(f"process {pid}: {_arguments(pid)[:1]}" for pid in processes(base)),
        *(f"mount {mount}" for mount in mounts(base)),
        *(f"loop device {device}" for device in loops(base)),
        *(f"cgroup {path}" for path in _cgroup_directories(cgroup_parent(base))),
        *([f"directory {base}"] if base.exists() else []),
    ]


def sweep() -> list[Path]:
    """Remove the resources of earlier test runs that have ended; return their base directories."""
    swept = []
    directory = Path(tempfile.gettempdir())
    with _locked(directory):  # test processes that start at the same time find the same resources
        for base in directory.glob(f"{BASE_PREFIX}*-*-*"):
            pid, start_time, _ = base.name.removeprefix(BASE_PREFIX).split("-", 2)
            if _start_time(int(pid)) != start_time:
                reclaim(base)
                swept.append(base)
    return swept


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def processes(base: Path) -> list[int]:
    """Return the process ids of ``base``: containerd, shims, their child processes, containers without a shim."""
    daemons = [pid for pid in _pids() if str(base / "config.toml") in _arguments(pid)]
    own = shims(base)
    return list(dict.fromkeys([*daemons, *own, *_descendants(own), *_lost_containers(base)]))


def shims(base: Path) -> list[int]:
    """Return the shims of the containerd of ``base``, found by the containerd socket in their arguments."""
    socket = str(base / "containerd.sock")
    return [
        pid
        for pid in _pids()
        if (arguments := _arguments(pid)) and "containerd-shim" in arguments[0] and socket in arguments
    ]


def mounts(base: Path) -> list[str]:
    """Return the mount points at or below ``base``, newest first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    decoded = [point.encode().decode("unicode_escape") for point in points]
    return [point for point in reversed(decoded) if Path(point).is_relative_to(base)]


def loops(base: Path) -> list[str]:
    """Return the loop devices with a backing file below ``base``."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if backing.read_text().startswith(f"{base}/"):
                found.append(f"/dev/{backing.parts[3]}")
    return found


def shim_sockets(base: Path) -> list[Path]:
    """Return the sockets of the shims, which containerd 1.x creates in /run/containerd/s for any state directory."""
    sockets = []
    for address in base.glob("state/io.containerd.runtime.v2.task/*/*/address"):
        with contextlib.suppress(OSError):
            sockets.append(Path(address.read_text().removeprefix("unix://")))
    return sockets


def alive(pid: int) -> bool:
    """Return whether a process is running; ``False`` for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_all(base: Path) -> None:
    """Kill every process of ``base`` and wait until all have ended."""

    # Repeated, since containerd may start another shim before its end.
    def none_left() -> bool:
        victims = processes(base)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not victims

    with contextlib.suppress(TimeoutError):
        poll("all processes ended", none_left)


def unmount(point: Path) -> None:
    """Unmount a filesystem; wait until no process uses it and its loop device is removed."""
    poll(f"{point} is no longer busy", lambda: str(point) not in mounts(point) or _unmount(str(point), 0))
    poll("its loop device is removed", lambda: not loops(point.parent))


def _unmount_all(base: Path) -> None:
    def none_left() -> bool:
        return not [point for point in mounts(base) if not _unmount(point, 0)]

    try:
        poll("unmount", none_left, timeout_s=3)
    except TimeoutError:
        for point in mounts(base):
            _unmount(point, _MNT_DETACH)


def _unmount(point: str, flags: int) -> bool:
    return bool(ctypes.CDLL(None).umount2(os.fsencode(point), flags) == 0)


def _detach_loops(base: Path) -> None:
    # The kernel detaches the device asynchronously after the unmount; detach it explicitly only after a timeout.
    try:
        poll("loop devices are detached", lambda: not loops(base), timeout_s=2)
    except TimeoutError:
        for device in loops(base):
            subprocess.run(["losetup", "-d", device], check=False)
        with contextlib.suppress(TimeoutError):
            poll("loop devices are detached", lambda: not loops(base))


def _remove_cgroup(path: str) -> None:
    """Remove a cgroup and its children in every hierarchy; parents are kept, since other containerds may use them."""
    for directory in _cgroup_directories(path):
        for child in sorted(directory.rglob("*"), reverse=True):
            if child.is_dir():
                _remove_empty_cgroup(child)
        _remove_empty_cgroup(directory)


def _remove_empty_cgroup(directory: Path) -> None:
    with contextlib.suppress(OSError, TimeoutError):  # still in use, or already removed
        poll("cgroup empties", lambda: not (directory / "cgroup.procs").read_text(), timeout_s=1)
        directory.rmdir()


def _cgroup_directories(path: str) -> list[Path]:
    """Return the directories of a cgroup: one directory with cgroup v2, one directory per hierarchy with v1."""
    roots = [_CGROUPS, *(root for root in _CGROUPS.iterdir() if root.is_dir())] if _CGROUPS.is_dir() else []
    return [directory for root in roots if (directory := root / path.lstrip("/")).is_dir()]


def _lost_containers(base: Path) -> Iterator[int]:
    """Yield the processes of containers without a shim, found by bundle; the cgroup detects a reused PID."""
    for file in base.glob("state/io.containerd.runtime.v2.task/*/*/init.pid"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(file.read_text())
            if file.parent.name in Path(f"/proc/{pid}/cgroup").read_text() and alive(pid):
                yield pid


def _descendants(parents: Iterable[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    pending = list(parents)
    while pending:
        born = children.get(pending.pop(), [])
        found += born
        pending += born
    return [pid for pid in found if alive(pid)]


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _arguments(pid: int) -> list[str]:
    """Return the arguments of a process; empty for kernel threads, zombies and ended processes."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def _thread_states(pid: int) -> set[str]:
    """Return the states of the threads of a process, as in proc_pid_stat(5)."""
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread ended
            states.add(stat.read_text().rpartition(")")[2].split()[0])
    return states


def _start_time(pid: int) -> str:
    """Return the start time of a process in ticks since boot, which detects a reused process ID."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
