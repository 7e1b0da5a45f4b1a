"""Memory of the node by its parts, and the two estimates of available memory."""

from __future__ import annotations

from enum import StrEnum

from nodeagent.record import Record


class MemoryPart(StrEnum):
    """Part of the node's memory; every page belongs to exactly one part.

    The values are part of the JSON output; existing values never change.

    Attributes:
        PAGE_CACHE_OTHER: swap cache and file pages that are locked or isolated.
        SHARED: tmpfs files, shared memory and memfd.
        RECLAIMABLE_SLAB: slab and other kernel memory with a shrinker, such as dentries and inodes.
        VMALLOC: vmalloc areas without kernel stacks.
        COMPRESSED_SWAP: pages of zram and zswap.
        OTHER_OF_PODS: memory charged to pods that no counter of the node contains, such as pipe and socket buffers.
        UNEXPLAINED: the remainder without a reading, such as pages of drivers and network buffers.
    """

    FREE = "free"
    ANONYMOUS_OF_PODS = "anonymous-of-pods"
    ANONYMOUS = "anonymous"
    PAGE_CACHE_ACTIVE = "page-cache-active"
    PAGE_CACHE_INACTIVE = "page-cache-inactive"
    PAGE_CACHE_OTHER = "page-cache-other"
    SHARED = "shared-and-tmpfs"
    RECLAIMABLE_SLAB = "reclaimable-slab"
    UNRECLAIMABLE_SLAB = "unreclaimable-slab"
    KERNEL_STACKS = "kernel-stacks"
    PAGE_TABLES = "page-tables"
    PER_CPU = "per-cpu"
    VMALLOC = "vmalloc"
    HUGE_PAGES = "huge-pages"
    BALLOON = "balloon"
    COMPRESSED_SWAP = "compressed-swap"
    ARC_SHRINKABLE = "zfs-arc-shrinkable"
    ARC_KEPT = "zfs-arc-kept"
    OTHER_OF_PODS = "other-of-pods"
    UNEXPLAINED = "unexplained"


class PodsMemory(Record):
    """Memory charged to the cgroup of all pods, in bytes.

    Attributes:
        shared: tmpfs files and shared memory; includes files of pods that have ended, until their volumes are removed.
        kernel: slab that is not reclaimable, kernel stacks, page tables, per-CPU and vmalloc memory.
        other: the charged memory without a counter of its own, such as pipe and socket buffers.

    Source: kernel cgroup-v2.rst, ``memory.current`` and ``memory.stat``.
    """

    anonymous: int
    shared: int
    kernel: int = 0
    other: int = 0


class ArcSize(Record):
    """Size of the ZFS cache (ARC), in bytes.

    Attributes:
        data: part of ``size`` in pages that the kernel counts nowhere; the rest is in slab.
        minimum: size to which memory pressure can shrink the cache.
        evictable: clean buffers without users; ``None`` if not reported.

    Source: OpenZFS ``arcstats``.
    """

    size: int
    data: int
    minimum: int
    evictable: int | None = None

    @property
    def shrinkable(self) -> int:
        """Bytes that the cache frees under memory pressure. Source: OpenZFS ``arc_evictable_memory``."""
        above_minimum = max(0, self.size - self.minimum)
        return above_minimum if self.evictable is None else min(above_minimum, self.evictable)


class MemoryCounters(Record):
    """Readings of the kernel's memory statistics; the amounts in bytes, the counters since boot.

    Attributes:
        total: memory of the node.
        page_cache: all file pages, with buffers, swap cache, tmpfs and shared memory.
        active_file: file pages on the active list; with ``inactive_file`` without locked pages.
        slab_reclaimable: slab and other kernel memory with a shrinker.
        vmalloc: vmalloc areas, including kernel stacks.
        unevictable: pages that cannot be reclaimed, such as locked pages; contained in other amounts.
        locked: the part of ``unevictable`` locked by mlock.
        zswapped: memory of the pages that are stored in zswap, before compression.
        compressed_swap: pages of zram and zswap; ``None`` if not read.
        pods: memory of all pods; ``None`` without a cgroup of pods, or if not read.
        arc: the ZFS cache; ``None`` without ZFS, or if not read.
        minimum_free: free memory below which allocations wait for reclaim, in all zones; ``None`` if not read.
        reserve_free: free memory below which the kernel reclaims in the background; ``MemAvailable`` excludes it;
            ``None`` if not read.

    Source: proc(5), ``meminfo``; kernel ``calculate_totalreserve_pages``.
    """

    total: int
    free: int
    anonymous: int
    page_cache: int
    active_file: int
    inactive_file: int
    shared: int
    slab_reclaimable: int
    slab_unreclaimable: int
    kernel_stacks: int = 0
    page_tables: int = 0
    per_cpu: int = 0
    vmalloc: int = 0
    huge_pages: int = 0
    balloon: int = 0
    swap_cached: int = 0
    unevictable: int = 0
    locked: int = 0
    zswapped: int = 0
    compressed_swap: int | None = None
    pods: PodsMemory | None = None
    arc: ArcSize | None = None
    minimum_free: int | None = None
    reserve_free: int | None = None


class ReclaimActivity(Record):
    """Changes of the kernel's counters between two readings.

    Attributes:
        scanned: pages scanned by the node's reclaim, in the background and directly; not for limits of cgroups.
        direct: allocations that waited for the node's reclaim.
        refaulted: reclaimed pages that were read again soon.
        available_fell: decrease of ``MemAvailable`` in bytes; negative for an increase.
        unexplained_grew: increase of the memory without a reading in bytes, with the ZFS cache.

    Source: kernel ``/proc/vmstat``: ``pgscan_kswapd``, ``pgscan_direct``, ``allocstall``, ``workingset_refault``.
    """

    scanned: int
    direct: int
    refaulted: int
    available_fell: int
    unexplained_grew: int


class NodeMemory(Record):
    """The estimates of available memory of one reading, with the readings that decide between them.

    Attributes:
        formula: capacity minus working set, as in the kubelet; ``None`` if the setting excludes this estimate.
        kernel_available: ``MemAvailable``; ``None`` if unknown or if the setting excludes this estimate.
        counters: the parts of the memory; ``None`` if unknown.
        activity: reclaim since an earlier reading; ``None`` without an earlier reading.
        stall_percent: share of time in which tasks waited for memory, over ten seconds; ``None`` without PSI.
    """

    formula: float | None = None
    kernel_available: float | None = None
    counters: MemoryCounters | None = None
    activity: ReclaimActivity | None = None
    stall_percent: float | None = None
