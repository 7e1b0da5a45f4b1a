"""``nodeagent pressure``: what the node has left, against eviction thresholds."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.clock import SystemClock
from nodeagent.daemon import document
from nodeagent.daemon.pressure import KUBELET_ROOT, PressureReader, contradictions
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.host.signals import SignalPaths
from nodeagent.plan.eviction.grammar import parse_thresholds
from nodeagent.plan.eviction.signals import MEANINGS, Unit
from nodeagent.plan.eviction.state import EvictionState, evaluate
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from nodeagent.config.eviction import EvictionSettings
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.pressure import Seen
    from nodeagent.host.signals import MemorySource
    from nodeagent.model.pressure import Observation
    from nodeagent.plan.eviction.state import Evaluation


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


async def _show(settings: Settings, chosen: EvictionSettings, form: str, watch_s: float | None) -> bool:
    """Look and print, again and again if asked to; return whether a threshold was met at the last look."""
    clock = SystemClock()
    reader = PressureReader(chosen, clock)
    paths, warnings = await _paths(settings)
    ground = await reader.ground(paths)
    earlier: Seen | None = None
    state = EvictionState()
    console = None
    while True:
        seen = await reader.look(ground)
        found = evaluate(state, seen.observations, ground.thresholds, chosen.policy, now=seen.at)
        state = found.state
        first = contradictions(ground, seen)
        told = (*warnings, *ground.warnings, *first, *seen.unread, *(each.sentence for each in found.refusals))
        if form != "table":
            sys.stdout.write(document.dumps(document.pressure(ground, seen, found, told, earlier), form))
            sys.stdout.flush()
        else:
            console = console or _console()
            if watch_s is not None and console.is_terminal:
                console.clear()
            _print(console, seen, found, told, earlier)
        if watch_s is None:
            return bool(found.met)
        earlier = seen
        await asyncio.sleep(watch_s)


def _console() -> Console:
    from nodeagent.cli.render import make_console  # noqa: PLC0415 - only for people

    return make_console()


async def _paths(settings: Settings) -> tuple[SignalPaths, tuple[str, ...]]:
    nodefs = str(KUBELET_ROOT if await asyncio.to_thread(KUBELET_ROOT.is_dir) else "/")
    try:
        async with open_for_command(settings, record=False) as agent:
            info = await agent.cri.image_fs_info()
    except NodeAgentError as error:
        return SignalPaths(nodefs), (f"the image filesystem is left out: {error}",)
    image = next(iter(info.image_mountpoints), None)
    return SignalPaths(nodefs, settings.imagefs_path or image, next(iter(info.container_mountpoints), image)), ()


def _print(console: Console, seen: Seen, found: Evaluation, warnings: tuple[str, ...], earlier: Seen | None) -> None:
    from rich.text import Text  # noqa: PLC0415 - tables are only for people

    from nodeagent.cli import render  # noqa: PLC0415

    table = render.table(
        "signal", "left", "of", "", "threshold", "distance", "trend", "state", right=("left", "of", "distance", "trend")
    )
    for each in seen.observations:
        mine = [standing for standing in found.standings if standing.threshold.signal is each.signal]
        crossed = any(standing.met for standing in mine)
        share = each.available / each.capacity if each.capacity else 0.0
        bar = "█" * round(20 * min(1.0, share))
        limits = [f"{one.threshold.text} ({_amount(one.limit, each)})" for one in mine if one.limit is not None]
        nearest = min((abs(each.available - one.limit) for one in mine if one.limit is not None), default=None)
        table.add_row(
            each.signal.value,
            _amount(each.available, each),
            _amount(each.capacity, each),
            Text(f"{bar:░<20}", style="red" if crossed else "green"),
            ", ".join(limits),
            "" if nearest is None else f"{'-' if crossed else ''}{_amount(nearest, each)}",
            _trend(each, earlier),
            "crossed" if crossed else "clear" if mine else "",
            style="bold red" if crossed else "",
        )
    console.print(table)
    conditions = [each.condition.value for each in found.conditions if each.holds]
    console.print(", ".join(conditions) or "no pressure", style="bold red" if conditions else "green")
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def _trend(seen: Observation, earlier: Seen | None) -> str:
    change = document.change_per_s(seen, earlier)
    if change is None:
        return ""
    if MEANINGS[seen.signal].unit is Unit.STALL_PERCENT:
        return f"{change:+.1f}%/s" if abs(change) >= 0.05 else "steady"
    if abs(change) < seen.capacity / 100_000:
        return "steady"
    return f"{'-' if change < 0 else '+'}{_amount(abs(change), seen)}/s"


def _amount(value: float, seen: Observation) -> str:
    match MEANINGS[seen.signal].unit:
        case Unit.BYTES:
            return format_bytes(int(value))
        case Unit.STALL_PERCENT:
            return f"{value:g}%"
        case _:
            return f"{int(value):,}"
