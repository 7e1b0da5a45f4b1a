"""Deleted files that processes keep open: their space is free only once the last process closes them.

psutil lists open files by name, without deleted ones; the descriptors in proc are read instead. A file in a container
is on an overlay, whose device differs from the device of its upper directory. The upper directory of an overlay is read
from the mounts of the process.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from nodeagent.host.disk_usage import BLOCK_BYTES
from nodeagent.host.processes import read_cgroup_names, read_stat

_UPPER: Final = "upperdir="
_KTHREADD: Final = 2  # parent of all kernel threads


class DeletedFile(NamedTuple):
    """A deleted file that is open: its disk usage, and the first process that keeps it open, with its cgroups."""

    size_bytes: int
    pid: int
    process: str
    cgroups: frozenset[str]


def read_deleted_files(devices: Collection[int], deadline_s: float) -> tuple[tuple[DeletedFile, ...], int]:
    """Return the deleted open files on these devices, each once, and the number of unread processes. Blocks.

    Processes are unread after the deadline and without permission: the descriptors of a process of another user, or
    with further capabilities, require ``CAP_SYS_PTRACE``.

    Args:
        devices: device numbers (``st_dev``) of the filesystem.
        deadline_s: end of the reading, on the clock of ``time.monotonic``.

    Source: proc(5), ``/proc/PID/fd``, ``/proc/PID/mountinfo``; ptrace(2), "Ptrace access mode checking"; kernel
    overlayfs.rst, "Inode properties".
    """
    found: dict[tuple[int, int], DeletedFile] = {}
    overlays: dict[int, frozenset[int]] = {}
    unread, pids = 0, psutil.pids()
    for index, pid in enumerate(pids):
        if time.monotonic() > deadline_s:
            return tuple(found.values()), unread + len(pids) - index
        process = Path(psutil.PROCFS_PATH, str(pid))
        try:
            deleted = list(_deleted(process))
            if not deleted:
                continue
            on = frozenset(devices) | _overlays_on(process, devices, overlays)
            name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):  # ended
            continue
        except OSError:
            unread += not _is_kernel_thread(pid)
            continue
        for status in deleted:
            if status.st_dev in on:
                key = status.st_dev, status.st_ino
                cgroups = read_cgroup_names(pid, process.parent)
                found.setdefault(key, DeletedFile(status.st_blocks * BLOCK_BYTES, pid, name, cgroups))
    return tuple(found.values()), unread


def _deleted(process: Path) -> Iterator[os.stat_result]:
    """Yield the status of each deleted regular file that a process has open.

    Other files are recognised by their link, since the status of a file on the mount of a dead server never returns.
    """
    with os.scandir(process / "fd") as descriptors:
        for each in descriptors:
            with suppress(FileNotFoundError):  # closed
                if not os.readlink(each.path).endswith(" (deleted)"):  # noqa: PTH115 - one call, no object
                    continue
                status = each.stat()
                if not status.st_nlink and stat.S_ISREG(status.st_mode) and status.st_blocks:
                    yield status


def _is_kernel_thread(pid: int) -> bool:
    """Return whether a process is a kernel thread or ended; kernel threads have no open files."""
    try:
        return _KTHREADD in (pid, read_stat(pid, Path(psutil.PROCFS_PATH).parent).parent)
    except OSError:
        return True


def _overlays_on(process: Path, devices: Collection[int], known: dict[int, frozenset[int]]) -> frozenset[int]:
    """Return the device numbers of the overlays of a process whose upper directory is on one of ``devices``.

    Processes of one mount namespace have the same mounts, which are read once.
    """
    namespace = (process / "ns/mnt").stat().st_ino
    if namespace not in known:
        found = set()
        for line in (process / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            _, _, device, *_, kind, _, options = line.split(" ")
            upper = next((each.removeprefix(_UPPER) for each in options.split(",") if each.startswith(_UPPER)), "")
            if kind == "overlay" and upper:
                with suppress(OSError):
                    if os.stat(upper).st_dev in devices:  # noqa: PTH116 - one call, no object
                        found.add(os.makedev(*map(int, device.split(":"))))
        known[namespace] = frozenset(found)
    return known[namespace]
