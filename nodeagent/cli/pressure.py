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
from nodeagent.model.pressure import Resource
from nodeagent.plan.eviction.ranking import Layout
from nodeagent.plan.eviction.state import EvictionState, assess, is_met
from nodeagent.plan.eviction.thresholds import (
    RESOURCE_OF,
    EvictionPolicy,
    parse_thresholds,
    split_flag,
    with_allocatable,
    with_derived,
)
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.cli.document import Json
    from nodeagent.config.settings import Settings
    from nodeagent.model.pressure import Observation
    from nodeagent.plan.eviction.state import Assessment
    from nodeagent.plan.eviction.thresholds import Threshold

_KUBELET_ROOT = Path("/var/lib/kubelet")


def show(
    config: Path | None, overrides: Mapping[str, str | int], form: str, *, hard: str, memory_source: MemorySource
) -> None:
    """Print every signal with its threshold; exit code 1 if one is crossed.

    Raises:
        UsageError: the thresholds cannot be understood.
    """
    try:
        thresholds = parse_thresholds(split_flag(hard), {}, {}, {})
    except ValueError as error:
        raise UsageError(f"--hard: {error}") from error
    settings = load_settings(config, overrides)
    paths, warnings = run_async(_paths(settings))
    layout = layout_of(paths)
    dedicated, split = layout is Layout.DEDICATED_IMAGEFS, layout is Layout.SPLIT
    thresholds = with_allocatable(with_derived(thresholds, dedicated_imagefs=dedicated, split=split))
    clock = SystemClock()
    seen, unread = read_signals(paths, clock, source=memory_source)
    found, _ = assess(
        EvictionState(), EvictionPolicy(thresholds), seen, now=clock.now(), monotonic_s=clock.monotonic_s()
    )
    warnings = (*warnings, *unread, *(f"{signal.value}: not believed: {why}" for signal, why in found.refused.items()))
    if form != "table":
        shown: dict[str, Json] = {
            "schema": "nodeagent/pressure/v1",
            "layout": layout.value,
            "conditions": [*sorted(condition.value for condition in found.conditions)],
            "signals": [_signal(each, thresholds) for each in seen],
            "warnings": list(warnings),
        }
        sys.stdout.write(document.dumps(shown, form))
    else:
        _print(seen, thresholds, found, warnings)
    sys.exit(ExitCode.FAILED if found.met else ExitCode.DONE)


def layout_of(paths: SignalPaths) -> Layout:
    """Return which filesystems are one, by their devices. Source: kubelet ``HasDedicatedImageFs``."""
    node, image, container = (device_of(each) for each in (paths.nodefs, paths.imagefs, paths.containerfs))
    if image is None or image == node:
        return Layout.ONE
    return Layout.SPLIT if container is not None and container != image else Layout.DEDICATED_IMAGEFS


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


def _signal(seen: Observation, thresholds: tuple[Threshold, ...]) -> dict[str, Json]:
    mine = [each for each in thresholds if each.signal is seen.signal]
    return {
        "signal": seen.signal.value,
        "available": seen.available,
        "capacity": seen.capacity,
        "observed_at": document.time_text(seen.observed_at),
        "thresholds": [
            {"text": each.text, "value": each.value.of(seen.capacity), "met": is_met(each, seen)} for each in mine
        ],
    }


def _print(
    seen: tuple[Observation, ...], thresholds: tuple[Threshold, ...], found: Assessment, warnings: tuple[str, ...]
) -> None:
    from rich.text import Text  # noqa: PLC0415 - tables are only for people

    from nodeagent.cli import render  # noqa: PLC0415

    table = render.table("signal", "left", "of", "", "threshold", "state", right=("left", "of"))
    for each in seen:
        mine = [threshold for threshold in thresholds if threshold.signal is each.signal]
        crossed = any(is_met(threshold, each) for threshold in mine)
        share = each.available / each.capacity if each.capacity else 0.0
        bar = "█" * round(20 * min(1.0, share))
        state = "crossed" if crossed else "clear" if mine else ""
        table.add_row(
            each.signal.value,
            _amount(each.available, each),
            _amount(each.capacity, each),
            Text(f"{bar:░<20}", style="red" if crossed else "green"),
            ", ".join(f"{threshold.text} ({_amount(threshold.value.of(each.capacity), each)})" for threshold in mine),
            state,
            style="bold red" if crossed else "",
        )
    console = render.make_console()
    console.print(table)
    conditions = ", ".join(sorted(condition.value for condition in found.conditions)) or "no pressure"
    console.print(conditions, style="bold red" if found.conditions else "green")
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def _amount(value: float, seen: Observation) -> str:
    if seen.signal.is_stall:
        return f"{value:g}%"
    sized = RESOURCE_OF[seen.signal] in (Resource.MEMORY, Resource.EPHEMERAL_STORAGE)
    return format_bytes(int(value)) if sized else f"{int(value):,}"
