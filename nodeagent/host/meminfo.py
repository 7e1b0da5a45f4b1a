"""Memory of the node from kernel files: its parts, the two estimates of available memory, and reclaim activity.

``/proc/meminfo`` and the root cgroup are read every time. ``/proc/vmstat``, the ZFS cache and the cgroup of all pods
are read only while an estimate is near a threshold; the watermarks, which rarely change, once a minute.

Totals and swap are read with psutil. The estimates need counters of ``/proc/meminfo`` that psutil does not return, all
of one reading, and the kernel's own ``MemAvailable``: psutil replaces 0, the reading of a node without free memory, and
values above the memory by estimates.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from nodeagent.errors import ObservationError
from nodeagent.host.cgroup_limits import PodsCgroups, find_pods
from nodeagent.host.cgroups import read_memory_stalls
from nodeagent.model.pressure import ArcSize, MemoryCounters, MemorySource, NodeMemory, PodsMemory, ReclaimActivity
from nodeagent.record import replace

_KIB: Final = 1024
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_COUNTED_OF_PODS: Final = ("anon", "file", "slab_reclaimable", "sec_pagetables", "zswap", "hugetlb")
_KERNEL_OF_PODS: Final = ("slab_unreclaimable", "kernel_stack", "pagetables", "percpu", "vmalloc")
_WINDOW_S: Final = 11.0
"""Age of the earlier reading with which reclaim activity is computed: the poll interval, with a margin."""
_KEPT_S: Final = 60.0
_CHARGE_BATCH_BYTES: Final = 64 * _PAGE
"""Memory that each CPU charges in advance: at a limit so much may be free. Source: kernel ``MEMCG_CHARGE_BATCH``."""
_ZONE_FIELD: Final = re.compile(r"^ +(min|high|managed|protection:) +(.+)$", re.MULTILINE)


class MemoryTotals(NamedTuple):
    """Memory, swap and free swap of the node in bytes."""

    memory: int
    swap: int
    swap_free: int


class Watermarks(NamedTuple):
    """Free bytes below which allocations wait for reclaim, and below which the kernel reclaims in the background."""

    minimum: int
    reserve: int


class _Sample(NamedTuple):
    at_s: float
    counts: tuple[int, int, int]
    """Scanned pages, direct reclaims and refaulted pages since boot."""
    available: int
    unexplained: int


class MemoryReader:
    """Reader of the node's memory, with the earlier readings of the reclaim activity."""

    def __init__(self, root: Path, is_near: Callable[[float, float], bool] | None = None) -> None:
        """Create a reader without earlier readings.

        Args:
            root: parent of ``proc`` and ``sys``.
            is_near: returns whether an estimate, in bytes of a capacity, is near a threshold; ``None`` to read all
                parts every time.
        """
        self._root = root
        self._is_near = is_near
        self._samples: deque[_Sample] = deque()
        self._samples_of_limits: dict[Path, deque[_Sample]] = {}
        self._watermarks: Watermarks | None = None
        self._watermarks_until_s = 0.0
        self._no_arc_until_s = 0.0

    def read(
        self, source: MemorySource, now_s: float, *, kernel_estimate: bool, stall_percent: float | None
    ) -> tuple[NodeMemory, int]:
        """Return the estimates with the parts of the memory, and the memory of the node in bytes.

        Args:
            source: formula of available memory.
            now_s: monotonic time in seconds.
            kernel_estimate: whether to read ``MemAvailable`` in addition to the kubelet's formula.
            stall_percent: share of time in which tasks wait for memory; ``None`` without PSI.

        Raises:
            ObservationError: a required file or field cannot be read, or ``MemAvailable`` exceeds the memory.
        """
        path = self._root / "proc/meminfo"
        info = parse_meminfo(read_text(path))
        total = require(info, "MemTotal", path)
        kernel, formula = None, None
        if source is MemorySource.MEM_AVAILABLE:
            kernel = require(info, "MemAvailable", path)
        else:
            formula = self._formula(total)
            kernel = info.get("MemAvailable") if kernel_estimate else None
        if kernel is not None and kernel > total:
            raise ObservationError(f"{path}: MemAvailable {kernel} exceeds MemTotal {total}")
        counters = counters_of(info)
        lowest = min(each for each in (kernel, formula) if each is not None)
        activity = None
        if counters is not None and (self._is_near is None or self._is_near(lowest, total)):
            counters, activity = self._details(counters, lowest, now_s)
        return NodeMemory(formula, kernel, counters, activity, stall_percent), total

    def read_limited(
        self, source: MemorySource, now_s: float, groups: PodsCgroups, *, kernel_estimate: bool
    ) -> list[tuple[NodeMemory, int]]:
        """Return the memory of each cgroup above the pods with a limit, and its limit in bytes; arguments as above.

        Raises:
            ObservationError: a file of a cgroup with a limit cannot be read, or a limit is malformed.

        Source: kernel cgroup-v2.rst, ``memory.max``, ``memory.stat``; ``max`` of ``memory.events.local``, which counts
        allocations that waited for reclaim at this limit, not at a limit of a pod.
        """
        limits, found = groups.limits("memory.max"), []
        pods = None if groups.pods is None or not limits else _read_pods(groups.pods)
        for limit in limits:
            path = limit.directory / "memory.stat"
            stat, used = parse_pairs(read_text(path)), read_number(limit.directory / "memory.current")
            inactive = require(stat, "inactive_file", path)
            reclaimable = inactive + stat.get("active_file", 0) + stat.get("slab_reclaimable", 0)
            working_set_leaves = max(0, limit.value - max(0, used - inactive))
            reclaim_leaves = min(limit.value, max(0, limit.value - used + reclaimable))
            by_kernel = source is MemorySource.MEM_AVAILABLE
            waits = parse_pairs(_text_or_empty(limit.directory / "memory.events.local")).get("max", 0)
            sample = _Sample(now_s, (waits, waits, _sum(stat, "workingset_refault")), reclaim_leaves, 0)
            memory = NodeMemory(
                None if by_kernel else working_set_leaves,
                reclaim_leaves if by_kernel or kernel_estimate else None,
                _counters_of_limit(limit.value, used, stat, pods),
                _activity(self._samples_of_limits.setdefault(limit.directory, deque()), sample),
                read_memory_stalls(str(limit.directory))[0],
                limit.text,
            )
            found.append((memory, limit.value))
        return found

    def _formula(self, total: int) -> int:
        """Return the capacity minus the working set, which is usage without inactive page cache.

        The root cgroup of cgroup v2 has no ``memory.current``: its usage is anonymous memory plus page cache.

        Source: kubelet ``makeSignalObservations``; cAdvisor ``setMemoryStats``; kernel cgroup-v2.rst, ``memory.stat``.
        """
        unified = self._root / "sys/fs/cgroup/memory.stat"
        if unified.exists():
            stat = parse_pairs(read_text(unified))
            used = require(stat, "anon", unified) + require(stat, "file", unified)
            inactive = require(stat, "inactive_file", unified)
        else:
            group = self._root / "sys/fs/cgroup/memory"
            used = read_number(group / "memory.usage_in_bytes")
            path = group / "memory.stat"
            inactive = require(parse_pairs(read_text(path)), "total_inactive_file", path)
        return max(0, total - max(0, used - inactive))

    def _details(
        self, counters: MemoryCounters, available: float, now_s: float
    ) -> tuple[MemoryCounters, ReclaimActivity | None]:
        """Return the counters with the parts of further files, and the reclaim since an earlier reading."""
        vmstat = parse_pairs(_text_or_empty(self._root / "proc/vmstat"))
        watermarks = self._read_watermarks(now_s)
        counters = replace(
            counters,
            compressed_swap=vmstat["nr_zspages"] * _PAGE if "nr_zspages" in vmstat else None,
            pods=self._read_pods(),
            arc=self._read_arc(now_s),
            minimum_free=None if watermarks is None else watermarks.minimum,
            reserve_free=None if watermarks is None else watermarks.reserve,
        )
        if not vmstat:
            return counters, None
        counts = (
            _sum(vmstat, "pgscan_kswapd", "pgscan_direct") - vmstat.get("pgscan_direct_throttle", 0),
            _sum(vmstat, "allocstall"),
            _sum(vmstat, "workingset_refault"),
        )
        now = _Sample(now_s, counts, int(available), _without_reading(counters))
        return counters, _activity(self._samples, now)

    def _read_watermarks(self, now_s: float) -> Watermarks | None:
        if now_s >= self._watermarks_until_s:
            self._watermarks = parse_zoneinfo(_text_or_empty(self._root / "proc/zoneinfo"))
            self._watermarks_until_s = now_s + _KEPT_S
        return self._watermarks

    def _read_arc(self, now_s: float) -> ArcSize | None:
        """Return the size of the ZFS cache; after a missing file the next attempt is a minute later."""
        if now_s < self._no_arc_until_s:
            return None
        found = parse_arcstats(_text_or_empty(self._root / "proc/spl/kstat/zfs/arcstats"))
        if found is None:
            self._no_arc_until_s = now_s + _KEPT_S
        return found

    def _read_pods(self) -> PodsMemory | None:
        for top in (self._root / "sys/fs/cgroup", self._root / "sys/fs/cgroup/memory"):
            group = find_pods(top, self._root)
            found = None if group is None else _read_pods(group)
            if found is not None:
                return found
        return None


