"""Threshold evaluation over several passes: grace periods, minimum reclaim, conditions, clock steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.preview import next_poll_s
from nodeagent.eviction.plan.state import Evaluation, EvictionState, evaluate, record_eviction
from nodeagent.eviction.plan.thresholds import MEANINGS
from nodeagent.model.pressure import NodeCondition, Signal, SignalReading
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import EMPTY_STATE, POLICY, at, evaluated, read, thresholds

if TYPE_CHECKING:
    from nodeagent.eviction.plan.thresholds import Threshold

SOFT = thresholds("", soft="memory.available<100Mi", soft_grace_period="memory.available=90s")
RECLAIM = thresholds(minimum_reclaim="memory.available=50Mi")


def acting(evaluation: Evaluation) -> list[str]:
    return [each.threshold.text for each in evaluation.acting]


def active(evaluation: Evaluation) -> set[str]:
    return {each.condition.value for each in evaluation.conditions if each.active}


def run(*passes: tuple[float, float], limits: tuple[Threshold, ...] = SOFT) -> list[bool]:
    """Return for each pass whether a threshold requires action.

    Args:
        passes: time in seconds and available memory in MiB of each pass.
        limits: thresholds to evaluate.
    """
    state, acted = EMPTY_STATE, []
    for seconds, available_mib in passes:
        found = evaluated(
            read(available_mib=available_mib, seconds=seconds), state=state, limits=limits, seconds=seconds
        )
        acted.append(bool(found.acting))
        state = found.state
    return acted


@pytest.mark.parametrize(
    ("available", "met"), [(100 * 2**20 - 1, True), (100 * 2**20, False)], ids=["below", "exactly at"]
)
def test_threshold_is_met_strictly_below_its_limit(available: int, met: bool) -> None:
    assert bool(evaluated(read(available=available)).acting) is met


@pytest.mark.difference("further-signals")
@pytest.mark.parametrize(("percent", "met"), [(40.01, True), (40.0, False)], ids=["above", "exactly at"])
def test_stall_threshold_is_met_strictly_above_its_limit(percent: float, met: bool) -> None:
    found = evaluated(read("memory.psi.some", available=percent, capacity=100), limits=thresholds("memory.psi.some>40"))
    assert bool(found.acting) is met


@pytest.mark.parametrize(
    ("passes", "acted"),
    [
        pytest.param([(0, 50), (89.9, 50), (90, 50)], [False, False, True], id="after the grace period"),
        pytest.param([(0, 50), (60, 150), (100, 50), (189, 50), (190, 50)], [False] * 4 + [True], id="restarts"),
        pytest.param([(0, 50), (90, 50), (100, 50)], [False, True, True], id="acted on again"),
        pytest.param([(0, 50), (90, 50), (95, 150), (100, 50)], [False, True, False, False], id="oscillation"),
        pytest.param([(0, 50), (-500, 50), (-411, 50), (-410, 50)], [False] * 3 + [True], id="clock back"),
        pytest.param(
            [(0, 50), (90, 50), (-500, 50), (-490, 50)], [False, True, False, False], id="clock set back when due"
        ),
    ],
)
def test_threshold_is_acted_on_after_its_grace_period(passes: list[tuple[float, float]], acted: list[bool]) -> None:
    assert run(*passes) == acted


@pytest.mark.parametrize(
    ("passes", "acted"),
    [
        pytest.param([(0, 120)], [False], id="not before it was acted on"),
        pytest.param([(0, 99), (10, 120), (20, 149.9), (30, 150)], [True, True, True, False], id="until cleared"),
        pytest.param([(0, 99), (10, 150), (20, 120)], [True, False, False], id="not after it was cleared"),
    ],
)
def test_threshold_is_cleared_by_its_minimum_reclaim(passes: list[tuple[float, float]], acted: list[bool]) -> None:
    assert run(*passes, limits=RECLAIM) == acted


def test_minimum_reclaim_does_not_count_during_the_grace_period() -> None:
    soft = thresholds(
        "",
        soft="memory.available<100Mi",
        soft_grace_period="memory.available=90s",
        minimum_reclaim="memory.available=50Mi",
    )
    assert run((0, 99), (50, 120), (60, 99), (149, 99), (150, 99), (160, 120), limits=soft) == [False] * 4 + [True] * 2


def test_reading_is_acted_on_once() -> None:
    first = evaluated(read())
    again = evaluated(read(), state=first.state, seconds=0.5)
    assert (acting(first), acting(again)) == (["memory.available<100Mi"], [])
    assert again.met
    assert active(again) == {"MemoryPressure"}


def test_grace_period_restarts_without_a_reading_and_continues_after_a_rejected_one() -> None:
    start = evaluated(read(), limits=SOFT)
    absent = evaluated(state=start.state, limits=SOFT, seconds=50)
    rejected = evaluated(read(seconds=10), state=start.state, limits=SOFT, seconds=50)
    assert not absent.met
    assert not rejected.met
    later = [
        evaluated(read(seconds=95), state=each.state, limits=SOFT, seconds=95).acting != ()
        for each in (absent, rejected)
    ]
    assert later == [False, True]


def test_rejected_reading_does_not_clear_the_minimum_reclaim() -> None:
    start = evaluated(read(available_mib=90), limits=RECLAIM)
    rejected = evaluated(read(available=-1, seconds=10), state=start.state, limits=RECLAIM, seconds=10)
    after = evaluated(read(available_mib=120, seconds=20), state=rejected.state, limits=RECLAIM, seconds=20)
    assert (acting(rejected), acting(after)) == ([], ["memory.available<100Mi"])


@pytest.mark.parametrize(("seconds", "is_active"), [(10, True), (309.9, True), (310, False)])
def test_condition_remains_active_for_the_transition_period(seconds: float, is_active: bool) -> None:
    first = evaluated(read())
    second = evaluated(read(seconds=10), state=first.state, seconds=10)
    later = evaluated(read(available_mib=500, seconds=seconds), state=second.state, seconds=seconds)
    assert active(later) == ({"MemoryPressure"} if is_active else set())
    assert later.conditions[0].changed is (not is_active)


def test_condition_is_active_during_the_grace_period_and_marks_changes() -> None:
    first = evaluated(read(), limits=SOFT)
    assert active(first) == {"MemoryPressure"}
    assert [each.changed for each in first.conditions] == [True, False, False]
    second = evaluated(read(seconds=10), state=first.state, limits=SOFT, seconds=10)
    assert not any(each.changed for each in second.conditions)


def test_clock_step_back_ends_no_condition() -> None:
    first = evaluated(read())
    back = evaluated(read(available_mib=500, seconds=-5000), state=first.state, seconds=-5000)
    assert active(back) == {"MemoryPressure"}
    later = evaluated(read(available_mib=500, seconds=-4701), state=back.state, seconds=-4701)
    over = evaluated(read(available_mib=500, seconds=-4700), state=later.state, seconds=-4700)
    assert (active(later), active(over)) == ({"MemoryPressure"}, set())


def test_condition_without_a_transition_period_is_active_while_observed() -> None:
    at_once = EvictionPolicy(pressure_transition_period_s=0)
    first = evaluated(read(), policy=at_once)
    after = evaluated(read(available_mib=500, seconds=1), state=first.state, policy=at_once, seconds=1)
    assert (active(first), active(after)) == ({"MemoryPressure"}, set())


@pytest.mark.difference("further-signals")
@pytest.mark.parametrize(
    ("signal", "condition", "resource"),
    [
        ("memory.available", "MemoryPressure", "memory"),
        ("allocatableMemory.available", "MemoryPressure", "memory"),
        ("memory.psi.full", "MemoryPressure", "memory"),
        ("memory.psi.some", "MemoryPressure", "memory"),
        ("swap.free", "MemoryPressure", "memory"),
        ("nodefs.available", "DiskPressure", "ephemeral-storage"),
        ("nodefs.inodesFree", "DiskPressure", "inodes"),
        ("imagefs.available", "DiskPressure", "ephemeral-storage"),
        ("imagefs.inodesFree", "DiskPressure", "inodes"),
        ("containerfs.available", "DiskPressure", "ephemeral-storage"),
        ("containerfs.inodesFree", "DiskPressure", "inodes"),
        ("pid.available", "PIDPressure", "pids"),
        ("io.psi.full", None, None),
        ("io.psi.some", None, None),
    ],
)
def test_each_signal_has_its_condition_and_resource(signal: str, condition: str | None, resource: str | None) -> None:
    meaning = MEANINGS[Signal(signal)]
    assert (meaning.condition, meaning.resource) == (condition, resource)
    stalls = ".psi." in signal
    found = evaluated(
        SignalReading(Signal(signal), 99 if stalls else 1, 100, at(0)),
        limits=thresholds(f"{signal}>50" if stalls else f"{signal}<50"),
    )
    assert active(found) == ({condition} if condition else set())
    assert len(found.acting) == 1


def test_threshold_status_has_limit_and_remaining_grace_period() -> None:
    start = evaluated(read(), limits=SOFT)
    (status,) = evaluated(read(seconds=30), state=start.state, limits=SOFT, seconds=30).statuses
    assert (status.limit, status.met_for_s, status.grace_left_s) == (100 * 2**20, 30, 60)
    assert (status.met, status.due, status.acting) == (True, False, False)


@pytest.mark.parametrize(
    ("limit", "reclaim", "reading", "shortfall"),
    [
        ("nodefs.available<100Mi", "", 40, 60 * MIB),
        ("nodefs.available<100Mi", "nodefs.available=20Mi", 40, 80 * MIB),
        ("nodefs.available<100Mi", "nodefs.available=20Mi", 120, 0),
        ("nodefs.available<100Mi", "", 200, 0),
        ("nodefs.available<10%", "nodefs.available=5%", 40, 110 * MIB),
        ("memory.psi.some>6%", "", 24 / MIB, 18),
    ],
)
def test_shortfall_of_a_threshold_includes_its_minimum_reclaim(
    limit: str, reclaim: str, reading: float, shortfall: float
) -> None:
    limits = thresholds(limit, minimum_reclaim=reclaim)
    signal = limits[0].signal.value
    (status,) = evaluated(read(signal, reading), limits=limits).statuses
    assert status.shortfall == pytest.approx(shortfall)


def test_shortfall_of_a_threshold_without_a_reading_is_unknown() -> None:
    (status,) = evaluated(limits=thresholds()).statuses
    assert status.shortfall is None


def test_removed_thresholds_are_dropped_from_the_state() -> None:
    first = evaluated(read())
    second = evaluated(read(seconds=1), state=first.state, limits=SOFT, seconds=1)
    assert set(second.state.first_met_s) == set(SOFT)
    assert second.state.acted_on == frozenset()


def test_evictions_are_kept_for_the_window() -> None:
    policy = EvictionPolicy(eviction_window_s=60)
    state = record_eviction(record_eviction(EMPTY_STATE, at(0)), at(30))
    assert len(policy.within_window(state.evicted_s, at(59))) == 2
    after = evaluate(state, [], (), policy, now=at(60)).state
    assert after.evicted_s == (at(30).monotonic_s,)


def test_evaluation_does_not_change_its_input() -> None:
    state = EvictionState(first_met_s={}, condition_observed_s={}, last_read_s={})
    before = replace(state)
    evaluate(state, [read()], thresholds(), POLICY, now=at(0))
    assert state == before
    assert NodeCondition.MEMORY_PRESSURE not in state.condition_observed_s


def test_condition_in_its_transition_period_has_not_changed() -> None:
    state, changes = EMPTY_STATE, []
    for seconds, available_mib in ((0, 50), (100, 500), (200, 500), (300, 500), (400, 500)):
        found = evaluated(read(available_mib=available_mib, seconds=seconds), state=state, seconds=seconds)
        changes.append(found.conditions[0].changed)
        state = found.state
    assert changes == [True, False, False, True, False]


def test_reading_is_not_acted_on_again_after_a_pass_without_one() -> None:
    first = evaluated(read())
    between = evaluated(state=first.state, seconds=0.2)
    assert not evaluated(read(), state=between.state, seconds=0.5).acting


def test_decline_of_the_lower_estimate_is_the_measured_rate() -> None:
    first = evaluated(read(available_mib=900, kernel_mib=500, seconds=0))
    falling = evaluated(read(available_mib=900, kernel_mib=300, seconds=0.5), seconds=0.5)
    assert next_poll_s(falling, first, interval_s=10) == pytest.approx(200 / (2 * 400))
