"""Effects of evictions: which pods relieve a shortage, and the predicted effects that are not measured yet.

An action is complete when its effect is measured, not when its call returns: containerd removes snapshots
asynchronously, after RemoveContainer has returned. Until the measurement the effect is outstanding, and no further pod
or image is removed for the same shortage. Each effect has a deadline, like the kubelet's limit of 30 s for the clean-up
of an evicted pod. After an eviction that freed less than half of its prediction, its resource is not acted on again
before its threshold is cleared, except for pods whose growth is measured; node-level reclaim continues.

A confirmed effect ends early if the signal falls after the confirmation: other processes consume the freed space, so
that waiting longer would not show the effect.

Rejected alternative: subtracting predicted amounts from the shortfall and acting on the remainder. A wrong prediction
would evict a pod, whereas waiting costs only seconds.

An eviction helps if it frees a material part of the shortage, or if the usage of its pod drives the shortage. Amounts
that outlive the pod, such as its volumes, are not freed. Two samples of the usage show the growth of each pod, and the
part of the loss that no pod explains: this part continues after any eviction, so that the material part is larger.

Rejected alternative: evicting in the kubelet's order until the threshold is cleared. For a shortage that has other
causes, such as a file of the host, it evicts every pod of the node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.eviction.plan.memory_model import is_cache_in_use
from nodeagent.eviction.plan.ranking import (
    Eviction,
    RankedPod,
    RankingInput,
    format_reading,
    freed_by_eviction,
    on_filesystem,
    on_first,
    usage_of,
)
from nodeagent.eviction.plan.reclaim import DEVICES, DISKS, ReclaimStep, Shortage, device_role, shortage_of
from nodeagent.eviction.plan.thresholds import MEANINGS, ThresholdStatus, Unit
from nodeagent.model.decision import Detail, Reason, ReasonCode
from nodeagent.model.pressure import (
    FilesystemLayout,
    FilesystemRole,
    Footprint,
    Measurand,
    Moment,
    Signal,
    SignalReading,
)
from nodeagent.record import Record, replace
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from nodeagent.eviction.plan.policy import EvictionPolicy
    from nodeagent.model.pressure import PodFacts, PodUsage

FREED_WITHIN_S: Final = 30.0
"""Seconds until the deadline of an effect on a filesystem. Source: kubelet, ``podCleanupTimeout``."""
VISIBLE_WITHIN_S: Final = 2.0
"""Seconds until the deadline of a confirmed effect.

