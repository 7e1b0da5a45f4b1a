"""``doctor`` check of memory thresholds against the kernel's estimate of available memory."""

from __future__ import annotations

import pytest

from nodeagent.plan.memory_checks import check_cache_reclaim, check_memory_thresholds
from nodeagent.plan.node_checks import Verdict
from tests.unit.builders import MIB
from tests.unit.plan.eviction.cases import read, thresholds

SOFT = {"soft": "memory.available<105Mi", "soft_grace_period": "memory.available=1m"}


@pytest.mark.parametrize(
    ("soft", "kernel_estimate", "kernel_mib", "verdict", "evidence"),
    [
        pytest.param({}, False, 8, Verdict.WARNING, "memory.available<100Mi is not met", id="formula too late"),
        pytest.param({}, True, 8, Verdict.OK, "MemAvailable 8.00 MiB", id="kernel's estimate counts"),
        pytest.param(SOFT, True, 8, Verdict.WARNING, "memory.available<105Mi is not met", id="soft counts the formula"),
        pytest.param({}, False, 100, Verdict.OK, "vm.min_free_kbytes 44.0 MiB", id="distance below the threshold"),
        pytest.param({}, False, 400, Verdict.OK, "MemAvailable 400 MiB", id="kernel above the formula"),
        pytest.param({}, False, None, Verdict.SKIPPED, "no MemAvailable", id="no estimate"),
    ],
)
def test_threshold_below_the_distance_from_the_kernels_estimate_is_reported(
    soft: dict[str, str], kernel_mib: float | None, verdict: Verdict, evidence: str, *, kernel_estimate: bool
) -> None:
    found = check_memory_thresholds(
        thresholds("memory.available<100Mi", **soft),
        read(available_mib=117, kernel_mib=kernel_mib),
        kernel_estimate=kernel_estimate,
        min_free_bytes=44 * MIB,
    )
    assert found.verdict is verdict
    assert evidence in found.evidence
    assert bool(found.fix) is (verdict is Verdict.WARNING)


@pytest.mark.parametrize(
    ("off", "writable", "verdict", "fix"),
    [
        ("", True, Verdict.OK, False),
        ("", False, Verdict.SKIPPED, True),
        ("", None, Verdict.SKIPPED, False),
        ("eviction.reclaim = false", None, Verdict.SKIPPED, False),
    ],
)
def test_page_cache_reclaim_is_checked_against_the_unit(
    off: str, verdict: Verdict, *, writable: bool | None, fix: bool
) -> None:
    found = check_cache_reclaim(off, writable=writable)
    assert (found.verdict, bool(found.fix)) == (verdict, fix)
