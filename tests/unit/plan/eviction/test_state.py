"""Thresholds over time: grace, hysteresis, conditions, and readings that are not believed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.pressure import NodeCondition, Observation, Signal
from nodeagent.plan.eviction.state import Assessment, EvictionState, assess, still_short, why_refused
from nodeagent.plan.eviction.thresholds import EvictionPolicy, parse_thresholds
from tests.unit.builders import MIB, NOW

MEMORY = "memory.available"
POLICY = EvictionPolicy(
    parse_thresholds({MEMORY: "100Mi"}, {MEMORY: "300Mi"}, {MEMORY: "60s"}, {MEMORY: "50Mi"}), pressure_transition_s=300
)


def memory(available_mib: float, at_s: float = 0) -> Observation:
    return Observation(Signal.MEMORY_AVAILABLE, available_mib * MIB, 4096 * MIB, NOW + timedelta(seconds=at_s))


class Node:
    """Passes one after the other; the clocks move together unless told otherwise."""

    def __init__(self, policy: EvictionPolicy = POLICY) -> None:
        self.policy = policy
        self.state = EvictionState()

    def at(self, seconds: float, *observations: Observation) -> Assessment:
        now = NOW + timedelta(seconds=seconds)
        seen = [replace(each, observed_at=now) for each in observations]
        found, self.state = assess(self.state, self.policy, seen, now=now, monotonic_s=1000 + seconds)
        return found


def texts(found: Assessment) -> list[str]:
    return [each.text for each in found.acting]


@pytest.mark.parametrize(("mib", "acting"), [(100, []), (99.99, ["memory.available<100Mi"]), (4000, [])])
def test_a_hard_threshold_acts_at_once_and_strictly(mib: float, acting: list[str]) -> None:
    assert texts(Node().at(0, memory(mib))) == acting


def test_a_soft_threshold_waits_for_its_grace_without_a_gap() -> None:
    node = Node()
    assert texts(node.at(0, memory(200))) == []
    assert texts(node.at(59, memory(200))) == []
    assert texts(node.at(59.5, memory(301))) == []
    assert texts(node.at(60, memory(200))) == []
    assert texts(node.at(119, memory(200))) == []
    assert texts(node.at(120, memory(200))) == ["memory.available<300Mi"]


def test_once_acted_on_the_minimum_reclaim_is_asked_for_too() -> None:
    node = Node()
    assert texts(node.at(0, memory(90))) == ["memory.available<100Mi"]
    assert texts(node.at(10, memory(149))) == ["memory.available<100Mi"]
    assert texts(node.at(20, memory(150))) == []
    assert texts(node.at(30, memory(149))) == []


def test_the_condition_outlasts_its_cause_by_the_transition_period() -> None:
    node = Node()
    assert node.at(0, memory(200)).conditions == {NodeCondition.MEMORY_PRESSURE}
    assert node.at(299, memory(4000)).conditions == {NodeCondition.MEMORY_PRESSURE}
    assert node.at(300, memory(4000)).conditions == frozenset()


def test_one_sample_never_acts_twice() -> None:
    state = EvictionState()
    seen = [memory(90)]
    found, state = assess(state, POLICY, seen, now=NOW, monotonic_s=1)
    assert texts(found) == ["memory.available<100Mi"]
    found, state = assess(state, POLICY, seen, now=NOW + timedelta(seconds=0.5), monotonic_s=1.5)
    assert (texts(found), len(found.met)) == ([], 2)


def test_memory_goes_first_then_hard_before_soft() -> None:
    hard = {"nodefs.available": "10%", "pid.available": "5%", MEMORY: "100Mi"}
    node = Node(EvictionPolicy(parse_thresholds(hard, {MEMORY: "300Mi"}, {MEMORY: "0s"}, {})))
    low = [Observation(signal, 1, 1000, NOW) for signal in (Signal.PID_AVAILABLE, Signal.NODEFS_AVAILABLE)]
    found = node.at(0, *low, memory(50))
    assert [each.signal.value for each in found.acting] == [MEMORY, MEMORY, "nodefs.available", "pid.available"]
    assert found.conditions == set(NodeCondition)


def test_a_clock_that_is_set_back_neither_evicts_nor_shortens_a_grace() -> None:
    node = Node()
    node.at(0, memory(200))
    found, node.state = assess(node.state, POLICY, [memory(200, -3600)], now=NOW - timedelta(hours=1), monotonic_s=1010)
    assert texts(found) == []
    assert texts(node.at(59, memory(200))) == []
    assert texts(node.at(60, memory(200))) == ["memory.available<300Mi"]


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (Observation(Signal.MEMORY_AVAILABLE, 0, 0, NOW), "capacity is 0"),
        (Observation(Signal.MEMORY_AVAILABLE, -1, 10, NOW), "available is -1"),
        (Observation(Signal.MEMORY_AVAILABLE, 11, 10, NOW), "more than the capacity"),
        (memory(1, -1.5), "1.5 s old"),
        (memory(1, 1.5), "in the future"),
        (memory(1, -1), ""),
    ],
)
def test_readings_that_cannot_be_are_refused(observation: Observation, said: str) -> None:
    assert said in why_refused(observation, NOW)
    assert bool(why_refused(observation, NOW)) is bool(said)


def test_a_refused_reading_neither_starts_nor_ends_anything() -> None:
    node = Node()
    broken = Observation(Signal.MEMORY_AVAILABLE, 0, 0, NOW)
    assert node.at(0, broken).met == ()
    node.at(10, memory(200))
    found = node.at(20, broken)
    assert ([each.text for each in found.met], texts(found)) == (["memory.available<300Mi"], [])
    assert found.refused == {Signal.MEMORY_AVAILABLE: "capacity is 0"}
    assert texts(node.at(70, memory(200))) == ["memory.available<300Mi"]


def test_what_reclaim_has_to_reach() -> None:
    assert [each.text for each in still_short(POLICY, [memory(149)], NOW)] == [
        "memory.available<100Mi",
        "memory.available<300Mi",
    ]
    assert [each.text for each in still_short(POLICY, [memory(150)], NOW)] == ["memory.available<300Mi"]
    assert still_short(POLICY, [memory(350)], NOW) == ()
    assert len(still_short(POLICY, [], NOW)) == 2


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 1000)), max_size=30))
def test_nothing_acts_that_is_not_met_now_and_no_grace_is_cut_short(steps: list[tuple[float, float]]) -> None:
    node, at_s = Node(), 0.0
    met_since: float | None = None
    for step_s, mib in steps:
        at_s += step_s
        found = node.at(at_s, memory(mib))
        assert set(found.acting) <= set(found.met)
        soft = [each for each in found.met if not each.hard]
        met_since = None if not soft else at_s if met_since is None else met_since
        for each in found.acting:
            if not each.hard:
                assert met_since is not None
                assert at_s - met_since >= 60 - 1e-6