XFS frees blocks and inodes with a delay; the kernel uncharges memory in batches.
"""
FALLING_FOR_S: Final = 0.5
"""Seconds after which a falling signal ends a confirmed effect on a filesystem; XFS frees blocks within this time."""
MEMORY_FALLING_FOR_S: Final = 0.2
"""Seconds after which a falling signal ends a confirmed effect on memory or PIDs, which are free on process exit."""
STALL_WINDOW_S: Final = 10.0
"""Averaging window of stall signals. Source: kernel psi.rst, ``avg10``."""
VICTIM_KEPT_S: Final = 3600.0
"""Seconds for which an evicted pod is tracked."""
UNVERIFIED_VICTIM_S: Final = 60.0
"""Seconds for which a pod is tracked if its eviction was interrupted before the exit of its processes was verified."""
UNTIL_CLEARED_S: Final = 365 * 86_400.0
"""Time limit of an ineffective effect, which ends when its threshold is cleared; the file stores finite times only."""
_SURE: Final = 0.98
_EFFECTIVE: Final = 0.5
_SLACK_BYTES: Final = 1 << 20
_SLACK_INODES: Final = 100
_TRICKLE: Final = 0.1
_NOTHING: Final = Footprint(0, 0)


class Victim(Record):
    """Evicted pod, tracked until its containers are removed.

    Attributes:
        sandbox_ids: ids of the pod's sandboxes at the eviction.
        layers: known directories of the writable layers of the pod's containers.
        at_s: start of the eviction, in monotonic seconds.
        verified: whether the exit of the pod's processes was verified.
        cleared: whether the removal of the pod's containers and their writable layers was verified.
        sandbox_files: files of the pod's sandboxes that its containers could write to.
        log_directory: name of the pod's log directory, removed with its containers; empty to keep the logs.
    """

    uid: str
    namespace: str
    name: str
    sandbox_ids: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    at_s: float = 0.0
    verified: bool = False
    cleared: bool = False
    sandbox_files: tuple[str, ...] = ()
    log_directory: str = ""


def pod_fields(pod: PodFacts | Victim) -> dict[str, str]:
    """Return the fields of a log event that identify a pod."""
    return {"pod_uid": pod.uid, "pod_namespace": pod.namespace, "pod_name": pod.name}


class OutstandingEffect(Record):
    """Effect of one action that is not measured yet. Times are monotonic seconds.

    Attributes:
        action: name of the action, such as ``eviction of shop/web``.
        shortage: the resource in shortage that the action relieves.
        signal: the signal that measures the effect.
        before: available amount of the signal before the action; ``None`` if unknown.
        predicted: amount expected to be freed, in the signal's unit; ``None`` if unknown.
        since_s: time of the action.
        until_s: deadline of the effect.
        uid: UID of the evicted pod; empty for node-level reclaim.
        confirmed: whether the removal was verified. Other processes may have used the freed space since then.
        ineffective: whether the action freed less than half of its prediction. An ineffective effect suspends only
            evictions of pods that do not drive the shortage; node-level reclaim continues.
        confirmed_s: time of the first reading after the confirmation; ``None`` before this reading.
        confirmed_available: available amount of the signal in the reading at ``confirmed_s``.
        path: path of an additional filesystem; empty for other shortages, and for an effect on any such
            filesystem after a restart without a readable state record.
    """

    action: str
    shortage: Shortage
    signal: Signal
    before: float | None
    predicted: int | None
    since_s: float
    until_s: float
    uid: str = ""
    confirmed: bool = False
    ineffective: bool = False
    confirmed_s: float | None = None
    confirmed_available: float | None = None
    path: str = ""

    @property
    def measurand(self) -> Measurand:
        """The signal that measures the effect, with the path of its filesystem."""
        return Measurand(self.signal, self.path)

    def relieves(self, shortage: Shortage | None, path: str) -> bool:
        """Return whether the effect relieves a shortage; ``path`` is the filesystem path for ``OTHER_IMAGEFS``."""
        if self.shortage is not shortage:
            return False
        return shortage is not Shortage.OTHER_IMAGEFS or not self.path or self.path == path

    @property
    def details(self) -> dict[str, Detail]:
        """The effect as details of a reason; an unknown predicted amount is omitted."""
        unit = {Unit.BYTES: "bytes", Unit.INODES: "inodes", Unit.PIDS: "pids"}.get(MEANINGS[self.signal].unit, "")
        known = {} if self.predicted is None or not unit else {f"predicted_{unit}": self.predicted}
        where = {"path": self.path} if self.path else {}
        return {"action": self.action, "shortage": self.shortage.value, "signal": self.signal.value, **where, **known}


class EffectEnd(StrEnum):
    """Result with which an effect ended. The values are part of logs.

    ``MEASURED``: the signal rose by the predicted amount. ``CONFIRMED``: the removal was verified and the signal fell
    since, or rose by less than predicted: other processes used the space, or the prediction was too high. ``MISSING``:
    the signal did not rise as predicted before the deadline, and the removal was not verified.
    """

    MEASURED = "measured"
    CONFIRMED = "confirmed"
    MISSING = "missing"


class EndedEffect(Record):
    """An effect that ended, with its result.

    Attributes:
        gained: rise of the signal since the action; ``None`` if the signal was not read before or after the action.
        waited_s: seconds between the action and the end of the effect.
        ineffective: whether the eviction freed less than half of its prediction.
    """

    effect: OutstandingEffect
    end: EffectEnd
    gained: float | None
    waited_s: float
    ineffective: bool = False

    @property
    def change(self) -> str:
        """The change of the signal since the action, as the predicate of a sentence."""
        if self.gained is None:
            return "was not read before and after the action"
        amount = f"{round(abs(self.gained), 2):.15g}"
        return f"rose by {amount}" if self.gained > 0 else f"fell by {amount}" if self.gained else "did not change"


def effects_of_eviction(
    eviction: Eviction,
    observations: Iterable[SignalReading],
    placement: RankingInput,
    now: Moment,
) -> tuple[OutstandingEffect, ...]:
    """Return the predicted effects of an eviction, at most one per shortage, to record before the eviction starts.

    The prediction covers memory, PIDs and writable layers. For the threshold acted on, it is the amount that the
    eviction frees: with the logs for their filesystem, which are removed with the containers then, and with the volumes
    that a kubelet removes.
    """
    layout, others = placement.layout, placement.others
    available = {each.measurand: each.available for each in observations}
    usage, status = eviction.pod.usage, eviction.status
    action, uid = f"eviction of {eviction.pod.namespace}/{eviction.pod.name}", eviction.pod.uid
    threshold = None if status is None else status.threshold
    short = None if threshold is None else shortage_of(threshold.signal, layout, threshold.filesystem)
    layers = DEVICES[device_role(FilesystemRole.CONTAINERFS, layout)]
    written = {(layers, ""): Footprint() if usage is None else on_first(usage, others)}
    signals = {(layers, ""): DISKS[layers]}
    for other in others:
        if other.has_logs:
            continue
        key = (Shortage.NODEFS if other.on_nodefs else Shortage.OTHER_IMAGEFS, other.path)
        written[key] = (None if usage is None else on_filesystem(usage, other)) or _NOTHING
        signals[key] = Signal.IMAGEFS_AVAILABLE
    if short in {Shortage.MEMORY, Shortage.MEMORY_STALL}:
        signals |= {(Shortage.MEMORY, ""): Signal.MEMORY_AVAILABLE, (Shortage.MEMORY_STALL, ""): Signal.MEMORY_PSI_FULL}
    acted_on = None
    if threshold is not None and short is not None:
        acted_on = (short, threshold.measurand.path)
        signals[acted_on] = threshold.signal
        cache_in_use = status is not None and is_cache_in_use(status.observation)
        placement = placement._replace(ranked=threshold.filesystem, cache_in_use=cache_in_use)
    found = []
    for key, signal in signals.items():
        shortage, path = key
        within_s = FREED_WITHIN_S if shortage in DISKS else VISIBLE_WITHIN_S
        if shortage is Shortage.MEMORY_STALL:
            predicted, within_s = None, STALL_WINDOW_S
        elif shortage in DISKS and key != acted_on:
            predicted = _amount(written[key], MEANINGS[signal].unit)
        else:
            freed, _ = freed_by_eviction(usage, signal, placement)
            predicted = None if freed is None else int(freed)
        if predicted == 0 and key != acted_on:
            continue
        found.append(
            OutstandingEffect(
                action,
                shortage,
                signal,
                available.get(Measurand(signal, path)),
                predicted,
                now.monotonic_s,
                now.monotonic_s + within_s,
                uid,
                path=path,
            )
        )
    return tuple(found)


def extended(effects: Iterable[OutstandingEffect], within_s: float) -> tuple[OutstandingEffect, ...]:
    """Return the effects with a new deadline for effects on filesystems, ``within_s`` seconds after their action.

    The longer deadline applies if a process other than the agent removes the containers.
    """
    return tuple(replace(each, until_s=each.since_s + within_s) if each.shortage in DISKS else each for each in effects)


def effect_of_reclaim(  # noqa: PLR0913 - one argument for each variable attribute of the effect
    step: ReclaimStep,
    status: ThresholdStatus,
    layout: FilesystemLayout,
    *,
    predicted: int | None,
    confirmed: bool,
    now: Moment,
) -> OutstandingEffect | None:
    """Return the effect of a step of node-level reclaim; ``None`` for a prediction of 0.

    Args:
        step: the completed reclaim step.
        status: threshold for which the step was run, with the reading before the step.
        layout: which filesystems share a device.
        predicted: size of the removed items, in the unit of the threshold's signal; ``None`` if unknown.
        confirmed: whether the space of the removed items is verified to be freed.
        now: time after the step.
    """
    threshold = status.threshold
    shortage = shortage_of(threshold.signal, layout, threshold.filesystem)
    if predicted == 0 or shortage is None:
        return None
    within_s = VISIBLE_WITHIN_S if confirmed else FREED_WITHIN_S
    before = None if status.observation is None else status.observation.available
    at_s, (signal, path) = now.monotonic_s, threshold.measurand
    until_s = at_s + within_s
    return OutstandingEffect(
        step.text, shortage, signal, before, predicted, at_s, until_s, confirmed=confirmed, path=path
    )


def withholding(
    effects: Iterable[OutstandingEffect], shortage: Shortage | None, now: Moment, path: str = ""
) -> OutstandingEffect | None:
    """Return the effect with the latest deadline among the effects that suspend actions for a shortage now.

    An ineffective effect, which suspends only evictions, is returned if no other effect is outstanding; ``None``
    without any effect. ``path`` is the path of an additional filesystem.
    """
    found = [each for each in effects if each.relieves(shortage, path) and now.monotonic_s < each.until_s]
    return max(found, key=lambda each: (not each.ineffective, each.until_s, each.action), default=None)


def is_insufficient(status: ThresholdStatus, reclaimable: int | None) -> bool:
    """Return whether a hard threshold remains met even if everything reclaimable is removed.

    The result is false without a reading, for a soft threshold, and for an unknown amount: reclaim is then awaited.
    ``reclaimable`` is in the unit of the signal. The minimum reclaim of the threshold is not required.
    """
    reading, threshold = status.observation, status.threshold
    if reading is None or reclaimable is None or not threshold.hard:
        return False
    slack = _SLACK_INODES if MEANINGS[threshold.signal].unit is Unit.INODES else _SLACK_BYTES
    return threshold.met_by(reading.available + reclaimable + slack, reading.capacity)


def confirm(
    effects: Iterable[OutstandingEffect], uid: str, shortages: Iterable[Shortage], now: Moment
) -> tuple[OutstandingEffect, ...]:
    """Return the effects; effects of one pod on these shortages are marked as confirmed, with an earlier deadline."""
    confirmed = frozenset(shortages)
    return tuple(
        replace(each, confirmed=True, until_s=min(each.until_s, now.monotonic_s + _visible_within_s(each)))
        if uid and each.uid == uid and each.shortage in confirmed and not each.confirmed and not each.ineffective
        else each
        for each in effects
    )


def restarted(effects: Iterable[OutstandingEffect], uid: str, now: Moment) -> tuple[OutstandingEffect, ...]:
    """Return the effects; the time limit of effects of one pod restarts now, at the exit of the pod's processes."""
    return tuple(
        replace(each, until_s=now.monotonic_s + (each.until_s - each.since_s)) if uid and each.uid == uid else each
        for each in effects
    )


