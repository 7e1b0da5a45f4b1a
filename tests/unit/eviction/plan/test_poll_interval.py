"""Poll interval of the eviction signals."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.preview import FALLING_S, SOONEST_S, WHILE_MET_S, is_soon_exhausted, next_poll_s
from tests.unit.eviction.plan.cases import evaluated, read, thresholds

GIB_MIB = 1024.0


@pytest.mark.difference("poll-interval")
@pytest.mark.parametrize(
    ("available_mib", "expected_s"),
    [
        pytest.param(8 * GIB_MIB, 10.0, id="no pressure"),
        pytest.param(100 + 512, 2.0, id="two seconds at the expected rate"),
        pytest.param(100 + 256, 1.0, id="one second"),
        pytest.param(101, SOONEST_S, id="very near"),
        pytest.param(100, SOONEST_S, id="at the threshold, not met"),
        pytest.param(99, WHILE_MET_S, id="met"),
    ],
)
def test_interval_is_shorter_near_a_threshold(available_mib: float, expected_s: float) -> None:
    found = evaluated(read(available_mib=available_mib, capacity_mib=16 * GIB_MIB))
    assert next_poll_s(found, None, interval_s=10.0) == pytest.approx(expected_s)


def test_measured_decrease_counts_double() -> None:
    previous = evaluated(read(available_mib=9 * GIB_MIB, capacity_mib=16 * GIB_MIB))
    now = evaluated(read(available_mib=4196, capacity_mib=16 * GIB_MIB, seconds=1), seconds=1)
    assert next_poll_s(now, None, interval_s=10.0) == 10.0
    assert next_poll_s(now, previous, interval_s=10.0) == pytest.approx(4096 / (2 * (9 * GIB_MIB - 4196)))


@pytest.mark.parametrize(
    ("decrease_mib", "expected_s"),
    [
        pytest.param(0, SOONEST_S, id="steady"),
        pytest.param(20, SOONEST_S, id="met in 0.3 s at the measured rate"),
        pytest.param(36, 30 / 360, id="met in 0.17 s"),
        pytest.param(400, FALLING_S, id="met in 15 ms"),
        pytest.param(-400, SOONEST_S, id="increasing"),
    ],
)
def test_interval_is_shortest_if_the_measured_rate_consumes_the_distance(
    decrease_mib: float, expected_s: float
) -> None:
    previous = evaluated(read(available_mib=130 + decrease_mib))
    now = evaluated(read(available_mib=130, seconds=0.2), seconds=0.2)
    assert next_poll_s(now, previous, interval_s=10.0) == pytest.approx(expected_s)


def test_interval_ends_with_the_grace_period() -> None:
    soft = thresholds("", soft="memory.available<1Gi", soft_grace_period="memory.available=300ms")
    found = evaluated(read(available_mib=500), limits=soft)
    assert next_poll_s(found, None, interval_s=10.0) == pytest.approx(0.3)


def test_stall_signal_is_read_each_second_from_half_its_threshold() -> None:
    limits = thresholds("memory.psi.some>40%")
    for stalled, expected_s in ((10.0, 10.0), (25.0, 1.0), (50.0, 1.0)):
        found = evaluated(read("memory.psi.some", available=stalled, capacity=100.0), limits=limits)
        assert next_poll_s(found, None, interval_s=10.0) == expected_s


def test_unread_signal_does_not_shorten_the_interval() -> None:
    assert next_poll_s(evaluated(), None, interval_s=10.0) == 10.0


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.01, 60), st.floats(1, 600))
def test_interval_is_within_bounds_and_monotone(
    available: float, more: float, elapsed_s: float, interval_s: float
) -> None:
    capacity = 4e6
    previous = evaluated(read(available_mib=available + more, capacity_mib=capacity))
    now = evaluated(read(available_mib=available, capacity_mib=capacity, seconds=elapsed_s), seconds=elapsed_s)
    farther = evaluated(read(available_mib=available + 100, capacity_mib=capacity))
    wait_s = next_poll_s(now, previous, interval_s=interval_s)
    assert FALLING_S <= wait_s <= interval_s
    if available >= 100:
        assert next_poll_s(farther, None, interval_s=interval_s) >= next_poll_s(now, None, interval_s=interval_s)


@pytest.mark.parametrize(
    ("limits", "before_mib", "available_mib", "expected"),
    [
        ({"hard": "imagefs.available<100Mi"}, 200, 90, True),
        ({"hard": "imagefs.available<100Mi"}, 99, 90, False),  # exhausted after ten seconds
        ({"hard": "imagefs.available<100Mi"}, 100, 90, True),
        ({"hard": "imagefs.available<100Mi"}, 90, 90, False),
        ({"hard": "imagefs.available<100Mi"}, 80, 90, False),
        ({"hard": "", "soft": "imagefs.available<100Mi", "soft_grace_period": "imagefs.available=1m"}, 200, 90, False),
    ],
)
def test_filesystem_is_soon_exhausted_at_the_measured_rate(
    limits: dict[str, str], before_mib: float, available_mib: float, expected: bool
) -> None:
    parsed = thresholds(**limits)
    previous = evaluated(read("imagefs.available", before_mib), limits=parsed)
    now = evaluated(read("imagefs.available", available_mib, seconds=1.0), limits=parsed, seconds=1.0)
    assert is_soon_exhausted(now.statuses[0], previous) is expected
    assert not is_soon_exhausted(now.statuses[0], None)


def test_memory_is_not_a_filesystem_that_is_soon_exhausted() -> None:
    previous, now = evaluated(read(available_mib=500)), evaluated(read(available_mib=50, seconds=1.0), seconds=1.0)
    assert not is_soon_exhausted(now.statuses[0], previous)
