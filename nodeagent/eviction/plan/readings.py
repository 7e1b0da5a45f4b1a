"""Validation of signal readings, and the status of a threshold."""

from __future__ import annotations

import math
from collections import defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.eviction.plan.thresholds import Operator
from nodeagent.record import Record
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodeagent.eviction.plan.thresholds import Threshold
    from nodeagent.model.pressure import Measurand, Moment, Observation


class RejectionCode(StrEnum):
    """Reason to reject a reading. The values are part of the JSON output; existing values never change."""

    NOT_A_NUMBER = "not-a-number"
    NEGATIVE = "negative"
    NO_CAPACITY = "no-capacity"
    ABOVE_CAPACITY = "above-capacity"
    TOO_OLD = "too-old"
    FROM_THE_FUTURE = "from-the-future"
    CONTRADICTORY = "contradictory"


class Rejection(Record):
    """A rejected reading.

    Attributes:
        age_s: age of the reading at the decision, in seconds; negative for a reading from the future.
    """

    observation: Observation
    code: RejectionCode
    age_s: float

    @property
    def sentence(self) -> str:
        """Sentence with the signal and the cause of the rejection, without a full stop."""
        on = f" on {self.observation.path}" if self.observation.path else ""
        return f"reading of {self.observation.signal}{on} rejected: {self.cause}"

    @property
    def cause(self) -> str:
        """Cause of the rejection without the signal, and without a full stop."""
        available, capacity = self.observation.available, self.observation.capacity
        causes = {
            RejectionCode.NOT_A_NUMBER: f"{available} of {capacity} is not a finite number",
            RejectionCode.NEGATIVE: f"{available} of {capacity} is negative",
            RejectionCode.NO_CAPACITY: "capacity is 0",
            RejectionCode.ABOVE_CAPACITY: f"{available} exceeds the capacity {capacity}",
            RejectionCode.TOO_OLD: f"read {format_duration(self.age_s)} ago",
            RejectionCode.FROM_THE_FUTURE: f"read {format_duration(-self.age_s)} after the decision",
            RejectionCode.CONTRADICTORY: "contradicts another reading of the same pass",
        }
        return causes[self.code]


class ValidatedReadings(Record):
    """Accepted and rejected readings of one pass.

    Attributes:
        accepted: one reading per signal and filesystem.
        rejected: one rejection per signal and filesystem; a rejected signal is never in ``accepted``.
    """

    accepted: Mapping[Measurand, Observation]
    rejected: Mapping[Measurand, Rejection]


def validate(observations: Iterable[Observation], now: Moment, max_age_s: float) -> ValidatedReadings:
    """Return the accepted and the rejected readings.

    Impossible readings, readings older than ``max_age_s`` or newer than ``now``, and all readings of a signal with two
    different readings are rejected. A reading of exactly ``max_age_s`` is accepted.
    """
    found: defaultdict[Measurand, list[Observation]] = defaultdict(list)
    for observation in observations:
        found[observation.measurand].append(observation)
    accepted: dict[Measurand, Observation] = {}
    rejected: dict[Measurand, Rejection] = {}
    for measurand in sorted(found):
        readings = sorted(found[measurand], key=lambda each: (each.available, each.capacity))
        first = readings[0]
        age_s = now.monotonic_s - first.observed_at.monotonic_s
        code = (
            RejectionCode.CONTRADICTORY if any(each != first for each in readings) else _fault(first, age_s, max_age_s)
        )
        if code is None:
            accepted[measurand] = first
        else:
            rejected[measurand] = Rejection(first, code, age_s)
    return ValidatedReadings(accepted, rejected)


def _fault(observation: Observation, age_s: float, max_age_s: float) -> RejectionCode | None:
    available, capacity = observation.available, observation.capacity
    faults = (
        (
            not (math.isfinite(available) and math.isfinite(capacity) and math.isfinite(age_s)),
            RejectionCode.NOT_A_NUMBER,
        ),
        (available < 0 or capacity < 0, RejectionCode.NEGATIVE),
        (capacity == 0, RejectionCode.NO_CAPACITY),
        (available > capacity, RejectionCode.ABOVE_CAPACITY),
        (age_s > max_age_s, RejectionCode.TOO_OLD),
        (age_s < 0, RejectionCode.FROM_THE_FUTURE),
    )
    return next((code for wrong, code in faults if wrong), None)


class ThresholdStatus(Record):
    """Status of one threshold in a pass.

    Attributes:
        observation: the accepted reading; ``None`` if the signal was not read or its reading was rejected.
        rejection: rejection of the reading; ``None`` without a rejected reading.
        limit: threshold quantity in the unit of the signal, without minimum reclaim; ``None`` without a reading.
        met: whether the reading meets the threshold, with minimum reclaim if ``latched``.
        latched: whether the threshold was due in the last pass, so that only its minimum reclaim clears it.
        met_for_s: seconds for which the threshold has been met; 0 if it is not met.
        due: whether the threshold is met and its grace period has passed.
        acting: whether the threshold is due by a new reading, so that the pass may act on it.
    """

    threshold: Threshold
    observation: Observation | None = None
    rejection: Rejection | None = None
    limit: float | None = None
    met: bool = False
    latched: bool = False
    met_for_s: float = 0.0
    due: bool = False
    acting: bool = False

    @property
    def grace_left_s(self) -> float:
        """Remaining grace period in seconds."""
        return max(0.0, self.threshold.grace_s - self.met_for_s)

    @property
    def shortfall(self) -> float | None:
        """Amount missing to clear the threshold with its minimum reclaim, in the unit of the signal.

        0 if the reading clears the threshold; ``None`` without a reading. Node-level reclaim stops at this amount.
        """
        if self.observation is None:
            return None
        limit = self.threshold.limit(self.observation.capacity, with_reclaim=True)
        missing = limit - self.observation.available
        return max(0.0, missing if self.threshold.operator is Operator.LESS_THAN else -missing)
