"""Which threshold a pass acts on, by the latest readings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nodeagent.plan.decision import Reason, ReasonCode
from nodeagent.plan.eviction.effects import shortage_of, withholding
from nodeagent.plan.eviction.message import format_reading
from nodeagent.plan.eviction.observations import judge
from nodeagent.plan.eviction.reclaim import reclaim_steps, signals_reclaimed
from nodeagent.plan.eviction.signals import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from nodeagent.model.pressure import FilesystemLayout, Moment, Observation
    from nodeagent.plan.decision import Detail
    from nodeagent.plan.eviction.effects import OutstandingEffect
    from nodeagent.plan.eviction.observations import Readings
    from nodeagent.plan.eviction.policy import EvictionPolicy
    from nodeagent.plan.eviction.reclaim import ReclaimStep
    from nodeagent.plan.eviction.state import Evaluation, ThresholdStatus


@dataclass(frozen=True, slots=True)
class SelectedThreshold:
    """What a pass acts on.

    Attributes:
        reason: why a pod goes for it; without a threshold to act on, why none goes.
        status: the threshold with the reading decided by; ``None`` if none is acted on.
        blocked: why nothing can be decided, empty if something can.
        withheld: reason that a met threshold is not acted on: an effect is outstanding.
    """

    reason: Reason
    status: ThresholdStatus | None = None
    blocked: str = ""
    withheld: Reason | None = None


def select_threshold(  # noqa: PLR0913 - what one pass carries from round to round
    evaluation: Evaluation,
    observations: Iterable[Observation] | None,
    policy: EvictionPolicy,
    *,
    layout: FilesystemLayout,
    now: Moment,
    reclaimed: AbstractSet[ReclaimStep],
) -> SelectedThreshold:
    """Return the most urgent threshold acted on that has a resource, is still met, and has no effect outstanding.

    A threshold for which only pods are withheld is returned as long as reclaim steps remain.

    Without readings of its own this judges those evaluated by their age now. A threshold for whose signal something
    was reclaimed has to come back by its minimum reclaim, as has one that the pass before acted on already.

    Source: kubelet ``getReclaimableThreshold``; ``reclaimNodeLevelResources`` for the comparison.
    """
    latest = [each.observation for each in evaluation.statuses if each.observation is not None]
    readings = judge(latest if observations is None else observations, now, policy.max_observation_age_s)
    signals = signals_reclaimed(reclaimed, layout)
    passed_over, withheld = [], None
    for status in evaluation.acting:
        resource = MEANINGS[status.threshold.signal].resource
        if resource is None:
            continue
        signal = status.threshold.signal
        why_not = _why_not(status, readings, reclaimed=signal in signals)
        if why_not is not None:
            passed_over.append(why_not)
            continue
        effect = withholding(evaluation.state.outstanding, shortage_of(signal, layout), now)
        to_reclaim = frozenset(reclaim_steps(signal, layout)) - reclaimed
        if effect is not None and not (effect.ineffective and to_reclaim):
            withheld = withheld or _withheld(status, effect, now)
            continue
        current = _by(status, readings.trusted[signal])
        details = {**_details(current), "resource": resource.value}
        return SelectedThreshold(Reason(ReasonCode.LOW_ON_RESOURCE, details), current, withheld=withheld)
    refused = next((each for each in passed_over if each.code is ReasonCode.READING_REJECTED), None)
    if withheld is not None and refused is None:
        return SelectedThreshold(withheld, withheld=withheld)
    if not passed_over:
        return SelectedThreshold(_why_none(evaluation))
    return SelectedThreshold(refused or passed_over[0], blocked=refused.sentence if refused else "", withheld=withheld)


def _withheld(status: ThresholdStatus, effect: OutstandingEffect, now: Moment) -> Reason:
    """Return the reason that a threshold is not acted on."""
    code = ReasonCode.EVICTION_INEFFECTIVE if effect.ineffective else ReasonCode.EFFECT_OUTSTANDING
    left_s = max(0.0, effect.until_s - now.monotonic_s)
    return Reason(code, {"threshold": status.threshold.text, **effect.details, "left_s": left_s})


def _why_not(status: ThresholdStatus, readings: Readings, *, reclaimed: bool) -> Reason | None:
    """Return why a threshold is not acted on by the latest readings; ``None`` if it is."""
    threshold = status.threshold
    reading = readings.trusted.get(threshold.signal)
    if reading is None:
        refusal = readings.refused.get(threshold.signal)
        detail = refusal.sentence if refusal else f"{threshold.signal} was not read again"
        return Reason(ReasonCode.READING_REJECTED, {"threshold": threshold.text, "detail": detail})
    with_reclaim = reclaimed or status.latched
    if threshold.met_by(reading.available, reading.capacity, with_reclaim=with_reclaim):
        return None
    code = ReasonCode.RECLAIM_SUFFICIENT if reclaimed else ReasonCode.NO_LONGER_MET
    return Reason(code, _details(_by(status, reading)))


def _why_none(evaluation: Evaluation) -> Reason:
    """Return why no pod goes where no threshold with a resource is acted on."""
    met = evaluation.met
    if not met:
        for status in evaluation.statuses:
            if status.refusal is not None:
                details = {"threshold": status.threshold.text, "detail": status.refusal.sentence}
                return Reason(ReasonCode.READING_REJECTED, details)
        return Reason(ReasonCode.NO_THRESHOLD_MET)
    first = next((each for each in met if MEANINGS[each.threshold.signal].resource is not None), met[0])
    about: dict[str, Detail] = {"threshold": first.threshold.text}
    if not first.due:
        times = {"held_s": first.held_s, "grace_s": first.threshold.grace_s, "left_s": first.grace_left_s}
        return Reason(ReasonCode.GRACE_PERIOD_RUNNING, {**about, **times})
    if not first.acting:
        return Reason(ReasonCode.NO_NEW_READING, about)
    return Reason(ReasonCode.NOT_RELIEVED_BY_EVICTION, about)


def _by(status: ThresholdStatus, reading: Observation) -> ThresholdStatus:
    """Return the standing with a later reading."""
    return replace(status, observation=reading, limit=status.threshold.limit(reading.capacity))


def _details(status: ThresholdStatus) -> dict[str, Detail]:
    """Return the threshold and the numbers it was judged by."""
    details: dict[str, Detail] = {"threshold": status.threshold.text}
    if status.observation is not None and status.limit is not None:
        available, capacity = status.observation.available, status.observation.capacity
        details |= {"available": available, "capacity": capacity, "limit": status.limit}
        details["reading"] = (
            f"{format_reading(status, available)} of {format_reading(status, capacity)} against "
            f"{format_reading(status, status.limit)}"
        )
    return details
