"""Which readings may decide anything."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from nodeagent.plan.eviction.observations import judge
from tests.unit.plan.eviction.cases import at, evaluated, read

if TYPE_CHECKING:
    from nodeagent.model.pressure import Observation


@pytest.mark.parametrize(
    ("reading", "code", "words"),
    [
        pytest.param(read(available=0, capacity=0), "no-capacity", "the capacity is 0", id="no capacity"),
        pytest.param(read(available=11, capacity=10), "above-capacity", "11 is more than the capacity 10", id="above"),
        pytest.param(read(available=-1), "negative", "is below zero", id="negative"),
        pytest.param(read(capacity=-1), "negative", "is below zero", id="negative capacity"),
        pytest.param(read(available=math.nan), "not-a-number", "nan of ", id="not a number"),
        pytest.param(read(capacity=math.inf), "not-a-number", "inf is no reading", id="infinite"),
        pytest.param(read(seconds=-1.01), "too-old", "it was read 1s ago", id="too old"),
        pytest.param(read(seconds=0.5), "from-the-future", "it was read 500ms after the decision", id="future"),
        pytest.param(read("memory.psi.some", available=101.0, capacity=100), "above-capacity", "101.0", id="stall"),
    ],
)
def test_what_cannot_be_true_is_refused_and_meets_nothing(reading: Observation, code: str, words: str) -> None:
    readings = judge([reading], at(0), 1.0)
    assert not readings.trusted
    refusal = readings.refused[reading.signal]
    assert refusal.code == code
    assert words in refusal.sentence
    evaluation = evaluated(reading)
    assert not evaluation.met
    assert evaluation.refusals == (refusal,) or code == "not-a-number"


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(read(available=0), id="nothing left"),
        pytest.param(read(available=10, capacity=10), id="all left"),
        pytest.param(read(seconds=-1), id="exactly the greatest age"),
        pytest.param(read("memory.psi.some", available=0.0, capacity=100), id="no stall"),
    ],
)
def test_what_can_be_true_is_trusted(reading: Observation) -> None:
    assert judge([reading], at(0), 1.0).trusted == {reading.signal: reading}


def test_two_readings_of_a_signal_contradict_unless_they_are_one() -> None:
    first, second = read(available_mib=50), read(available_mib=500)
    for order in ([first, second], [second, first]):
        assert judge(order, at(0), 1.0).refused[first.signal].code == "contradictory"
    assert judge([first, first], at(0), 1.0).trusted == {first.signal: first}


def test_the_wall_clock_is_of_no_account() -> None:
    jumped = at(0.5, wall_s=-86400)
    assert judge([read()], jumped, 1.0).trusted
