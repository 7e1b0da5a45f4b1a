"""Readings of the eviction signals by ``nodeagent pressure`` itself, without a daemon."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.cli.reading import View, open_for_command, run_async, show_document, watching
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.eviction.documents import Pressure
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.plan.thresholds import parse_thresholds
from nodeagent.eviction.signals import EvictionSignalReader, SignalLayout, SignalReadings
from nodeagent.model.pressure import MemorySource
from nodeagent.record import replace
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    from nodeagent.eviction.settings import EvictionSettings
    from nodeagent.settings.settings import Settings


def show_readings(
    settings: Settings, hard: str, memory_source: str, form: str, watch_s: float | None, view: View[Pressure]
) -> bool:
    """Print the signals, every ``watch_s`` seconds or once; return whether the last reading met a threshold.

    ``hard`` and ``memory_source`` are those of ``pressure.show``.

    Raises:
        UsageError: the hard thresholds cannot be parsed.
    """
    chosen = settings.eviction
    try:
        chosen = replace(chosen, thresholds=parse_thresholds(hard=hard)) if hard else chosen
    except ValueError as error:
        raise UsageError(f"--hard: {error}") from error
    if memory_source:
        chosen = replace(chosen, memory_source=MemorySource(memory_source))
    return run_async(_show(settings, chosen, form, watch_s, view))


async def _show(
    settings: Settings, chosen: EvictionSettings, form: str, watch_s: float | None, view: View[Pressure]
) -> bool:
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
            show_document(document, form, view, again=again)
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
