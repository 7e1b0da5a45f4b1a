"""Available memory of the node, decided from two estimates and the parts of the memory.

The kubelet's formula (capacity minus working set) counts kernel memory, huge pages and compressed swap as available,
and active page cache as used. ``MemAvailable`` counts pages without a reading as used, although the kernel can free
some of them, such as the ZFS cache. The difference is explained by parts:

- memory that no task can get back counts as used, although the formula counts it as available;
- active page cache and the shrinkable ZFS cache count as available, since the kernel frees them when needed;
- memory that no reading explains counts as available until the demand for memory grows.

The lower estimate decides alone if the kernel's own activity confirms it: free pages at the watermarks, reclaim, and
tasks that wait for memory.

A limit of a cgroup above the pods bounds the memory too. Such a cgroup is decided like a machine whose memory is the
limit, and the lowest result counts. Without this, page cache that fills the limit, as it does after hours in every
container, would evict pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import MemoryCounters, MemoryPart, NodeMemory, Signal, SignalReading
from nodeagent.record import Record
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from nodeagent.eviction.plan.thresholds import Threshold, ThresholdStatus

STALL_PERCENT: Final = 5.0
"""Share of time that tasks wait for memory, over ten seconds, which confirms a shortage."""
_MIB: Final = 1 << 20
_USUAL_UNEXPLAINED_BYTES: Final = 128 * _MIB
_USUAL_UNEXPLAINED_SHARE: Final = 1 / 64
_DEMAND_BYTES: Final = 16 * _MIB
_NEAR_BYTES: Final = 512 * _MIB
_NEAR_RESERVE: Final = 1.5
"""Free memory at the watermarks, in multiples of the reserve: reclaim in the background keeps it slightly above."""
_LISTED_PARTS: Final = 3

_COUNTED_BY_FORMULA: Final = (
    MemoryPart.UNRECLAIMABLE_SLAB,
    MemoryPart.KERNEL_STACKS,
    MemoryPart.PAGE_TABLES,
    MemoryPart.PER_CPU,
    MemoryPart.VMALLOC,
    MemoryPart.HUGE_PAGES,
    MemoryPart.BALLOON,
    MemoryPart.COMPRESSED_SWAP,
    MemoryPart.ARC_SHRINKABLE,
    MemoryPart.ARC_KEPT,
    MemoryPart.OTHER_OF_PODS,
    MemoryPart.UNEXPLAINED,
)
"""Parts that the kubelet's formula counts as available, and ``MemAvailable`` as used."""


class MemoryEvidence(StrEnum):
    """Sign of a shortage. The values are part of the JSON output; existing values never change."""

    WATERMARKS = "free-pages-at-watermarks"
    RECLAIM = "reclaim"
    DIRECT_RECLAIM = "direct-reclaim"
    STALLS = "stalls"
    REFAULTS = "refaults"
    DEMAND = "growing-demand"


class MemoryEstimate(Record):
    """The estimate of available memory that thresholds are compared with.

    Attributes:
        available: bytes.
        basis: content of ``available``, for messages, or the limit of a cgroup; empty for the kubelet's formula.
    """

    available: float
    basis: str = ""


def estimate_memory(memory: NodeMemory) -> MemoryEstimate:
    """Return the available memory of a reading with at least one estimate.

    A single estimate is returned unchanged. The result is the lower of two estimates if evidence confirms it, otherwise
    ``MemAvailable`` with the shrinkable ZFS cache and unexplained memory. All memory charged to a cgroup counts towards
    its limit, whether it is explained or not.
    """
    formula, kernel = memory.formula, memory.kernel_available
    if kernel is None:
        return MemoryEstimate(formula or 0.0, memory.limited_by)
    evidence = find_evidence(memory)
    if formula is not None and formula < kernel and _confirms_formula(evidence):
        return MemoryEstimate(formula, memory.limited_by)
    if memory.limited_by:
        return MemoryEstimate(kernel, memory.limited_by)
    if memory.counters is None or _confirms_kernel(evidence):
        return MemoryEstimate(kernel, "MemAvailable")
    parts = dict(memory_parts(memory.counters))
    shrinkable = parts[MemoryPart.ARC_SHRINKABLE]
    unexplained = 0 if MemoryEvidence.DEMAND in evidence else _unusual(memory.counters, parts[MemoryPart.UNEXPLAINED])
    if formula is not None:  # both estimates may be low, each for another reason
        unexplained = min(unexplained, max(0, int(formula - kernel - shrinkable)))
    basis = "MemAvailable"
    basis += " + shrinkable ZFS ARC" if shrinkable else ""
    basis += " + unexplained memory" if unexplained else ""
    return MemoryEstimate(min(kernel + shrinkable + unexplained, float(memory.counters.total)), basis)


