"""Eviction signals from kernel files.

An unreadable signal is omitted, with a warning that names the file and the fault: its thresholds are then neither met
nor cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.eviction.plan.memory_model import bound_memory, estimate_memory
from nodeagent.host.cgroup_limits import NO_LIMIT, PodsCgroups, find_pods_cgroups
from nodeagent.host.filesystems import is_read_only, read_filesystem
from nodeagent.host.meminfo import MemoryReader, parse_pairs, read_number, read_text, read_totals, require
from nodeagent.host.stalls import read_stall_averages
from nodeagent.model.pressure import MemorySource, Moment, OtherFilesystem, Signal, SignalReading
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.model.runtime import FsObservation
    from nodeagent.units import Clock

_ROOT: Final = Path("/")


class SignalPaths(Record):
    """A path on each filesystem; ``None`` for an unknown or skipped filesystem."""

    nodefs: str | None
    imagefs: str | None = None
    containerfs: str | None = None


def read_other_filesystem(other: OtherFilesystem, clock: Clock) -> tuple[SignalReading, ...]:
    """Return the readings of an additional image filesystem, or of the filesystem of the pod logs.

    Raises:
        ObservationError: the filesystem cannot be read; it is read-only, so that no removal frees space; or another
            filesystem is mounted at its path, such as after an unmount.
    """
    usage = read_filesystem(other.path, clock)
    if usage.device_id != other.device_id:
        raise ObservationError(f"{other.path} is on another filesystem than before; its thresholds are not evaluated")
    if is_read_only(other.path):
        raise ObservationError(f"{other.path} is read-only; its thresholds are not evaluated")
    signals = (Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE)
    if other.has_logs:
        signals = (Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE)
    return tuple(replace(each, path=other.path) for each in _observations(usage, clock, *signals))


def read_signals(  # noqa: PLR0913 - one argument for each source of the readings
    paths: SignalPaths,
    clock: Clock,
    *,
    source: MemorySource = MemorySource.WORKING_SET,
    kernel_estimate: bool = False,
    memory: MemoryReader | None = None,
    root: Path = _ROOT,
) -> tuple[tuple[SignalReading, ...], tuple[str, ...]]:
    """Return a reading of every signal of this node, and a warning for each unreadable signal.

    Args:
        paths: a path on each filesystem.
        clock: clock that supplies the time of each reading.
        source: formula of available memory.
        kernel_estimate: whether to read ``MemAvailable`` in addition to the kubelet's formula.
        memory: reader of the node's memory with its earlier readings; ``None`` for a reader without earlier readings.
        root: parent of ``proc`` and ``sys``.

    Without paths, only kernel files are read: the kernel answers from memory, and no disk can delay the answer.

    Limits of the cgroups above the pods bound memory, swap and PIDs. The stall signals are of the visible root of the
    cgroups if it has a limit of memory: on the machine of a container, processes of other containers wait too.
    """
    memory, groups, stalls = memory or MemoryReader(root), find_pods_cgroups(root), list[SignalReading]()

    def read_stalls() -> list[SignalReading]:
        machine, node = root / "proc/pressure/memory", _stall_file(root, groups, "memory")
        signals = (Signal.MEMORY_PSI_SOME, Signal.MEMORY_PSI_FULL)
        stalls.extend(_stalls(machine, _moment(clock), *signals))
        return stalls if node == machine else _stalls(node, _moment(clock), *signals)

    def read_memory() -> list[SignalReading]:
        now, percent = _moment(clock), _stall_percent(stalls)
        of_machine, total = memory.read(source, now.monotonic_s, kernel_estimate=kernel_estimate, stall_percent=percent)
        limited = memory.read_limited(source, now.monotonic_s, groups, kernel_estimate=kernel_estimate)
        read, capacity, limit = bound_memory(of_machine, total, limited)
        available = estimate_memory(read).available
        return [SignalReading(Signal.MEMORY_AVAILABLE, available, capacity, now, read, limited_by=limit)]

    found, warnings = _read_each(
        read_stalls,
        read_memory,
        lambda: _allocatable(groups, _moment(clock)),
        lambda: [_pids(root, groups, _moment(clock))],
        lambda: _swap(groups, _moment(clock)),
        lambda: _stalls(_stall_file(root, groups, "io"), _moment(clock), Signal.IO_PSI_SOME, Signal.IO_PSI_FULL),
    )
    of_filesystems, unread = read_filesystem_signals(paths, clock)
    return (*found, *of_filesystems), (*warnings, *unread)


def read_filesystem_signals(paths: SignalPaths, clock: Clock) -> tuple[tuple[SignalReading, ...], tuple[str, ...]]:
    """Return the readings of the filesystems, and a warning for each unreadable signal; arguments as above."""
    return _read_each(
        lambda: _filesystem(paths.nodefs, clock, Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE),
        lambda: _filesystem(paths.imagefs, clock, Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE),
        lambda: _filesystem(paths.containerfs, clock, Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE),
    )


def _read_each(*readers: Callable[[], Iterable[SignalReading]]) -> tuple[tuple[SignalReading, ...], tuple[str, ...]]:
    found: list[SignalReading] = []
    warnings: list[str] = []
    for read in readers:
        try:
            found += read()
        except ObservationError as error:
            warnings.append(str(error))
    return tuple(found), tuple(warnings)


def _moment(clock: Clock) -> Moment:
    return Moment(clock.now(), clock.monotonic_s())


def _stall_percent(found: Iterable[SignalReading]) -> float | None:
    return next((each.available for each in found if each.signal is Signal.MEMORY_PSI_SOME), None)


def _allocatable(groups: PodsCgroups, now: Moment) -> list[SignalReading]:
    """Return the available part of the pods' memory limit; empty without a pod cgroup or limit."""
    group = groups.pods
    if group is None or not (group / "memory.max").exists():
        return []
    text = read_text(group / "memory.max").strip()
    if text == "max" or not text.isdecimal() or int(text) >= NO_LIMIT:
        return []
    limit = int(text)
    inactive = require(parse_pairs(read_text(group / "memory.stat")), "inactive_file", group / "memory.stat")
    working_set = max(0, read_number(group / "memory.current") - inactive)
    return [SignalReading(Signal.ALLOCATABLE_MEMORY_AVAILABLE, max(0, limit - working_set), limit, now)]


