"""Tests of image removal by age on a real containerd: an image that a container used a second before is kept.

The clock of the agent is advanced by days; the clock of the machine is unchanged.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.reading import load_settings
from nodeagent.gc.agent import open_agent
from nodeagent.gc.executor import PassEnd
from nodeagent.gc.plan.policy import Scope
from nodeagent.units import SystemClock
from tests.support import images

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from nodeagent.gc.agent import Agent
    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd
    from tests.support.pods import Pods

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
JOB = "registry.example.com/batch/job:v1"
UNUSED = "registry.example.com/batch/unused:v1"
DAY_S = 86_400.0
INTERVAL_S = 300.0


class AheadClock:
    """Clock ahead of the machine: both clocks by a simulated time, the wall clock also by a simulated error."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self.ahead_s = 0.0
        self.wall_ahead_s = 0.0

    def now(self) -> datetime:
        return self._system.now() + timedelta(seconds=self.ahead_s + self.wall_ahead_s)

    def monotonic_s(self) -> float:
        return self._system.monotonic_s() + self.ahead_s


class Node:
    """Containerd with two images that were pulled 20 days ago on the agent's clock, and no stored agent state."""

    def __init__(self, containerd: Containerd, pods: Pods) -> None:
        self.pods = pods
        self.clock = AheadClock()
        made = [images.image(tag, layers=[images.blob(tag, 1 << 20)]) for tag in (JOB, UNUSED)]
        containerd.import_images(images.write_oci(containerd.base / "made.tar", *made), pulled=True)
        self.sandbox_image = containerd.sandbox_image
        self.clock.ahead_s += 20 * DAY_S
        self.config = containerd.base / "nodeagent.toml"
        self.config.write_text(
            f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
            f'[state]\ndirectory = "{containerd.base}/agent-state"\n'
            f'[image_gc]\nhigh_threshold_percent = 100\nmaximum_unused_age = "1d"\ninterval = "{INTERVAL_S:.0f}s"\n'
        )

    def use(self) -> None:
        """Run a pod with the image until it ends, and remove the pod."""
        sandbox = self.pods.run_sandbox("job", namespace="batch")
        self.pods.wait_exited(self.pods.run_container(sandbox, "job", JOB, ["sh", "-c", "echo done"]))
        self.pods.remove_sandbox(sandbox)

    def tags(self) -> set[str]:
        return {tag for image in self.pods.list_images() for tag in image.tags} - {self.sandbox_image}

    async def make_pass(self) -> dict[str, str]:
        """Run a pass of a newly started agent; return the reason code for each image."""
        async with open_agent(load_settings(self.config, {}), record=True, dry_run=False, clock=self.clock) as agent:
            return await self.pass_of(agent)

    async def pass_of(self, agent: Agent) -> dict[str, str]:
        preview = await agent.collector.preview(Scope.IMAGES)
        report = await agent.run(preview, trigger="test", stop=asyncio.Event())
        assert report.end in (PassEnd.COMPLETE, PassEnd.NOTHING_TO_DO)
        return {each.name: each.reason.code.value for each in preview.plans[0].decisions}

    async def observe(self, seconds: float) -> None:
        """Advance the clock by ``seconds`` while an agent observes image use."""
        async with open_agent(load_settings(self.config, {}), record=True, dry_run=False, clock=self.clock) as agent:
            for _ in range(round(seconds / INTERVAL_S)):
                await agent.collector.preview(Scope.IMAGES)
                self.clock.ahead_s += INTERVAL_S


@pytest.fixture
def node(containerd_factory: ContainerdFactory) -> Iterator[Node]:
    containerd = containerd_factory()
    with containerd.pods() as pods:
        yield Node(containerd, pods)
        pods.remove_made()


def test_image_used_a_second_before_is_kept_with_a_fresh_state_directory(node: Node) -> None:
    node.use()
    decided = asyncio.run(node.make_pass())
    assert (decided[JOB], decided[UNUSED]) == ("threshold-disabled", "threshold-disabled")  # no earlier use observed
    assert node.tags() == {JOB, UNUSED}


def test_dead_pod_and_images_are_kept_after_a_jump_of_ten_years(node: Node) -> None:
    """Times of containers are by the clock of the machine; only the wall clock of the agent jumps."""

    async def passes(agent: Agent, seconds: float) -> set[str]:
        removed: set[str] = set()
        for _ in range(round(seconds / 60)):
            preview = await agent.collector.preview(Scope.ALL)
            report = await agent.run(preview, trigger="test", stop=asyncio.Event())
            removed |= {each.decision.kind.value for each in report.removed}
            node.clock.ahead_s += 60
        return removed

    async def scenario() -> None:
        async with open_agent(load_settings(node.config, {}), record=True, dry_run=False, clock=node.clock) as agent:
            await passes(agent, 120)
            sandbox = node.pods.run_sandbox("dead", namespace="batch")
            node.pods.wait_exited(node.pods.run_container(sandbox, "dead", JOB, ["sh", "-c", "echo done"]))
            node.pods.stop_sandbox(sandbox)
            node.clock.wall_ahead_s = 3650 * DAY_S
            assert await passes(agent, 600) == set()
            node.clock.wall_ahead_s = 0.0
            assert await passes(agent, 600) == set()
            assert await passes(agent, 600) == {"container", "sandbox"}
            assert node.tags() == {JOB, UNUSED}

    asyncio.run(scenario())


def test_image_used_a_second_before_is_kept_by_a_command_with_a_short_age(node: Node) -> None:
    command = [sys.executable, "-m", "nodeagent", "gc", "images", "--yes", "--config", str(node.config)]
    for _ in range(2):  # the second run uses the state stored by the first run
        node.use()
        ended = subprocess.run(
            [*command, "--minimum-age", "0s", "--maximum-unused-age", "100ms"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=ROOT,
        )
        assert ended.returncode == 0, ended.stderr
        assert node.tags() == {JOB, UNUSED}


def test_image_used_while_the_agent_was_down_is_kept_until_use_was_observed_for_the_maximum(node: Node) -> None:
    asyncio.run(node.observe(DAY_S / 2))
    node.clock.ahead_s += 2 * DAY_S
    node.use()
    decided = asyncio.run(node.make_pass())
    assert (decided[JOB], decided[UNUSED]) == ("age-not-observed", "age-not-observed")
    assert node.tags() == {JOB, UNUSED}

    asyncio.run(node.observe(DAY_S / 2))
    node.use()
    sandbox = node.pods.run_sandbox("job", namespace="batch")
    container = node.pods.run_container(sandbox, "job", JOB, ["sh", "-c", "echo seen"])
    node.pods.wait_exited(container)
    asyncio.run(node.make_pass())
    node.pods.remove_sandbox(sandbox)
    asyncio.run(node.observe(DAY_S / 2))
    decided = asyncio.run(node.make_pass())
    assert (decided[JOB], decided[UNUSED]) == ("threshold-disabled", "unused-too-long")
    assert node.tags() == {JOB}

    asyncio.run(node.observe(DAY_S))
    asyncio.run(node.make_pass())
    assert node.tags() == set()