def update_effects(
    effects: Iterable[OutstandingEffect],
    observations: Iterable[SignalReading],
    now: Moment,
    *,
    verified: Collection[str],
) -> tuple[tuple[OutstandingEffect, ...], tuple[EndedEffect, ...]]:
    """Return the effects that are still outstanding and the effects that ended, by current readings.

    A rise of the signal ends a confirmed effect immediately and an unconfirmed effect at its deadline, since other
    processes free space as well. A fall of the signal after the confirmation ends the effect too. An effect of an
    eviction that ends with less than half of its predicted amount also remains outstanding, as an ineffective effect,
    if the removal is confirmed or the UID of the pod is in ``verified``, the UIDs of pods without running processes.
    """
    readings: Mapping[Measurand, float] = {each.measurand: each.available for each in observations}
    remaining, ended = [], []
    for effect in effects:
        reading = readings.get(effect.measurand)
        gained = None if reading is None or effect.before is None else reading - effect.before
        waited_s = max(0.0, now.monotonic_s - effect.since_s)
        over = now.monotonic_s >= effect.until_s
        current = effect if reading is None else _with_first_reading(effect, reading, now)
        if effect.ineffective:
            remaining += [] if over else [effect]
            continue
        if effect.confirmed and _rose_as_predicted(effect, gained):
            end = EffectEnd.MEASURED
        elif reading is not None and _is_falling(current, reading, now):
            end = EffectEnd.CONFIRMED
        elif not over:
            remaining.append(current)
            continue
        elif _rose_as_predicted(effect, gained):
            end = EffectEnd.MEASURED
        else:
            end = EffectEnd.CONFIRMED if effect.confirmed else EffectEnd.MISSING
        ineffective = _is_ineffective(effect, end, gained, verified)
        ended.append(EndedEffect(effect, end, gained, waited_s, ineffective))
        if ineffective:
            remaining.append(replace(effect, ineffective=True, until_s=now.monotonic_s + UNTIL_CLEARED_S))
    return tuple(remaining), tuple(ended)


