"""``nodeagent pressure``: eviction signals against their thresholds."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from nodeagent.cli.control_client import daemon_for_user
from nodeagent.cli.display import Line, bar, warning_lines
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.reading import load_settings, watch_document
from nodeagent.cli.table import (
    Heading,
    Table,
    is_stall,
    short_amount,
    signal_name,
    size_cell,
    threshold_marks,
    used_share,
)
from nodeagent.eviction.documents import Pressure, SignalDocument
from nodeagent.text import Cut
from nodeagent.units import format_bytes

_BAR: Final = 20
_SHORT_BAR: Final = 6
_WIDE: Final = 100


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
    threshold, negative if the threshold is exceeded. TREND is shown from the second reading on; on a narrow terminal it
    replaces THRESHOLD.
    """
    wide = columns is None or columns >= _WIDE
    trend = any(each.change_per_s is not None for each in pressure.signals)
    numbers = ["AVAILABLE", *(["THRESHOLD"] if wide or not trend else []), "DISTANCE", *(["TREND"] if trend else [])]
    signal = Heading("SIGNAL", cut=Cut.MIDDLE, name=True, at_least=22)
    table = Table(signal, "USED", *(Heading(title, right=True) for title in numbers), "STATE")
    for each in pressure.signals:
        exceeded = any(one.met for one in each.thresholds)
        values = _numbers(each)
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
    """Yield the lines of :func:`pressure_view`, and the parts of the memory with the estimates of available memory."""
    yield from pressure_view(pressure, columns)
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


def _numbers(signal: SignalDocument) -> dict[str, str]:
    """Return the cells of a signal by column title."""
    known = [one for one in signal.thresholds if one.value is not None and one.distance is not None]
    available = "" if is_stall(signal) else short_amount(signal, signal.available)
    cells = {"AVAILABLE": available, "THRESHOLD": "", "DISTANCE": ""}
    if known:
        nearest = min(known, key=lambda one: one.distance or 0.0)
        distance = nearest.distance or 0.0
        cells["THRESHOLD"] = f"{'>' if is_stall(signal) else '<'}{short_amount(signal, nearest.value or 0.0)}"
        cells["DISTANCE"] = f"{'-' if distance < 0 else ''}{short_amount(signal, abs(distance))}"
    return {**cells, "TREND": _trend(signal)}


def _trend(signal: SignalDocument) -> str:
    change = signal.change_per_s
    if change is None:
        return ""
    if is_stall(signal):
        return f"{change:+.1f}%/s" if abs(change) >= 0.05 else "steady"
    if abs(change) < signal.capacity / 100_000:
        return "steady"
    return f"{'-' if change < 0 else '+'}{short_amount(signal, abs(change))}/s"
