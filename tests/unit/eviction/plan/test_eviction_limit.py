"""Limits of evictions per window, and the order of storage limits and thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.reclaim import reclaim_steps
from nodeagent.eviction.plan.state import EvictionState, record_eviction
from nodeagent.model.decision import ReasonCode
from nodeagent.model.pressure import EmptyDirFacts
from nodeagent.record import replace
from tests.unit.eviction.plan.cases import (
    EMPTY_STATE,
    SINGLE,
    START_S,
    at,
    disk,
    known,
    planned,
    pod,
    read,
    reasons,
    thresholds,
    victim,
)

if TYPE_CHECKING:
    from nodeagent.model.pressure import SignalReading

POLICY = EvictionPolicy(max_evictions_per_window=2, max_limit_evictions_per_window=2, eviction_window_s=60)
GREEDY = pod("greedy", memory=1, empty_dirs=(EmptyDirFacts("tmp", 20, 10),))
STATIC = pod("static", memory=900, static=known(value=True))
STALLED = read("io.psi.some", available=99.0, capacity=100)
DISK_SHORT = read("nodefs.available", 5)
EVERY_STEP = frozenset(reclaim_steps(DISK_SHORT.signal, SINGLE))


def evicted(*seconds: float, storage_limit: bool = False) -> EvictionState:
    """Return the eviction state after evictions at these seconds."""
    state = EMPTY_STATE
    for each in seconds:
        state = record_eviction(state, at(each), storage_limit=storage_limit)
    return state


@pytest.mark.parametrize(
    ("limits", "readings", "state"),
    [
        pytest.param("io.psi.some>50", [STALLED], EMPTY_STATE, id="threshold that no eviction relieves"),
        pytest.param("memory.available<100Mi", [read()], EMPTY_STATE, id="memory without candidates"),
        pytest.param(
            "memory.available<100Mi,io.psi.some>50,pid.available<10",
            [read(), STALLED, read("pid.available", available=5, capacity=1000)],
            EMPTY_STATE,
            id="three thresholds without a victim",
        ),
        pytest.param("pid.available<10", [read("pid.available", available=5)], evicted(-20, -9), id="suspended"),
    ],
)
def test_storage_limit_does_not_starve_behind_a_threshold_without_a_victim(
    limits: str, readings: list[SignalReading], state: EvictionState
) -> None:
    candidates = replace(GREEDY, memory_request_bytes=known(None)), STATIC  # no victim for memory: request unknown
    if "pid" in limits:
        candidates = tuple(replace(each, usage=replace(each.usage, pids=None)) for each in candidates)  # type: ignore[type-var, assignment]
    plan = planned(candidates, *readings, limits=thresholds(limits), policy=POLICY, state=state)
    assert victim(plan) == "greedy"
    assert plan.victim is not None
    assert plan.victim.signal == "emptydirfs.limit"


@pytest.mark.difference("storage-limit-evictions")
def test_storage_limit_does_not_precede_a_hard_threshold_with_a_victim() -> None:
    assert victim(planned([GREEDY, pod("hog", memory=900)], policy=POLICY)) == "hog"


def test_storage_limit_does_not_precede_a_hard_threshold_behind_one_without_a_victim() -> None:
    limits = thresholds("memory.available<100Mi,nodefs.available<10%")
    writer = pod("writer", writable=disk(900), memory_request_bytes=known(None))
    pods = [replace(GREEDY, memory_request_bytes=known(None)), writer]
    first = planned(pods, read(), DISK_SHORT, limits=limits)
    assert (first.victim, len(first.reclaim)) == (None, 3)
    then = planned(pods, read(), DISK_SHORT, limits=limits, reclaimed=EVERY_STEP)
    assert victim(then) == "writer"
    assert [each.text for each in then.without_candidate] == ["memory.available<100Mi"]


def test_unread_pods_do_not_pass_over_the_most_urgent_threshold() -> None:
    limits = thresholds("memory.available<100Mi,nodefs.available<10%")
    plan = planned(None, read(), DISK_SHORT, limits=limits)  # type: ignore[arg-type]
    assert plan.selected is not None
    assert plan.selected.threshold.text == "memory.available<100Mi"


def test_windows_of_storage_limits_and_pressure_are_separate() -> None:
    by_limit, by_pressure = evicted(-20, -10, storage_limit=True), evicted(-20, -10)
    calm = read(available_mib=900)
    assert victim(planned([GREEDY], calm, policy=POLICY, state=by_pressure)) == "greedy"
    limited = planned([GREEDY], calm, policy=POLICY, state=by_limit)
    assert limited.victim is None
    assert limited.plan.warnings == ("no pod is evicted: 2 pod(s) evicted in the last 1m, limit 2",)
    pids = read("pid.available", available=5, capacity=1000)
    for state, expected in ((by_limit, "web"), (by_pressure, None)):
        plan = planned([pod()], pids, limits=thresholds("pid.available<10"), policy=POLICY, state=state)
        assert victim(plan) == expected
    assert victim(planned([GREEDY], calm, policy=POLICY, state=evicted(-61, -60, -59, storage_limit=True))) == "greedy"


def test_eviction_limit_does_not_stop_reclaim() -> None:
    limits = thresholds("nodefs.available<10%")
    plan = planned([pod()], DISK_SHORT, limits=limits, policy=POLICY, state=evicted(-20, -10))
    assert len(plan.reclaim) == 3
    plan = planned([pod()], DISK_SHORT, limits=limits, policy=POLICY, state=evicted(-20, -10), reclaimed=EVERY_STEP)
    assert reasons(plan) == {"web": "eviction-limit"}
    assert plan.is_hindered_by(ReasonCode.EVICTION_LIMIT)


@pytest.mark.difference("eviction-limit")
@pytest.mark.parametrize(
    ("limits", "reading", "last_s", "code"),
    [
        pytest.param("memory.available<100Mi", read(), -10.0, "low-on-resource", id="memory, spaced"),
        pytest.param("memory.available<100Mi", read(), -9.9, "eviction-slowed", id="memory, too soon"),
        pytest.param(
            "allocatableMemory.available<100Mi",
            read("allocatableMemory.available"),
            -10.0,
            "low-on-resource",
            id="allocatable memory",
        ),
        pytest.param(
            "memory.psi.full>40",
            read("memory.psi.full", available=99.0, capacity=100),
            -10.0,
            "eviction-limit",
            id="memory stall",
        ),
    ],
)
def test_hard_memory_threshold_is_slowed_and_never_suspended(
    limits: str, reading: SignalReading, last_s: float, code: str
) -> None:
    plan = planned([pod()], reading, limits=thresholds(limits), policy=POLICY, state=evicted(-30, -20, last_s))
    assert reasons(plan) == {"web": code}
    assert plan.is_hindered_by(ReasonCode.EVICTION_SLOWED) is (code == "eviction-slowed")


@pytest.mark.difference("eviction-limit")
def test_soft_memory_threshold_is_suspended_by_the_limit() -> None:
    soft = thresholds("", soft="memory.available<100Mi", soft_grace_period="memory.available=1ms")
    state = replace(evicted(-30, -20), first_met_s={soft[0]: START_S - 1})
    assert reasons(planned([pod()], limits=soft, policy=POLICY, state=state)) == {"web": "eviction-limit"}


def test_storage_limit_waits_for_the_spaced_eviction_of_a_hard_memory_threshold() -> None:
    plan = planned([GREEDY, pod("hog", memory=900)], policy=POLICY, state=evicted(-30, -20, -5))
    assert plan.victim is None
    assert plan.is_hindered_by(ReasonCode.EVICTION_SLOWED)


@given(
    st.lists(st.floats(-600, 0), max_size=20),
    st.lists(st.floats(-600, 0), max_size=3),
    st.sampled_from(["memory.available<100Mi", "nodefs.available<10%"]),
)
def test_no_number_of_storage_limit_evictions_changes_the_victim_of_a_threshold(
    by_limit: list[float], by_pressure: list[float], limits: str
) -> None:
    state = evicted(*by_pressure)
    after = replace(state, limit_evicted_s=tuple(START_S + each for each in by_limit))
    pods = [GREEDY, pod("hog", memory=900, writable=disk(900))]
    expected, found = (
        planned(pods, read(), DISK_SHORT, limits=thresholds(limits), policy=POLICY, state=each, reclaimed=EVERY_STEP)
        for each in (state, after)
    )
    if victim(expected) == "hog":
        assert victim(found) == "hog"
