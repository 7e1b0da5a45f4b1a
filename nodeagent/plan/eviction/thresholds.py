"""Thresholds: when a reading is too bad, and for how long it may be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import FilesystemLayout, Signal
from nodeagent.plan.eviction.signals import MEANINGS, Operator, position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity, or a share of the capacity; exactly one of the two.

    Attributes:
        number: bytes, inodes, PIDs, or percent of time for stall signals.
        share: 0 to 1, of single precision as the kubelet keeps it.
        text: as it was written, to be shown; it takes no part in comparisons.
    """

    number: float | None = None
    share: float | None = None
    text: str = field(default="", compare=False)

    def of(self, capacity: float) -> float:
        """Return the quantity this is of ``capacity``; a share truncates to a whole number.

        Source: kubelet ``GetThresholdQuantity``.
        """
        if self.number is not None:
            return self.number
        return int(float(capacity) * (self.share or 0.0))


@dataclass(frozen=True, slots=True)
class Threshold:
    """One threshold.

    It is hard if it has no grace, wherever it was configured. Two thresholds are the same, whatever their minimum
    reclaim, if signal, amount and grace agree; the comparison follows from the signal.

    Attributes:
        grace_s: how long it has to be met before it is acted on.
        minimum_reclaim: how far past the amount the reading must come back once this was acted on.

    Source: kubelet ``evictionapi.Threshold``.
    """

    signal: Signal
    amount: Amount
    grace_s: float = 0.0
    minimum_reclaim: Amount | None = field(default=None, compare=False)

    @property
    def hard(self) -> bool:
        """Whether it is acted on at once. Source: kubelet ``isHardEvictionThreshold``."""
        return self.grace_s <= 0

    @property
    def operator(self) -> Operator:
        """How a reading is compared with it."""
        return MEANINGS[self.signal].operator

    @property
    def text(self) -> str:
        """The threshold as one would write it, such as ``nodefs.available<10%``."""
        return f"{self.signal}{self.operator}{self.amount.text}"

    def limit(self, capacity: float, *, with_reclaim: bool = False) -> float:
        """Return the quantity a reading is compared with, with minimum reclaim if asked for."""
        limit = self.amount.of(capacity)
        if not with_reclaim or self.minimum_reclaim is None:
            return limit
        reclaim = self.minimum_reclaim.of(capacity)
        return limit + reclaim if self.operator is Operator.LESS_THAN else limit - reclaim

    def met_by(self, available: float, capacity: float, *, with_reclaim: bool = False) -> bool:
        """Return whether a reading is past the limit, strictly.

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
"""Source: kubelet ``DefaultEvictionHard`` on Linux."""


def in_order(thresholds: Iterable[Threshold]) -> tuple[Threshold, ...]:
    """Return the thresholds, each once, in the order in which they are acted on, whatever order they come in.

    Memory first, those without a resource last; then hard before soft; then by signal, then the stricter one.

    Source: kubelet ``byEvictionPriority``, made total.
    """
    return tuple(dict.fromkeys(sorted(thresholds, key=_order)))


def _order(threshold: Threshold) -> tuple[int, bool, int, float, float, float, float, float]:
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
    )


def for_layout(
    thresholds: Sequence[Threshold], layout: FilesystemLayout
) -> tuple[tuple[Threshold, ...], tuple[str, ...]]:
    """Return the thresholds with those on containerfs derived, and warnings about any that this overwrites.

    Writable layers lie on nodefs, or with the images where only these lie apart; containerfs then has that
    filesystem's thresholds, and none if it has none.

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
        f"{each.text} has no effect: on this node containerfs has the thresholds of {source}"
        for each in thresholds
        if each.signal in targets and each not in derived
    )
    return kept + derived, warnings


def find_contradictions(thresholds: Iterable[Threshold], capacities: Mapping[Signal, float]) -> tuple[str, ...]:
    """Return a sentence for every soft threshold that on this node is not met before its signal's hard one.

    Where one is a share and the other a quantity this takes the capacity; without one nothing is said.
    """
    listed = in_order(thresholds)
    return tuple(
        f"{soft.text} is not met before the hard {hard.text}, so its grace period is never of use"
        for hard in listed
        for soft in listed
        if hard.hard and not soft.hard and hard.signal is soft.signal
        if _comes_late(soft, hard, capacities.get(hard.signal))
    )


def _comes_late(soft: Threshold, hard: Threshold, capacity: float | None) -> bool:
    if capacity is None:
        return False
    first, second = soft.limit(capacity), hard.limit(capacity)
    return first <= second if hard.operator is Operator.LESS_THAN else first >= second
