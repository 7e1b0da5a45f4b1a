"""Measurement of the pods' disk usage that begins during reclaim."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.errors import RuntimeRequestError
from nodeagent.eviction.actions import PodMeasurement
from tests.unit.eviction.eviction_node import Node, disk_node, run_pass
from tests.unit.eviction.plan.cases import read


def measurement(node: Node) -> PodMeasurement:
    return PodMeasurement(node.monitors())


async def test_begun_measurement_is_used_once() -> None:
    node = disk_node()
    measured = measurement(node)
    measured.begin()
    measured.begin()
    first = await measured.read(frozenset())
    assert first is not None
    assert node.lists == 1
    assert await measured.read(frozenset()) is not first
    assert node.lists == 2


async def test_begun_measurement_is_repeated_after_a_second() -> None:
    node = disk_node()
    measured = measurement(node)
    measured.begin()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    node.clock.seconds += 1.5
    await measured.read(frozenset())
    assert node.lists == 2


async def test_failed_measurement_is_repeated() -> None:
    node = disk_node(pods_error=RuntimeRequestError("ListContainers", "", "UNAVAILABLE", "busy"))
    measured = measurement(node)
    measured.begin()
    await asyncio.sleep(0)
    with pytest.raises(RuntimeRequestError):
        await measured.read(frozenset())
    measured.begin()
    await asyncio.sleep(0)
    node.pods_error = None
    assert await measured.read(frozenset()) is not None


async def test_cancelled_measurement_ends() -> None:
    node = disk_node(gate=asyncio.Event())
    measured = measurement(node)
    measured.begin()
    await asyncio.sleep(0)
    measured.discard()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("before_mib", "available_mib", "during_reclaim"), [(600, 50, True), (101, 99, False)], ids=["fast", "slow"]
)
async def test_pods_are_measured_during_reclaim_only_if_space_runs_out(
    before_mib: float, available_mib: float, during_reclaim: bool
) -> None:
    node = disk_node()
    steps_before: list[int] = []
    loop = node.loop()
    node.readings = lambda: (read("imagefs.available", before_mib),)
    await run_pass(node, loop)
    node.on_list = lambda: steps_before.append(len(node.reclaimed))
    node.clock.seconds += 1.0
    node.readings = lambda: (read("imagefs.available", available_mib),)
    await run_pass(node, loop)
    assert node.evicted == ["writer"]
    assert (steps_before[0] < len(node.reclaimed)) is during_reclaim
