"""The record and the forecast on a real containerd: a growing pod is named beside image churn, with the right time.

Time is that of a manual clock, a minute for each line; the bytes are written by a container and measured on disk.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.daemon.context import DaemonContext
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.policy import Scope
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.model.outlook import Outlook
from nodeagent.settings.loading import load
from nodeagent.telemetry import logging as log
from nodeagent.trend.documents import outlook_document
from nodeagent.trend.recorder import EVERY_S, RecorderTask
from nodeagent.trend.words import driver
from tests.support import images, reclaim
from tests.support.containerd import LoopFs
from tests.support.manual_clock import ManualClock
from tests.support.pressed import MIB, PressedNode

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.trend.plan.outlook import ResourceOutlook
    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

MINUTES, EARLY = 45, 19
WRITTEN_MIB = 2
IMAGE_MIB = 3
LAYER = "while :; do if [ -e /go ]; then rm /go; dd if=/dev/zero bs=1M count=2 2>/dev/null >> /data; fi; "


def write(node: PressedNode, name: str, times: int) -> None:
    """Let the container of a pod append to its file, and wait until it has done so for this number of times."""
    data = node.layer(node.created[name]) / "data"
    node.touch(name, "/go")
    size_bytes = times * WRITTEN_MIB * MIB
    reclaim.poll(f"{name} has written", lambda: data.exists() and data.stat().st_size == size_bytes, timeout_s=30)


def imagefs(context: DaemonContext) -> ResourceOutlook:
    return next(each for each in context.trend.outlook if each.resource == "imagefs.available")


def import_unused(node: PressedNode, number: int) -> None:
    made = images.image(f"churn.test/app:v{number}", layers=[images.blob(f"churn{number}", IMAGE_MIB * MIB)])
    node.containerd.import_images(images.write_oci(node.directory / "churn.tar", made))


async def test_growing_pod_is_named_beside_image_churn_with_the_time_of_the_threshold(
    containerd_factory: ContainerdFactory, tmp_path: Path
) -> None:
    node = PressedNode(containerd_factory(imagefs=LoopFs(500)), tmp_path)
    node.import_images()
    node.run_pod("grows", f"({LAYER} sleep 0.02; done) & true")
    node.run_writer("rests", 30)
    config = node.configure('hard = "imagefs.available<20%"')
    config.write_text(config.read_text().replace("[image_gc]\nenabled = false", "[image_gc]"))
    settings = load(config, {}, {}).config.settings()
    clock = ManualClock(datetime.now(UTC), at_s=1e6)
    logger = log.configure("json", "warning", sys.stderr)
    context = DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))
    async with open_agent(settings, record=True, dry_run=True, clock=clock) as agent:
        task = RecorderTask(context, agent)
        for minute in range(MINUTES):
            write(node, "grows", minute + 1)
            if minute % 10 == 5:
                import_unused(node, minute)
            if minute % 5 == 0:
                preview = await agent.collector.prepare(Scope.IMAGES)
                context.trend.note_images(preview.snapshot, settings.policy.images, 0, clock.monotonic_s())
            await task.step()
            if minute == EARLY:
                early = driver(outlook_document(imagefs(context)))
            clock.at_s += EVERY_S
            clock.wall += timedelta(seconds=EVERY_S)
    found = imagefs(context)
    (hard,) = [each for each in found.forecasts if each.threshold.name == "hard"]
    assert early.endswith(" by default/grows writable layer")
    assert driver(outlook_document(found)).endswith(" by default/grows writable layer")
    assert hard.outlook is Outlook.RANGE
    assert context.trend.images is not None
    kept = found.used - (context.trend.images.freeable or 0)
    true_s = (hard.threshold.used - kept) / (WRITTEN_MIB * MIB / EVERY_S)
    assert hard.expected_s == pytest.approx(true_s, rel=0.2)
    assert hard.earliest_s is not None
    assert hard.latest_s is not None
    assert hard.earliest_s < true_s < hard.latest_s
