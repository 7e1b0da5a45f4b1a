"""Checks of ``nodeagent doctor`` on memory evictions: the estimates of available memory, and page cache reclaim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.doctor.plan.node import Finding, Verdict
from nodeagent.eviction.plan.memory_model import estimate_memory, explain_difference, lowest_estimate, memory_parts
from nodeagent.model.pressure import Signal
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.eviction.plan.thresholds import Threshold
    from nodeagent.model.memory import MemoryCounters, NodeMemory
    from nodeagent.model.pressure import Observation

MEMORY_CHECK: Final = "memory-thresholds"
CACHE_CHECK: Final = "cache-reclaim"
_LISTED_SHARE: Final = 0.01


def check_memory_thresholds(thresholds: Iterable[Threshold], reading: Observation, *, kernel_estimate: bool) -> Finding:
    """Return the finding on whether the ``memory.available`` thresholds match the memory of the node.

    With the kernel's estimate, a threshold is a warning if one of the two estimates meets it, but no evidence confirms
    this estimate. Without it, the kubelet's formula decides alone, which ignores kernel memory and the watermarks: a
    threshold must exceed the difference between the formula and ``MemAvailable``, otherwise it is met only after
    ``MemAvailable`` has reached 0.

    Args:
        thresholds: the configured eviction thresholds.
        reading: reading of ``memory.available``, with the kernel's estimate.
        kernel_estimate: whether thresholds also use the kernel's estimate.

    Source: kernel ``si_mem_available``.
    """
    memory = reading.memory
    if memory is None or memory.kernel_available is None:
        return Finding(MEMORY_CHECK, Verdict.SKIPPED, "the kernel reports no MemAvailable")
    limits = {each.text: each.limit(reading.capacity) for each in thresholds if each.signal is Signal.MEMORY_AVAILABLE}
    evidence = _evidence(memory)
    if not kernel_estimate:
        distance = (memory.formula or 0.0) - memory.kernel_available
        late = [text for text, limit in limits.items() if limit <= distance]
        if not late:
            return Finding(MEMORY_CHECK, Verdict.OK, evidence)
        return Finding(
            MEMORY_CHECK,
            Verdict.WARNING,
            f"{evidence}: {', '.join(late)} is not met before MemAvailable is exhausted",
            f"raise the threshold above {format_bytes(int(distance))}, or set eviction.kernel_memory_estimate = true",
        )
    disputed = [text for text, limit in limits.items() if lowest_estimate(reading) < limit <= reading.available]
    if not disputed:
        return Finding(MEMORY_CHECK, Verdict.OK, evidence)
    return Finding(
        MEMORY_CHECK,
        Verdict.WARNING,
        f"{evidence}: one estimate meets {', '.join(disputed)}, but no evidence confirms it "
        f"({explain_difference(memory) or 'difference unknown'}); no pod is evicted",
        "nodeagent pressure -o wide lists all parts of the memory",
    )


def _evidence(memory: NodeMemory) -> str:
    estimate = estimate_memory(memory)
    found = [f"memory.available {format_bytes(int(estimate.available))}"]
    found += [] if memory.formula is None else [f"kubelet's formula {format_bytes(int(memory.formula))}"]
    found.append(f"MemAvailable {format_bytes(int(memory.kernel_available or 0))}")
    return ", ".join(found) + ("" if memory.counters is None else f"; {_large_parts(memory.counters)}")


def _large_parts(counters: MemoryCounters) -> str:
    """Return the parts of at least 1% of the memory, and the free memory that the kernel reserves."""
    shown = [
        f"{name} {format_bytes(size)}"
        for name, size in memory_parts(counters)
        if size >= counters.total * _LISTED_SHARE
    ]
    reserve = counters.reserve_free
    return ", ".join((*shown, *([] if reserve is None else [f"reserved by the kernel {format_bytes(reserve)}"])))


def check_cache_reclaim(off: str, *, writable: bool | None) -> Finding:
    """Return the finding on whether the agent can reclaim page cache of pods before an eviction for memory.

    Args:
        off: reason why cache reclaim is disabled; empty if it is enabled.
        writable: whether the agent's systemd unit permits writes to the cgroups of pods; ``None`` if unknown.
    """
    if off:
        return Finding(CACHE_CHECK, Verdict.SKIPPED, off)
    if writable is None:
        return Finding(CACHE_CHECK, Verdict.SKIPPED, "unit not installed, or systemd not running")
    if not writable:
        evidence = "not permitted: a pod may be evicted while its page cache could be reclaimed"
        return Finding(CACHE_CHECK, Verdict.SKIPPED, evidence, "install the drop-in page-cache.conf of the unit")
    return Finding(CACHE_CHECK, Verdict.OK, "cgroups of pods are writable for the unit")
