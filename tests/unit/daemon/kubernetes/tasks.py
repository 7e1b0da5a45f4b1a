"""Tasks of the daemon that use the API server, run over TLS."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from nodeagent.clock import SystemClock
from nodeagent.config.models import Config
from nodeagent.config.policies import settings as settings_of
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.loop_status import LoopStatuses
from nodeagent.daemon.pass_lock import PassLock
from nodeagent.telemetry import logging as log

if TYPE_CHECKING:
    import io
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nodeagent.config.settings import Settings
    from tests.support.certificates import Authority

WITHIN_S = 20


class Task(Protocol):
    """A task of the daemon."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped."""


def settings_with(
    authority: Authority, url: str, directory: Path, kubernetes: dict[str, Any], document: dict[str, Any]
) -> Settings:
    """Return settings with the credentials of a service account, and these of ``kubernetes`` and of other sections."""
    token = directory / "token"
    token.write_text("token-of-the-agent")
    section = {"server": url, "ca_file": str(authority.ca_file), "token_file": str(token), **kubernetes}
    return settings_of(Config.model_validate({**document, "kubernetes": section, "kubelet": {"node_name": "node-1"}}))


def context_of(settings: Settings, stream: io.StringIO) -> DaemonContext:
    """Return the context of a daemon that logs to ``stream``."""
    clock = SystemClock()
    logger = log.configure("json", "info", stream)
    return DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))


@asynccontextmanager
async def running(context: DaemonContext, task: Task) -> AsyncIterator[DaemonContext]:
    """Run a task within the block."""
    stop = asyncio.Event()
    run = asyncio.create_task(task.run(stop))
    try:
        yield context
    finally:
        stop.set()
        async with asyncio.timeout(WITHIN_S):
            await run


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - the state of a task or a server, which has no event
            await asyncio.sleep(0.01)
