"""Eviction thresholds: parser, properties of their signals, validation of readings, and status.

The parser accepts both kubelet syntaxes: a list such as ``memory.available<100Mi,nodefs.available<10%`` (kubelet flags)
and a mapping from signal to value (kubelet configuration file). A ``ValueError`` contains the text, the position of the
error in a list, and the accepted form.
"""

from __future__ import annotations

import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn

from nodeagent.model.pressure import (
    FilesystemLayout,
    FilesystemRole,
    Measurand,
    Moment,
    NodeCondition,
    OtherFilesystem,
    Resource,
    Signal,
    SignalReading,
)
from nodeagent.record import KeyedRecord, Record, replace
from nodeagent.units import format_duration, parse_bytes, parse_duration_s


class Operator(StrEnum):
    """Operator that compares a reading with its threshold, strictly."""

    LESS_THAN = "<"
    GREATER_THAN = ">"


class Unit(StrEnum):
    """Unit of the readings of a signal."""

    BYTES = "bytes"
    INODES = "inodes"
    PIDS = "pids"
    STALL_PERCENT = "percent of time"


class SignalMeaning(NamedTuple):
    """Properties of one signal.

    Attributes:
        resource: the resource to reclaim; ``None`` if evicting a pod is not known to relieve the signal.
        condition: node condition to report while a threshold on the signal is met; ``None`` without a condition.
        filesystem: the measured filesystem; ``None`` for other signals.
    """

    unit: Unit
    resource: Resource | None
    condition: NodeCondition | None
    filesystem: FilesystemRole | None = None
    operator: Operator = Operator.LESS_THAN


def _bytes_on(filesystem: FilesystemRole) -> SignalMeaning:
    return SignalMeaning(Unit.BYTES, Resource.EPHEMERAL_STORAGE, NodeCondition.DISK_PRESSURE, filesystem)


def _inodes_on(filesystem: FilesystemRole) -> SignalMeaning:
    return SignalMeaning(Unit.INODES, Resource.INODES, NodeCondition.DISK_PRESSURE, filesystem)


_MEMORY = SignalMeaning(Unit.BYTES, Resource.MEMORY, NodeCondition.MEMORY_PRESSURE)
_MEMORY_STALL = _MEMORY._replace(unit=Unit.STALL_PERCENT, operator=Operator.GREATER_THAN)
_IO_STALL = SignalMeaning(Unit.STALL_PERCENT, None, None, operator=Operator.GREATER_THAN)

MEANINGS: Final[Mapping[Signal, SignalMeaning]] = MappingProxyType(
    {
        Signal.MEMORY_AVAILABLE: _MEMORY,
        Signal.ALLOCATABLE_MEMORY_AVAILABLE: _MEMORY,
        Signal.MEMORY_PSI_FULL: _MEMORY_STALL,
        Signal.MEMORY_PSI_SOME: _MEMORY_STALL,
        Signal.SWAP_FREE: _MEMORY,
        Signal.NODEFS_AVAILABLE: _bytes_on(FilesystemRole.NODEFS),
        Signal.NODEFS_INODES_FREE: _inodes_on(FilesystemRole.NODEFS),
        Signal.IMAGEFS_AVAILABLE: _bytes_on(FilesystemRole.IMAGEFS),
        Signal.IMAGEFS_INODES_FREE: _inodes_on(FilesystemRole.IMAGEFS),
        Signal.CONTAINERFS_AVAILABLE: _bytes_on(FilesystemRole.CONTAINERFS),
        Signal.CONTAINERFS_INODES_FREE: _inodes_on(FilesystemRole.CONTAINERFS),
        Signal.PID_AVAILABLE: SignalMeaning(Unit.PIDS, Resource.PIDS, NodeCondition.PID_PRESSURE),
        Signal.IO_PSI_FULL: _IO_STALL,
        Signal.IO_PSI_SOME: _IO_STALL,
    }
)
"""Properties of every signal.

I/O stall signals have no resource and no node condition: the stalled pods need not cause the stall, and DiskPressure
reports a lack of space. A threshold on an I/O stall signal is evaluated and displayed, but no pod is evicted for it.

Source: kubelet ``signalToNodeCondition``, ``signalToResource``, ``OpForSignal``; stall signals and ``swap.free`` are
specific to nodeagent.
"""


