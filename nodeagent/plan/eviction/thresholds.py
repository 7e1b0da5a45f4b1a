"""Thresholds as an operator writes them, in the kubelet's grammar, and what follows from each signal."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import NodeCondition, Resource, Signal
from nodeagent.units import QUANTITY_FORM, parse_bytes, parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RESOURCE_OF: Final[Mapping[Signal, Resource]] = MappingProxyType(
    {
        Signal.MEMORY_AVAILABLE: Resource.MEMORY,
        Signal.ALLOCATABLE_MEMORY_AVAILABLE: Resource.MEMORY,
        Signal.SWAP_FREE: Resource.MEMORY,
        Signal.MEMORY_PSI_SOME: Resource.MEMORY,
        Signal.MEMORY_PSI_FULL: Resource.MEMORY,
        Signal.NODEFS_AVAILABLE: Resource.EPHEMERAL_STORAGE,
        Signal.IMAGEFS_AVAILABLE: Resource.EPHEMERAL_STORAGE,
        Signal.CONTAINERFS_AVAILABLE: Resource.EPHEMERAL_STORAGE,
        Signal.IO_PSI_SOME: Resource.EPHEMERAL_STORAGE,
        Signal.IO_PSI_FULL: Resource.EPHEMERAL_STORAGE,
        Signal.NODEFS_INODES_FREE: Resource.INODES,
        Signal.IMAGEFS_INODES_FREE: Resource.INODES,
        Signal.CONTAINERFS_INODES_FREE: Resource.INODES,
        Signal.PID_AVAILABLE: Resource.PIDS,
    }
)
CONDITION_OF: Final[Mapping[Resource, NodeCondition]] = MappingProxyType(
    {
        Resource.MEMORY: NodeCondition.MEMORY_PRESSURE,
        Resource.EPHEMERAL_STORAGE: NodeCondition.DISK_PRESSURE,
        Resource.INODES: NodeCondition.DISK_PRESSURE,
        Resource.PIDS: NodeCondition.PID_PRESSURE,
    }
)
DEFAULT_HARD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "memory.available": "100Mi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
        "imagefs.inodesFree": "5%",
    }
)
_DEFAULT_TRANSITION_S: Final = 300.0
_DERIVED: Final = frozenset({Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE})
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?|\.[0-9]+")
_ENTRY = re.compile(r"\s*([A-Za-z.]+)\s*([<>])\s*(.+?)\s*")


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of something: a share of the capacity, or a number. Exactly one of them is set."""

    share: float | None = None
    number: float | None = None

    def of(self, capacity: float) -> float:
        """Return it as a number. Source: kubelet ``GetThresholdQuantity``, which keeps the share in 32 bits."""
        if self.number is not None:
            return self.number
        share = 0.0 if self.share is None else self.share
        single: float = struct.unpack("f", struct.pack("f", share))[0]
        return float(int(capacity * single))


@dataclass(frozen=True, slots=True)
class Threshold:
    """One threshold.

    Attributes:
        signal: what it is on.
        value: crossed when less is available than this; for stalls, when the average is more.
        grace_s: how long it has to be crossed before anything is done; 0 makes it hard.
        minimum_reclaim: how much beyond it is asked for once it was acted on.
        text: as it was written, for messages.

    Source: kubelet ``evictionapi.Threshold``.
    """

    signal: Signal
    value: Amount
    grace_s: float = 0.0
    minimum_reclaim: Amount = field(default_factory=lambda: Amount(number=0))
    text: str = ""

    @property
    def hard(self) -> bool:
        """Whether it acts at once."""
        return self.grace_s == 0

    @property
    def resource(self) -> Resource:
        """What is short when it is crossed."""
        return RESOURCE_OF[self.signal]


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """When pods are evicted.

    Attributes:
        thresholds: in configured order, hard ones first.
        pressure_transition_s: how long a node condition outlasts its cause.
        maximum_pod_grace_s: the most a pod is given at a soft threshold; 0 for the pod's own grace period.
        protected_namespaces: pods there are never chosen.

    Source: kubelet ``evictionHard``, ``evictionSoft``, ``evictionPressureTransitionPeriod``,
    ``evictionMaxPodGracePeriod``.
    """

    thresholds: tuple[Threshold, ...] = ()
    pressure_transition_s: float = _DEFAULT_TRANSITION_S
    maximum_pod_grace_s: float = 0.0
    protected_namespaces: frozenset[str] = frozenset({"kube-system"})


def split_flag(text: str) -> dict[str, str]:
    """Return signal to value of a comma list such as ``memory.available<100Mi,nodefs.available<10%``.

    Raises:
        ValueError: an entry has another form, or a signal comes twice; the entry is quoted.
    """
    found: dict[str, str] = {}
    for entry in filter(str.strip, text.split(",")):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"{entry.strip()!r}: write SIGNAL<VALUE, such as memory.available<100Mi")
        name, operator, value = match.groups()
        signal = _signal(name)
        if (operator == ">") is not signal.is_stall:
            right = ">" if signal.is_stall else "<"
            raise ValueError(f"{entry.strip()!r}: {name} takes {right}, not {operator}")
        if name in found:
            raise ValueError(f"{entry.strip()!r}: {name} has a threshold already, {found[name]!r}")
        found[name] = value
    return found


