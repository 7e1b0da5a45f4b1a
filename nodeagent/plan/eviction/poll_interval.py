"""When to look again: the nearer a threshold, the sooner."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.plan.eviction.signals import MEANINGS, Operator, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model.pressure import Signal
    from nodeagent.plan.eviction.state import Evaluation, ThresholdStatus

SOONEST_S: Final = 0.2
WHILE_MET_S: Final = 1.0
_STALL_NEAR: Final = 0.5
_MIB: Final = 1 << 20
_PACES: Final[Mapping[Unit, float]] = MappingProxyType(
    {Unit.BYTES: 256.0 * _MIB, Unit.INODES: 50_000.0, Unit.PIDS: 1_000.0}
)
"""How fast each may be used up by something that is not there yet, per second."""


def next_poll_s(evaluation: Evaluation, earlier: Evaluation | None, *, interval_s: float) -> float:
    """Return the seconds until the signals should be read again, at most ``interval_s``.

    What is left above a threshold is taken to go at a pace that one busy process can reach, or at twice the pace
    measured since the earlier look, whichever is faster. A threshold that is met is looked at each second, and at
    the end of its grace period.
    """
    waits = [interval_s]
    for status in evaluation.statuses:
        if status.observation is None:
            continue
        if status.met:
            waits.append(min(WHILE_MET_S, status.grace_left_s) if not status.due else WHILE_MET_S)
        else:
            waits.append(_until_met_s(status, _measured_pace(status, earlier), interval_s))
    return min(interval_s, max(SOONEST_S, min(waits)))


def _until_met_s(status: ThresholdStatus, measured: float, interval_s: float) -> float:
    """Return how long a threshold cannot be met, at the paces that are thinkable."""
    observation, limit = status.observation, status.limit
    if observation is None or limit is None:
        return interval_s
    if status.threshold.operator is not Operator.LESS_THAN:  # an average over ten seconds rises slowly
        return WHILE_MET_S if observation.available > limit * _STALL_NEAR else interval_s
    assumed = _PACES.get(MEANINGS[status.threshold.signal].unit)
    if assumed is None:
        return interval_s
    return max(0.0, observation.available - limit) / max(assumed, 2 * measured)


def _measured_pace(status: ThresholdStatus, earlier: Evaluation | None) -> float:
    """Return how fast a signal went down since the earlier look, per second; 0 if it did not."""
    now = status.observation
    if earlier is None or now is None:
        return 0.0
    before = _readings(earlier).get(status.threshold.signal)
    if before is None:
        return 0.0
    available, at_s = before
    passed_s = now.observed_at.monotonic_s - at_s
    return max(0.0, (available - now.available) / passed_s) if passed_s > 0 else 0.0


def _readings(evaluation: Evaluation) -> dict[Signal, tuple[float, float]]:
    return {
        each.observation.signal: (each.observation.available, each.observation.observed_at.monotonic_s)
        for each in evaluation.statuses
        if each.observation is not None
    }