def _read_pods(group: Path) -> PodsMemory | None:
    """Return the memory of the cgroup of all pods; ``None`` if it cannot be read."""
    stat = parse_pairs(_text_or_empty(group / "memory.stat"))
    if "anon" in stat:
        kernel = sum(stat.get(each, 0) for each in _KERNEL_OF_PODS)
        counted = kernel + sum(stat.get(each, 0) for each in _COUNTED_OF_PODS)
        current = _text_or_empty(group / "memory.current").strip()
        other = max(0, int(current) - counted) if current.isdecimal() else 0
        return PodsMemory(stat["anon"], stat.get("shmem", 0), kernel, other)
    if "total_rss" in stat:
        return PodsMemory(stat["total_rss"], stat.get("total_shmem", 0))
    return None


def _activity(samples: deque[_Sample], now: _Sample) -> ReclaimActivity | None:
    """Return the reclaim since an earlier sample, and add the new one; ``None`` without an earlier sample."""
    while samples and not 0 <= now.at_s - samples[0].at_s <= _WINDOW_S:
        samples.popleft()
    first = samples[0] if samples else None
    samples.append(now)
    if first is None:
        return None
    scanned, direct, refaulted = (max(0, new - old) for new, old in zip(now.counts, first.counts, strict=True))
    fell, grew = first.available - now.available, now.unexplained - first.unexplained
    return ReclaimActivity(scanned, direct, refaulted, fell, grew)


