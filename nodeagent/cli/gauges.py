"""Gauges of ``status`` and ``top``: one bar per disk and resource, thresholds as marks, and the next action.

Every bar is filled by the used share, or by the stalled share of time. Thresholds are those of the status document.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec import UnsetType

from nodeagent.cli.display import Line, Mark, MarkKind
from nodeagent.cli.table import size_cell
from nodeagent.eviction.plan.thresholds import MEANINGS, Unit, unit_of
from nodeagent.model.outlook import Outlook, ThresholdKind
from nodeagent.text import display_width, escape
from nodeagent.trend.words import duration_range, quantity
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from nodeagent.daemon.documents import FilesystemStatus, LoopStatusDocument, Status
    from nodeagent.eviction.documents import SignalDocument, ThresholdDocument

T = TypeVar("T")

_IMAGES, _EVICTION = "images", "eviction"
_NO_DAEMON, _DISABLED = "no daemon", "disabled"
_SHORTEST_BAR: Final = 10
_LONGEST_BAR: Final = 40
_WITH_AMOUNTS: Final = 70
"""Minimum width of a terminal for used amount and capacity, in columns."""
_WIDE: Final = 120
_LABELS: Final[Mapping[str, str]] = {"memory.available": "memory", "pid.available": "pids", "swap.free": "swap"}
_LEGEND: Final[Mapping[MarkKind, str]] = {
    MarkKind.GC_LOW: "image GC stops",
    MarkKind.GC_HIGH: "image GC starts",
    MarkKind.SOFT: "soft eviction",
    MarkKind.HARD: "hard eviction",
}


class Limit(NamedTuple):
    """A threshold of a resource with the action of the agent.

    Attributes:
        loop: name of the loop that acts; empty if no loop acts on the threshold.
        next: action once the threshold is met, with the threshold.
        now: action while the threshold is met.
        name: the threshold.
        due: when the action is due, such as `` in 2m``; empty for the expected time of the threshold.
    """

    mark: Mark
    is_met: bool
    loop: str
    next: str
    now: str
    name: str
    due: str = ""


class Gauge(NamedTuple):
    """A resource with its used share.

    Attributes:
        share: used share from 0 to 1; ``None`` if the resource could not be read.
        amounts: used amount and capacity; the cause if the resource could not be read.
        action: next action of the agent; empty without one.
        details: further facts, shown if they fit.
    """

    label: str
    share: float | None
    amounts: str
    limits: tuple[Limit, ...] = ()
    action: str = ""
    details: str = ""

    @property
    def is_met(self) -> bool:
        """Whether a threshold is met."""
        return any(each.is_met for each in self.limits)


def next_action(
    limits: Iterable[Limit],
    hindrances: Mapping[str, str],
    times: Mapping[MarkKind, str] = MappingProxyType({}),
    unrelieved: Collection[str] = (),
) -> str:
    """Return the next action on a resource, such as ``images: collects at 85% in 2h to 5h``; empty without one.

    A met threshold precedes all others, and of the met thresholds the most severe. Otherwise it is the action of the
    threshold that is met first while usage grows, at the same usage of the least severe.

    Args:
        limits: the thresholds of the resource.
        hindrances: for each loop, the reason that it does not act; empty for a loop that acts.
        times: expected time until a kind of threshold is met, where it is known.
        unrelieved: names of the met thresholds whose shortage no eviction ends.
    """
    known = list(limits)
    severity = list(MarkKind)
    met = [each for each in known if each.is_met]
    if met:
        worst = max(met, key=lambda each: (severity.index(each.mark.kind), each.mark.share))
        hindrance = hindrances.get(worst.loop, "") if worst.loop else "no action"
        hindrance = hindrance or ("no eviction helps" if worst.name in unrelieved else "")
        return f"exceeded: {worst.name} ({hindrance})" if hindrance else worst.now
    acting = [each for each in known if each.loop and hindrances.get(each.loop) not in (_NO_DAEMON, _DISABLED)]
    if not acting:
        return ""
    first = min(acting, key=lambda each: (round(each.mark.share, 3), severity.index(each.mark.kind)))
    hindrance = hindrances.get(first.loop, "")
    time = times.get(first.mark.kind, "")
    due = first.due or (f" in {time}" if time else "")
    return f"{first.next}{due}{f' ({hindrance})' if hindrance else ''}"


def resource_gauges(status: Status) -> Iterator[Gauge]:
    """Yield a gauge for each disk, for memory, process ids and stalls, and for every exceeded signal.

    The signals of all roles of a disk belong to its gauge. Inodes have a gauge if they are scarcer than bytes, or if
    one of their thresholds is met.
    """
    hindrances = {loop: _hindrance(status, loop) for loop in (_IMAGES, _EVICTION)}
    unrelieved = {each.partition(" is met, ")[0] for each in status.unrelieved}
    others = list(status.signals)
    for disk in status.filesystems:
        own = [each for each in others if _is_on(each, disk)]
        others = [each for each in others if each not in own]
        for gauge, of_gauge in _disk_gauges(disk, own, _loop(status, _IMAGES)):
            times = _expected_times(status, of_gauge)
            yield gauge._replace(action=next_action(gauge.limits, hindrances, times, unrelieved))
    for each in filter(_is_shown, others):
        limits = _eviction_limits(each)
        yield Gauge(
            _LABELS.get(each.signal, signal_name(each)),
            used_share(each),
            "stalled"
            if is_stall(each)
            else used_of(quantity(each.signal, each.capacity - each.available), quantity(each.signal, each.capacity)),
            limits,
            next_action(limits, hindrances, _expected_times(status, [each]), unrelieved),
            f"limited by {each.limited_by}" if each.limited_by else "",
        )


_KINDS: Final[Mapping[ThresholdKind, MarkKind]] = {
    ThresholdKind.COLLECTION: MarkKind.GC_HIGH,
    ThresholdKind.SOFT: MarkKind.SOFT,
    ThresholdKind.HARD: MarkKind.HARD,
}


def _expected_times(status: Status, signals: Iterable[SignalDocument]) -> dict[MarkKind, str]:
    """Return the expected time until each kind of threshold is met, for the resource of these signals."""
    names = {signal_name(each) for each in signals}
    found: dict[MarkKind, str] = {}
    for outlook in status.outlook:
        for each in outlook.forecasts if outlook.resource in names else ():
            if each.threshold in _KINDS and each.outlook is Outlook.RANGE:
                found.setdefault(_KINDS[each.threshold], duration_range(each))
    return found


def used_of(used: str, capacity: str) -> str:
    """Return used amount and capacity, with a common unit once."""
    number, _, unit = used.partition(" ")
    return f"{number if capacity.endswith(f' {unit}') else used} of {capacity}"


def _hindrance(status: Status, name: str) -> str:
    """Return the reason that a loop does not act; empty if it acts."""
    loop = _loop(status, name)
    if loop is None or not status.agent.running:
        return _NO_DAEMON if not status.agent.running else _DISABLED
    if loop.activity == "disabled":
        return _DISABLED
    if loop.stuck:
        return "stuck"
    if status.paused is not None:
        return "paused"
    return "dry run" if status.agent.dry_run or status.waiting is not None else ""


def _loop(status: Status, name: str) -> LoopStatusDocument | None:
    return next((each for each in status.loops if each.name == name), None)


def _is_on(signal: SignalDocument, disk: FilesystemStatus) -> bool:
    """Return whether a signal is measured on a disk; of two disks with one role the first is meant."""
    role, _, kind = signal.signal.partition(".")
    if kind not in ("available", "inodesFree"):
        return False
    return signal.mountpoint == disk.path if signal.mountpoint else role in disk.roles


def _disk_gauges(
    disk: FilesystemStatus, signals: Sequence[SignalDocument], images: LoopStatusDocument | None
) -> Iterator[tuple[Gauge, Sequence[SignalDocument]]]:
    """Yield the gauge of a disk with its signals, and one of its inodes if they are scarcer or a threshold is met."""
    percent = given(disk.used_percent)
    capacity, available = given(disk.capacity_bytes), given(disk.available_bytes)
    if percent is None or capacity is None or available is None:
        yield Gauge(f"{disk.name} {disk.path}", None, str(given(disk.problem) or "not read")), ()
        return
    inodes, free = given(disk.inodes) or 0, given(disk.inodes_free) or 0
    inodes_percent = 100 - 100 * free // inodes if inodes else 0
    of_bytes = [each for each in signals if each.signal.endswith(".available")]
    of_inodes = [each for each in signals if each.signal.endswith(".inodesFree")]
    roles = [role for role in disk.roles if role not in disk.name.split()]
    gauge = Gauge(
        disk.name,
        percent / 100,
        used_of(format_bytes(capacity - available), format_bytes(capacity)),
        (*_image_limits(percent, disk.low_percent, disk.high_percent, loop=images), *_limits_of(of_bytes)),
        details=", ".join(
            [
                *([f"inodes {inodes_percent}%"] if inodes else []),
                f"{disk.path} ({', '.join(roles)})" if roles else disk.path,
            ]
        ),
    )
    yield gauge, of_bytes
    limits = (
        *_image_limits(inodes_percent, disk.low_inodes_percent, disk.high_inodes_percent, " of inodes"),
        *_limits_of(of_inodes),
    )
    if inodes and (inodes_percent > percent or any(each.is_met for each in limits)):
        name = f"{disk.name.partition(' = ')[0]} inodes"
        yield Gauge(name, inodes_percent / 100, f"{inodes - free:,} of {inodes:,}", limits), of_inodes


def _image_limits(
    percent: int, low: int | None, high: int | None, unit: str = "", loop: LoopStatusDocument | None = None
) -> tuple[Limit, ...]:
    """Return the thresholds of image GC; the high threshold of 100 is disabled.

    ``loop`` is the loop whose last plan shows whether it collects ahead of the high threshold.
    """
    if low is None or high is None or high >= 100:
        return ()
    is_met = percent >= high
    starts, stops = f"images: collects at {high}%{unit}", f"images: collects down to {low}%{unit}"
    name, due = f"image GC {high}%{unit}", ""
    if loop is not None and loop.collects_ahead:
        starts = f"images: collects ahead of {high}%"
        due = " now" if loop.due_in_s is None else f" in {format_duration(loop.due_in_s)}"
    return (
        Limit(Mark(low / 100, MarkKind.GC_LOW), False, "", "", "", ""),
        Limit(Mark(high / 100, MarkKind.GC_HIGH), is_met, _IMAGES, starts, stops, name, due),
    )


def _limits_of(signals: Iterable[SignalDocument]) -> Iterator[Limit]:
    for each in signals:
        yield from _eviction_limits(each)


def _eviction_limits(signal: SignalDocument) -> tuple[Limit, ...]:
    """Return the thresholds of a signal with their evictions; no pod is evicted for a signal without a resource."""
    known = [each for each in signal.thresholds if each.value is not None]
    loop = "" if MEANINGS[signal.signal].resource is None else _EVICTION
    return tuple(
        Limit(mark, each.met, loop, f"pods: evicts at {_at(signal, each)}", f"pods: evicts {_now(each)}", each.text)
        for each, mark in zip(known, threshold_marks(signal), strict=True)
    )


def _at(signal: SignalDocument, threshold: ThresholdDocument) -> str:
    """Return a threshold as used or stalled percentage if it is configured so, else as available amount."""
    value = threshold.value or 0.0
    if is_stall(signal):
        return f"{value:g}% stalled"
    if threshold.text.removesuffix(f" on {signal.mountpoint}").endswith("%"):
        return f"{round(100 * share_at(signal, value), 1):g}%"
    return f"{short_amount(signal, value)} available"


def _now(threshold: ThresholdDocument) -> str:
    if threshold.grace_period_s:
        return f"after {format_duration(threshold.grace_period_s)} of {threshold.text}"
    return f"now ({threshold.text})"


def _is_shown(signal: SignalDocument) -> bool:
    """Return whether a signal is shown: memory, process ids, stalls from 1%, and any signal above its threshold."""
    if any(each.met for each in signal.thresholds):
        return True
    return signal.available >= 1 if is_stall(signal) else signal.signal in ("memory.available", "pid.available")


def gauge_lines(status: Status, columns: int | None) -> Iterator[Line]:
    """Yield the gauges, the meaning of their marks, and the conditions.

    On a narrow terminal bars are shorter, amounts are omitted, and an action that does not fit is on a line of its own.
    """
    found = list(resource_gauges(status))
    yield from _fitted(found, columns)
    kinds = {limit.mark.kind for each in found for limit in each.limits if 0 <= limit.mark.share <= 1}
    if kinds:
        marks = ", ".join(f"{kind} {_LEGEND[kind]}" for kind in MarkKind if kind in kinds)
        yield Line(f"marks: {marks.replace(', ] image GC', ', ]')}", "dim")
    conditions, nearly_full = ", ".join(status.conditions), [each.nearly_full for each in status.filesystems]
    if not (status.signals or conditions):
        yield Line("pressure unknown: no signal was read", "yellow")
    elif conditions or not any(nearly_full):
        yield Line(conditions or "no pressure", "bold red" if conditions else "green")
    for sentence in filter(None, nearly_full):
        yield Line(escape(sentence), "bold red")
    for statement in status.unrelieved:
        yield Line(statement, "bold red")


def _fitted(found: Sequence[Gauge], columns: int | None) -> Iterator[Line]:
    read = [each for each in found if each.share is not None]
    is_wide = columns is None or columns >= _WIDE
    names = {each: each.label if is_wide else each.label.partition(" = ")[0] for each in read}
    label = max((display_width(escape(each)) for each in names.values()), default=0)
    has_amounts = columns is None or columns >= _WITH_AMOUNTS
    amounts = max((len(each.amounts) for each in read), default=0) if has_amounts else 0
    beside = label + len(" ") + len(" 100%") + (len("  ") + amounts if amounts else 0)
    actions = sorted(display_width(escape(each.action)) for each in read)
    cells = _LONGEST_BAR
    if columns is not None:
        spaces = [columns - beside - len("  ") - each for each in actions]
        cells = min(_LONGEST_BAR, max([each for each in spaces if each >= _SHORTEST_BAR][-1:] or [columns - beside]))
    for each in found:
        if each.share is None:
            yield Line(f"{each.label}: {each.amounts}", "bold red")
            continue
        name, below = escape(names[each]), list[Line]()
        line = Line(name + " " * (label - display_width(name) + 1))
        line.append_bar(each.share, cells, bad=each.is_met, marks=(limit.mark for limit in each.limits))
        line.append(f" {each.share:>4.0%}", "bold")
        if amounts:
            line.append(f"  {each.amounts}")
        used, place = display_width(line.text), beside + cells
        for text, style, is_kept in (
            (each.action, "bold red" if each.is_met else "", True),
            (each.details, "dim", False),
        ):
            width = len("  ") + display_width(escape(text))
            if text and (columns is None or place + width <= columns):
                line.append(" " * (place - used) + f"  {text}", style)
                used = place = place + width
            elif text and is_kept:
                below.append(Line("  ").append(text, style))
        yield line
        yield from below


def signal_name(signal: SignalDocument) -> str:
    """Return the name of a signal, with the mount point for each image filesystem after the first."""
    return f"{signal.signal!s} on {signal.mountpoint}" if signal.mountpoint else str(signal.signal)


def is_stall(signal: SignalDocument) -> bool:
    """Return whether a signal is a stall percentage; its thresholds are upper limits."""
    return unit_of(signal.signal) is Unit.STALL_PERCENT


def used_share(signal: SignalDocument) -> float:
    """Return the used share of a resource or the stalled share of time, from 0 to 1; 0 if it is unknown."""
    return min(1.0, max(0.0, share_at(signal, signal.available)))


def share_at(signal: SignalDocument, available: float) -> float:
    """Return the share of :func:`used_share` for another amount, such as a threshold; it can be below 0."""
    if is_stall(signal):
        return available / 100
    return 1.0 - available / signal.capacity if signal.capacity else 0.0


def threshold_marks(signal: SignalDocument) -> tuple[Mark, ...]:
    """Return the thresholds of a signal as marks on the bar of its used share."""
    return tuple(
        Mark(share_at(signal, each.value), MarkKind.SOFT if each.grace_period_s else MarkKind.HARD)
        for each in signal.thresholds
        if each.value is not None
    )


def short_amount(signal: SignalDocument, value: float) -> str:
    """Return a quantity of a signal as one word; inodes and process ids with about three digits, such as ``16.3M``."""
    if is_stall(signal):
        return f"{value:g}%"
    if unit_of(signal.signal) is Unit.BYTES:
        return size_cell(int(value))
    number, suffixes = float(int(value)), iter(("", "k", "M", "G"))
    suffix = next(suffixes)
    while number >= 999.5:
        number, suffix = number / 1000, next(suffixes, "T")
    return f"{number:.3g}{suffix}"


def given(value: T | UnsetType) -> T | None:
    """Return the value of a field that a document may lack; ``None`` without the field."""
    return None if isinstance(value, UnsetType) else value
