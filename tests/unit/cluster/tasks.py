"""Tasks of the daemon that use the API server, run over TLS."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from nodeagent.config.validation import convert
from nodeagent.daemon.context import DaemonContext
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.settings.settings import Config
from nodeagent.telemetry import logging as log
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    import io
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nodeagent.settings.settings import Settings
    from tests.support.certificates import Authority

WITHIN_S = 20


class Task(Protocol):
    """A task of the daemon that runs until its stop event."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set."""


def settings_with(
    authority: Authority, url: str, directory: Path, kubernetes: dict[str, Any], document: dict[str, Any]
) -> Settings:
    """Return settings with service account credentials.

    Args:
        authority: CA of the API server.
        url: address of the API server.
        directory: directory of the token file.
        kubernetes: further settings of the section ``kubernetes``.
        document: settings of other sections.
    """
    token = directory / "token"
    token.write_text("token-of-the-agent")
    section = {"server": url, "ca_file": str(authority.ca_file), "token_file": str(token), **kubernetes}
    return convert(Config, {**document, "kubernetes": section, "kubelet": {"node_name": "node-1"}}).settings()


def context_of(settings: Settings, stream: io.StringIO) -> DaemonContext:
    """Return a daemon context that logs to ``stream``."""
    clock = SystemClock()
    logger = log.configure("json", "info", stream)
    return DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))


@asynccontextmanager
async def running(context: DaemonContext, task: Task) -> AsyncIterator[DaemonContext]:
    """Run a task within the block; yield its daemon context."""
    stop = asyncio.Event()
    run = asyncio.create_task(task.run(stop))
    try:
        yield context
    finally:
        stop.set()
        async with asyncio.timeout(WITHIN_S):
            await run


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - a task or server sets no asyncio.Event
            await asyncio.sleep(0.01)