def bound_memory(
    machine: NodeMemory, total: int, limited: Iterable[tuple[NodeMemory, int]]
) -> tuple[NodeMemory, int, str]:
    """Return the reading that decides on available memory, the capacity in bytes, and the limit that bounds either.

    The reading with the lowest estimate decides, the machine among equal ones. The capacity is the lowest limit, also
    if the machine decides, so that thresholds in percent do not change with the reading. The limit is empty if no limit
    is below the machine.

    Args:
        machine: reading of the machine.
        total: memory of the machine in bytes.
        limited: readings of the cgroups above the pods, with their limits in bytes.
    """
    limits = [(total, machine), *((limit, memory) for memory, limit in limited)]
    memory = min((each for _, each in limits), key=lambda each: estimate_memory(each).available)
    capacity, lowest = min(limits, key=lambda each: each[0])
    return memory, capacity, memory.limited_by or lowest.limited_by


def find_evidence(memory: NodeMemory) -> frozenset[MemoryEvidence]:
    """Return the signs of a shortage in a reading.

    Unknown watermarks count as reached. Without an earlier reading, free memory below the minimum watermark shows that
    allocations wait for reclaim. Without PSI, direct reclaim counts as a stall.
    """
    counters, activity = memory.counters, memory.activity
    if counters is None:
        return frozenset()
    found = set()
    if counters.reserve_free is None or counters.free <= counters.reserve_free * _NEAR_RESERVE:
        found.add(MemoryEvidence.WATERMARKS)
    if activity is None:
        direct = counters.minimum_free is not None and counters.free <= counters.minimum_free
        found.update({MemoryEvidence.RECLAIM} if MemoryEvidence.WATERMARKS in found else ())
    else:
        direct = activity.direct > 0
        found.update({MemoryEvidence.RECLAIM} if activity.scanned > 0 else ())
        found.update({MemoryEvidence.REFAULTS} if activity.refaulted > 0 else ())
        demand = activity.available_fell - max(0, activity.unexplained_grew)
        found.update({MemoryEvidence.DEMAND} if demand > _DEMAND_BYTES else ())
    if direct:
        found.add(MemoryEvidence.DIRECT_RECLAIM)
    if direct if memory.stall_percent is None else memory.stall_percent >= STALL_PERCENT:
        found.add(MemoryEvidence.STALLS)
    return frozenset(found)


def memory_parts(counters: MemoryCounters) -> tuple[tuple[MemoryPart, int], ...]:
    """Return the bytes of every part, 0 for an unread part; the sum is the memory of the node.

    The ZFS cache is at most the memory that no other counter explains. If the readings contradict each other, so that
    their sum exceeds the memory, nothing is unexplained.
    """
    pods = min(counters.anonymous, counters.pods.anonymous) if counters.pods else 0
    vmalloc = max(0, counters.vmalloc - counters.kernel_stacks)  # stacks are allocated by vmalloc
    lru = counters.active_file + counters.inactive_file
    found = {
        MemoryPart.FREE: counters.free,
        MemoryPart.ANONYMOUS_OF_PODS: pods,
        MemoryPart.ANONYMOUS: counters.anonymous - pods,
        MemoryPart.PAGE_CACHE_ACTIVE: counters.active_file,
        MemoryPart.PAGE_CACHE_INACTIVE: counters.inactive_file,
        MemoryPart.PAGE_CACHE_OTHER: max(0, counters.page_cache - lru - counters.shared),
        MemoryPart.SHARED: counters.shared,
        MemoryPart.RECLAIMABLE_SLAB: counters.slab_reclaimable,
        MemoryPart.UNRECLAIMABLE_SLAB: counters.slab_unreclaimable,
        MemoryPart.KERNEL_STACKS: counters.kernel_stacks,
        MemoryPart.PAGE_TABLES: counters.page_tables,
        MemoryPart.PER_CPU: counters.per_cpu,
        MemoryPart.VMALLOC: vmalloc,
        MemoryPart.HUGE_PAGES: counters.huge_pages,
        MemoryPart.BALLOON: counters.balloon,
        MemoryPart.COMPRESSED_SWAP: counters.compressed_swap or 0,
    }
    rest = max(0, counters.total - sum(found.values()))
    other = min(counters.pods.other, rest) if counters.pods else 0
    rest -= other
    shrinkable, kept = 0, 0
    if counters.arc is not None:
        shrinkable = min(counters.arc.shrinkable, rest)
        kept = min(max(0, counters.arc.data - shrinkable), rest - shrinkable)
    found |= {
        MemoryPart.ARC_SHRINKABLE: shrinkable,
        MemoryPart.ARC_KEPT: kept,
        MemoryPart.OTHER_OF_PODS: other,
        MemoryPart.UNEXPLAINED: rest - shrinkable - kept,
    }
    return tuple(found.items())


