"""A recorder with a clock that moves a minute for each line: ``python -m tests.support.recorder_process CONFIG``.

It is a process of its own, since nodefs is the filesystem of a fixed directory, which a mount namespace replaces. Each
line of standard input is a minute: the recorder records one line and the outlook is printed as one line of JSON. The
images are read before a minute called ``images``, as a pass of image GC does.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from nodeagent.daemon.context import DaemonContext
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.policy import Scope
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.settings.loading import load
from nodeagent.telemetry import logging as log
from nodeagent.trend.documents import outlook_document
from nodeagent.trend.recorder import EVERY_S, RecorderTask
from tests.support.manual_clock import ManualClock


async def main(config: Path) -> None:
    settings = load(config, {}, {}).config.settings()
    clock = ManualClock(datetime.now(UTC), at_s=1e6)
    logger = log.configure("json", "warning", sys.stderr)
    context = DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))
    async with open_agent(settings, record=True, dry_run=True, clock=clock) as agent:
        task = RecorderTask(context, agent)
        while minute := await asyncio.to_thread(sys.stdin.readline):
            if minute == "images\n":
                preview = await agent.collector.prepare(Scope.IMAGES)
                context.trend.note_images(preview.snapshot, settings.policy.images, 0, clock.monotonic_s())
            await task.step()
            clock.at_s += EVERY_S
            clock.wall += timedelta(seconds=EVERY_S)
            found = [outlook_document(each) for each in context.trend.outlook]
            print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