def unit_of(text: str) -> Unit:
    """Return the unit of the signal that a text begins with: a signal, a threshold, or a resource of the trend record.

    The amounts of an unknown signal, such as one of another version, are bytes.
    """
    return next((meaning.unit for signal, meaning in MEANINGS.items() if text.startswith(signal)), Unit.BYTES)


_POSITIONS: Final[Mapping[Signal, int]] = MappingProxyType({signal: index for index, signal in enumerate(Signal)})


def position(signal: Signal) -> tuple[int, int]:
    """Return the sort key of a signal: memory signals first, signals without a resource last."""
    resource = MEANINGS[signal].resource
    group = 2 if resource is None else 0 if resource is Resource.MEMORY else 1
    return group, _POSITIONS[signal]


class Amount(KeyedRecord):
    """Amount of a threshold: either a quantity or a share of the capacity.

    Attributes:
        number: bytes, inodes, PIDs, or percent of time for stall signals.
        share: share of the capacity from 0 to 1, in single precision like in the kubelet.
        text: amount as configured, for display; ignored in comparisons.
    """

    number: float | None = None
    share: float | None = None
    text: str = ""

    @property
    def equality_key(self) -> tuple[object, ...]:
        """The compared attributes."""
        return self.number, self.share

    def of(self, capacity: float) -> float:
        """Return the quantity for a capacity; the product of share and capacity is truncated to an integer.

        Source: kubelet ``GetThresholdQuantity``.
        """
        if self.number is not None:
            return self.number
        return int(float(capacity) * (self.share or 0.0))


class Threshold(KeyedRecord):
    """An eviction threshold of one signal.

    A threshold without a grace period is hard, even if configured as a soft threshold. Two thresholds are equal if
    their signals, amounts, grace periods and filesystems are equal; the minimum reclaim is ignored. The operator
    follows from the signal.

    Attributes:
        grace_s: seconds for which the threshold must be met before a pass acts on it.
        minimum_reclaim: amount above the threshold (below for stall signals) required to clear it once it was due.
        filesystem: an additional filesystem; ``None`` for the filesystem of the signal.

    Source: kubelet ``evictionapi.Threshold``.
    """

    signal: Signal
    amount: Amount
    grace_s: float = 0.0
    minimum_reclaim: Amount | None = None
    filesystem: OtherFilesystem | None = None

    @property
    def equality_key(self) -> tuple[object, ...]:
        """The compared attributes."""
        return self.signal, self.amount, self.grace_s, self.filesystem

    @property
    def hard(self) -> bool:
        """Whether the threshold has no grace period. Source: kubelet ``isHardEvictionThreshold``."""
        return self.grace_s <= 0

    @property
    def operator(self) -> Operator:
        """Comparison of a reading with the amount."""
        return MEANINGS[self.signal].operator

    @property
    def text(self) -> str:
        """The threshold as configured, such as ``nodefs.available<10%``, with the path of ``filesystem`` if set."""
        on = "" if self.filesystem is None else f" on {self.filesystem.path}"
        return f"{self.signal}{self.operator}{self.amount.text}{on}"

    @property
    def measurand(self) -> Measurand:
        """The signal with its filesystem."""
        return Measurand(self.signal, "" if self.filesystem is None else self.filesystem.path)

    def limit(self, capacity: float, *, with_reclaim: bool = False) -> float:
        """Return the threshold quantity for a capacity, with the minimum reclaim if ``with_reclaim``."""
        limit = self.amount.of(capacity)
        if not with_reclaim or self.minimum_reclaim is None:
            return limit
        reclaim = self.minimum_reclaim.of(capacity)
        return limit + reclaim if self.operator is Operator.LESS_THAN else limit - reclaim

    def met_by(self, available: float, capacity: float, *, with_reclaim: bool = False) -> bool:
        """Return whether a reading is below the threshold quantity, or above the quantity for stall signals.

        Source: kubelet ``thresholdsMet`` with ``enforceMinReclaim``.
        """
        limit = self.limit(capacity, with_reclaim=with_reclaim)
        return available < limit if self.operator is Operator.LESS_THAN else available > limit


