"""Relief of a shortage: the pods whose eviction helps, and the statement for a shortage that no eviction ends.

An eviction helps if it frees a material part of the shortage, or if the usage of its pod drives the shortage. Amounts
that outlive the pod, such as its volumes, are not freed. Two samples of the usage show the growth of each pod, and the
part of the loss that no pod explains: this part continues after any eviction, so that the material part is larger.

Rejected alternative: evicting in the kubelet's order until the threshold is cleared. For a shortage that has other
causes, such as a file of the host, it evicts every pod of the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.eviction.plan.local_storage import format_reading
from nodeagent.eviction.plan.ranking import RankedPod, RankingInput, usage_of
from nodeagent.eviction.plan.thresholds import MEANINGS, ThresholdStatus, Unit
from nodeagent.model.decision import Detail, Reason, ReasonCode
from nodeagent.record import Record
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from nodeagent.eviction.plan.policy import EvictionPolicy
    from nodeagent.model.pressure import Moment, PodFacts, PodUsage, SignalReading

RESPITE_S: Final = 10.0
"""Seconds of unexplained loss that an eviction has to outweigh. Source: kubelet, ``evictionMonitoringPeriod``."""
SAMPLE_EVERY_S: Final = 0.5
_SAMPLE_KEPT_S: Final = 60.0
_GROWTH_AHEAD_S: Final = 60.0
_SAMPLES: Final = 2
_SLACK: Final[Mapping[Unit, int]] = MappingProxyType({Unit.BYTES: 1 << 20, Unit.INODES: 100, Unit.PIDS: 10})
"""Amounts within the accuracy of a measurement, by the unit of the signal."""


class UsageSample(Record):
    """Usage of the pods at one time, with the signals.

    Attributes:
        at_s: time of the sample, in monotonic seconds.
        usage: usage of each pod by UID; pods without a reading are omitted.
        with_disk: whether disk usage was measured.
    """

    at_s: float
    observations: tuple[SignalReading, ...]
    usage: Mapping[str, PodUsage]
    with_disk: bool

    @classmethod
    def of(
        cls, pods: Iterable[PodFacts], observations: tuple[SignalReading, ...], now: Moment, *, with_disk: bool
    ) -> UsageSample:
        """Return the sample of the pods with their usage and of the signals read at ``now``."""
        usage = {each.uid: each.usage for each in pods if each.usage is not None}
        return cls(now.monotonic_s, observations, usage, with_disk)


class Growth(Record):
    """Growth of the usage of the pods since an earlier sample, in the unit of a signal.

    Attributes:
        over_s: seconds between the samples.
        lost: decrease of the available amount; 0 for an increase.
        pods: increase of the usage by pod UID; pods without an earlier reading are omitted.
    """

    over_s: float
    lost: float
    pods: Mapping[str, float]

    @property
    def unexplained_per_s(self) -> float:
        """Loss per second that the growth of the pods does not explain."""
        return max(0.0, self.lost - sum(self.pods.values())) / self.over_s


class Unrelieved(Record):
    """Shortage that no eviction ends, in the unit of its signal.

    Attributes:
        threshold: the met threshold as text.
        short: amount that clears the threshold.
        freed_by_pods: amount that the eviction of all unprotected pods would free.
        used_by_pods: known usage of all pods; volumes that outlive their pods are included.
        used_by_others: used amount that no usage of a pod explains.
        pods: number of the ranked pods.
        outside: names and amounts of the largest consumers that are not pods, for display.
        sentence: the statement, without a full stop.
    """

    threshold: str
    short: float
    freed_by_pods: float
    used_by_pods: float
    used_by_others: float
    pods: int
    sentence: str
    outside: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The statement with the largest consumers that are not pods."""
        return f"{self.sentence}; largest outside of pods: {', '.join(self.outside)}" if self.outside else self.sentence


def add_sample(samples: Sequence[UsageSample], new: UsageSample) -> tuple[UsageSample, ...]:
    """Return the samples with a new one, newest first: the last two with and the last two without disk usage.

    A sample less than ``SAMPLE_EVERY_S`` after the last one of its kind is not added.
    """
    same = [each for each in samples if each.with_disk is new.with_disk]
    if same and new.at_s - same[0].at_s < SAMPLE_EVERY_S:
        return tuple(samples)
    others = [each for each in samples if each.with_disk is not new.with_disk]
    return (new, *same[: _SAMPLES - 1], *others)


