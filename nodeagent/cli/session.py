"""Setup shared by the commands: settings, agent and event loop."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.cli.options import OPTIONS

if TYPE_CHECKING:
    import asyncio
    from contextlib import AbstractAsyncContextManager

    from nodeagent.gc.agent import Agent
    from nodeagent.settings.settings import Settings

T = TypeVar("T")


def load_settings(path: Path | None, overrides: Mapping[str, str | int]) -> Settings:
    """Return the settings of a configuration file with the overrides of the command line applied.

    Raises:
        ConfigError: the configuration is invalid; the message has one line per fault with file, key, value and allowed
            form.
    """
    from nodeagent.settings.loading import load  # noqa: PLC0415 - not needed if the daemon responds

    return load(path, overrides, options=OPTIONS).config.settings()


def open_for_command(settings: Settings, *, record: bool, dry_run: bool = True) -> AbstractAsyncContextManager[Agent]:
    """Open an agent for one command; with ``record`` the agent stores the observed image use and the history.

    Raises:
        RuntimeUnavailableError: the runtime does not respond.
    """
    from nodeagent.gc.agent import open_agent  # noqa: PLC0415 - the runtime clients are slow to import

    return open_agent(settings, record=record, dry_run=dry_run)


def run_async(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine on a new event loop; return its result."""
    import asyncio  # noqa: PLC0415 - not needed if the daemon responds

    async def run() -> T:
        asyncio.get_running_loop().set_exception_handler(_report_fault)
        return await work

    return asyncio.run(run())


def _report_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an exception in a callback, unless the callback is for a closed event loop of this command.

    grpc has one poller for all event loops of a process, and passes the last events of a closed channel to the closed
    loop of the channel.
    """
    if str(context.get("exception")) != "Event loop is closed":
        loop.default_exception_handler(context)