DEFAULT_HARD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "memory.available": "100Mi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
        "imagefs.inodesFree": "5%",
    }
)
"""Default hard thresholds by signal. Source: kubelet ``DefaultEvictionHard`` on Linux."""


def in_order(thresholds: Iterable[Threshold]) -> tuple[Threshold, ...]:
    """Return the distinct thresholds in order of urgency, in which a pass acts on them.

    Memory thresholds precede others, and thresholds without a resource are last. Within each group the order is: hard
    before soft, by signal, by grace period, by amount.

    Source: kubelet ``byEvictionPriority``, made total.
    """
    return tuple(dict.fromkeys(sorted(thresholds, key=_order)))


def _order(threshold: Threshold) -> tuple[int, bool, int, float, float, float, float, float, str, int]:
    group, place = position(threshold.signal)
    reclaim = threshold.minimum_reclaim or Amount(0)
    return (
        group,
        not threshold.hard,
        place,
        threshold.grace_s,
        threshold.amount.number or 0.0,
        threshold.amount.share or 0.0,
        -(reclaim.number or 0.0),
        -(reclaim.share or 0.0),
        threshold.measurand.path,
        0 if threshold.filesystem is None else threshold.filesystem.device_id,
    )


def for_layout(
    thresholds: Sequence[Threshold], layout: FilesystemLayout, others: Iterable[OtherFilesystem] = ()
) -> tuple[tuple[Threshold, ...], tuple[str, ...]]:
    """Return configured and derived thresholds, and warnings about configured thresholds that are replaced.

    containerfs has the thresholds of the filesystem with the writable layers: of imagefs if imagefs is dedicated,
    otherwise of nodefs. Every further image filesystem has the thresholds of imagefs, and a filesystem of the pod logs
    those of nodefs; the kubelet monitors only the first image filesystem, and no filesystem of the logs.

    Source: kubelet ``UpdateContainerFsThresholds``.
    """
    if layout is FilesystemLayout.DEDICATED_IMAGEFS:
        pairs = {
            Signal.IMAGEFS_AVAILABLE: Signal.CONTAINERFS_AVAILABLE,
            Signal.IMAGEFS_INODES_FREE: Signal.CONTAINERFS_INODES_FREE,
        }
    else:
        pairs = {
            Signal.NODEFS_AVAILABLE: Signal.CONTAINERFS_AVAILABLE,
            Signal.NODEFS_INODES_FREE: Signal.CONTAINERFS_INODES_FREE,
        }
    targets = frozenset(pairs.values())
    kept = tuple(each for each in thresholds if each.signal not in targets)
    derived = tuple(replace(each, signal=pairs[each.signal]) for each in kept if each.signal in pairs)
    source = next(iter(pairs)).split(".")[0]
    warnings = tuple(
        f"{each.text} has no effect: containerfs has the thresholds of {source} on this node"
        for each in thresholds
        if each.signal in targets and each not in derived
    )
    of_others = tuple(
        replace(each, filesystem=filesystem)
        for filesystem in others
        for each in kept
        if MEANINGS[each.signal].filesystem
        is (FilesystemRole.NODEFS if filesystem.has_logs else FilesystemRole.IMAGEFS)
    )
    return kept + derived + of_others, warnings


def is_oversized(threshold: Threshold, sizes: Mapping[Signal, float]) -> bool:
    """Return whether a quantity chosen for nodefs is more than half of the filesystem of the pod logs.

    Such a threshold would be met on an almost empty log partition. ``sizes`` are its bytes and inodes by signal.
    """
    size = sizes.get(threshold.signal)
    if threshold.filesystem is None or not threshold.filesystem.has_logs or size is None:
        return False
    amounts = (threshold.amount, threshold.minimum_reclaim)
    return 2 * sum(each.number or 0.0 for each in amounts if each is not None) > size


def find_contradictions(thresholds: Iterable[Threshold], capacities: Mapping[Measurand, float]) -> tuple[str, ...]:
    """Return a sentence for every soft threshold that is not met before the hard threshold of its signal on this node.

    A share and a quantity are compared by the capacity of the signal; signals without a known capacity are skipped.
    """
    listed = in_order(thresholds)
    return tuple(
        f"soft threshold {soft.text} is not met before hard threshold {hard.text}; its grace period has no effect"
        for hard in listed
        for soft in listed
        if hard.hard and not soft.hard and hard.measurand == soft.measurand
        if _is_met_later(soft, hard, capacities.get(hard.measurand))
    )


