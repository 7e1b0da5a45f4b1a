"""Validation of signal readings: amounts, capacity and age."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from nodeagent.eviction.plan.thresholds import validate
from tests.unit.eviction.plan.cases import at, evaluated, read

if TYPE_CHECKING:
    from nodeagent.model.pressure import SignalReading


@pytest.mark.difference("impossible-reading")
@pytest.mark.parametrize(
    ("reading", "code", "cause"),
    [
        pytest.param(read(available=0, capacity=0), "no-capacity", "capacity is 0", id="no capacity"),
        pytest.param(read(available=11, capacity=10), "above-capacity", "11 exceeds the capacity 10", id="above"),
        pytest.param(read(available=-1), "negative", "is negative", id="negative"),
        pytest.param(read(capacity=-1), "negative", "is negative", id="negative capacity"),
        pytest.param(read(available=math.nan), "not-a-number", "nan of ", id="not a number"),
        pytest.param(read(capacity=math.inf), "not-a-number", "inf is not a finite number", id="infinite"),
        pytest.param(read(seconds=-1.01), "too-old", "read 1s ago", id="too old"),
        pytest.param(read(seconds=0.5), "from-the-future", "read 500ms after the decision", id="future"),
        pytest.param(read("memory.psi.some", available=101.0, capacity=100), "above-capacity", "101.0", id="stall"),
    ],
)
def test_impossible_reading_is_rejected_and_meets_no_threshold(reading: SignalReading, code: str, cause: str) -> None:
    readings = validate([reading], at(0), 1.0)
    assert not readings.accepted
    rejection = readings.rejected[reading.measurand]
    assert rejection.code == code
    assert cause in rejection.sentence
    evaluation = evaluated(reading)
    assert not evaluation.met
    assert evaluation.rejections == (rejection,) or code == "not-a-number"


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(read(available=0), id="none available"),
        pytest.param(read(available=10, capacity=10), id="all available"),
        pytest.param(read(seconds=-1), id="exactly the maximum age"),
        pytest.param(read("memory.psi.some", available=0.0, capacity=100), id="no stall"),
    ],
)
def test_possible_reading_is_accepted(reading: SignalReading) -> None:
    assert validate([reading], at(0), 1.0).accepted == {reading.measurand: reading}


@pytest.mark.difference("impossible-reading")
def test_two_different_readings_of_a_signal_contradict() -> None:
    first, second = read(available_mib=50), read(available_mib=500)
    for order in ([first, second], [second, first]):
        assert validate(order, at(0), 1.0).rejected[first.measurand].code == "contradictory"
    assert validate([first, first], at(0), 1.0).accepted == {first.measurand: first}


def test_age_of_a_reading_ignores_the_wall_clock() -> None:
    jumped = at(0.5, wall_s=-86400)
    assert validate([read()], jumped, 1.0).accepted