def _counters_of_limit(limit: int, used: int, stat: dict[str, int], pods: PodsMemory | None) -> MemoryCounters:
    """Return the counters of a cgroup with a limit, from ``memory.stat``; a counter without a line is 0."""
    at_limit = (os.cpu_count() or 1) * _CHARGE_BATCH_BYTES
    stacks = stat.get("kernel_stack", 0)
    return MemoryCounters(
        total=limit,
        free=max(0, limit - used),
        anonymous=stat.get("anon", 0),
        page_cache=stat.get("file", 0),
        active_file=stat.get("active_file", 0),
        inactive_file=stat.get("inactive_file", 0),
        shared=stat.get("shmem", 0),
        slab_reclaimable=stat.get("slab_reclaimable", 0),
        slab_unreclaimable=stat.get("slab_unreclaimable", 0),
        kernel_stacks=stacks,
        page_tables=stat.get("pagetables", 0) + stat.get("sec_pagetables", 0),
        per_cpu=stat.get("percpu", 0),
        vmalloc=stat.get("vmalloc", 0) + stacks,  # unlike that of the machine, it excludes the stacks
        huge_pages=stat.get("hugetlb", 0),
        swap_cached=stat.get("swapcached", 0),
        unevictable=stat.get("unevictable", 0),
        zswapped=stat.get("zswapped", 0),
        compressed_swap=stat.get("zswap", 0),
        pods=pods,
        minimum_free=at_limit,
        reserve_free=at_limit,
    )


def read_totals() -> MemoryTotals:
    """Return memory and swap of the node.

    Raises:
        ObservationError: the kernel does not report them.
    """
    try:
        swap = psutil.swap_memory()
        return MemoryTotals(psutil.virtual_memory().total, swap.total, swap.free)
    except (OSError, LookupError, ValueError) as error:
        raise ObservationError(f"cannot read memory and swap of the node: {error}") from error


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the values in bytes by name; values without a unit are unchanged. Source: proc(5), ``meminfo``."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (_KIB if words[1:] == ["kB"] else 1)
    return found