def _is_met_later(soft: Threshold, hard: Threshold, capacity: float | None) -> bool:
    if capacity is None:
        return False
    first, second = soft.limit(capacity), hard.limit(capacity)
    return first <= second if hard.operator is Operator.LESS_THAN else first >= second


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

    observation: SignalReading
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

    accepted: Mapping[Measurand, SignalReading]
    rejected: Mapping[Measurand, Rejection]


def validate(observations: Iterable[SignalReading], now: Moment, max_age_s: float) -> ValidatedReadings:
    """Return the accepted and the rejected readings.

    Impossible readings, readings older than ``max_age_s`` or newer than ``now``, and all readings of a signal with two
    different readings are rejected. A reading of exactly ``max_age_s`` is accepted.
    """
    found: defaultdict[Measurand, list[SignalReading]] = defaultdict(list)
    for observation in observations:
        found[observation.measurand].append(observation)
    accepted: dict[Measurand, SignalReading] = {}
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


def _fault(observation: SignalReading, age_s: float, max_age_s: float) -> RejectionCode | None:
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
    observation: SignalReading | None = None
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


_HARD, _SOFT, _GRACE, _RECLAIM = "hard threshold", "soft threshold", "soft grace period", "minimum reclaim"
_OPERATOR = re.compile(r"[<>=]+")
_PERCENT = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))%?", re.ASCII)
_PERCENT_FORM: Final = "write a percentage from 0% to 100%, such as 10%; 0% or 100% disables the threshold"


class _Entry(Record):
    """One signal of a setting and its value as configured.

    Attributes:
        label: name of the setting in error messages.
        text: the whole list; for a mapping, only the value.
        value_at: position of the value in ``text``.
        listed: whether the text is a list, so that errors name a position.
    """

    label: str
    text: str
    signal: Signal
    value: str
    value_at: int
    listed: bool

    def fault(self, sentence: str) -> NoReturn:
        """Raise a ``ValueError`` about the value of this entry, with its position in a list."""
        if self.listed:
            _reject(self.label, self.text, self.value_at, sentence)
        raise ValueError(f"{self.label} {self.signal}: {sentence}")


def parse_thresholds(  # noqa: PLR0913 - one argument for each kubelet setting
    *,
    hard: str | Mapping[str, str] | None = None,
    soft: str | Mapping[str, str] | None = None,
    soft_grace_period: str | Mapping[str, str] | None = None,
    minimum_reclaim: str | Mapping[str, str] | None = None,
    merge_default_hard: bool = False,
    allocatable: bool = True,
) -> tuple[Threshold, ...]:
    """Return the thresholds of these settings, hard thresholds first, otherwise in configured order.

    A signal has at most one hard and one soft threshold. A value is a quantity, or a percentage of the capacity; 0% and
    100% disable a threshold. The value of a stall signal is a percentage of time; its percent sign is optional. A soft
    threshold must be met before the hard threshold of its signal. A quantity and a percentage are compared by
    ``find_contradictions`` on the node, since the comparison needs the capacity.

    Args:
        hard: hard thresholds; ``None`` for the kubelet's defaults, empty for no thresholds.
        soft: soft thresholds; each requires a grace period. A threshold with a grace period of 0 is hard.
        soft_grace_period: duration for each signal with a soft threshold.
        minimum_reclaim: amount for each signal, applied to its hard and its soft threshold; ignored for a signal
            without thresholds.
        merge_default_hard: whether signals missing from ``hard`` keep their default threshold; otherwise ``hard``
            replaces all defaults.
        allocatable: whether the hard ``memory.available`` threshold applies to ``allocatableMemory.available`` too,
            unless that signal has a hard threshold.

    Raises:
        ValueError: a setting is not valid.

    Source: kubelet ``ParseThresholdConfig``, ``parseThresholdStatements``, ``addAllocatableThresholds``,
    ``mergeDefaultEvictionSettings``.
    """
    hard_entries = _entries(_HARD, DEFAULT_HARD if hard is None else hard, compares=True)
    if merge_default_hard:
        hard_entries = {**hard_entries, **_without(hard_entries, _entries(_HARD, DEFAULT_HARD, compares=True))}
    soft_entries = _entries(_SOFT, soft, compares=True)
    graces = {signal: _grace_s(entry, soft_entries) for signal, entry in _entries(_GRACE, soft_grace_period).items()}
    reclaims = {signal: _reclaim(entry) for signal, entry in _entries(_RECLAIM, minimum_reclaim).items()}
    thresholds: dict[tuple[str, Signal], Threshold] = {}
    for signal, entry in hard_entries.items():
        amount = _amount(entry)
        if amount is not None:
            thresholds[_HARD, signal] = Threshold(signal, amount, 0.0, reclaims.get(signal))
    for signal, entry in soft_entries.items():
        amount = _amount(entry)
        if amount is None:
            continue
        if signal not in graces:
            entry.fault(f"soft threshold {signal} has no grace period; add one, such as {signal}=1m30s")
        threshold = Threshold(signal, amount, graces[signal], reclaims.get(signal))
        _check_soft(entry, threshold, thresholds.get((_HARD, signal)))
        thresholds[_SOFT, signal] = threshold
    listed = tuple(thresholds.values())
    return listed + _allocatable(listed) if allocatable else listed


