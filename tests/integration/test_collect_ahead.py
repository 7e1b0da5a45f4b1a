"""Collection ahead of the forecast on a real containerd: a growing store, real readings, and the measured effect.

Time is that of a manual clock, a minute for each recorded line; a pass of the daemon runs every five minutes.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.daemon import supervisor
from nodeagent.daemon.context import DaemonContext
from nodeagent.gc.agent import open_agent
from nodeagent.gc.executor import PassTrigger
from nodeagent.gc.plan.policy import Scope
from nodeagent.host import stalls
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.settings.loading import load
from nodeagent.telemetry import logging as log
from nodeagent.trend.recorder import EVERY_S, RecorderTask
from tests.support import images
from tests.support.containerd import LoopFs
from tests.support.manual_clock import ManualClock
from tests.support.pressed import MIB, PressedNode

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.gc.executor import PassReport
    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

MINUTES = 80
OLD, SIZE = 20, 4 * MIB
"""Images before the growth, and the size of each image: a layer is stored compressed and unpacked."""
CAPACITY_MIB = 500
USED_MIB = 200
"""Use at the start; it grows by an image of 4 MiB every two minutes, so that the threshold is met after 110 minutes."""


def pull(node: PressedNode, *names: str) -> None:
    made = [images.image(f"grows.test/{each}:v1", layers=[images.blob(each, SIZE // 2)]) for each in names]
    node.containerd.import_images(images.write_oci(node.directory / "grows.tar", *made), pulled=True)


async def live(node: PressedNode, collect_ahead: str) -> tuple[list[PassReport], list[int]]:
    """Return the passes of the daemon and the available bytes after each minute, on a growing node."""
    config = node.configure('hard = "imagefs.available<1%"')
    image_gc = f'[image_gc]\nlow_threshold_percent = 50\ncollect_ahead = "{collect_ahead}"'
    config.write_text(config.read_text().replace("[image_gc]\nenabled = false", image_gc))
    settings = load(config, {}, {}).config.settings()
    clock, logger = ManualClock(datetime.now(UTC), at_s=1e6), log.configure("json", "warning", sys.stderr)
    context = DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))
    forecast = context.trend.collection_forecast
    reports, available = [], []
    async with open_agent(settings, record=True, dry_run=False, clock=clock, read_forecast=forecast) as agent:
        task = RecorderTask(context, agent)
        run_pass = supervisor._passes(agent, logger, PassTrigger.INTERVAL, context)  # noqa: SLF001 - as its loop does
        for minute in range(MINUTES):
            if minute % 2:
                pull(node, f"new{minute}")
            if minute % 5 == 0:
                reports.append((await run_pass(Scope.IMAGES, asyncio.Event()))[1])
            await task.step()
            available.append(node.available_bytes)
            clock.at_s += EVERY_S
            clock.wall += timedelta(seconds=EVERY_S)
    return reports, available


@pytest.fixture
def node(containerd_factory: ContainerdFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PressedNode:
    monkeypatch.setattr(stalls, "IDLE_BELOW_PERCENT", 101.0)  # other tests use the disks of this machine
    made = PressedNode(containerd_factory(imagefs=LoopFs(CAPACITY_MIB)), tmp_path)
    made.import_images()
    pull(made, *(f"old{each}" for each in range(OLD)))
    made.containerd.fill((CAPACITY_MIB - USED_MIB) * MIB)
    return made


async def test_images_are_removed_before_the_threshold_only_as_many_as_the_forecast_needs(node: PressedNode) -> None:
    reports, available = await live(node, "1h")
    passes = [each for each in reports if each.removed]
    assert passes
    for each in passes:
        assert each.trigger == PassTrigger.COLLECT_AHEAD
        assert each.before is not None
        assert each.after is not None
        assert each.before.used_percent < 85
        (plan,) = each.plans
        assert plan.ahead_available_bytes is not None
        assert each.freed_bytes is not None
        assert each.freed_bytes == pytest.approx(each.predicted_bytes, rel=0.02, abs=MIB)
        assert 0 <= each.after.available_bytes - plan.ahead_available_bytes < 2 * SIZE + MIB
        assert {one.decision.reason.code.value for one in each.removed} == {"collect-ahead"}
    removed = [one.decision.name for each in passes for one in each.removed]
    assert set(removed) < {f"grows.test/old{each}:v1" for each in range(OLD)}
    assert min(available) > 0.16 * CAPACITY_MIB * MIB


async def test_nothing_is_removed_before_the_threshold_without_the_setting(node: PressedNode) -> None:
    reports, _ = await live(node, "0s")
    assert not [each for each in reports if each.removed]
    assert {each.trigger for each in reports} == {PassTrigger.INTERVAL}