def parse_thresholds(
    hard: Mapping[str, str],
    soft: Mapping[str, str],
    grace: Mapping[str, str],
    reclaim: Mapping[str, str],
) -> tuple[Threshold, ...]:
    """Return the thresholds that four tables of signal to value stand for; ``0%`` and ``100%`` turn one off.

    Without any hard one the kubelet's defaults are taken; naming one drops them all.

    Raises:
        ValueError: the text at fault is quoted, with what is allowed.

    Source: kubelet ``ParseThresholdConfig``.
    """
    reclaims = {_signal(name): _amount(name, value, smallest=0.0) for name, value in reclaim.items()}
    graces = {_signal(name): _grace(name, value) for name, value in grace.items()}
    made = [
        threshold
        for name, value in (hard or DEFAULT_HARD).items()
        if (threshold := _threshold(name, value, 0.0, reclaims)) is not None
    ]
    for name, value in soft.items():
        signal = _signal(name)
        dropped = _is_off(value)
        if signal not in graces and not dropped:
            raise ValueError(f'{name} {value!r}: a soft threshold needs a grace period, such as {name} = "1m30s"')
        threshold = _threshold(name, value, graces.get(signal, 0.0), reclaims)
        if threshold is not None:
            made.append(threshold)
    idle = [signal.value for signal in graces if signal.value not in soft]
    if idle:
        raise ValueError(f"{idle[0]}: a grace period without a soft threshold has no effect; remove it or set one")
    _check_order(made)
    return tuple(made)


def with_derived(thresholds: Iterable[Threshold], *, dedicated_imagefs: bool, split: bool) -> tuple[Threshold, ...]:
    """Return the thresholds with those of containerfs taken from the filesystem that writable layers lie on.

    Source: kubelet ``UpdateContainerFsThresholds``: imagefs with a dedicated, not split one, else nodefs.
    """
    kept = [each for each in thresholds if each.signal not in _DERIVED]
    source = "imagefs" if dedicated_imagefs and not split else "nodefs"
    derived = [
        Threshold(
            Signal(f"containerfs.{each.signal.value.partition('.')[2]}"),
            each.value,
            each.grace_s,
            each.minimum_reclaim,
            each.text,
        )
        for each in kept
        if each.signal.value.startswith(f"{source}.")
    ]
    return (*kept, *derived)


def with_allocatable(thresholds: Iterable[Threshold]) -> tuple[Threshold, ...]:
    """Return the thresholds with each hard one on memory.available also on what pods may use.

    Source: kubelet ``addAllocatableThresholds``.
    """
    kept = tuple(thresholds)
    added = (
        Threshold(Signal.ALLOCATABLE_MEMORY_AVAILABLE, each.value, 0.0, each.minimum_reclaim, each.text)
        for each in kept
        if each.signal is Signal.MEMORY_AVAILABLE and each.hard
    )
    return (*kept, *added)


def _signal(name: str) -> Signal:
    try:
        return Signal(name)
    except ValueError as error:
        known = ", ".join(each.value for each in Signal)
        raise ValueError(f"{name!r} is no eviction signal; there are {known}") from error


def _is_off(value: str) -> bool:
    return value.strip() in ("0%", "100%")


def _threshold(name: str, value: str, grace_s: float, reclaims: Mapping[Signal, Amount]) -> Threshold | None:
    signal = _signal(name)
    if signal in _DERIVED:
        raise ValueError(f"{name}: its thresholds follow from nodefs or imagefs and cannot be set")
    if _is_off(value) and not signal.is_stall:
        return None
    operator = ">" if signal.is_stall else "<"
    amount = _stall(name, value) if signal.is_stall else _amount(name, value, smallest=None)
    reclaim = reclaims.get(signal, Amount(number=0))
    return Threshold(signal, amount, grace_s, reclaim, f"{name}{operator}{value.strip()}")


def _amount(name: str, value: str, *, smallest: float | None) -> Amount:
    """Return an amount; ``smallest`` is the least a number may be, ``None`` for more than nothing."""
    text = value.strip()
    if text.endswith("%"):
        number = text[:-1]
        if _NUMBER.fullmatch(number) is None:
            raise ValueError(f"{name} {value!r}: {number!r} before the % is no number")
        share = float(number) / 100
        if not 0 < share <= 1:
            raise ValueError(f"{name} {value!r}: a percentage is above 0% and at most 100%")
        return Amount(share=share)
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"{name} {value!r}: write a percentage such as 10%, or {QUANTITY_FORM}") from error
    if size < 0 or (smallest is None and size == 0):
        raise ValueError(f"{name} {value!r}: must be more than 0")
    return Amount(number=float(size))


def _stall(name: str, value: str) -> Amount:
    text = value.strip()
    number = text.removesuffix("%")
    if not text.endswith("%") or _NUMBER.fullmatch(number) is None or not 0 < float(number) < 100:
        raise ValueError(f"{name} {value!r}: write the share of time stalled, above 0% and below 100%, such as 40%")
    return Amount(number=float(number))


def _grace(name: str, value: str) -> float:
    try:
        seconds = parse_duration_s(value)
    except ValueError as error:
        raise ValueError(f"grace period of {name}: {error}") from error
    if not math.isfinite(seconds):
        raise ValueError(f"grace period of {name}: {value!r} is too long")
    return seconds


def _check_order(thresholds: Iterable[Threshold]) -> None:
    """Refuse a soft threshold that is never crossed before its hard one, where both are written alike."""
    known = list(thresholds)
    for soft in known:
        for hard in known:
            if soft.hard or not hard.hard or soft.signal is not hard.signal:
                continue
            pair = (soft.value.number, hard.value.number)
            if None in pair:
                pair = (soft.value.share, hard.value.share)
            first, second = pair
            if first is None or second is None:
                continue
            if first >= second if soft.signal.is_stall else first <= second:
                raise ValueError(f"{soft.text}: the soft threshold has to be reached before the hard one, {hard.text}")
