"""Readings of the eviction signals by ``nodeagent pressure`` itself, without a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import structs

from nodeagent.cli.reading import event_loop, open_for_command
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.eviction.documents import Pressure
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.plan.thresholds import parse_thresholds
from nodeagent.eviction.signals import EvictionSignalReader, SignalLayout, SignalReadings
from nodeagent.model.pressure import MemorySource
from nodeagent.record import replace
from nodeagent.trend.document_readings import read_outlook
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    from nodeagent.settings.settings import Settings


@contextmanager
def node_pressure(settings: Settings, hard: str, memory_source: str) -> Iterator[Callable[[], Pressure]]:
    """Yield a function that reads the signals, with the trend since its last call; any thread may call it.

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
    reader = EvictionSignalReader(chosen, SystemClock(), pod_log_root=settings.pod_log_root)
    with event_loop() as run:
        layout, problem = run(_read_layout(settings, reader))
        earlier: SignalReadings | None = None
        state = EvictionState()

        def read() -> Pressure:
            nonlocal earlier, state
            found = run(reader.evaluate(layout, state))
            outlook = run(read_outlook(settings, layout, SystemClock().now()))
            warnings = (*((problem,) if problem else ()), *outlook.warnings, *found.warnings)
            document = Pressure.of(layout, found.readings, found.evaluation, warnings, earlier)
            earlier, state = found.readings, found.evaluation.state
            return structs.replace(document, outlook=outlook.resources)

        yield read


async def _read_layout(settings: Settings, reader: EvictionSignalReader) -> tuple[SignalLayout, str]:
    """Return the filesystem layout, and a warning if no runtime reports the image filesystem; else empty."""
    try:
        async with open_for_command(settings, record=False) as agent:
            return await reader.read_layout_or_nodefs(
                agent.cri, settings.imagefs_path, agent.observer.images.find_filesystems
            )
    except NodeAgentError as error:
        return await reader.nodefs_layout(), f"image filesystem unknown: {error}"
