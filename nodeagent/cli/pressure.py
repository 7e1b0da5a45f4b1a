"""``nodeagent pressure``: eviction signals against their thresholds."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.api.codec import encode
from nodeagent.api.pressure import Pressure
from nodeagent.cli.control_client import daemon_for_user
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.clock import SystemClock
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.observe.eviction_signals import EvictionSignalReader
from nodeagent.plan.eviction.grammar import parse_thresholds
from nodeagent.plan.eviction.signals import MEANINGS, Unit
from nodeagent.plan.eviction.state import EvictionState
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from nodeagent.api.pressure import Signal
    from nodeagent.cli.control_client import ControlConnection
    from nodeagent.config.eviction import EvictionSettings
    from nodeagent.config.settings import Settings
    from nodeagent.model.pressure import MemorySource
    from nodeagent.observe.eviction_signals import SignalLayout, SignalReadings


def show(
    config: Path | None,
    overrides: Mapping[str, str | int],
    form: str,
    *,
    hard: str,
    memory_source: MemorySource | None,
    watch_s: float | None,
    direct: bool,
) -> None:
    """Print every signal with its thresholds; exit with 1 if one is exceeded.

    Args:
        config: configuration file.
        overrides: options of the command that change settings.
        form: ``table``, ``json`` or ``yaml``.
        hard: replaces the configured thresholds; empty keeps them.
        memory_source: replaces the configured formula; ``None`` keeps it.
        watch_s: refresh interval in seconds; ``None`` prints once.
        direct: whether the node is read even if a daemon is running.

    Raises:
        UsageError: the thresholds cannot be parsed.
    """
    own = (*overrides, *([hard] if hard else ()), *([memory_source] if memory_source else ()))
    fields = dict.fromkeys(map(str, own))
    with daemon_for_user(config, fields, root_too=not direct, refusal_matters=False) as agent:
        if agent is not None:
            sys.exit(ExitCode.FAILED if _follow(agent, form, watch_s) else ExitCode.DONE)
    settings = load_settings(config, overrides)
    chosen = settings.eviction
    try:
        chosen = replace(chosen, thresholds=parse_thresholds(hard=hard)) if hard else chosen
    except ValueError as error:
        raise UsageError(f"--hard: {error}") from error
    if memory_source is not None:
        chosen = replace(chosen, memory_source=memory_source)
    met = run_async(_show(settings, chosen, form, watch_s))
    sys.exit(ExitCode.FAILED if met else ExitCode.DONE)


def _follow(agent: ControlConnection, form: str, watch_s: float | None) -> bool:
    """Print the daemon's readings; return whether a threshold was met at the last one."""
    screen = _Screen(form)
    while True:
        pressure = agent.call("Pressure", Pressure)
        screen.show(pressure, again=watch_s is not None)
        if watch_s is None:
            return pressure.threshold_met
        time.sleep(watch_s)


async def _show(settings: Settings, chosen: EvictionSettings, form: str, watch_s: float | None) -> bool:
    """Read and print, repeatedly with ``watch_s``; return whether a threshold was met at the last reading."""
    clock = SystemClock()
    reader = EvictionSignalReader(chosen, clock)
    layout, problem = await _read_layout(settings, reader)
    earlier: SignalReadings | None = None
    state = EvictionState()
    screen = _Screen(form)
    while True:
        found = await reader.evaluate(layout, state)
        state = found.evaluation.state
        warnings = (*((problem,) if problem else ()), *found.warnings)
        screen.show(Pressure.of(layout, found.readings, found.evaluation, warnings, earlier), again=watch_s is not None)
        if watch_s is None:
            return bool(found.evaluation.met)
        earlier = found.readings
        await asyncio.sleep(watch_s)


class _Screen:
    """Prints readings."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._console: Console | None = None

    def show(self, pressure: Pressure, *, again: bool) -> None:
        """Print one reading; with ``again`` over the previous one, on a terminal."""
        if self._form != "table":
            sys.stdout.write(encode(pressure, self._form))
            sys.stdout.flush()
            return
        from nodeagent.cli.render import make_console  # noqa: PLC0415 - only for tables

        self._console = self._console or make_console()
        if again and self._console.is_terminal:
            self._console.clear()
        _print(self._console, pressure)


async def _read_layout(settings: Settings, reader: EvictionSignalReader) -> tuple[SignalLayout, str]:
    """Return the layout, and a warning if no runtime reports it."""
    try:
        async with open_for_command(settings, record=False) as agent:
            return await reader.read_layout_or_nodefs(agent.cri, settings.imagefs_path)
    except NodeAgentError as error:
        return await reader.nodefs_layout(), f"image filesystem unknown: {error}"


def _print(console: Console, pressure: Pressure) -> None:
    from nodeagent.cli import render  # noqa: PLC0415
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - only for tables

    table = render.table(
        "signal",
        "available",
        "capacity",
        "",
        "threshold",
        "distance",
        "trend",
        "state",
        right=("available", "capacity", "distance", "trend"),
    )
    for each in pressure.signals:
        unit = MEANINGS[each.signal].unit
        limits = [(one, one.value) for one in each.thresholds if one.value is not None]
        exceeded = any(one.met for one, _ in limits)
        share = each.available / each.capacity if each.capacity else 0.0
        bar = "█" * round(20 * min(1.0, share))
        nearest = min((abs(one.distance) for one in each.thresholds if one.distance is not None), default=None)
        table.add_row(
            each.signal.value,
            _amount(each.available, unit),
            _amount(each.capacity, unit),
            Text(f"{bar:░<20}", style="red" if exceeded else "green"),
            ", ".join(f"{one.text} ({_amount(value, unit)})" for one, value in limits),
            "" if nearest is None else f"{'-' if exceeded else ''}{_amount(nearest, unit)}",
            _trend(each, unit),
            "exceeded" if exceeded else "ok" if each.thresholds else "",
            style="bold red" if exceeded else "",
        )
    console.print(table)
    conditions = pressure.conditions
    console.print(", ".join(conditions) or "no pressure", style="bold red" if conditions else "green")
    for warning in pressure.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def _trend(signal: Signal, unit: Unit) -> str:
    change = signal.change_per_s
    if change is None:
        return ""
    if unit is Unit.STALL_PERCENT:
        return f"{change:+.1f}%/s" if abs(change) >= 0.05 else "steady"
    if abs(change) < signal.capacity / 100_000:
        return "steady"
    return f"{'-' if change < 0 else '+'}{_amount(abs(change), unit)}/s"


def _amount(value: float, unit: Unit) -> str:
    match unit:
        case Unit.BYTES:
            return format_bytes(int(value))
        case Unit.STALL_PERCENT:
            return f"{value:g}%"
        case _:
            return f"{int(value):,}"