def counters_of(info: dict[str, int]) -> MemoryCounters | None:
    """Return the memory counters of ``/proc/meminfo``; ``None`` if a counter of every kernel is missing."""
    required = ("MemTotal", "MemFree", "AnonPages", "Cached", "Buffers", "Active(file)", "Inactive(file)", "SUnreclaim")
    if any(each not in info for each in required):
        return None
    swap_cached = info.get("SwapCached", 0)
    huge_pages = info.get("HugePages_Total", 0) * info.get("Hugepagesize", 0)
    return MemoryCounters(
        total=info["MemTotal"],
        free=info["MemFree"],
        anonymous=info["AnonPages"],
        page_cache=info["Cached"] + info["Buffers"] + swap_cached,
        active_file=info["Active(file)"],
        inactive_file=info["Inactive(file)"],
        shared=info.get("Shmem", 0),
        slab_reclaimable=info.get("KReclaimable", info.get("SReclaimable", 0)),
        slab_unreclaimable=info["SUnreclaim"],
        kernel_stacks=info.get("KernelStack", 0),
        page_tables=info.get("PageTables", 0) + info.get("SecPageTables", 0),
        per_cpu=info.get("Percpu", 0),
        vmalloc=info.get("VmallocUsed", 0),
        huge_pages=info.get("Hugetlb", huge_pages),
        balloon=info.get("Balloon", 0),
        swap_cached=swap_cached,
        unevictable=info.get("Unevictable", 0),
        locked=info.get("Mlocked", 0),
        zswapped=info.get("Zswapped", 0),
    )


def parse_zoneinfo(text: str) -> Watermarks | None:
    """Return the watermarks of all zones; ``None`` without a zone.

    The watermarks of a zone include the memory that the zone reserves for requests that no other zone can serve.

    Source: proc(5), ``zoneinfo``; kernel ``calculate_totalreserve_pages``, ``__zone_watermark_ok``.
    """
    minimum, reserve = 0, 0
    zones = text.split("\n  pages free")[1:]
    for zone in zones:
        found = dict(_ZONE_FIELD.findall(zone))
        numbers = {name: int(value) for name, value in found.items() if value.isdecimal()}
        protections = [int(each) for each in re.findall(r"\d+", found.get("protection:", ""))]
        managed, protected = numbers.get("managed", 0), max(protections, default=0)
        minimum += min(managed, protected + numbers.get("min", 0))
        reserve += min(managed, protected + numbers.get("high", 0))
    return Watermarks(minimum * _PAGE, reserve * _PAGE) if zones else None


def parse_arcstats(text: str) -> ArcSize | None:
    """Return the size of the ZFS cache; ``None`` without a size and a minimum. Source: OpenZFS ``arc_stats_t``."""
    rows = (line.split() for line in text.splitlines())
    found = {row[0]: int(row[2]) for row in rows if len(row) == 3 and row[2].isdecimal()}
    if "size" not in found or "c_min" not in found:
        return None
    data = found["data_size"] + found.get("metadata_size", 0) if "data_size" in found else found["size"]
    evictable = [value for name, value in found.items() if "_evictable_" in name and "_ghost_" not in name]
    return ArcSize(found["size"], data, found["c_min"], sum(evictable) if evictable else None)


def parse_pairs(text: str) -> dict[str, int]:
    """Return the numbers by name of lines ``NAME NUMBER``."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdecimal():
            found[name] = int(value)
    return found


def require(values: dict[str, int], name: str, path: Path) -> int:
    """Return a value.

    Raises:
        ObservationError: the value is missing.
    """
    if name not in values:
        raise ObservationError(f"{path}: {name} missing")
    return values[name]


def read_number(path: Path) -> int:
    """Return the number in a file.

    Raises:
        ObservationError: the file cannot be read or contains no number.
    """
    text = read_text(path).strip()
    if not text.isdecimal():
        raise ObservationError(f"{path}: {text[:40]!r} is not a number")
    return int(text)


def read_text(path: Path) -> str:
    """Return the text of a kernel file.

    Raises:
        ObservationError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ObservationError(f"cannot read {path}: {error}") from error


def _text_or_empty(path: Path) -> str:
    """Return the text of an optional kernel file; empty if it cannot be read."""
    try:
        return read_text(path)
    except ObservationError:
        return ""


def _sum(values: dict[str, int], *prefixes: str) -> int:
    return sum(value for name, value in values.items() if name.startswith(prefixes))


def _without_reading(counters: MemoryCounters) -> int:
    """Return the bytes that no counter of the kernel explains, with the ZFS cache; negative if counters overlap."""
    known = (
        *(counters.free, counters.anonymous, counters.page_cache, counters.slab_reclaimable),
        *(counters.slab_unreclaimable, counters.page_tables, counters.per_cpu, counters.huge_pages, counters.balloon),
        *(max(counters.vmalloc, counters.kernel_stacks), counters.compressed_swap or 0),
        0 if counters.pods is None else counters.pods.other,
    )
    return counters.total - sum(known)
