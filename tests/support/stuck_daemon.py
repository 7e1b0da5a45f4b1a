"""Run the daemon with an additional task that blocks the event loop while a file exists.

Usage: ``python stuck_daemon.py CONFIG FILE``. The test of the watchdog requires a running process whose loops make no
progress; the unmodified daemon cannot be blocked. Reloads are not supported.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.cli.reading import load_settings
from nodeagent.daemon.supervisor import daemon_tasks, supervise
from nodeagent.loops.passes import wait_for_any
from nodeagent.telemetry import logging as log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.daemon.context import DaemonContext, DaemonTask

POLL_S = 0.2


class BlockingTask:
    """Task that blocks the event loop while a file exists."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def run(self, stop: asyncio.Event) -> None:
        """Poll for the file until the task is stopped."""
        while not await wait_for_any(POLL_S, stop):
            while os.path.exists(self._path):  # noqa: ASYNC240, PTH110 - blocking the event loop is the purpose
                pass


def main() -> None:
    """Run the daemon until SIGTERM."""
    config, blocks_while = sys.argv[1:]

    def tasks(context: DaemonContext) -> Sequence[DaemonTask]:
        return (*daemon_tasks(context), BlockingTask(blocks_while))

    settings = load_settings(Path(config), {})
    logger = log.configure(settings.log_format, settings.log_level)
    asyncio.run(supervise(settings, logger, once=False, lasting_tasks=tasks))


if __name__ == "__main__":
    main()
