"""Documents that a command creates by reading the node itself, without a daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.cli.session import load_settings, open_for_command, run_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nodeagent.api.codec import Document
    from nodeagent.cli.source import ReadNode, Source
    from nodeagent.gc.agent_parts import Previews
    from nodeagent.settings.settings import Settings

    D = TypeVar("D", bound=Document)


def read_document(source: Source, make: ReadNode[D]) -> D:
    """Read the node and return the document created by ``make``.

    Raises:
        ConfigError: the configuration is invalid.
        NodeAgentError: the node cannot be read.
    """
    settings = _settings(source)

    async def observe() -> D:
        async with open_for_command(settings, record=False) as agent:
            return await make(agent)

    return run_async(observe())


def read_preview(source: Source, make: Callable[[Previews], Coroutine[Any, Any, D]]) -> D:
    """Read the node for a preview and return the document of ``make``; result and errors as ``read_document``."""
    settings = _settings(source)

    async def observe() -> D:
        from nodeagent.gc.agent_parts import open_previewer  # noqa: PLC0415 - the runtime clients are slow to import

        async with open_previewer(settings) as previewer:
            return await make(previewer)

    return run_async(observe())


def _settings(source: Source) -> Settings:
    config = None if source.config is None else Path(source.config)
    return load_settings(config, source.overrides)
