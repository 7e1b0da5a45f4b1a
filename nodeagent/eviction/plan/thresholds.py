"""Eviction thresholds (signal, amount and grace period), and the properties of the signals."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.pressure import FilesystemLayout, FilesystemRole, Measurand, NodeCondition, Resource, Signal
from nodeagent.record import KeyedRecord, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodeagent.model.pressure import OtherImageFilesystem


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
        filesystem: an image filesystem other than the first; ``None`` for the filesystem of the signal.

    Source: kubelet ``evictionapi.Threshold``.
    """

    signal: Signal
    amount: Amount
    grace_s: float = 0.0
    minimum_reclaim: Amount | None = None
    filesystem: OtherImageFilesystem | None = None

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
    thresholds: Sequence[Threshold], layout: FilesystemLayout, others: Iterable[OtherImageFilesystem] = ()
) -> tuple[tuple[Threshold, ...], tuple[str, ...]]:
    """Return configured and derived thresholds, and warnings about configured thresholds that are replaced.

    containerfs has the thresholds of the filesystem with the writable layers: of imagefs if imagefs is dedicated,
    otherwise of nodefs. Every further image filesystem has the thresholds of imagefs; the kubelet monitors only the
    first image filesystem.

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
        if each.signal in {Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE}
    )
    return kept + derived + of_others, warnings


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
