"""Readings of the eviction signals by ``nodeagent pressure`` itself, without a daemon."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.cli.watch import print_document, watching
from nodeagent.clock import SystemClock
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.eviction.plan.grammar import parse_thresholds
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.pressure_documents import Pressure
from nodeagent.eviction.signals import EvictionSignalReader
from nodeagent.model.pressure import MemorySource
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from nodeagent.cli.display import Line
    from nodeagent.eviction.settings import EvictionSettings
    from nodeagent.eviction.signals import SignalLayout, SignalReadings
    from nodeagent.settings.settings import Settings

    View = Callable[[Any, int | None], Iterable[Line]]


class Request(NamedTuple):
    """Request for readings of the eviction signals.

    Attributes:
        config: configuration file.
        overrides: settings changed by options of the command.
        hard: hard thresholds that replace the configured ones; empty for the configured thresholds.
        memory_source: formula of ``memory.available``; empty for the configured formula.
    """

    config: Path | None
    overrides: Mapping[str, str | int]
    hard: str
    memory_source: str


def show_readings(request: Request, form: str, watch_s: float | None, view: View) -> bool:
    """Print the signals, every ``watch_s`` seconds or once; return whether the last reading met a threshold.

    Raises:
        UsageError: the hard thresholds cannot be parsed.
    """
    settings = load_settings(request.config, request.overrides)
    chosen = settings.eviction
    try:
        chosen = replace(chosen, thresholds=parse_thresholds(hard=request.hard)) if request.hard else chosen
    except ValueError as error:
        raise UsageError(f"--hard: {error}") from error
    if request.memory_source:
        chosen = replace(chosen, memory_source=MemorySource(request.memory_source))
    return run_async(_show(settings, chosen, form, watch_s, view))


async def _show(settings: Settings, chosen: EvictionSettings, form: str, watch_s: float | None, view: View) -> bool:
    clock = SystemClock()
    reader = EvictionSignalReader(chosen, clock, pod_log_root=settings.pod_log_root)
    layout, problem = await _read_layout(settings, reader)
    earlier: SignalReadings | None = None
    state = EvictionState()
    again = watch_s is not None
    with watching(form, again=again):
        while True:
            found = await reader.evaluate(layout, state)
            state = found.evaluation.state
            warnings = (*((problem,) if problem else ()), *found.warnings)
            document = Pressure.of(layout, found.readings, found.evaluation, warnings, earlier)
            print_document(document, form, view, again=again)
            if watch_s is None:
                return bool(found.evaluation.met)
            earlier = found.readings
            await asyncio.sleep(watch_s)


async def _read_layout(settings: Settings, reader: EvictionSignalReader) -> tuple[SignalLayout, str]:
    """Return the filesystem layout, and a warning if no runtime reports the image filesystem; else empty."""
    try:
        async with open_for_command(settings, record=False) as agent:
            return await reader.read_layout_or_nodefs(
                agent.cri, settings.imagefs_path, agent.observer.images.find_filesystems
            )
    except NodeAgentError as error:
        return await reader.nodefs_layout(), f"image filesystem unknown: {error}"
