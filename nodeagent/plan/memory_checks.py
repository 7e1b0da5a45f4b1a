"""Checks of ``nodeagent doctor`` on memory evictions: thresholds against ``MemAvailable``, and page cache reclaim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import Signal
from nodeagent.plan.node_checks import Finding, Verdict
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model.pressure import Observation
    from nodeagent.plan.eviction.thresholds import Threshold

CHECK: Final = "memory-thresholds"
CACHE_CHECK: Final = "cache-reclaim"


def check_memory_thresholds(
    thresholds: Iterable[Threshold], reading: Observation, *, kernel_estimate: bool, min_free_bytes: int
) -> Finding:
    """Return the finding on whether each ``memory.available`` threshold is met before the kernel is out of memory.

    The kubelet's formula for available memory ignores kernel memory and the kernel's watermarks. A threshold that uses
    the formula must exceed the difference between the formula and ``MemAvailable``; otherwise it is met only after
    ``MemAvailable`` has reached 0.

    Args:
        thresholds: the configured eviction thresholds.
        reading: reading of ``memory.available``, with the kernel's estimate.
        kernel_estimate: whether hard thresholds also use the kernel's estimate.
        min_free_bytes: ``vm.min_free_kbytes`` in bytes, from which the kernel derives its watermarks.

    Source: kernel ``si_mem_available``; sysctl vm.rst, ``min_free_kbytes``.
    """
    kernel = reading.kernel_available
    if kernel is None:
        return Finding(CHECK, Verdict.SKIPPED, "the kernel reports no MemAvailable")
    evidence = (
        f"memory.available {format_bytes(int(reading.available))}, MemAvailable {format_bytes(int(kernel))}, "
        f"vm.min_free_kbytes {format_bytes(min_free_bytes)}"
    )
    distance = reading.available - kernel
    late = [
        each.text
        for each in thresholds
        if each.signal is Signal.MEMORY_AVAILABLE
        and not (each.hard and kernel_estimate)
        and each.limit(reading.capacity) <= distance
    ]
    if not late:
        return Finding(CHECK, Verdict.OK, evidence)
    return Finding(
        CHECK,
        Verdict.WARNING,
        f"{evidence}: {', '.join(late)} is not met before MemAvailable is exhausted",
        f"raise the threshold above {format_bytes(int(distance))}"
        + ("" if kernel_estimate else ", or set eviction.kernel_memory_estimate = true"),
    )


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