def measure_growth(  # noqa: PLR0913, PLR0917 - two kinds of earlier readings, and what they are compared with
    samples: Iterable[UsageSample],
    recent: Iterable[SignalReading],
    ranking: Iterable[RankedPod],
    status: ThresholdStatus,
    placement: RankingInput,
    now: Moment,
) -> Growth | None:
    """Return the growth since the newest sample that is at least ``SAMPLE_EVERY_S`` and at most a minute old.

    Without such a sample, the result for a filesystem is its loss since the oldest reading in ``recent``, without
    pods. For memory and PIDs, which are exhausted within less than the interval of two samples, and without a reading
    the result is ``None``; for stall signals too, which are averages.
    """
    threshold = status.threshold
    meaning = MEANINGS[threshold.signal]
    if meaning.unit is Unit.STALL_PERCENT or status.observation is None:
        return None
    for sample in samples:
        over_s = now.monotonic_s - sample.at_s
        if not SAMPLE_EVERY_S <= over_s <= _SAMPLE_KEPT_S or (meaning.filesystem is not None and not sample.with_disk):
            continue
        before = next((each for each in sample.observations if each.measurand == threshold.measurand), None)
        if before is None:
            continue
        pods = {}
        for each in ranking:
            uid, earlier = each.pod.uid, sample.usage.get(each.pod.uid)
            used = 0 if earlier is None else usage_of(earlier, threshold.signal, placement)[0]
            if used is not None and each.usage is not None:
                pods[uid] = max(0.0, float(each.usage - used))
        return Growth(over_s, _lost(before, status.observation), pods)
    before = next((each for each in recent if each.measurand == threshold.measurand), None)
    if meaning.filesystem is None or before is None or before.observed_at.monotonic_s >= now.monotonic_s:
        return None
    return Growth(now.monotonic_s - before.observed_at.monotonic_s, _lost(before, status.observation), {})


def _lost(before: SignalReading, after: SignalReading) -> float:
    return max(0.0, before.available - after.available)


def no_relief_reasons(
    ranking: Iterable[RankedPod], status: ThresholdStatus, growth: Growth | None, policy: EvictionPolicy
) -> dict[int, Reason]:
    """Return the reason to keep each ranked pod whose eviction does not help, by the ``id`` of its facts.

    An eviction helps if it frees at least ``minimum_effect`` of the shortage, and either all of the shortage or more
    than the accuracy of a measurement. The loss within ``RESPITE_S`` that no pod explains is part of the shortage, but
    not for a pod without a measured growth that uses at least half of the loss, and may have caused it. An
    eviction also helps if the usage of the pod grew by at least ``minimum_effect`` of the loss, and at this rate grows
    by a material amount within a minute. A pod with an incompletely measured amount is not kept: a tenant could
    otherwise hide usage by slowing down the measurement.
    """
    unit = MEANINGS[status.threshold.signal].unit
    found = {}
    for each in ranking:
        if each.frees is None and each.usage is None and unit is not Unit.STALL_PERCENT:
            continue  # not kept by ``evict_unmeasured``
        lasting = 0.0 if _may_have_caused(each, growth) else _lasting(growth)
        wanted = _shortfall(status) + lasting
        minimum = max(policy.minimum_effect * wanted, min(_SLACK.get(unit, 0), wanted))
        if each.frees_at_least or (each.frees is not None and each.frees >= minimum):
            continue
        drives = drives_shortage(each, status, growth, policy)
        if not drives:
            is_known = drives is not None or unit is Unit.STALL_PERCENT
            found[id(each.pod)] = _reason(each, status, minimum, lasting, is_known=is_known)
    return found