def kept_by_evictions(counters: MemoryCounters, *, shared_freed: int = 0) -> int | None:
    """Return the used bytes that no eviction of a pod can free; ``None`` if the memory of the pods is unknown.

    The result consists of processes outside of pods, tmpfs and shared memory, unreclaimable slab, other kernel memory
    outside of pods, huge pages, and the ZFS cache below its minimum. It is a lower bound: compressed swap and
    unexplained memory are excluded, because a part of them may be freed with a pod.

    Args:
        counters: the counters of one reading.
        shared_freed: tmpfs and shared memory that is known to be freed with pods, such as of ``/dev/shm``.
    """
    if counters.pods is None:
        return None
    parts = dict(memory_parts(counters))
    kernel = sum(
        parts[each]
        for each in (
            MemoryPart.UNRECLAIMABLE_SLAB,
            MemoryPart.KERNEL_STACKS,
            MemoryPart.PAGE_TABLES,
            MemoryPart.PER_CPU,
            MemoryPart.VMALLOC,
        )
    )
    outside = (MemoryPart.ANONYMOUS, MemoryPart.HUGE_PAGES, MemoryPart.BALLOON, MemoryPart.ARC_KEPT)
    return (
        sum(parts[each] for each in outside)
        + max(0, kernel - counters.pods.kernel)
        + max(0, parts[MemoryPart.SHARED] - shared_freed)
    )


def lowest_estimate(reading: SignalReading) -> float:
    """Return the lowest estimate of available memory; for other signals the available amount."""
    memory = reading.memory
    estimates = () if memory is None else (memory.formula, memory.kernel_available)
    return min((reading.available, *(each for each in estimates if each is not None)))


def is_cache_in_use(reading: SignalReading | None) -> bool:
    """Return whether a reading counts active page cache as used, since it is read again at once.

    The cache is available when the pods that read it end.
    """
    memory = None if reading is None else reading.memory
    if memory is None or memory.formula is None or memory.kernel_available is None:
        return False
    return memory.formula < memory.kernel_available and _confirms_formula(find_evidence(memory))


def is_disputed(status: ThresholdStatus) -> bool:
    """Return whether one of two estimates meets a threshold that is not met, because no evidence confirms it."""
    reading, limit = status.observation, status.limit
    if reading is None or limit is None or status.met or reading.memory is None:
        return False
    return lowest_estimate(reading) < limit


def is_near(thresholds: Iterable[Threshold], estimate: float, capacity: float) -> bool:
    """Return whether an estimate of available memory is near a threshold, so that all parts are read."""
    limits = [each.limit(capacity, with_reclaim=True) for each in thresholds if each.signal is Signal.MEMORY_AVAILABLE]
    return estimate < 2 * max(limits, default=0.0) + _NEAR_BYTES


def explain_difference(memory: NodeMemory) -> str:
    """Return both estimates and the largest parts of their difference; empty without two estimates and their parts."""
    formula, kernel, counters = memory.formula, memory.kernel_available, memory.counters
    if formula is None or kernel is None or counters is None:
        return ""
    parts = dict(memory_parts(counters))
    if kernel <= formula:
        listed = [(each, parts[each]) for each in _COUNTED_BY_FORMULA]
    else:  # the usage of a cgroup includes its slab, that of the root cgroup does not
        slab = parts[MemoryPart.RECLAIMABLE_SLAB] if memory.limited_by else 0
        active = parts[MemoryPart.PAGE_CACHE_ACTIVE]
        listed = [(MemoryPart.PAGE_CACHE_ACTIVE, active), (MemoryPart.RECLAIMABLE_SLAB, slab)]
    return f"{describe_estimates(memory)}; difference: {_largest(listed)}"


def describe_estimates(memory: NodeMemory) -> str:
    """Return the known estimates, after the limit of the cgroup to which they refer."""
    kernel = "with reclaimable memory" if memory.limited_by else "MemAvailable"
    named = (("kubelet's formula", memory.formula), (kernel, memory.kernel_available))
    shown = ", ".join(f"{name} {format_bytes(int(value))}" for name, value in named if value is not None)
    return f"{memory.limited_by}: {shown}" if memory.limited_by else shown


def _largest(parts: Iterable[tuple[MemoryPart, int]]) -> str:
    found = sorted((each for each in parts if each[1] > 0), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in found[:_LISTED_PARTS]) or "none"


def _confirms_kernel(evidence: frozenset[MemoryEvidence]) -> bool:
    waits = evidence & {MemoryEvidence.STALLS, MemoryEvidence.DIRECT_RECLAIM}
    return bool(waits) and evidence >= {MemoryEvidence.WATERMARKS, MemoryEvidence.RECLAIM}


def _confirms_formula(evidence: frozenset[MemoryEvidence]) -> bool:
    """Return whether page cache that the kernel counts as available is in use, so that its reclaim stalls tasks."""
    return evidence >= {
        MemoryEvidence.WATERMARKS,
        MemoryEvidence.RECLAIM,
        MemoryEvidence.STALLS,
        MemoryEvidence.REFAULTS,
    }


def _unusual(counters: MemoryCounters, unexplained: int) -> int:
    """Return the unexplained bytes above the amount that drivers and network buffers use on every node."""
    return max(0, unexplained - _USUAL_UNEXPLAINED_BYTES - int(counters.total * _USUAL_UNEXPLAINED_SHARE))
