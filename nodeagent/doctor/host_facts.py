"""Facts of the host for the node checks: kernel features, clock, disks, journal and unit.

Each function reads one fact; the verdicts are in ``nodeagent.doctor.plan.node``.
"""

from __future__ import annotations

import ctypes
import re
import stat
import sys
import tempfile
from pathlib import Path, PurePath
from typing import Final

import psutil

from nodeagent.host.commands import run
from nodeagent.record import Record

_STA_UNSYNC: Final = 0x0040  # Source: adjtimex(2)
_TIMEX_BYTES: Final = 512
_TIMEX_STATUS_OFFSET: Final = 40  # offset in struct timex on 64-bit Linux
_SYSTEMD_ANALYZE_WITHIN_S: Final = 20
_SYSTEMCTL_WITHIN_S: Final = 5
_HOMES: Final = (PurePath("/home"), PurePath("/root"))
_POD_CGROUPS: Final = "/sys/fs/cgroup/kubepods"
_EXPOSURE: Final = re.compile(r"exposure level for \S+: ([0-9.]+)")


class DirectoryProbe(Record):
    """The result of a test write into a directory.

    Attributes:
        problem: cause of the failed write; empty on success.
        available_bytes: space for unprivileged users on the filesystem; ``None`` with a problem.
        mode: permission bits; 0 for a directory that does not exist yet.
    """

    problem: str
    available_bytes: int | None
    mode: int


def read_cgroup_controllers(root: Path) -> list[str] | None:
    """Return the controllers of cgroup v2; ``None`` with cgroup v1.

    Source: kernel cgroup v2 document, cgroup.controllers.
    """
    try:
        return (root / "sys/fs/cgroup/cgroup.controllers").read_text().split()
    except OSError:
        return None


def read_psi_resources(root: Path) -> list[str]:
    """Return the resources, of ``memory`` and ``io``, with pressure stall information.

    Source: kernel PSI document.
    """
    return [name for name in ("memory", "io") if (root / "proc/pressure" / name).exists()]


def read_clock_synchronised() -> bool | None:
    """Return whether the kernel reports a synchronised clock; ``None`` if unknown.

    Source: adjtimex(2), ``STA_UNSYNC``.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "adjtimex") or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    if libc.adjtimex(buffer) < 0:
        return None
    status = int.from_bytes(buffer.raw[_TIMEX_STATUS_OFFSET : _TIMEX_STATUS_OFFSET + 4], sys.byteorder)
    return not status & _STA_UNSYNC


def probe_directory(directory: Path) -> DirectoryProbe:
    """Return the result of a test write into a directory, or into its parent if it does not exist yet."""
    existing = directory if directory.exists() else directory.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        available_bytes = psutil.disk_usage(str(existing)).free
        mode = stat.S_IMODE(directory.stat().st_mode) if directory.exists() else 0
    except OSError as error:
        return DirectoryProbe(error.strerror or str(error), None, 0)
    return DirectoryProbe("", available_bytes, mode)


def has_journald(root: Path) -> bool:
    """Return whether journald listens for log entries."""
    return (root / "run/systemd/journal/socket").exists()


def hides(unit: str, path: PurePath) -> bool:
    """Return whether an installed unit hides a path below a home directory from its processes.

    Source: systemd.exec(5), ``ProtectHome=`` and ``BindReadOnlyPaths=``.
    """
    if not any(path.is_relative_to(each) for each in _HOMES):
        return False
    completed = run(
        *("systemctl", "show", unit, "--property=ProtectHome,BindPaths,BindReadOnlyPaths"),
        within_s=_SYSTEMCTL_WITHIN_S,
    )
    return completed is not None and completed.returncode == 0 and is_hidden(path, completed.stdout)


def is_hidden(path: PurePath, properties: str) -> bool:
    """Return whether a unit with these properties, lines of ``systemctl show``, hides a path in a home directory."""
    values = [line.partition("=") for line in properties.splitlines()]
    if not any(key == "ProtectHome" and value in {"yes", "tmpfs"} for key, _, value in values):
        return False
    # SOURCE:DESTINATION:OPTIONS, with a dash before a source that may be missing.
    shown = (value.removeprefix("-").split(":") for key, _, value in values if key.startswith("Bind") and value)
    return not any(path.is_relative_to(parts[min(1, len(parts) - 1)]) for parts in shown)


def read_unit_exposure(unit: str) -> float | None:
    """Return the exposure of an installed unit, 0 to 10; ``None`` without the unit or without systemd.

    Source: systemd-analyze(1), ``security``.
    """
    completed = run("systemd-analyze", "security", "--no-pager", unit, within_s=_SYSTEMD_ANALYZE_WITHIN_S)
    if completed is None or completed.returncode:
        return None
    exposure = _EXPOSURE.search(completed.stdout)
    return None if exposure is None else float(exposure[1])


def read_writable_cgroups(unit: str) -> bool | None:
    """Return whether the cgroups of pods are writable for an installed unit; ``None`` without unit or systemd.

    Source: systemd.exec(5), ``ProtectControlGroups=`` and ``ReadWritePaths=``.
    """
    names = ("LoadState", "ProtectControlGroups", "ReadWritePaths")
    completed = run("systemctl", "show", *(f"--property={name}" for name in names), unit, within_s=_SYSTEMCTL_WITHIN_S)
    if completed is None or completed.returncode:
        return None
    values = dict(line.partition("=")[::2] for line in completed.stdout.splitlines())
    if values.get("LoadState") != "loaded":
        return None
    paths = [path.lstrip("-+") for path in values.get("ReadWritePaths", "").split()]
    return values.get("ProtectControlGroups") == "no" or any(path.startswith(_POD_CGROUPS) for path in paths)
