"""Resource usage of pods and containers from cgroup v2.

A cgroup may be removed between two reads, so that no reader raises: an unreadable value is ``None``. Files are read
through plain descriptors, since a pass reads more than a thousand of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from nodeagent.files import closing_descriptor
from nodeagent.record import Record

_ROOT: Final = Path("/")
_READ_BYTES: Final = 16384
_MAX_CGROUPS: Final = 4096
_SLICE: Final = ".slice"
_UNIT_ENDS: Final = (".scope", ".slice")


class CgroupUsage(Record):
    """Usage of a cgroup and its descendants.

    Attributes:
        memory_bytes: working set: usage minus inactive file pages, at least 0.
        shared_bytes: part of ``memory_bytes`` in shared memory and tmpfs; 0 if unreadable.
        cache_bytes: part of ``memory_bytes`` in active page cache and reclaimable slab; 0 if unreadable.

    Source: kernel cgroup-v2.rst; kubelet's summary, ``workingSetBytes``.
    """

    memory_bytes: int | None = None
    swap_bytes: int | None = None
    pids: int | None = None
    shared_bytes: int = 0
    cache_bytes: int = 0


class Cgroups:
    """Finds and reads cgroups below one root."""

    def __init__(self, root: Path = _ROOT) -> None:
        """Use the cgroup tree ``sys/fs/cgroup`` below ``root``."""
        self._base = str(root / "sys/fs/cgroup")

    @property
    def has_memory(self) -> bool:
        """Whether this is cgroup v2 with the memory controller, which memory usage of pods requires."""
        controllers = _read(f"{self._base}/cgroup.controllers")
        return controllers is not None and b"memory" in controllers.split()

    def find(self, cgroup_parent: str) -> str | None:
        """Return the directory of a pod's cgroup; ``None`` if it does not exist.

        Args:
            cgroup_parent: cgroup parent of the sandbox configuration: ``/kubepods/burstable/podUID``, or the name of a
                slice without its parents.
        """
        below = expand_parent(cgroup_parent)
        return self._existing(below) if below else None

    def find_container(self, cgroups_path: str, container_id: str, pod: str | None) -> str | None:
        """Return the directory of a container's cgroup; ``None`` if it is not found.

        Args:
            cgroups_path: ``cgroupsPath`` of the container's runtime specification, a path or ``SLICE:PREFIX:NAME``; may
                be empty.
            container_id: id by which a child of the pod's cgroup is selected if ``cgroups_path`` does not exist.
            pod: directory of the pod's cgroup; ``None`` if unknown.
        """
        below = expand_cgroups_path(cgroups_path)
        found = self._existing(below) if below else None
        if found is not None or pod is None or not container_id:
            return found
        try:
            with os.scandir(pod) as entries:
                return next((each.path for each in entries if container_id in each.name and each.is_dir()), None)
        except OSError:
            return None

    def _existing(self, below: str) -> str | None:
        path = f"{self._base}/{below}"
        return path if os.path.isdir(path) else None  # noqa: PTH112 - one call, no object


def expand_parent(cgroup_parent: str) -> str:
    """Return the path of a cgroup parent below the cgroup root; empty if the parent is invalid.

    The name of a slice is expanded to its path: ``kubepods-burstable.slice`` is a child of ``kubepods.slice``. Source:
    systemd.slice(5).
    """
    parts = [part for part in cgroup_parent.split("/") if part]
    if not parts or ".." in parts or "\0" in cgroup_parent:
        return ""
    name = parts[-1]
    if len(parts) > 1 or not name.endswith(_SLICE):
        return "/".join(parts)
    stem = name.removesuffix(_SLICE)
    if not stem.strip("-"):
        return ""
    words = stem.split("-")
    return "/".join("-".join(words[:count]) + _SLICE for count in range(1, len(words) + 1))


def expand_cgroups_path(cgroups_path: str) -> str:
    """Return the path of a container's ``cgroupsPath`` below the cgroup root; empty if it is invalid.

    Source: OCI runtime specification, ``linux.cgroupsPath``; runc, ``SLICE:PREFIX:NAME`` for systemd.
    """
    if cgroups_path.count(":") != 2 or "/" in cgroups_path.partition(":")[2]:
        return expand_parent(cgroups_path)
    parent, prefix, name = cgroups_path.split(":")
    slice_ = expand_parent(parent or "system.slice")
    if not slice_ or not name:
        return ""
    unit = f"{prefix}-{name}" if prefix else name
    return f"{slice_}/{unit}" + ("" if unit.endswith(_UNIT_ENDS) else ".scope")


def read_usage(directory: str) -> CgroupUsage | None:
    """Return the usage of a cgroup; ``None`` if no value can be read, such as after its removal."""
    memory_bytes, shared_bytes, cache_bytes = _read_memory(directory)
    usage = CgroupUsage(
        memory_bytes,
        _number(f"{directory}/memory.swap.current"),
        _number(f"{directory}/pids.current"),
        shared_bytes,
        cache_bytes,
    )
    return None if usage == CgroupUsage() else usage


def read_working_set(directory: str) -> int | None:
    """Return the working set of a cgroup in bytes; ``None`` if unreadable."""
    return _read_memory(directory)[0]


def _read_memory(directory: str) -> tuple[int | None, int, int]:
    """Return the working set of a cgroup, ``None`` if unreadable, and its parts in shared memory and in caches."""
    current = _number(f"{directory}/memory.current")
    text = None if current is None else _read(f"{directory}/memory.stat")
    inactive = _field(text, b"inactive_file")
    if current is None or inactive is None:
        return None, 0, 0
    cache = (_field(text, b"active_file") or 0) + (_field(text, b"slab_reclaimable") or 0)
    return max(0, current - inactive), _field(text, b"shmem") or 0, cache


def read_working_sets(directories: Mapping[str, str]) -> dict[str, int]:
    """Return the working set of each cgroup, by the keys of ``directories``; unreadable cgroups are omitted."""
    found = ((key, read_working_set(directory)) for key, directory in directories.items())
    return {key: size_bytes for key, size_bytes in found if size_bytes is not None}


def read_memory_min(directory: str) -> int | None:
    """Return ``memory.min`` of a cgroup in bytes, 0 if unset; ``None`` if unreadable."""
    return _number(f"{directory}/memory.min")


def read_memory_stall_us(directory: str) -> int | None:
    """Return the time for which processes of a cgroup waited for memory, in microseconds; ``None`` without PSI.

    Source: kernel psi.rst, ``total`` of ``some``.
    """
    text = _read(f"{directory}/memory.pressure")
    if text is None or not text.startswith(b"some "):
        return None
    value = text.partition(b"\n")[0].rpartition(b"total=")[2]
    return int(value) if value.isdigit() else None


def read_memory_stalls(directory: str) -> tuple[float | None, float | None]:
    """Return the percentages of time, over ten seconds, in which some and in which all processes waited for memory.

    A value is ``None`` without PSI. Source: kernel psi.rst, ``avg10``.
    """
    lines = (_read(f"{directory}/memory.pressure") or b"").splitlines()
    found: dict[bytes, float] = {}
    for line in lines:
        kind, _, rest = line.partition(b" avg10=")
        value = rest.partition(b" ")[0]
        if value.replace(b".", b"", 1).isdigit():
            found[kind] = float(value)
    return found.get(b"some"), found.get(b"full")


def read_memory_max(directory: str) -> int | None:
    """Return ``memory.max`` of a cgroup in bytes, 0 without a limit; ``None`` if unreadable."""
    text = _read(f"{directory}/memory.max")
    return 0 if text is not None and text.strip() == b"max" else _number(f"{directory}/memory.max")


def read_oom_kills(directory: str) -> int | None:
    """Return the count of OOM kills in a cgroup and its descendants since its creation; ``None`` if unreadable.

    Source: kernel cgroup-v2.rst, ``oom_kill`` of ``memory.events``.
    """
    return _field(_read(f"{directory}/memory.events"), b"oom_kill")


def read_cpu_us(directory: str) -> int | None:
    """Return the CPU time of a cgroup and its descendants in microseconds; ``None`` if unreadable.

    Source: kernel cgroup-v2.rst, ``usage_usec`` of ``cpu.stat``.
    """
    return _field(_read(f"{directory}/cpu.stat"), b"usage_usec")


def read_processes(directories: Iterable[str]) -> frozenset[int] | None:
    """Return the PIDs of the processes in cgroups and their descendants.

    A removed cgroup has no processes. The result is ``None`` if a cgroup cannot be read, or for more than 4096 cgroups.

    Source: kernel cgroup-v2.rst, ``cgroup.procs``.
    """
    found: set[int] = set()
    pending, count = list(directories), 0
    while pending:
        directory = pending.pop()
        count += 1
        if count > _MAX_CGROUPS:
            return None
        try:
            with open(f"{directory}/cgroup.procs", "rb") as lines:  # noqa: PTH123 - one call, no object
                found.update(int(line) for line in lines.read().split())
            with os.scandir(directory) as entries:
                pending += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            # ENODEV: the cgroup was removed during the read. EOPNOTSUPP: threaded cgroup, listed by an ancestor.
            if error.errno in (errno.ENODEV, errno.EOPNOTSUPP):
                continue
            return None
        except ValueError:
            return None
    return frozenset(found)


def is_populated(directories: Iterable[str]) -> bool:
    """Return whether a cgroup or a descendant has a process with memory not freed yet; false for removed cgroups.

    A dying process is removed from ``cgroup.procs`` before its memory is freed, and from ``populated`` afterwards.

    Source: kernel cgroup-v2.rst, ``cgroup.events``; ``cgroup_exit``, which follows ``exit_mm``.
    """
    return any(_field(_read(f"{directory}/cgroup.events"), b"populated") == 1 for directory in directories)


def list_children(directory: str) -> frozenset[str] | None:
    """Return the names of the child cgroups; ``None`` if the directory does not exist or is unreadable."""
    try:
        with os.scandir(directory) as entries:
            return frozenset(each.name for each in entries if each.is_dir(follow_symlinks=False))
    except OSError:
        return None


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _number(path: str) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.strip().isdigit() else None


def _field(text: bytes | None, name: bytes) -> int | None:
    """Return the number after a name at the start of a line; ``None`` without a number."""
    if text is None:
        return None
    _, found, rest = (b"\n" + text).partition(b"\n" + name + b" ")
    value = rest.partition(b"\n")[0].strip()
    return int(value) if found and value.isdigit() else None


_INCOMPLETE: Final = frozenset({errno.EAGAIN, errno.EIO})


class CgroupCache(NamedTuple):
    """Page cache, working set, ``memory.low`` and memory stall time of cgroups."""

    active_bytes: int
    inactive_bytes: int
    working_set_bytes: int
    low_bytes: int
    stall_us: int


def read_cache(directories: Iterable[str]) -> CgroupCache | None:
    """Return the sums over cgroups; ``None`` if a value cannot be read. Without PSI the stall time is 0."""
    total = CgroupCache(0, 0, 0, 0, 0)
    for each in directories:
        text, current, low = (
            _read(f"{each}/memory.stat"),
            _number(f"{each}/memory.current"),
            _number(f"{each}/memory.low"),
        )
        active, inactive = _field(text, b"active_file"), _field(text, b"inactive_file")
        if active is None or inactive is None or current is None or low is None:
            return None
        added = (active, inactive, max(0, current - inactive), low, read_memory_stall_us(each) or 0)
        total = CgroupCache(*(one + other for one, other in zip(total, added, strict=True)))
    return total


def is_writable(directory: str) -> bool:
    """Return whether ``memory.reclaim`` is writable: not in a read-only tree, and not before Linux 5.19."""
    try:
        os.close(os.open(f"{directory}/memory.reclaim", os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def reclaim_cache(directory: str, size_bytes: int, *, swap: bool) -> str:
    """Reclaim page cache of a cgroup; return the error, empty even if less was reclaimed. Blocks.

    Without swap only page cache can be reclaimed. With swap a swappiness of 0 is requested, which the kernel accepts
    since 6.11; an older kernel reclaims nothing.

    Source: kernel cgroup-v2.rst, ``memory.reclaim``.
    """
    text = f"{size_bytes} swappiness=0" if swap else str(size_bytes)
    try:
        with closing_descriptor(os.open(f"{directory}/memory.reclaim", os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
            os.write(descriptor, text.encode())
    except FileNotFoundError:
        return "cgroup removed, or no memory.reclaim"
    except OSError as error:
        return "" if error.errno in _INCOMPLETE else f"memory.reclaim: {error.strerror}"
    return ""
