"""``nodeagent pressure``: what the node has left, against eviction thresholds."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodeagent.api import documents as document
from nodeagent.cli.control_answers import by_agent
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.clock import SystemClock
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.model.pressure import Signal
from nodeagent.observe.eviction_signals import EvictionSignalReader
from nodeagent.plan.eviction.grammar import parse_thresholds
from nodeagent.plan.eviction.signals import MEANINGS, Unit
from nodeagent.plan.eviction.state import EvictionState
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from nodeagent.cli.control_client import ControlConnection
    from nodeagent.config.eviction import EvictionSettings
    from nodeagent.config.settings import Settings
    from nodeagent.model.pressure import MemorySource
    from nodeagent.observe.eviction_signals import SignalLayout, SignalReadings

    Shown = Mapping[str, Any]


def show(
    config: Path | None,
    overrides: Mapping[str, str | int],
    form: str,
    *,
    hard: str,
    memory_source: MemorySource | None,
    watch_s: float | None,
) -> None:
    """Print every signal with its threshold; exit code 1 if one is crossed.

    Args:
        config: file of the configuration.
        overrides: options that go before it.
        form: ``table``, ``json`` or ``yaml``.
        hard: thresholds instead of those configured; empty for these.
        memory_source: instead of the one configured.
        watch_s: show it again after so many seconds, until interrupted; ``None`` for once.

    Raises:
        UsageError: the thresholds cannot be understood.
    """
    own = (*overrides, *([hard] if hard else ()), *([memory_source] if memory_source else ()))
    with by_agent(config, dict.fromkeys(map(str, own)), refusal_matters=False) as agent:
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
    """Have the agent look; return whether a threshold was met at the last look."""
    screen = _Screen(form)
    while True:
        shown = agent.ask("Pressure")
        screen.show(shown, again=watch_s is not None)
        if watch_s is None:
            return any(one["met"] for each in shown["signals"] for one in each["thresholds"])
        time.sleep(watch_s)


async def _show(settings: Settings, chosen: EvictionSettings, form: str, watch_s: float | None) -> bool:
    """Look and print, again and again if asked to; return whether a threshold was met at the last look."""
    clock = SystemClock()
    reader = EvictionSignalReader(chosen, clock)
    ground, problem = await _read_layout(settings, reader)
    earlier: SignalReadings | None = None
    state = EvictionState()
    screen = _Screen(form)
    while True:
        found = await reader.evaluate(ground, state)
        state = found.evaluation.state
        warnings = (*((problem,) if problem else ()), *found.warnings)
        shown = document.pressure(ground, found.readings, found.evaluation, warnings, earlier)
        screen.show(shown, again=watch_s is not None)
        if watch_s is None:
            return bool(found.evaluation.met)
        earlier = found.readings
        await asyncio.sleep(watch_s)


class _Screen:
    """Where a look is shown."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._console: Console | None = None

    def show(self, shown: Shown, *, again: bool) -> None:
        """Show one look; with ``again`` over the one before, on a terminal."""
        if self._form != "table":
            sys.stdout.write(document.dumps(shown, self._form))
            sys.stdout.flush()
            return
        from nodeagent.cli.render import make_console  # noqa: PLC0415 - only for people

        self._console = self._console or make_console()
        if again and self._console.is_terminal:
            self._console.clear()
        _print(self._console, shown)


async def _read_layout(settings: Settings, reader: EvictionSignalReader) -> tuple[SignalLayout, str]:
    """Return the layout, and a warning if no runtime reports it."""
    try:
        async with open_for_command(settings, record=False) as agent:
            return await reader.read_layout_or_nodefs(agent.cri, settings.imagefs_path)
    except NodeAgentError as error:
        return await reader.nodefs_layout(), f"image filesystem unknown: {error}"


def _print(console: Console, shown: Shown) -> None:
    from nodeagent.cli import render  # noqa: PLC0415
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - tables are only for people

    table = render.table(
        "signal", "left", "of", "", "threshold", "distance", "trend", "state", right=("left", "of", "distance", "trend")
    )
    for each in shown["signals"]:
        unit = MEANINGS[Signal(each["signal"])].unit
        limits = [one for one in each["thresholds"] if one["value"] is not None]
        crossed = any(one["met"] for one in limits)
        share = each["available"] / each["capacity"] if each["capacity"] else 0.0
        bar = "█" * round(20 * min(1.0, share))
        nearest = min((abs(one["distance"]) for one in limits), default=None)
        table.add_row(
            each["signal"],
            _amount(each["available"], unit),
            _amount(each["capacity"], unit),
            Text(f"{bar:░<20}", style="red" if crossed else "green"),
            ", ".join(f"{one['text']} ({_amount(one['value'], unit)})" for one in limits),
            "" if nearest is None else f"{'-' if crossed else ''}{_amount(nearest, unit)}",
            _trend(each, unit),
            "crossed" if crossed else "clear" if each["thresholds"] else "",
            style="bold red" if crossed else "",
        )
    console.print(table)
    conditions = shown["conditions"]
    console.print(", ".join(conditions) or "no pressure", style="bold red" if conditions else "green")
    for warning in shown["warnings"]:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def _trend(shown: Shown, unit: Unit) -> str:
    change = shown["change_per_s"]
    if change is None:
        return ""
    if unit is Unit.STALL_PERCENT:
        return f"{change:+.1f}%/s" if abs(change) >= 0.05 else "steady"
    if abs(change) < shown["capacity"] / 100_000:
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
