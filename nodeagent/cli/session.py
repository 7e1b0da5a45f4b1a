"""What the commands share: loading the configuration, opening an agent, running to the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from nodeagent.config import load

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from nodeagent.config import Config
    from nodeagent.daemon.agent import Agent

T = TypeVar("T")


def load_config(path: Path | None, overrides: Mapping[str, str | int]) -> Config:
    """Return the configuration in force, options of the command line included.

    Raises:
        ConfigError: file, key, value and the allowed form, one line per fault.
    """
    return load(path, overrides).config


def open_for_command(config: Config, *, record: bool, dry_run: bool = True) -> AbstractAsyncContextManager[Agent]:
    """Return an agent for one command; with ``record`` it may write its memory of image use.

    Raises:
        RuntimeUnavailableError: no runtime answers.
    """
    from nodeagent.daemon.agent import open_agent  # noqa: PLC0415 - the runtime clients are not for every command

    return open_agent(config, record=record, dry_run=dry_run)


def run_async(work: Coroutine[object, object, T]) -> T:
    """Run a command's work on an event loop of its own."""
    return asyncio.run(work)
