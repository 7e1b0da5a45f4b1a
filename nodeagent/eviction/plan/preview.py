"""Preview of the first evictions under other settings, and the interval of the readings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.eviction.plan.memory_model import is_disputed, lowest_estimate
from nodeagent.eviction.plan.planner import EvictionPlan, plan_eviction
from nodeagent.eviction.plan.policy import EvictionPolicy, Protection
from nodeagent.eviction.plan.ranking import rank_over_limits
from nodeagent.eviction.plan.thresholds import MEANINGS, Operator, ThresholdStatus, Unit
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.eviction.plan.reclaim import ReclaimStep
    from nodeagent.eviction.plan.state import Evaluation
    from nodeagent.model.decision import Reason
    from nodeagent.model.pressure import FilesystemLayout, OtherFilesystem, PodFacts, SignalReading


class PreviewedEviction(Record):
    """Pod that would be evicted first for a threshold, or for its own storage limit."""

    uid: str
    namespace: str
    name: str
    reason: Reason


def pods_over_limits(pods: Sequence[PodFacts], policy: EvictionPolicy) -> tuple[PreviewedEviction, ...]:
    """Return the unprotected pods over their own storage limits, in eviction order."""
    protection = Protection(pods, policy)
    return tuple(
        PreviewedEviction(pod.uid, pod.namespace, pod.name, violation.reason)
        for pod, violation in rank_over_limits(pods)
        if protection.keep_reason(pod) is None
    )


def plans_around_reclaim(plan: Callable[..., EvictionPlan]) -> tuple[EvictionPlan, EvictionPlan]:
    """Return the plan of a pass, and the plan for the case that node-level reclaim frees nothing.

    ``plan`` takes the completed steps as ``reclaimed``.
    """
    first = then = plan(reclaimed=frozenset())
    reclaimed: frozenset[ReclaimStep] = frozenset()
    while then.reclaim:
        reclaimed |= frozenset(then.reclaim)
        then = plan(reclaimed=reclaimed)
    return first, then


def first_victim(  # noqa: PLR0913 - the inputs of a plan
    evaluation: Evaluation,
    pods: Sequence[PodFacts],
    policy: EvictionPolicy,
    layout: FilesystemLayout,
    others: Collection[OtherFilesystem] = (),
    *,
    removes_volumes: bool = False,
) -> PreviewedEviction | None:
    """Return the first pod to evict for a threshold if node-level reclaim does not suffice; ``None`` without a victim.

    The decision is made at the time of the evaluation. A soft threshold is considered only after its grace period. The
    growth of the pods is not considered; ``removes_volumes`` as for ``plan_eviction``.
    """
    policy = replace(policy, local_storage_isolation=False)
    make = partial(plan_eviction, evaluation, pods, policy, layout=layout, now=evaluation.at)
    _, plan = plans_around_reclaim(partial(make, others=others, removes_volumes=removes_volumes))
    if plan.victim is None:
        return None
    pod = plan.victim.pod
    return PreviewedEviction(pod.uid, pod.namespace, pod.name, plan.victim.reason)


SOONEST_S: Final = 0.2
"""Shortest poll interval, except while a signal falls."""
FALLING_S: Final = 0.05
"""Shortest poll interval while a signal falls so fast that its threshold will be met within :data:`SOONEST_S`."""
WHILE_MET_S: Final = 1.0
EXHAUSTED_S: Final = 10.0
"""Time to the exhaustion of a filesystem below which the pods are measured during node-level reclaim."""
_STALL_NEAR: Final = 0.5
_MIB: Final = 1 << 20
_RATES: Final[Mapping[Unit, float]] = MappingProxyType(
    {Unit.BYTES: 256.0 * _MIB, Unit.INODES: 50_000.0, Unit.PIDS: 1_000.0}
)
"""Assumed consumption per second of one busy process, in the unit of the signal."""


def next_poll_s(evaluation: Evaluation, previous: Evaluation | None, *, interval_s: float) -> float:
    """Return the seconds until the next reading of the signals, at most ``interval_s``.

    The distance to a threshold is assumed to be consumed at the higher of two rates: the rate of one busy process, and
    twice the rate measured since the previous evaluation. The distance of a memory threshold is that of the lowest
    estimate. A met threshold is evaluated every second and at the end of its grace period; a threshold that only an
    unconfirmed estimate of memory meets, every second, or earlier if this estimate falls or is 0. A rejected reading is
    repeated after one second, since readings on a stalling node are rejected as too old. The result is at least
    ``SOONEST_S``, or ``FALLING_S`` if the measured rate alone consumes the distance within ``SOONEST_S``.
    """
    waits = [interval_s]
    shortest_s = SOONEST_S
    for status in evaluation.statuses:
        if status.rejection is not None:
            waits.append(WHILE_MET_S)
        if status.observation is None:
            continue
        if status.met:
            waits.append(min(WHILE_MET_S, status.grace_left_s) if not status.due else WHILE_MET_S)
        else:
            measured = measured_rate(status, previous)
            disputed = is_disputed(status)
            waits.append(
                _until_exhausted_s(status.observation, measured)
                if disputed
                else _until_met_s(status, measured, interval_s)
            )
            if not disputed and _is_met_soon(status, measured):
                shortest_s = FALLING_S
    return min(interval_s, max(shortest_s, min(waits)))


def is_soon_exhausted(status: ThresholdStatus, previous: Evaluation | None) -> bool:
    """Return whether a hard threshold's filesystem is exhausted within ``EXHAUSTED_S`` at the measured rate.

    ``previous`` is the evaluation before the one of ``status``; ``None`` without one.
    """
    if status.observation is None or not status.threshold.hard or MEANINGS[status.threshold.signal].filesystem is None:
        return False
    return status.observation.available < measured_rate(status, previous) * EXHAUSTED_S


def _is_met_soon(status: ThresholdStatus, measured: float) -> bool:
    """Return whether the measured rate alone consumes the distance to the threshold within ``SOONEST_S``."""
    observation, limit = status.observation, status.limit
    if observation is None or limit is None or status.threshold.operator is not Operator.LESS_THAN:
        return False
    return 0 < lowest_estimate(observation) - limit < measured * SOONEST_S


def _until_exhausted_s(observation: SignalReading, measured: float) -> float:
    """Return the seconds until the lowest estimate of memory is 0 at twice the measured rate, at most a second."""
    lowest = lowest_estimate(observation)
    return min(WHILE_MET_S, lowest / (2 * measured)) if measured else WHILE_MET_S if lowest else 0.0


def _until_met_s(status: ThresholdStatus, measured: float, interval_s: float) -> float:
    """Return the seconds until a threshold is met at the assumed rate; ``interval_s`` if unknown."""
    observation, limit = status.observation, status.limit
    if observation is None or limit is None:
        return interval_s
    if status.threshold.operator is not Operator.LESS_THAN:  # a 10 s average rises slowly
        return WHILE_MET_S if observation.available > limit * _STALL_NEAR else interval_s
    assumed = _RATES.get(MEANINGS[status.threshold.signal].unit)
    if assumed is None:
        return interval_s
    return max(0.0, lowest_estimate(observation) - limit) / max(assumed, 2 * measured)


def measured_rate(status: ThresholdStatus, previous: Evaluation | None) -> float:
    """Return the decrease of a signal per second since the previous evaluation; 0 if unknown or increasing."""
    now = status.observation
    if previous is None or now is None:
        return 0.0
    measurand = now.measurand
    found = (each.observation for each in previous.statuses if each.threshold.measurand == measurand)
    before = next(found, None)
    if before is None:
        return 0.0
    elapsed_s = now.observed_at.monotonic_s - before.observed_at.monotonic_s
    return max(0.0, (lowest_estimate(before) - lowest_estimate(now)) / elapsed_s) if elapsed_s > 0 else 0.0
