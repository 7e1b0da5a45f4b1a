"""Available memory from two estimates, the parts of the memory, and the evidence of a shortage."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.memory_model import (
    bound_memory,
    estimate_memory,
    explain_difference,
    is_disputed,
    is_near,
    kept_by_evictions,
    lowest_estimate,
    memory_parts,
)
from nodeagent.eviction.plan.preview import SOONEST_S, WHILE_MET_S, next_poll_s
from nodeagent.model.pressure import (
    ArcSize,
    MemoryCounters,
    MemoryPart,
    NodeMemory,
    PodsMemory,
    ReclaimActivity,
    Signal,
    SignalReading,
)
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import at, evaluated, thresholds

GIB = 1024 * MIB
QUIET = ReclaimActivity(0, 0, 0, 0, 0)
BUSY = ReclaimActivity(scanned=9000, direct=20, refaulted=500, available_fell=0, unexplained_grew=0)


def node(**changed: Any) -> MemoryCounters:
    """Return the counters of a node of 64 GiB whose memory is explained; its free memory is at the watermarks."""
    counters = MemoryCounters(
        total=64 * GIB,
        free=300 * MIB,
        anonymous=6 * GIB,
        page_cache=500 * MIB,
        active_file=200 * MIB,
        inactive_file=100 * MIB,
        shared=200 * MIB,
        slab_reclaimable=124 * MIB,
        slab_unreclaimable=57 * GIB,
        minimum_free=250 * MIB,
        reserve_free=400 * MIB,
    )
    return replace(counters, **changed)


ARC = ArcSize(size=50 * GIB, data=49 * GIB, minimum=2 * GIB)


def zfs(**changed: Any) -> MemoryCounters:
    """Return the counters of a node of which the ZFS cache uses 49 GiB."""
    return node(**{"slab_unreclaimable": 8 * GIB, "arc": ARC, **changed})


def unexplained(**changed: Any) -> MemoryCounters:
    """Return the counters of a node of which 50 GiB have no reading."""
    return node(**{"slab_unreclaimable": 7 * GIB, **changed})


def memory(formula: float, kernel: float, counters: MemoryCounters, **rest: Any) -> NodeMemory:
    """Return the reading of both estimates, in GiB, without evidence of a shortage unless ``rest`` has some."""
    return NodeMemory(formula * GIB, kernel * GIB, counters, **{"activity": QUIET, "stall_percent": 0.0, **rest})


SHRINKS, USED = "MemAvailable + shrinkable ZFS ARC", "MemAvailable"
STALLED: dict[str, Any] = {"activity": BUSY, "stall_percent": 20.0}
KERNEL_LOWER = {
    "shrinkable ARC": (memory(57, 0.05, zfs()), 48.05, SHRINKS),
    "ARC partly in use": (memory(57, 0.05, zfs(arc=replace(ARC, evictable=GIB))), 1.05, SHRINKS),
    "ARC at its minimum": (memory(57, 0.05, zfs(arc=replace(ARC, minimum=50 * GIB))), 0.05, USED),
    "ARC, direct reclaim at the watermarks": (memory(57, 0.05, zfs(), activity=BUSY), 0.05, USED),
    "ARC, direct reclaim slightly above": (memory(57, 0.05, zfs(free=599 * MIB), activity=BUSY), 0.05, USED),
    "ARC, stalls in the first reading": (memory(57, 0.05, zfs(), activity=None, stall_percent=20.0), 0.05, USED),
    "ARC, first reading below the minimum": (memory(57, 0.05, zfs(free=200 * MIB), activity=None), 0.05, USED),
    "ARC, unknown watermarks": (memory(57, 0.05, zfs(reserve_free=None), activity=BUSY), 0.05, USED),
    "ARC, stalls above the watermarks": (memory(57, 0.05, zfs(free=601 * MIB), **STALLED), 48.05, SHRINKS),
    "ARC, stalls without reclaim": (memory(57, 0.05, zfs(), stall_percent=90.0), 48.05, SHRINKS),
    "ARC larger than the rest": (memory(57, 0.05, node(arc=ARC)), 0.15, SHRINKS),
    "unreclaimable slab": (memory(57, 0.05, node()), 0.05, USED),
    "huge pages": (memory(57, 0.05, node(slab_unreclaimable=GIB, huge_pages=56 * GIB)), 0.05, USED),
    "no parts": (NodeMemory(57 * GIB, 0.05 * GIB), 0.05, USED),
    "unexplained": (memory(57, 0.05, unexplained()), 49.02, "MemAvailable + unexplained memory"),
    "unexplained as on every node": (memory(57, 0.05, node(slab_unreclaimable=56 * GIB)), 0.05, USED),
    "unexplained, and a formula that is as low": (
        memory(0.06, 0.05, unexplained()),
        0.06,
        "MemAvailable + unexplained memory",
    ),
    "pipe buffers of pods": (
        memory(57, 0.05, unexplained(pods=PodsMemory(anonymous=GIB, shared=0, other=50 * GIB))),
        0.05,
        USED,
    ),
    "unexplained, reclaim": (memory(57, 0.05, unexplained(), activity=BUSY), 0.05, USED),
    "unexplained, growing demand": (
        memory(57, 0.05, unexplained(), activity=replace(QUIET, available_fell=20 * MIB)),
        0.05,
        USED,
    ),
    "unexplained memory grows": (
        memory(57, 0.05, unexplained(), activity=replace(QUIET, available_fell=20 * MIB, unexplained_grew=20 * MIB)),
        49.02,
        "MemAvailable + unexplained memory",
    ),
}
FORMULA_LOWER = {
    "idle cache": (memory(0.05, 9, node()), 9, USED),
    "idle cache, busy reclaim": (memory(0.05, 9, node(), activity=replace(BUSY, refaulted=0)), 9, USED),
    "cache in use": (memory(0.05, 9, node(), **STALLED), 0.05, ""),
    "cache in use, without PSI": (memory(0.05, 9, node(), activity=BUSY, stall_percent=None), 0.05, ""),
    "cache of a cgroup in use": (memory(0.05, 9, node(free=GIB), **STALLED), 9, USED),
    "no parts": (NodeMemory(0.05 * GIB, 9 * GIB), 9, USED),
}
SINGLE = {
    "formula": (NodeMemory(formula=3 * GIB), 3, ""),
    "MemAvailable": (NodeMemory(kernel_available=3 * GIB), 3, USED),
}


@pytest.mark.difference("kernel-memory")
@pytest.mark.parametrize(
    ("found", "expected_gib", "basis"),
    [
        pytest.param(*case, id=f"{kind}: {name}")
        for kind, cases in (("kernel lower", KERNEL_LOWER), ("formula lower", FORMULA_LOWER), ("one", SINGLE))
        for name, case in cases.items()
    ],
)
def test_lower_estimate_needs_an_explanation_or_evidence(found: NodeMemory, expected_gib: float, basis: str) -> None:
    estimate = estimate_memory(found)
    assert estimate.available / GIB == pytest.approx(expected_gib, abs=0.01)
    assert estimate.basis == basis


SIZES = st.integers(0, 80 * GIB)


@given(
    st.builds(MemoryCounters, *[SIZES] * 16, compressed_swap=SIZES, arc=st.builds(ArcSize, SIZES, SIZES, SIZES, SIZES)),
    SIZES,
    SIZES,
    st.builds(ReclaimActivity, *[st.integers(-GIB, GIB)] * 5) | st.none(),
    st.floats(0, 100) | st.none(),
)
def test_estimate_is_at_least_the_lower_estimate_and_parts_are_disjoint(
    counters: MemoryCounters, formula: int, kernel: int, activity: ReclaimActivity | None, stall: float | None
) -> None:
    formula, kernel = min(formula, counters.total), min(kernel, counters.total)
    estimate = estimate_memory(NodeMemory(formula, kernel, counters, activity, stall))
    assert min(formula, kernel) <= estimate.available <= counters.total
    parts = dict(memory_parts(counters))
    assert all(size >= 0 for part, size in parts.items() if part is not MemoryPart.ANONYMOUS)
    assert sum(parts.values()) >= counters.total


def test_evictions_free_only_the_memory_of_pods() -> None:
    counters = node(
        anonymous=6 * GIB,
        kernel_stacks=GIB,
        vmalloc=2 * GIB,
        huge_pages=3 * GIB,
        slab_unreclaimable=5 * GIB,
        shared=4 * GIB,
        compressed_swap=GIB,
        pods=PodsMemory(anonymous=2 * GIB, shared=3 * GIB, kernel=GIB),
    )
    outside, kernel, shared = (6 - 2) + 3, 5 + 1 + 1 - 1, 4
    assert kept_by_evictions(counters) == (outside + kernel + shared) * GIB
    assert kept_by_evictions(counters, shared_freed=3 * GIB) == (outside + kernel + shared - 3) * GIB
    assert kept_by_evictions(replace(counters, pods=None)) is None


def observed(found: NodeMemory, seconds: float = 0.0) -> SignalReading:
    available = estimate_memory(found).available
    return SignalReading(Signal.MEMORY_AVAILABLE, available, 64 * GIB, at(seconds), found)


@pytest.mark.difference("active-page-cache")
def test_threshold_met_by_an_unconfirmed_estimate_is_disputed_and_read_every_second() -> None:
    quiet = evaluated(observed(memory(57, 0.05, zfs())))
    assert not quiet.met
    assert is_disputed(quiet.statuses[0])
    assert next_poll_s(quiet, None, interval_s=10) == WHILE_MET_S
    busy = evaluated(observed(memory(57, 0.05, zfs(), activity=BUSY)))
    assert busy.met
    assert not is_disputed(busy.statuses[0])


@pytest.mark.parametrize(
    ("before_mib", "now_mib", "expected_s"),
    [
        pytest.param(50, 50, WHILE_MET_S, id="steady"),
        pytest.param(90, 60, 60 / 60, id="falls by 30 MiB/s"),
        pytest.param(95, 40, 40 / 110, id="falls by 55 MiB/s"),
        pytest.param(99, 9, SOONEST_S, id="falls by 90 MiB/s"),
        pytest.param(0, 0, SOONEST_S, id="exhausted"),
    ],
)
def test_falling_disputed_estimate_is_read_earlier(before_mib: float, now_mib: float, expected_s: float) -> None:
    before = evaluated(observed(memory(57, before_mib / 1024, zfs())))
    now = evaluated(observed(memory(57, now_mib / 1024, zfs()), 1.0), seconds=1.0)
    assert is_disputed(now.statuses[0])
    assert next_poll_s(now, before, interval_s=10) == pytest.approx(expected_s)


def test_fall_of_the_lower_estimate_shortens_the_interval() -> None:
    before = evaluated(observed(memory(57, 1.0, zfs())))
    now = evaluated(observed(memory(57, 0.6, zfs()), 0.5), seconds=0.5)
    rate = 0.4 * 1024 / 0.5
    assert lowest_estimate(observed(memory(57, 0.6, zfs()))) == 0.6 * GIB
    assert next_poll_s(now, before, interval_s=10) == pytest.approx((0.6 * 1024 - 100) / (2 * rate))


@pytest.mark.parametrize(("estimate_mib", "near"), [(711, True), (712, False)])
def test_parts_are_read_near_a_threshold(estimate_mib: int, *, near: bool) -> None:
    assert is_near(thresholds("memory.available<100Mi"), estimate_mib * MIB, 64 * GIB) is near


LIMIT = "memory.max 4.00 GiB of /sys/fs/cgroup"


def of_limit(formula_gib: float, kernel_gib: float | None, **changed: Any) -> NodeMemory:
    """Return the reading of a cgroup with a limit of 4 GiB, of which pods use 1 GiB without a counter."""
    counters = MemoryCounters(4 * GIB, 0, 1 * GIB, 2 * GIB, 1536 * MIB, 512 * MIB, 0, 100 * MIB, 0, reserve_free=MIB)
    kernel = None if kernel_gib is None else kernel_gib * GIB
    return replace(NodeMemory(formula_gib * GIB, kernel, counters, limited_by=LIMIT), **changed)


OF_MACHINE = NodeMemory(60.0 * GIB)


@pytest.mark.parametrize(
    ("machine", "limited", "decides", "capacity_gib", "by"),
    [
        pytest.param(OF_MACHINE, [], 0, 64, "", id="no-limit"),
        pytest.param(OF_MACHINE, [(of_limit(1, None), 4)], 1, 4, LIMIT, id="limit-lower"),
        pytest.param(NodeMemory(0.5 * GIB), [(of_limit(1, None), 4)], 0, 4, LIMIT, id="machine-lower"),
        pytest.param(NodeMemory(1.0 * GIB), [(of_limit(1, None), 4)], 0, 4, LIMIT, id="equal"),
        pytest.param(OF_MACHINE, [(of_limit(61, None), 100)], 0, 64, "", id="limit-above-the-machine"),
        pytest.param(OF_MACHINE, [(of_limit(2, None), 4), (of_limit(1, None), 8)], 2, 4, LIMIT, id="outer-limit-lower"),
    ],
)
def test_lowest_estimate_decides_and_the_lowest_limit_is_the_capacity(
    machine: NodeMemory, limited: list[tuple[NodeMemory, int]], decides: int, capacity_gib: int, by: str
) -> None:
    found = bound_memory(machine, 64 * GIB, [(each, limit * GIB) for each, limit in limited])
    assert found == ([machine, *(each for each, _ in limited)][decides], capacity_gib * GIB, by)


@pytest.mark.parametrize(
    ("changed", "expected_gib"),
    [
        pytest.param({}, 2.5, id="idle-cache"),
        pytest.param({"kernel_available": None}, 0.5, id="formula-alone"),
        pytest.param({"formula": None}, 2.5, id="mem-available-alone"),
        pytest.param({"activity": BUSY, "stall_percent": 20.0}, 0.5, id="cache-in-use"),
        pytest.param({"activity": QUIET, "stall_percent": 20.0}, 2.5, id="stalls-at-the-limit-of-a-pod"),
        pytest.param({"activity": BUSY, "stall_percent": 0.0}, 2.5, id="reclaim-without-stalls"),
    ],
)
def test_memory_below_a_limit_is_decided_like_that_of_a_machine(changed: dict[str, Any], expected_gib: float) -> None:
    estimate = estimate_memory(of_limit(0.5, 2.5, **changed))
    assert (estimate.available, estimate.basis) == (expected_gib * GIB, LIMIT)


def test_difference_of_the_estimates_below_a_limit_names_the_limit_and_its_slab() -> None:
    assert explain_difference(of_limit(0.5, 2.5)) == (
        f"{LIMIT}: kubelet's formula 512 MiB, with reclaimable memory 2.50 GiB; "
        "difference: page-cache-active 1.50 GiB, reclaimable-slab 100 MiB"
    )