def _with_first_reading(effect: OutstandingEffect, reading: float, now: Moment) -> OutstandingEffect:
    """Return the effect, with this reading recorded if it is the first reading after the confirmation."""
    if not effect.confirmed or effect.confirmed_s is not None:
        return effect
    return replace(effect, confirmed_s=now.monotonic_s, confirmed_available=reading)


def _is_falling(effect: OutstandingEffect, reading: float, now: Moment) -> bool:
    """Return whether the signal of a confirmed effect fell by more than a tenth of the predicted amount.

    The fall is measured from the higher of the readings before the action and after the confirmation, once a minimum
    time has passed. A smaller fall is within the accuracy of the measurement.
    """
    since_s, first = effect.confirmed_s, effect.confirmed_available
    if since_s is None or first is None or effect.shortage is Shortage.MEMORY_STALL:
        return False
    slack = max(_slack(effect), round((effect.predicted or 0) * _TRICKLE))
    falling_for_s = FALLING_FOR_S if effect.shortage in DISKS else MEMORY_FALLING_FOR_S
    return now.monotonic_s - since_s >= falling_for_s and reading < max(first, effect.before or 0) - slack


def _visible_within_s(effect: OutstandingEffect) -> float:
    return STALL_WINDOW_S if effect.shortage is Shortage.MEMORY_STALL else VISIBLE_WITHIN_S


