"""Which readings may decide anything."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodeagent.model.pressure import Moment, Observation, Signal


class RefusalCode(StrEnum):
    """Why a reading decides nothing. The values are part of the JSON output: they are added to, never changed."""

    NOT_A_NUMBER = "not-a-number"
    NEGATIVE = "negative"
    NO_CAPACITY = "no-capacity"
    ABOVE_CAPACITY = "above-capacity"
    TOO_OLD = "too-old"
    FROM_THE_FUTURE = "from-the-future"
    CONTRADICTORY = "contradictory"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reading that was refused.

    Attributes:
        age_s: how old it was; negative from the future.
    """

    observation: Observation
    code: RefusalCode
    age_s: float

    @property
    def sentence(self) -> str:
        """Why, in words, without a full stop."""
        available, capacity = self.observation.available, self.observation.capacity
        words = {
            RefusalCode.NOT_A_NUMBER: f"{available} of {capacity} is no reading",
            RefusalCode.NEGATIVE: f"{available} of {capacity} is below zero",
            RefusalCode.NO_CAPACITY: "the capacity is 0",
            RefusalCode.ABOVE_CAPACITY: f"{available} is more than the capacity {capacity}",
            RefusalCode.TOO_OLD: f"it was read {format_duration(self.age_s)} ago",
            RefusalCode.FROM_THE_FUTURE: f"it was read {format_duration(-self.age_s)} after the decision",
            RefusalCode.CONTRADICTORY: "another reading in the same pass says otherwise",
        }
        return f"the reading of {self.observation.signal} is refused: {words[self.code]}"


@dataclass(frozen=True, slots=True)
class Readings:
    """What was read, judged.

    Attributes:
        trusted: one reading per signal.
        refused: the first refusal per signal; such a signal is never in ``trusted``.
    """

    trusted: Mapping[Signal, Observation]
    refused: Mapping[Signal, Refusal]


def judge(observations: Iterable[Observation], now: Moment, max_age_s: float) -> Readings:
    """Return which readings may decide at ``now``.

    Refused are those that cannot be true, those older than ``max_age_s`` (exactly as old will do) or younger than
    ``now``, and all of a signal that was read twice with different results.
    """
    by_signal: defaultdict[Signal, list[Observation]] = defaultdict(list)
    for observation in observations:
        by_signal[observation.signal].append(observation)
    trusted: dict[Signal, Observation] = {}
    refused: dict[Signal, Refusal] = {}
    for signal in sorted(by_signal):
        readings = sorted(by_signal[signal], key=lambda each: (each.available, each.capacity))
        first = readings[0]
        age_s = now.monotonic_s - first.observed_at.monotonic_s
        code = RefusalCode.CONTRADICTORY if any(each != first for each in readings) else _fault(first, age_s, max_age_s)
        if code is None:
            trusted[signal] = first
        else:
            refused[signal] = Refusal(first, code, age_s)
    return Readings(trusted, refused)


def _fault(observation: Observation, age_s: float, max_age_s: float) -> RefusalCode | None:
    available, capacity = observation.available, observation.capacity
    faults = (
        (not (math.isfinite(available) and math.isfinite(capacity) and math.isfinite(age_s)), RefusalCode.NOT_A_NUMBER),
        (available < 0 or capacity < 0, RefusalCode.NEGATIVE),
        (capacity == 0, RefusalCode.NO_CAPACITY),
        (available > capacity, RefusalCode.ABOVE_CAPACITY),
        (age_s > max_age_s, RefusalCode.TOO_OLD),
        (age_s < 0, RefusalCode.FROM_THE_FUTURE),
    )
    return next((code for wrong, code in faults if wrong), None)
