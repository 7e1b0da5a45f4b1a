"""Evictions of pods over their storage limits, and the limit on evictions per window."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.model.pressure import EmptyDirFacts, FilesystemLayout, PodFacts, SignalReading
from nodeagent.record import replace
from tests.unit.eviction.eviction_node import LOW, NO_PRESSURE, Node, run_pass, run_passes
from tests.unit.eviction.plan.cases import container, disk, known, pod, read

if TYPE_CHECKING:
    from nodeagent.model.pods import PodInventory


def stalled_node() -> Node:
    """Return a node with four stalled pods and a limit of two evictions; no eviction ends the stall."""
    return Node(
        pods=tuple(pod(f"p{number}", stalled=50.0) for number in range(4)),
        limits="memory.psi.full>40",
        readings=lambda: (read("memory.psi.full", available=99.0, capacity=100),),
        policy=EvictionPolicy(max_evictions_per_window=2),
    )


async def test_eviction_limit_stops_evictions_and_is_logged() -> None:
    node = stalled_node()
    loop = node.loop()
    await run_passes(node, loop, 60)
    assert len(node.evicted) == 2
    (event,) = node.events("eviction_limit_reached")
    assert event["level"] == "error"


async def test_pod_created_after_the_eviction_limit_is_reached_is_evicted_for_its_storage_limit() -> None:
    node = stalled_node()
    loop = node.loop()
    await run_passes(node, loop, 60)
    node.pods = (*node.pods, over_limit("greedy"))
    await run_passes(node, loop, 120)
    assert (len(node.evicted), node.evicted[2:]) == (3, ["greedy"])


async def test_pod_over_its_storage_limit_is_evicted_without_pressure() -> None:
    over = pod("greedy", writable=disk(300), ephemeral_limit_bytes=200 << 20)
    over = replace(over, usage=replace(over.usage, ephemeral_bytes=300 << 20))  # type: ignore[type-var]
    node = Node(pods=(pod("modest"), over))
    await run_pass(node)
    assert node.evicted == ["greedy"]


@pytest.mark.parametrize("layout", FilesystemLayout)
async def test_pod_is_evicted_for_the_layer_of_a_container_on_every_layout(layout: FilesystemLayout) -> None:
    over = pod("greedy", containers=(container("app", writable=30, logs=1, ephemeral_limit=20),))
    within = pod("modest", containers=(container("app", writable=10, logs=10, ephemeral_limit=20),))
    node = Node(pods=(within, over), layout=layout)
    await run_pass(node)
    assert node.evicted == ["greedy"]
    (event,) = node.events("evicted")
    assert event["reason"] == "container-over-storage-limit"
    assert "(writable layer 30.0 MiB, logs 1.00 MiB)" in event["why"]


def over_limit(name: str, **fields: Any) -> PodFacts:
    """Return a pod with 20 bytes in an emptyDir volume with a limit of 10 bytes."""
    return pod(name, memory=1, empty_dirs=(EmptyDirFacts("tmp", 20, 10),), **fields)


@pytest.mark.difference("limit-interval")
async def test_usage_is_measured_once_a_minute_while_a_pod_has_a_limit() -> None:
    node = Node(pods=(pod("within", empty_dirs=(EmptyDirFacts("tmp", 9, 10),)),))
    measured_s = []

    async def read_pods(with_disk: bool) -> PodInventory:
        if with_disk:
            measured_s.append(node.clock.seconds)
        return await Node.read_pods(node, with_disk)

    node.read_pods = read_pods  # type: ignore[method-assign]
    loop = node.loop()
    while node.clock.seconds < 300:
        await run_pass(node, loop)
        node.clock.seconds += 1
    assert {round(later - earlier) for earlier, later in pairwise(measured_s)} <= {60, 61}
    assert len(measured_s) == 5


@pytest.mark.parametrize(
    ("limits", "reading"),
    [
        ("io.psi.some>50", read("io.psi.some", available=99.0, capacity=100)),
        ("memory.available<100Mi", LOW),
    ],
    ids=["stalled on I/O", "memory without candidates"],
)
async def test_pod_over_its_storage_limit_is_evicted_behind_a_threshold_without_a_victim(
    limits: str, reading: SignalReading
) -> None:
    static = pod("static", memory=900, static=known(value=True))
    node = Node(pods=(over_limit("greedy", memory_request_bytes=known(None)), static), limits=limits)
    node.readings = lambda: (reading,)

    async def read_pods(with_disk: bool) -> PodInventory:
        await asyncio.sleep(0.01 if with_disk else 0)  # a disk walk takes longer than the interval between readings
        return await Node.read_pods(node, with_disk)

    node.read_pods = read_pods  # type: ignore[method-assign]
    await run_pass(node)
    assert (node.evicted, node.result()) == (["greedy"], "evicted")


@pytest.mark.parametrize(("is_over", "evicted", "result"), [(True, ["greedy"], "evicted"), (False, [], "no-pod")])
async def test_storage_limits_are_checked_behind_a_threshold_without_a_victim_after_reclaim_for_another(
    *, is_over: bool, evicted: list[str], result: str
) -> None:
    static = pod("static", memory=900, static=known(value=True))
    greedy = over_limit("greedy", memory_request_bytes=known(None))
    node = Node(pods=(greedy, static) if is_over else (static,), limits="memory.available<100Mi,nodefs.available<100Mi")
    node.readings = lambda: (LOW, read("nodefs.available", 900 if node.reclaimed else 50))
    await run_pass(node)
    assert node.reclaimed == ["dead-containers on nodefs"]
    assert (node.evicted, node.result()) == (evicted, result)


async def test_cheap_pods_over_their_storage_limits_do_not_use_up_the_evictions_for_memory() -> None:
    cheap = tuple(over_limit(f"cheap-{number}") for number in range(10))
    node = Node(pods=cheap, policy=EvictionPolicy(max_evictions_per_window=3, max_limit_evictions_per_window=3))
    loop = node.loop()
    await run_passes(node, loop, 600)
    assert len(node.evicted) == 3
    node.pods = (*cheap, pod("hog", memory=900))
    node.readings = lambda: (LOW,) if "hog" not in node.evicted else (NO_PRESSURE,)
    await run_pass(node, loop)
    assert node.evicted[3:] == ["hog"]


async def test_memory_evictions_above_the_limit_are_slowed_and_reported() -> None:
    node = Node(
        pods=tuple(pod(f"p{number}") for number in range(9)),
        readings=lambda: (LOW,),
        policy=EvictionPolicy(max_evictions_per_window=2, always_evict=True),
    )
    loop = node.loop()
    await run_passes(node, loop, 40)
    assert 4 <= len(node.evicted) <= 6
    assert node.result() in {"slowed", "evicted"}
    assert {each["level"] for each in node.events("eviction_limit_reached")} == {"error"}
