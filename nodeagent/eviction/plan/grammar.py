"""Parser for eviction thresholds.

The parser accepts both kubelet syntaxes: a list such as ``memory.available<100Mi,nodefs.available<10%`` (kubelet flags)
and a mapping from signal to value (kubelet configuration file). A ``ValueError`` contains the text, the position of the
error in a list, and the accepted form.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

from nodeagent.eviction.plan.thresholds import DEFAULT_HARD, MEANINGS, Amount, Operator, Threshold, Unit
from nodeagent.model.pressure import Signal
from nodeagent.record import Record, replace
from nodeagent.units import parse_bytes, parse_duration_s

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