def _pids(root: Path, groups: PodsCgroups, now: Moment) -> SignalReading:
    """Return the available PIDs: the lower of two limits minus the existing threads, bounded by limits of cgroups.

    Source: kubelet ``pidlimit.Stats``; proc(5), ``loadavg``, ``pid_max``, ``threads-max``; cgroup-v2.rst, ``pids.max``.
    """
    limits = []
    for name in ("pid_max", "threads-max"):
        path = root / "proc/sys/kernel" / name
        if path.exists():
            limits.append(read_number(path))
    if not limits:
        raise ObservationError(f"{root / 'proc/sys/kernel'}: neither pid_max nor threads-max exists")
    path = root / "proc/loadavg"
    words = read_text(path).split()
    tasks = words[3].partition("/")[2] if len(words) > 3 else ""
    if not tasks.isdecimal():
        raise ObservationError(f"{path}: {' '.join(words)!r} has no task count")
    machine = SignalReading(Signal.PID_AVAILABLE, max(0, min(limits) - int(tasks)), min(limits), now)
    return _bounded(machine, groups, "pids")


def _swap(groups: PodsCgroups, now: Moment) -> list[SignalReading]:
    """Return the free swap, bounded by limits of cgroups; empty on a node without swap."""
    _, swap, free = read_totals()
    if not swap:
        return []
    bounded = _bounded(SignalReading(Signal.SWAP_FREE, free, swap, now), groups, "memory.swap")
    return [bounded] if bounded.capacity else []


def _bounded(machine: SignalReading, groups: PodsCgroups, resource: str) -> SignalReading:
    """Return a reading bounded by the limits of the cgroups above the pods, as for memory."""
    found = [machine]
    for limit in groups.limits(f"{resource}.max"):
        available = max(0, limit.value - read_number(limit.directory / f"{resource}.current"))
        found.append(replace(machine, available=available, capacity=limit.value, limited_by=limit.text))
    decides, lowest = min(found, key=lambda each: each.available), min(found, key=lambda each: each.capacity)
    return replace(decides, capacity=lowest.capacity, limited_by=decides.limited_by or lowest.limited_by)


def _stall_file(root: Path, groups: PodsCgroups, resource: str) -> Path:
    """Return the file with the stalls of the node: of the visible root with a limit of memory, else of the machine."""
    with suppress(ObservationError):  # reported by the reading of the memory
        own = groups.root / f"{resource}.pressure"
        if any(each.directory == groups.root for each in groups.limits("memory.max")) and own.exists():
            return own
    return root / "proc/pressure" / resource


def _stalls(path: Path, now: Moment, some: Signal, full: Signal) -> list[SignalReading]:
    """Return the ten-second stall averages of a file; empty on a kernel without PSI."""
    averages, signals = read_stall_averages(path), {"some": some, "full": full}
    return [SignalReading(signals[kind], each, 100.0, now) for kind, each in averages.items() if kind in signals]


def _filesystem(path: str | None, clock: Clock, available: Signal, inodes: Signal) -> list[SignalReading]:
    if path is None:
        return []
    return _observations(read_filesystem(path, clock), clock, available, inodes)


def _observations(usage: FsObservation, clock: Clock, available: Signal, inodes: Signal) -> list[SignalReading]:
    now = _moment(clock)
    found = [SignalReading(available, usage.available_bytes, usage.capacity_bytes, now)]
    if usage.inodes:  # Btrfs allocates inodes dynamically and reports 0
        found.append(SignalReading(inodes, usage.inodes_free, usage.inodes, now))
    return found
