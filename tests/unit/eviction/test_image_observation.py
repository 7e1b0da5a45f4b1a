"""Observation of the images that begins during an earlier reclaim step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeRequestError
from nodeagent.eviction.reclaimer import ImageObservation
from nodeagent.gc.plan.policy import Scope
from nodeagent.host.psi_triggers import PressureTriggers
from nodeagent.model.node import NodeSnapshot, RuntimeInfo
from tests.unit.eviction.eviction_node import Clock, disk_node, run_pass
from tests.unit.eviction.plan.cases import read

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Observed:
    """A node that records the scopes of its observations.

    While ``error`` is set, an observation raises it; an observation ends only after the event ``gate`` is set.
    """

    clock: Clock = field(default_factory=Clock)
    scopes: list[Scope] = field(default_factory=list)
    error: RuntimeRequestError | None = None
    gate: asyncio.Event | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def observe(self, scope: Scope) -> NodeSnapshot:
        self.scopes.append(scope)
        self.started.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return NodeSnapshot(datetime(2026, 1, 1, tzinfo=UTC), RuntimeInfo("containerd", "2.0", "v1"))

    def images(self) -> ImageObservation:
        return ImageObservation(self.observe, self.clock)


async def begun(images: ImageObservation) -> None:
    images.begin()
    await asyncio.sleep(0)


async def test_begun_observation_serves_all_image_steps_until_it_is_discarded() -> None:
    node = Observed()
    images = node.images()
    await begun(images)
    await begun(images)
    first = await images.observe(Scope.IMAGES)
    assert await images.observe(Scope.IMAGES) is first
    assert node.scopes == [Scope.IMAGES]
    images.discard()
    assert await images.observe(Scope.IMAGES) is not first


async def test_begun_observation_does_not_serve_containers() -> None:
    node = Observed()
    images = node.images()
    await begun(images)
    await images.observe(Scope.CONTAINERS)
    assert node.scopes == [Scope.IMAGES, Scope.CONTAINERS]


async def test_observation_is_joined_while_it_runs_and_repeated_after_a_second() -> None:
    node = Observed(gate=asyncio.Event())
    images = node.images()
    await begun(images)
    node.clock.seconds += 1.5
    waiting = asyncio.ensure_future(images.observe(Scope.IMAGES))
    await asyncio.sleep(0)
    assert node.gate is not None
    node.gate.set()
    first = await waiting
    assert len(node.scopes) == 1
    assert await images.observe(Scope.IMAGES) is not first
    await begun(images)
    assert len(node.scopes) == 3


async def test_failed_observation_is_repeated() -> None:
    node = Observed(error=RuntimeRequestError("ListImages", "", "UNAVAILABLE", "busy"))
    images = node.images()
    await begun(images)
    await asyncio.sleep(0)
    node.error = None
    await images.observe(Scope.IMAGES)
    assert len(node.scopes) == 2


async def test_discarded_observation_ends() -> None:
    images = Observed(gate=asyncio.Event()).images()
    await begun(images)
    images.discard()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_prepared_observation_is_not_used_for_reclaim_and_does_not_fail() -> None:
    node = Observed(error=RuntimeRequestError("ListImages", "", "UNAVAILABLE", "busy"))
    images = node.images()
    await images.prepare()
    node.error = None
    await images.prepare()
    assert node.scopes == [Scope.IMAGES, Scope.IMAGES, Scope.CONTAINERS]
    await images.observe(Scope.IMAGES)
    assert len(node.scopes) == 4


async def test_node_is_observed_once_after_the_first_pass_without_pressure() -> None:
    node, observed = disk_node(), Observed()
    loop = node.loop(images=observed.images())
    await run_pass(node, loop)
    assert observed.scopes == []
    node.readings = lambda: (read("imagefs.available", 900),)
    for _ in range(3):
        await run_pass(node, loop)
    assert observed.scopes == [Scope.IMAGES, Scope.CONTAINERS]


async def test_met_threshold_cancels_the_first_observation() -> None:
    node, observed = disk_node(), Observed(gate=asyncio.Event())
    loop = node.loop(images=observed.images())
    met = node.readings
    node.readings = lambda: (read("imagefs.available", 900),)
    await run_pass(node, loop)
    node.readings = met
    await run_pass(node, loop)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_end_of_the_loop_cancels_the_first_observation(tmp_path: Path) -> None:
    node, observed, stop = disk_node(), Observed(gate=asyncio.Event()), asyncio.Event()
    node.readings = lambda: (read("imagefs.available", 900),)
    loop = node.loop(images=observed.images(), triggers=PressureTriggers(print, root=tmp_path))
    run = asyncio.ensure_future(loop.run(stop))
    await asyncio.wait_for(observed.started.wait(), 5)
    stop.set()
    await asyncio.wait_for(run, 5)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("before_mib", "available_mib", "dry_run", "begins"),
    [(600, 50, False, True), (101, 99, False, False), (600, 50, True, False)],
    ids=["fast", "slow", "dry run"],
)
async def test_images_are_observed_during_the_first_step_only_if_space_runs_out(
    before_mib: float, available_mib: float, dry_run: bool, begins: bool
) -> None:
    node, observed = disk_node(dry_run=dry_run), Observed()
    loop = node.loop(images=observed.images())
    node.readings = lambda: (read("imagefs.available", before_mib),)
    await run_pass(node, loop)
    await asyncio.sleep(0)  # the observation after a pass without pressure
    observed.scopes.clear()
    node.clock.seconds += 1.0
    node.readings = lambda: (read("imagefs.available", available_mib),)
    await run_pass(node, loop)
    assert node.reclaimed
    assert bool(observed.scopes) is begins
    assert asyncio.all_tasks() == {asyncio.current_task()}
