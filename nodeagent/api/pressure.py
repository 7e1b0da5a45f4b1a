"""Document of the eviction signals against their thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.api.codec import Document, Number, Part, Time
from nodeagent.model import pressure
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.observe.eviction_signals import SignalLayout, SignalReadings
    from nodeagent.plan.eviction.state import Evaluation
    from nodeagent.plan.eviction.threshold_status import ThresholdStatus


class Threshold(Part, frozen=True, kw_only=True):
    """A threshold of a signal.

    Attributes:
        value: the threshold quantity; ``None`` without an accepted reading.
        distance: distance of the reading from ``value``, negative once the threshold is met; ``None`` without a value.
    """

    text: str
    value: Number | None
    met: bool
    distance: Number | None

    @classmethod
    def of(cls, status: ThresholdStatus, available: float) -> Threshold:
        """Return the document form of a threshold; ``available`` is the reading of its signal."""
        limit = status.limit
        distance = None if limit is None else abs(available - limit) * (-1 if status.met else 1)
        return cls(text=status.threshold.text, value=limit, met=status.met, distance=distance)


class Signal(Part, frozen=True, kw_only=True):
    """One reading of a signal.

    Attributes:
        available: amount in bytes, inodes or PIDs, as ``capacity``; for stall signals the percent of time stalled.
        change_per_s: change per second since the previous reading; ``None`` for the first reading.
        mountpoint: mount point of an additional image filesystem; empty for all other signals.
    """

    signal: pressure.Signal
    available: Number
    capacity: Number
    observed_at: Time
    change_per_s: Number | None
    thresholds: tuple[Threshold, ...]
    mountpoint: str = ""

    @classmethod
    def of(cls, reading: pressure.Observation, evaluation: Evaluation, earlier: SignalReadings | None) -> Signal:
        """Return the document form of a reading with its thresholds; ``earlier`` are the previous readings."""
        return cls(
            signal=reading.signal,
            available=reading.available,
            capacity=reading.capacity,
            observed_at=reading.observed_at.at,
            change_per_s=change_per_s(reading, earlier),
            thresholds=tuple(
                Threshold.of(each, reading.available)
                for each in evaluation.statuses
                if each.threshold.measurand == reading.measurand
            ),
            mountpoint=reading.path,
        )


class Pressure(Document, frozen=True, kw_only=True, tag=SchemaId.PRESSURE.value):
    """The node's signals against their thresholds.

    Attributes:
        unrelieved: statements on shortages that no eviction ends; empty without a daemon.
    """

    layout: str
    conditions: tuple[str, ...]
    unrelieved: tuple[str, ...] = ()
    signals: tuple[Signal, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls,
        layout: SignalLayout,
        readings: SignalReadings,
        evaluation: Evaluation,
        warnings: Sequence[str],
        earlier: SignalReadings | None = None,
    ) -> Pressure:
        """Return the document of the current readings, with their changes since the readings ``earlier``."""
        return cls(
            layout=layout.layout.value,
            conditions=tuple(each.condition.value for each in evaluation.conditions if each.active),
            unrelieved=tuple(each.text for each in evaluation.state.unrelieved.values()),
            signals=tuple(Signal.of(each, evaluation, earlier) for each in readings.observations),
            warnings=tuple(warnings),
        )


def change_per_s(reading: pressure.Observation, earlier: SignalReadings | None) -> float | None:
    """Return the change of a signal per second since its earlier reading; ``None`` without an earlier reading."""
    observations = earlier.observations if earlier else ()
    before = next((each for each in observations if each.measurand == reading.measurand), None)
    if before is None:
        return None
    passed_s = reading.observed_at.monotonic_s - before.observed_at.monotonic_s
    return (reading.available - before.available) / passed_s if passed_s > 0 else None
