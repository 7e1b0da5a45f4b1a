"""Checks of ``nodeagent doctor`` on evictions under memory pressure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.clock import SystemClock
from nodeagent.doctor.host_facts import read_writable_cgroups
from nodeagent.doctor.plan.memory import MEMORY_CHECK, check_cache_reclaim, check_memory_thresholds
from nodeagent.doctor.plan.node import Finding, Verdict
from nodeagent.eviction.kernel_signals import SignalPaths, read_signals
from nodeagent.model import Role
from nodeagent.model.pressure import MemorySource, Signal

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.settings.settings import Settings

UNIT: Final = "nodeagent.service"


def memory_finding(settings: Settings, root: Path) -> Finding:
    """Return the finding on whether the memory thresholds match the memory of the node."""
    eviction = settings.eviction
    observations, unread = read_signals(
        SignalPaths(None), SystemClock(), source=eviction.memory_source, kernel_estimate=True, root=root
    )
    reading = next((each for each in observations if each.signal is Signal.MEMORY_AVAILABLE), None)
    if reading is None:
        return Finding(MEMORY_CHECK, Verdict.SKIPPED, "; ".join(unread))
    estimate = eviction.kernel_estimate or eviction.memory_source is MemorySource.MEM_AVAILABLE
    return check_memory_thresholds(eviction.thresholds, reading, kernel_estimate=estimate)


def cache_finding(settings: Settings) -> Finding:
    """Return the finding on whether page cache can be reclaimed before a pod is evicted for memory."""
    eviction = settings.eviction
    off = eviction.off_because(Role.STANDALONE) or ("" if eviction.reclaim_cache else "eviction.reclaim = false")
    return check_cache_reclaim(off, writable=None if off else read_writable_cgroups(UNIT))
