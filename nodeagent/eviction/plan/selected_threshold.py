"""Selection of the threshold that a pass acts on, by the latest readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.eviction.plan.effects import withholding
from nodeagent.eviction.plan.local_storage import estimate_note, format_reading
from nodeagent.eviction.plan.readings import validate
from nodeagent.eviction.plan.reclaim import reclaim_steps, shortage_of
from nodeagent.eviction.plan.thresholds import MEANINGS
from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from nodeagent.eviction.plan.effects import OutstandingEffect
    from nodeagent.eviction.plan.policy import EvictionPolicy
    from nodeagent.eviction.plan.readings import ThresholdStatus, ValidatedReadings
    from nodeagent.eviction.plan.reclaim import ReclaimStep
    from nodeagent.eviction.plan.state import Evaluation
    from nodeagent.eviction.plan.thresholds import Threshold
    from nodeagent.model.decision import Detail
    from nodeagent.model.pressure import FilesystemLayout, Moment, Observation


class SelectedThreshold(Record):
    """The threshold that a pass acts on.

    Attributes:
        reason: reason to evict a pod for the threshold; without a selected threshold, reason to keep all pods.
        status: the selected threshold with its latest reading; ``None`` without a selected threshold.
        blocked: cause why the pass cannot decide, a rejected reading; empty otherwise.
        withheld: reason why no action is taken for a met threshold, with its outstanding effect; else ``None``.
        ineffective: reason to evict only pods that drive the shortage, an earlier eviction that freed too little; else
            ``None``.
    """

    reason: Reason
    status: ThresholdStatus | None = None
    blocked: str = ""
    withheld: Reason | None = None
    ineffective: Reason | None = None


def select_threshold(  # noqa: PLR0913 - one argument for each input of a pass
    evaluation: Evaluation,
    observations: Iterable[Observation] | None,
    policy: EvictionPolicy,
    *,
    layout: FilesystemLayout,
    now: Moment,
    reclaimed: AbstractSet[ReclaimStep],
    without_victim: AbstractSet[Threshold] = frozenset(),
) -> SelectedThreshold:
    """Return the most urgent due threshold that has a resource, is still met, and has no outstanding effect.

    A threshold with an ineffective effect is returned with the reason to evict only pods that drive the shortage.
    Thresholds in ``without_victim`` are skipped.

    Without newer readings, the evaluated readings are validated by their age at ``now``. If a reclaim step was run for
    the signal of a threshold, or the threshold was due in the last pass, only its minimum reclaim clears it.

    Source: kubelet ``getReclaimableThreshold``; ``reclaimNodeLevelResources`` for the comparison.
    """
    latest = [each.observation for each in evaluation.statuses if each.observation is not None]
    readings = validate(latest if observations is None else observations, now, policy.max_observation_age_s)
    skipped, withheld = [], None
    for status in evaluation.acting:
        resource = MEANINGS[status.threshold.signal].resource
        if resource is None or status.threshold in without_victim:
            continue
        threshold = status.threshold
        steps = frozenset(reclaim_steps(threshold.signal, layout, threshold.filesystem))
        why_skipped = _skip_reason(status, readings, reclaimed=not steps.isdisjoint(reclaimed))
        if why_skipped is not None:
            skipped.append(why_skipped)
            continue
        shortage = shortage_of(threshold.signal, layout, threshold.filesystem)
        effect = withholding(evaluation.state.outstanding, shortage, now, threshold.measurand.path)
        if effect is not None and not effect.ineffective:
            withheld = withheld or _withheld(status, effect, now)
            continue
        current = _with_reading(status, readings.accepted[threshold.measurand])
        details = {**_details(current), "resource": resource.value}
        ineffective = None if effect is None or policy.always_evict else _withheld(status, effect, now)
        return SelectedThreshold(
            Reason(ReasonCode.LOW_ON_RESOURCE, details), current, withheld=withheld, ineffective=ineffective
        )
    rejected = next((each for each in skipped if each.code is ReasonCode.READING_REJECTED), None)
    if withheld is not None and rejected is None:
        return SelectedThreshold(withheld, withheld=withheld)
    if not skipped:
        return SelectedThreshold(_keep_all_reason(evaluation))
    return SelectedThreshold(rejected or skipped[0], blocked=rejected.sentence if rejected else "", withheld=withheld)


def _withheld(status: ThresholdStatus, effect: OutstandingEffect, now: Moment) -> Reason:
    """Return the reason why no action is taken for a met threshold: the outstanding effect and its remaining time."""
    code = ReasonCode.EVICTION_INEFFECTIVE if effect.ineffective else ReasonCode.EFFECT_OUTSTANDING
    left_s = max(0.0, effect.until_s - now.monotonic_s)
    return Reason(code, {"threshold": status.threshold.text, **effect.details, "left_s": left_s})


def _skip_reason(status: ThresholdStatus, readings: ValidatedReadings, *, reclaimed: bool) -> Reason | None:
    """Return the reason to skip a threshold by the latest readings; ``None`` to act on it."""
    threshold = status.threshold
    reading = readings.accepted.get(threshold.measurand)
    if reading is None:
        rejection = readings.rejected.get(threshold.measurand)
        detail = rejection.cause if rejection else f"{threshold.signal} not read again"
        return Reason(ReasonCode.READING_REJECTED, {"threshold": threshold.text, "detail": detail})
    with_reclaim = reclaimed or status.latched
    if threshold.met_by(reading.available, reading.capacity, with_reclaim=with_reclaim):
        return None
    code = ReasonCode.RECLAIM_SUFFICIENT if reclaimed else ReasonCode.NO_LONGER_MET
    return Reason(code, _details(_with_reading(status, reading)))


def _keep_all_reason(evaluation: Evaluation) -> Reason:
    """Return the reason to keep all pods in a pass without a selected threshold."""
    met = evaluation.met
    if not met:
        for status in evaluation.statuses:
            if status.rejection is not None:
                rejected = {"threshold": status.threshold.text, "detail": status.rejection.cause}
                return Reason(ReasonCode.READING_REJECTED, rejected)
        return Reason(ReasonCode.NO_THRESHOLD_MET)
    first = next((each for each in met if MEANINGS[each.threshold.signal].resource is not None), met[0])
    details: dict[str, Detail] = {"threshold": first.threshold.text}
    if not first.due:
        times = {"held_s": first.met_for_s, "grace_s": first.threshold.grace_s, "left_s": first.grace_left_s}
        return Reason(ReasonCode.GRACE_PERIOD_RUNNING, {**details, **times})
    if not first.acting:
        return Reason(ReasonCode.NO_NEW_READING, details)
    return Reason(ReasonCode.NOT_RELIEVED_BY_EVICTION, details)


def _with_reading(status: ThresholdStatus, reading: Observation) -> ThresholdStatus:
    """Return the status with a later reading and the limit for its capacity."""
    return replace(status, observation=reading, limit=status.threshold.limit(reading.capacity))


def _details(status: ThresholdStatus) -> dict[str, Detail]:
    """Return the threshold, its reading and its limit as details of a reason."""
    details: dict[str, Detail] = {"threshold": status.threshold.text}
    if status.observation is not None and status.limit is not None:
        available, capacity = status.observation.available, status.observation.capacity
        details |= {"available": available, "capacity": capacity, "limit": status.limit}
        details["reading"] = (
            f"{format_reading(status, available)} of {format_reading(status, capacity)}, "
            f"limit {format_reading(status, status.limit)}{estimate_note(status.observation)}"
        )
    return details