def _amount(footprint: Footprint, unit: Unit) -> int | None:
    return footprint.used_inodes if unit is Unit.INODES else footprint.used_bytes


def _is_ineffective(effect: OutstandingEffect, end: EffectEnd, gained: float | None, verified: Collection[str]) -> bool:
    """Return whether an eviction, whose processes ended, freed less than half of its prediction."""
    if not effect.uid or not (effect.confirmed or effect.uid in verified):
        return False
    if end is EffectEnd.MISSING and effect.shortage in DISKS:
        return True
    if end is EffectEnd.MEASURED or effect.predicted is None or gained is None:
        return False
    return gained < effect.predicted * _EFFECTIVE - _slack(effect)


def _slack(effect: OutstandingEffect) -> int:
    """Return the accuracy of a measurement, in the unit of the signal of an effect."""
    return {Unit.BYTES: _SLACK_BYTES, Unit.INODES: _SLACK_INODES}.get(MEANINGS[effect.signal].unit, 0)


def _rose_as_predicted(effect: OutstandingEffect, gained: float | None) -> bool:
    """Return whether the signal of an effect rose by the predicted amount, within the accuracy of the measurement."""
    if effect.predicted is None or gained is None:
        return False
    slack = 0 if MEANINGS[effect.signal].unit is Unit.INODES else _SLACK_BYTES
    return gained >= max(0.0, effect.predicted * _SURE - slack)


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
        other = status.threshold.filesystem
        on_it = "have a writable layer on this filesystem" if other and other.stores else "use the resource"
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