def drives_shortage(
    ranked: RankedPod, status: ThresholdStatus, growth: Growth | None, policy: EvictionPolicy
) -> bool | None:
    """Return whether the growth of a pod causes a material part of the loss; ``None`` if it is not measured."""
    grew = None if growth is None else growth.pods.get(ranked.pod.uid)
    if growth is None or grew is None:
        return None
    if grew <= _SLACK.get(MEANINGS[status.threshold.signal].unit, 0):
        return False
    ahead = grew / growth.over_s * _GROWTH_AHEAD_S
    wanted = _shortfall(status) + _lasting(growth)
    return grew >= policy.minimum_effect * growth.lost and ahead >= policy.minimum_effect * wanted


def _may_have_caused(ranked: RankedPod, growth: Growth | None) -> bool:
    """Return whether the growth of a pod is unknown, and its usage is at least half of the loss."""
    return growth is not None and ranked.pod.uid not in growth.pods and (ranked.usage or 0) >= growth.lost / 2


def _shortfall(status: ThresholdStatus) -> float:
    return status.shortfall or 0.0


def _lasting(growth: Growth | None) -> float:
    """Return the loss within ``RESPITE_S`` that continues after any eviction; 0 without a measured growth."""
    return 0.0 if growth is None else growth.unexplained_per_s * RESPITE_S


def unrelieved(
    status: ThresholdStatus, ranking: Sequence[RankedPod], pods: Sequence[PodFacts], kept: Mapping[int, Reason]
) -> Unrelieved:
    """Return the statement for a threshold without an eviction that helps.

    Args:
        status: the met threshold with its reading.
        ranking: the pods ranked for the threshold.
        pods: all pods of the node.
        kept: reason to keep each pod that is protected, by the ``id`` of its facts.
    """
    text = status.threshold.text
    reading = status.observation
    used = 0.0 if reading is None else max(0.0, reading.capacity - reading.available)
    if MEANINGS[status.threshold.signal].unit is Unit.STALL_PERCENT:
        used = 0.0
    freed = float(sum(each.frees or 0 for each in ranking if id(each.pod) not in kept))
    by_pods = float(sum(each.usage or 0 for each in ranking)) if used else 0.0
    others = max(0.0, used - by_pods)

    sentence = f"{text} is met, and no eviction ends the shortage of {_shown(status, _shortfall(status))}"
    protected = sum(1 for each in pods if id(each) in kept)
    if not ranking:
        on_it = "have a writable layer on this filesystem" if status.threshold.filesystem else "use the resource"
        sentence += f": no pod is known to {on_it}"
    elif protected == len(pods):
        sentence += ": every pod is protected"
    else:
        sentence += f": all {len(ranking) - protected} unprotected pods would free {_shown(status, freed)}"
    if used:
        sentence += f"; pods use {_shown(status, by_pods)}, others {_shown(status, others)}"
    return Unrelieved(text, _shortfall(status), freed, by_pods, others, len(ranking), sentence)


def _reason(ranked: RankedPod, status: ThresholdStatus, minimum: float, lasting: float, *, is_known: bool) -> Reason:
    """Return the reason to keep a pod; with ``is_known`` false its growth is not measured yet."""
    stalls = MEANINGS[status.threshold.signal].unit is Unit.STALL_PERCENT
    if ranked.frees is None:
        return Reason(ReasonCode.USAGE_UNKNOWN, {"resource": "memory stall" if stalls else ranked.resource.value})
    unit = MEANINGS[status.threshold.signal].unit.name.lower()
    details: dict[str, Detail] = {
        f"frees_{unit}": ranked.frees,
        f"short_{unit}": _shortfall(status),
        f"minimum_{unit}": minimum,
        "frees": _shown(status, ranked.frees),
        "short": _shown(status, _shortfall(status)),
        "minimum": _shown(status, minimum),
        "loss": f", {_shown(status, lasting)} more lost within {RESPITE_S:g} s" if lasting else "",
        "measure": ranked.measure,
        "rank": ranked.rank,
    }
    return Reason(ReasonCode.EFFECT_TOO_SMALL if is_known else ReasonCode.GROWTH_UNKNOWN, details)


def _shown(status: ThresholdStatus, amount: float) -> str:
    """Return an amount for display: unlike readings, which are compared with limits, amounts need no exact digits."""
    is_bytes = MEANINGS[status.threshold.signal].unit is Unit.BYTES
    return format_bytes(int(amount)) if is_bytes else format_reading(status, amount)