def _without(named: Mapping[Signal, _Entry], defaults: Mapping[Signal, _Entry]) -> dict[Signal, _Entry]:
    return {signal: entry for signal, entry in defaults.items() if signal not in named}


def _allocatable(thresholds: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
    own = Signal.ALLOCATABLE_MEMORY_AVAILABLE
    if any(each.hard and each.signal is own for each in thresholds):
        return ()
    return tuple(
        replace(each, signal=own) for each in thresholds if each.hard and each.signal is Signal.MEMORY_AVAILABLE
    )


def _check_soft(entry: _Entry, soft: Threshold, hard: Threshold | None) -> None:
    """Raise ``ValueError`` if a soft threshold is never met before the hard threshold of its signal."""
    if hard is None:
        return
    first, second = soft.amount, hard.amount
    if first.number is not None and second.number is not None:
        difference = first.number - second.number
    elif first.share is not None and second.share is not None:
        difference = first.share - second.share
    else:
        return
    above = soft.operator is Operator.LESS_THAN
    if (difference if above else -difference) <= 0:
        side = "above" if above else "below"
        entry.fault(
            f"{first.text!r} is not {side} the hard threshold {second.text!r} of {soft.signal}, "
            "and would never be met before it"
        )


def _entries(label: str, setting: str | Mapping[str, str] | None, *, compares: bool = False) -> Mapping[Signal, _Entry]:
    """Return the entries of a setting by signal; with ``compares``, a list has ``<`` or ``>``, otherwise ``=``."""
    if setting is None:
        return {}
    entries: dict[Signal, _Entry] = {}
    if not isinstance(setting, str):
        for key, value in setting.items():
            signal = _signal(label, key, key, None)
            if signal in entries:
                raise ValueError(f"{label} {key!r}: duplicate signal {signal}")
            entries[signal] = _Entry(label, value, signal, value.strip(), 0, listed=False)
        return entries
    for entry, at in _split(label, setting, compares=compares):
        if entry.signal in entries:
            _reject(label, setting, at, f"duplicate signal {entry.signal}")
        entries[entry.signal] = entry
    return entries


def _split(label: str, text: str, *, compares: bool) -> Iterator[tuple[_Entry, int]]:
    """Yield the entries of a comma-separated list, each with its position in the text."""
    if not text.strip():
        return
    start = 0
    for part in text.split(","):
        at = start + len(part) - len(part.lstrip())
        yield _statement(label, text, part.strip(), at, compares=compares), at
        start += len(part) + 1


def _statement(label: str, text: str, statement: str, at: int, *, compares: bool) -> _Entry:
    form = "SIGNAL<VALUE, such as memory.available<100Mi" if compares else "SIGNAL=VALUE, such as memory.available=1m"
    if label == _RECLAIM:
        form = "SIGNAL=VALUE, such as memory.available=200Mi"
    if not statement:
        _reject(label, text, at, f"empty entry; write {form}")
    operator = _OPERATOR.search(statement)
    if operator is None:
        _reject(label, text, at, f"{statement!r} has no operator; write {form}")
    name = statement[: operator.start()].strip()
    signal = _signal(label, text, name, at)
    expected = MEANINGS[signal].operator if compares else "="
    if operator[0] != expected:
        _reject(label, text, at + operator.start(), f"{operator[0]!r} is not valid for {signal}; write '{expected}'")
    rest = statement[operator.end() :]
    value = rest.lstrip()
    value_at = at + operator.end() + len(rest) - len(value)
    return _Entry(label, text, signal, value, value_at, listed=True)


def _signal(label: str, text: str, name: str, at: int | None) -> Signal:
    try:
        return Signal(name.strip())
    except ValueError:
        from difflib import get_close_matches  # noqa: PLC0415 - needed only for an error message

        near = get_close_matches(name, list(Signal), n=1)
        hint = f"did you mean {near[0]}?" if near else f"the signals are {', '.join(Signal)}"
        sentence = f"{name!r} is not a signal; {hint}"
        if at is None:
            raise ValueError(f"{label}: {sentence}") from None
        _reject(label, text, at, sentence)


def _reject(label: str, text: str, at: int, sentence: str) -> NoReturn:
    """Raise a ``ValueError`` about a list; the position ``at`` counts from 0, the message counts from 1."""
    raise ValueError(f"{label} {text!r}, character {at + 1}: {sentence}")


def _amount(entry: _Entry) -> Amount | None:
    """Return the amount of a threshold; ``None`` if the threshold is disabled by 0% or 100%."""
    if MEANINGS[entry.signal].unit is Unit.STALL_PERCENT:
        percent = _percent(entry, "percentage of time")
        return None if percent in {0, 100} else Amount(number=percent, text=_with_sign(entry.value))
    if entry.value.endswith("%"):
        percent = _percent(entry, "percentage")
        return None if percent in {0, 100} else Amount(share=_single(percent), text=entry.value)
    number = _quantity(entry)
    if number == 0:
        entry.fault(f"{entry.value!r} is never met; write a positive amount, or 0% to disable the threshold")
    return Amount(number=number, text=entry.value)


def _reclaim(entry: _Entry) -> Amount:
    if MEANINGS[entry.signal].unit is Unit.STALL_PERCENT:
        return Amount(number=_percent(entry, "percentage of time"), text=_with_sign(entry.value))
    if entry.value.endswith("%"):
        percent = _percent(entry, "percentage")
        if percent == 0:
            entry.fault(f"{entry.value!r} is not a positive amount; write more than 0% or remove the entry")
        return Amount(share=_single(percent), text=entry.value)
    return Amount(number=_quantity(entry), text=entry.value)


def _grace_s(entry: _Entry, soft: Mapping[Signal, _Entry]) -> float:
    if entry.signal not in soft:
        entry.fault(f"{entry.signal} has a grace period but no soft threshold; add the threshold or remove the period")
    try:
        return parse_duration_s(entry.value)
    except ValueError as error:
        entry.fault(str(error))


def _percent(entry: _Entry, kind: str) -> float:
    match = _PERCENT.fullmatch(entry.value)
    if match is None:
        entry.fault(f"{entry.value!r} is not a {kind}; {_PERCENT_FORM}")
    percent = float(match["number"])
    if not 0 <= percent <= 100:
        entry.fault(f"{entry.value!r} is out of range; {_PERCENT_FORM}")
    return percent


def _quantity(entry: _Entry) -> int:
    try:
        return parse_bytes(entry.value)
    except ValueError as error:
        if MEANINGS[entry.signal].unit is Unit.BYTES:
            entry.fault(f"{error}, or a percentage such as 10%")
        entry.fault(f"{entry.value!r} is not a number of {MEANINGS[entry.signal].unit}; write 5000, 10k or 5%")


def _with_sign(value: str) -> str:
    return value if value.endswith("%") else f"{value}%"


def _single(percent: float) -> float:
    """Return a percentage as a share from 0 to 1, rounded to float32 in each step like in the kubelet."""
    return _rounded(_rounded(percent) / 100)


def _rounded(number: float) -> float:
    (single,) = struct.unpack("f", struct.pack("f", number))
    return float(single)
