"""``doctor`` check of memory thresholds against the kernel's estimate of available memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.doctor.plan.node import Grade, check_cache_reclaim, check_memory_thresholds
from nodeagent.eviction.plan.memory_model import estimate_memory
from nodeagent.model.pressure import ArcSize, MemoryCounters, NodeMemory
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import read, thresholds

if TYPE_CHECKING:
    from nodeagent.model.pressure import SignalReading


def reading(formula_mib: float, kernel_mib: float | None, arc_mib: int = 0) -> SignalReading:
    """Return a reading of a node of 1000 MiB without evidence of a shortage."""
    arc = ArcSize(arc_mib * MIB, arc_mib * MIB, 0) if arc_mib else None
    counters = MemoryCounters(1000 * MIB, 50 * MIB, 0, 0, 0, 0, 0, 0, 0, arc=arc, reserve_free=10 * MIB)
    kernel = None if kernel_mib is None else kernel_mib * MIB
    memory = NodeMemory(formula_mib * MIB, kernel, counters)
    return replace(read(available=estimate_memory(memory).available), memory=memory)


@pytest.mark.parametrize(
    ("found", "kernel_estimate", "verdict", "evidence"),
    [
        pytest.param(reading(117, 8), False, Grade.WARNING, "memory.available<100Mi is not met", id="formula late"),
        pytest.param(reading(300, 150), True, Grade.OK, "MemAvailable 150 MiB", id="both above"),
        pytest.param(reading(900, 8, 500), True, Grade.WARNING, "zfs-arc-shrinkable 500 MiB", id="disputed"),
        pytest.param(reading(40, 400), True, Grade.WARNING, "one estimate meets", id="formula lower"),
        pytest.param(reading(117, 100), False, Grade.OK, "free 50.0 MiB", id="distance below the threshold"),
        pytest.param(reading(117, 400), False, Grade.OK, "reserved by the kernel 10.0 MiB", id="kernel above"),
        pytest.param(reading(117, None), False, Grade.SKIPPED, "no MemAvailable", id="no estimate"),
    ],
)
def test_thresholds_are_checked_against_the_estimates(
    found: SignalReading, verdict: Grade, evidence: str, *, kernel_estimate: bool
) -> None:
    finding = check_memory_thresholds(thresholds("memory.available<100Mi"), found, kernel_estimate=kernel_estimate)
    assert finding.verdict is verdict
    assert evidence in finding.evidence
    assert bool(finding.fix) is (verdict is Grade.WARNING)


@pytest.mark.parametrize(
    ("of_limit", "evidence"),
    [
        (True, "memory.available 400 MiB, memory.max 1 of x: kubelet's formula 40.0 MiB, with reclaimable memory 400"),
        (False, "memory.available 400 MiB, capacity limited by memory.max 1 of x, kubelet's formula 40.0 MiB, MemAv"),
    ],
)
def test_evidence_names_the_limit_of_a_cgroup(evidence: str, *, of_limit: bool) -> None:
    found, limit = reading(40, 400), "memory.max 1 of x"
    assert found.memory is not None
    memory = replace(found.memory, limited_by=limit if of_limit else "")
    finding = check_memory_thresholds((), replace(found, memory=memory, limited_by=limit), kernel_estimate=True)
    assert finding.evidence.startswith(evidence)
    assert ("reserved by the kernel" in finding.evidence) is not of_limit


@pytest.mark.parametrize(
    ("off", "writable", "verdict", "fix"),
    [
        ("", True, Grade.OK, False),
        ("", False, Grade.SKIPPED, True),
        ("", None, Grade.SKIPPED, False),
        ("eviction.reclaim = false", None, Grade.SKIPPED, False),
    ],
)
def test_page_cache_reclaim_is_checked_against_the_unit(
    off: str, verdict: Grade, *, writable: bool | None, fix: bool
) -> None:
    found = check_cache_reclaim(off, writable=writable)
    assert (found.verdict, bool(found.fix)) == (verdict, fix)
