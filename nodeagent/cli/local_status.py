"""Status documents that a command creates by reading the node itself, without a daemon."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.cli.session import load_settings, open_for_command
from nodeagent.daemon.status import StatusReader, pods_document, report_document, status_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from nodeagent.daemon.documents import Status
    from nodeagent.daemon.report_document import NodeReport
    from nodeagent.eviction.pressure_documents import PodUsage
    from nodeagent.gc.agent import Agent


class LocalStatus:
    """Reader of the documents that the daemon returns for the operations ``Status`` and ``Pods``."""

    def __init__(self, runner: asyncio.Runner, agent: Agent) -> None:
        self._runner = runner
        self._agent = agent
        self._reader = StatusReader(agent)

    def status(self) -> Status:
        """Return the status document of the node."""
        return self._runner.run(status_document(self._agent, self._reader, None))

    def pods(self) -> PodUsage:
        """Return the document of the pods with their usage.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
        """
        return self._runner.run(pods_document(self._agent, self._reader))


@contextmanager
def open_local_status(config: str | PathLike[str] | None) -> Iterator[LocalStatus]:
    """Open a reader of the node's status documents.

    Raises:
        ConfigError: the configuration is invalid.
        RuntimeUnavailableError: no runtime is configured, and none is found.
    """
    settings = load_settings(None if config is None else Path(config), {})
    with asyncio.Runner() as runner:
        opened = open_for_command(settings, record=False)
        agent = runner.run(opened.__aenter__())
        try:
            yield LocalStatus(runner, agent)
        finally:
            runner.run(opened.__aexit__(None, None, None))


async def read_report(agent: Agent) -> NodeReport:
    """Return the report document of this node, for ``nodeagent report`` without a daemon."""
    return await report_document(agent, StatusReader(agent), None)
