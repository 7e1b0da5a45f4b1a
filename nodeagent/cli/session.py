"""What the commands share: loading the configuration, opening an agent, running to the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from nodeagent.act.agent import Agent
    from nodeagent.config.settings import Settings

T = TypeVar("T")


def load_settings(path: Path | None, overrides: Mapping[str, str | int]) -> Settings:
    """Return the settings in force, options of the command line included.

    Raises:
        ConfigError: file, key, value and the allowed form, one line per fault.
    """
    from nodeagent.config.loading import load  # noqa: PLC0415 - the daemon has it done apart
    from nodeagent.config.policies import settings  # noqa: PLC0415

    return settings(load(path, overrides).config)


def open_for_command(settings: Settings, *, record: bool, dry_run: bool = True) -> AbstractAsyncContextManager[Agent]:
    """Return an agent for one command; with ``record`` it may write its memory of image use.

    Raises:
        RuntimeUnavailableError: no runtime answers.
    """
    from nodeagent.act.agent import open_agent  # noqa: PLC0415 - the runtime clients are not for every command

    return open_agent(settings, record=record, dry_run=dry_run)


def run_async(work: Coroutine[object, object, T]) -> T:
    """Run a command's work on an event loop of its own."""
    return asyncio.run(work)
