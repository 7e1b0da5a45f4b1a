"""Plan of page cache reclaim before an eviction for memory."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.reclaim import (
    MAX_STEP_BYTES,
    CacheStep,
    PodPageCache,
    StepReading,
    fault_of_step,
    missing_bytes,
    plan_cache_reclaim,
)
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import read, thresholds

(THRESHOLD,) = thresholds("memory.available<200Mi")


def cache(
    uid: str, active_mib: int, *, inactive_mib: int = 0, used_mib: int = 1000, protected_mib: int = 0
) -> PodPageCache:
    return PodPageCache(uid, active_mib * MIB, inactive_mib * MIB, used_mib * MIB, protected_mib * MIB)


def steps(
    *caches: PodPageCache,
    available_mib: float = 125,
    kernel_mib: float | None = 470,
    limits: str = "memory.available<200Mi",
    since_last_s: float | None = None,
) -> list[tuple[str, int, int]]:
    (threshold,) = thresholds(limits)
    reading = read(threshold.signal.value, available_mib, kernel_mib=kernel_mib)
    found = plan_cache_reclaim(threshold, reading, caches, since_last_s=since_last_s)
    return [(each.uid, round(each.effect_bytes / MIB), round(each.size_bytes / MIB)) for each in found]


def test_largest_active_caches_are_reclaimed_until_the_shortage_is_covered() -> None:
    assert steps(cache("a", 100), cache("reader", 340)) == [("reader", 83, 83)]
    assert steps(cache("a", 100), cache("b", 120)) == [("b", 60, 60), ("a", 23, 23)]


def test_inactive_cache_is_requested_in_addition_once_per_pod() -> None:
    assert steps(cache("a", 600, inactive_mib=30), available_mib=20) == [("a", 128, 158), ("a", 70, 70)]


@pytest.mark.parametrize(
    ("one", "kernel_mib", "limits", "since_last_s"),
    [
        pytest.param(cache("a", 340), 190, "memory.available<200Mi", None, id="kernel also below the threshold"),
        pytest.param(cache("a", 340), None, "memory.available<200Mi", None, id="no estimate"),
        pytest.param(cache("a", 100), 470, "memory.available<200Mi", None, id="too little cache"),
        pytest.param(
            cache("a", 340, inactive_mib=600), 470, "memory.available<200Mi", None, id="too much inactive cache"
        ),
        pytest.param(cache("a", 340), 470, "memory.available<100Mi", None, id="threshold not met"),
        pytest.param(cache("a", 340), 470, "memory.psi.full>40", None, id="another signal"),
        pytest.param(cache("a", 340), 470, "memory.available<200Mi", 29.0, id="reclaimed shortly before"),
        pytest.param(
            cache("a", 340, used_mib=500, protected_mib=450), 470, "memory.available<200Mi", None, id="request"
        ),
    ],
)
def test_no_cache_is_reclaimed(
    one: PodPageCache, kernel_mib: float | None, limits: str, since_last_s: float | None
) -> None:
    assert steps(one, kernel_mib=kernel_mib, limits=limits, since_last_s=since_last_s) == []


def test_cache_is_reclaimed_again_after_a_while() -> None:
    assert steps(cache("a", 340), since_last_s=30.0) == [("a", 83, 83)]


sizes = st.integers(0, 2000)
caches = st.lists(st.tuples(sizes, sizes, sizes, sizes), max_size=6).map(
    lambda rows: [
        PodPageCache(f"pod-{n}", active * MIB, inactive * MIB, (active + other) * MIB, protected * MIB)
        for n, (active, inactive, other, protected) in enumerate(rows)
    ]
)


@given(caches, st.integers(0, 300), st.integers(0, 1500))
def test_plan_clears_the_threshold_and_keeps_what_is_protected_in_any_order_of_the_pods(
    pods: list[PodPageCache], available_mib: int, kernel_mib: int
) -> None:
    reading = read(available_mib=available_mib, kernel_mib=kernel_mib)
    found = plan_cache_reclaim(THRESHOLD, reading, pods, since_last_s=None)
    assert found == plan_cache_reclaim(THRESHOLD, reading, pods[::-1], since_last_s=None)
    missing = missing_bytes(THRESHOLD, reading, since_last_s=None)
    assert not found or sum(each.effect_bytes for each in found) >= missing > 0
    assert sum(each.effect_bytes for each in found) <= missing + 1
    for pod in pods:
        of_pod = [each for each in found if each.uid == pod.uid]
        effect = sum(each.effect_bytes for each in of_pod)
        assert all(0 < each.effect_bytes <= MAX_STEP_BYTES for each in of_pod)
        assert not of_pod or pod.working_set_bytes - effect >= pod.protected_bytes
        assert effect <= pod.active_bytes / 2
        assert sum(each.size_bytes for each in of_pod) <= effect + pod.inactive_bytes


@pytest.mark.parametrize(
    ("fell_mib", "stalled_ms", "took_s", "fault"),
    [
        pytest.param(60, 0, 0.5, "", id="as predicted"),
        pytest.param(50, 49, 0.5, "", id="half of the prediction, stall below a tenth"),
        pytest.param(49, 0, 0.5, "working set fell by", id="less than half"),
        pytest.param(-30, 0, 0.5, "working set fell by 0 of", id="grown"),
        pytest.param(100, 60, 0.5, "the pod waited 0.06 s", id="stall above a tenth"),
        pytest.param(100, 15, 0.01, "", id="short stall"),
    ],
)
def test_fault_of_a_step_of_100_mib(fell_mib: int, stalled_ms: int, took_s: float, fault: str) -> None:
    before = StepReading(500 * MIB, 7_000, 10.0)
    after = StepReading((500 - fell_mib) * MIB, 7_000 + stalled_ms * 1000, 10.0 + took_s)
    found = fault_of_step(CacheStep("a", 100 * MIB, 120 * MIB), before, after)
    assert found.startswith(fault)
    assert bool(found) == bool(fault)
