"""``nodeagent pressure``: eviction signals against their thresholds."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.cli.control_client import daemon_for_user
from nodeagent.cli.display import Line, bar, warning_lines
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.gauges import is_stall, short_amount, signal_name, threshold_marks, used_share
from nodeagent.cli.reading import load_settings, watch_document
from nodeagent.cli.table import Heading, Table, size_cell
from nodeagent.eviction.documents import Pressure, SignalDocument, ThresholdDocument
from nodeagent.model.outlook import Outlook, ThresholdKind
from nodeagent.model.pressure import FilesystemLayout
from nodeagent.text import Cut
from nodeagent.trend.plan.readings import recorded_as
from nodeagent.trend.words import rate_words, short_name, when_words
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from nodeagent.api.outlook import OutlookDocument

_BAR: Final = 20
_SHORT_BAR: Final = 6
_WIDE: Final = 100
_SAME_USE: Final = 0.001
"""Largest difference of one threshold in two readings of the capacity, as a share."""


def show(
    config: Path | None,
    overrides: Mapping[str, str | int],
    form: str,
    *,
    hard: str,
    memory_source: str,
    watch_s: float | None,
    direct: bool,
) -> None:
    """Print every signal with its thresholds; exit with code 1 if a threshold is exceeded.

    Args:
        config: configuration file.
        overrides: settings changed by options of the command.
        form: ``table``, ``wide``, ``json`` or ``yaml``.
        hard: hard thresholds that replace the configured ones; empty for the configured thresholds.
        memory_source: formula of ``memory.available``; empty for the configured formula.
        watch_s: refresh interval in seconds; ``None`` prints once.
        direct: whether the node is read even if a daemon is running.

    Raises:
        UsageError: the hard thresholds cannot be parsed.
    """
    view = pressure_view
    if form == "wide":
        form, view = "table", wide_view
    own = (*overrides, *([hard] if hard else ()), *([memory_source] if memory_source else ()))
    fields = dict.fromkeys(map(str, own))
    agent = daemon_for_user(config, fields, root_too=True, direct=direct, refusal_matters=False)
    if agent is not None:
        pressure = watch_document(lambda: agent.call("Pressure", Pressure), form, watch_s, view)
    else:
        from nodeagent.cli.local_pressure import node_pressure  # noqa: PLC0415 - not needed if the daemon responds

        with node_pressure(load_settings(config, overrides), hard, memory_source) as read:
            pressure = watch_document(read, form, watch_s, view)
    met = any(each.met for signal in pressure.signals for each in signal.thresholds)
    sys.exit(ExitCode.FAILED if met else ExitCode.DONE)


def pressure_view(pressure: Pressure, columns: int | None) -> Iterator[Line]:
    """Yield every signal with its nearest threshold, the conditions and the warnings.

    The bar and the percentage show the used share, or the stalled share of time. DISTANCE is the amount left before the
    threshold, negative if the threshold is exceeded, and EXPECTED the time until it is met. TREND is shown from the
    second reading on. On a narrow terminal EXPECTED or else TREND replaces THRESHOLD, and EXPECTED replaces TREND.
    """
    wide = columns is None or columns >= _WIDE
    expected = bool(pressure.outlook)
    trend = any(each.change_per_s is not None for each in pressure.signals) and (wide or not expected)
    numbers = [
        "AVAILABLE",
        *(["THRESHOLD"] if wide or not (trend or expected) else []),
        "DISTANCE",
        *(["EXPECTED"] if expected else []),
        *(["TREND"] if trend else []),
    ]
    signal = Heading("SIGNAL", cut=Cut.MIDDLE, name=True, at_least=22)
    table = Table(signal, "USED", *(Heading(title, right=True) for title in numbers), "STATE")
    for each in pressure.signals:
        exceeded = any(one.met for one in each.thresholds)
        values = _numbers(each, pressure)
        table.add(
            signal_name(each),
            f"{bar(used_share(each), _BAR if wide else _SHORT_BAR, threshold_marks(each))} {used_share(each):>4.0%}",
            *(values[title] for title in numbers),
            "exceeded" if exceeded else "ok" if each.thresholds else "",
            style="bold red" if exceeded else "",
        )
    yield from table.lines(columns)
    for each in pressure.signals:
        if each.limited_by:
            yield Line(f"{signal_name(each)}: limited by {each.limited_by}", "yellow")
    conditions = ", ".join(pressure.conditions)
    yield Line(conditions or "no pressure", "bold red" if conditions else "green")
    for statement in pressure.unrelieved or ():
        yield Line(statement, "bold red")
    memory = pressure.memory
    if memory is not None and memory.disputed:
        met = ", ".join(memory.disputed)
        yield Line(f"warning: one estimate of memory meets {met}, without evidence: {memory.difference}", "yellow")
    yield from warning_lines(pressure.warnings)


def wide_view(pressure: Pressure, columns: int | None) -> Iterator[Line]:
    """Yield the lines of :func:`pressure_view`, the outlook, and the parts of the memory with their estimates."""
    yield from pressure_view(pressure, columns)
    if any(each.forecasts for each in pressure.outlook):
        yield Line("")
        yield from _outlook_table(pressure.outlook).lines(columns)
    memory = pressure.memory
    if memory is None:
        return
    yield Line("")
    table = Table(Heading("MEMORY", name=True), Heading("SIZE", right=True))
    for part in memory.parts:
        if part.size_bytes:
            table.add(str(part.name), size_cell(part.size_bytes))
    yield from table.lines(columns)
    yield Line(f"estimate: {memory.estimate or 'formula of the kubelet'}")
    if memory.difference:
        yield Line(memory.difference)
    yield Line(f"evidence of a shortage: {', '.join(map(str, memory.evidence)) or 'none'}")
    if memory.reserve_bytes is not None:
        yield Line(f"reserved by the kernel: {format_bytes(memory.reserve_bytes)} of the free memory")
    if memory.locked_bytes:
        yield Line(f"locked: {format_bytes(memory.locked_bytes)}, contained in the parts")
    kept = memory.kept_by_evictions_bytes
    yield Line(f"used, and not freed by any eviction: {'unknown' if kept is None else format_bytes(kept)}")


def _outlook_table(outlooks: Sequence[OutlookDocument]) -> Table:
    """Return the thresholds of each resource, those of image GC too, with the time until they are met."""
    table = Table(
        Heading("RESOURCE", cut=Cut.MIDDLE, name=True), "THRESHOLD", Heading("AT", right=True), "EXPECTED", "RATE"
    )
    for outlook in outlooks:
        for each in outlook.forecasts:
            rate = "" if each.rate_per_s is None else rate_words(outlook, each.rate_per_s)
            share = f"{each.used / outlook.capacity:.0%}"
            table.add(short_name(outlook), str(each.threshold), share, when_words(each), rate)
    return table


def _numbers(signal: SignalDocument, pressure: Pressure) -> dict[str, str]:
    """Return the cells of a signal by column title."""
    known = [one for one in signal.thresholds if one.value is not None and one.distance is not None]
    available = "" if is_stall(signal) else short_amount(signal, signal.available)
    cells = {"AVAILABLE": available, "THRESHOLD": "", "DISTANCE": "", "EXPECTED": ""}
    if known:
        nearest = min(known, key=lambda one: one.distance or 0.0)
        distance = nearest.distance or 0.0
        cells["THRESHOLD"] = f"{'>' if is_stall(signal) else '<'}{short_amount(signal, nearest.value or 0.0)}"
        cells["DISTANCE"] = f"{'-' if distance < 0 else ''}{short_amount(signal, abs(distance))}"
        cells["EXPECTED"] = _expected(signal, nearest, pressure)
    return {**cells, "TREND": _trend(signal)}


def _expected(signal: SignalDocument, threshold: ThresholdDocument, pressure: Pressure) -> str:
    """Return when a threshold is met, by the forecast for the same use; empty without one, and for a met threshold."""
    if threshold.met:
        return ""
    resource = recorded_as(signal.signal, FilesystemLayout(pressure.layout), signal.mountpoint)
    kind = ThresholdKind.SOFT if threshold.grace_period_s else ThresholdKind.HARD
    used, tolerated = signal.capacity - (threshold.value or 0.0), signal.capacity * _SAME_USE
    for outlook in pressure.outlook:
        for each in outlook.forecasts if outlook.resource == resource else ():
            if each.threshold is kind and abs(each.used - used) <= tolerated:
                return "unknown" if each.outlook is Outlook.UNKNOWN else when_words(each)
    return ""


def _trend(signal: SignalDocument) -> str:
    change = signal.change_per_s
    if change is None:
        return ""
    if is_stall(signal):
        return f"{change:+.1f}%/s" if abs(change) >= 0.05 else "steady"
    if abs(change) < signal.capacity / 100_000:
        return "steady"
    return f"{'-' if change < 0 else '+'}{short_amount(signal, abs(change))}/s"
