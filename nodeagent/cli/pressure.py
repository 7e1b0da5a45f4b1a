"""``nodeagent pressure``: what the node has left, against eviction thresholds."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.cli import document
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.clock import SystemClock
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.host.signals import MemorySource, SignalPaths, device_of, read_signals
from nodeagent.model.pressure import FilesystemLayout, Moment
from nodeagent.plan.eviction.grammar import parse_thresholds
from nodeagent.plan.eviction.policy import EvictionPolicy
from nodeagent.plan.eviction.signals import MEANINGS, Unit
from nodeagent.plan.eviction.state import EvictionState, evaluate
from nodeagent.plan.eviction.thresholds import for_layout
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.cli.document import Json
    from nodeagent.config.settings import Settings
    from nodeagent.model.pressure import Observation
    from nodeagent.plan.eviction.state import Evaluation

_KUBELET_ROOT = Path("/var/lib/kubelet")


def show(
    config: Path | None, overrides: Mapping[str, str | int], form: str, *, hard: str, memory_source: MemorySource
) -> None:
    """Print every signal with its threshold; exit code 1 if one is crossed.

    Raises:
        UsageError: the thresholds cannot be understood.
    """
    try:
        thresholds = parse_thresholds(hard=hard or None)
    except ValueError as error:
        raise UsageError(f"--hard: {error}") from error
    settings = load_settings(config, overrides)
    paths, warnings = run_async(_paths(settings))
    layout = layout_of(paths)
    thresholds, derived = for_layout(thresholds, layout)
    clock = SystemClock()
    seen, unread = read_signals(paths, clock, source=memory_source)
    now = Moment(clock.now(), clock.monotonic_s())
    found = evaluate(EvictionState(), seen, thresholds, EvictionPolicy(), now=now)
    warnings = (*warnings, *derived, *unread, *(each.sentence for each in found.refusals))
    if form != "table":
        shown: dict[str, Json] = {
            "schema": "nodeagent/pressure/v1",
            "layout": layout.value,
            "conditions": [each.condition.value for each in found.conditions if each.holds],
            "signals": [_signal(each, found) for each in seen],
            "warnings": list(warnings),
        }
        sys.stdout.write(document.dumps(shown, form))
    else:
        _print(seen, found, warnings)
    sys.exit(ExitCode.FAILED if found.met else ExitCode.DONE)


def layout_of(paths: SignalPaths) -> FilesystemLayout:
    """Return which filesystems are one, by their devices. Source: kubelet ``HasDedicatedImageFs``."""
    node, image, container = (device_of(each) for each in (paths.nodefs, paths.imagefs, paths.containerfs))
    if image is None or image == node:
        return FilesystemLayout.SINGLE
    apart = container is not None and container != image
    return FilesystemLayout.SPLIT if apart else FilesystemLayout.DEDICATED_IMAGEFS


def _nodefs() -> Path:
    """Return the kubelet's root, or where it would be."""
    return _KUBELET_ROOT if _KUBELET_ROOT.is_dir() else Path("/")


async def _paths(settings: Settings) -> tuple[SignalPaths, tuple[str, ...]]:
    nodefs = str(await asyncio.to_thread(_nodefs))
    try:
        async with open_for_command(settings, record=False) as agent:
            info = await agent.cri.image_fs_info()
    except NodeAgentError as error:
        return SignalPaths(nodefs), (f"the image filesystem is left out: {error}",)
    image = next(iter(info.image_mountpoints), None)
    return SignalPaths(nodefs, settings.imagefs_path or image, next(iter(info.container_mountpoints), image)), ()


def _signal(seen: Observation, found: Evaluation) -> dict[str, Json]:
    return {
        "signal": seen.signal.value,
        "available": seen.available,
        "capacity": seen.capacity,
        "observed_at": document.time_text(seen.observed_at.at),
        "thresholds": [
            {"text": each.threshold.text, "value": each.limit, "met": each.met}
            for each in found.standings
            if each.threshold.signal is seen.signal
        ],
    }


def _print(seen: tuple[Observation, ...], found: Evaluation, warnings: tuple[str, ...]) -> None:
    from rich.text import Text  # noqa: PLC0415 - tables are only for people

    from nodeagent.cli import render  # noqa: PLC0415

    table = render.table("signal", "left", "of", "", "threshold", "state", right=("left", "of"))
    for each in seen:
        mine = [standing for standing in found.standings if standing.threshold.signal is each.signal]
        crossed = any(standing.met for standing in mine)
        share = each.available / each.capacity if each.capacity else 0.0
        bar = "█" * round(20 * min(1.0, share))
        limits = [f"{one.threshold.text} ({_amount(one.limit, each)})" for one in mine if one.limit is not None]
        table.add_row(
            each.signal.value,
            _amount(each.available, each),
            _amount(each.capacity, each),
            Text(f"{bar:░<20}", style="red" if crossed else "green"),
            ", ".join(limits),
            "crossed" if crossed else "clear" if mine else "",
            style="bold red" if crossed else "",
        )
    console = render.make_console()
    console.print(table)
    conditions = [each.condition.value for each in found.conditions if each.holds]
    console.print(", ".join(conditions) or "no pressure", style="bold red" if conditions else "green")
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def _amount(value: float, seen: Observation) -> str:
    match MEANINGS[seen.signal].unit:
        case Unit.BYTES:
            return format_bytes(int(value))
        case Unit.STALL_PERCENT:
            return f"{value:g}%"
        case _:
            return f"{int(value):,}"
