"""Page cache reclaim within an eviction pass, with scripted readings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from nodeagent.eviction.page_cache import PageCache
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.reclaim import PodPageCache
from nodeagent.host.cgroups import CgroupCache
from tests.unit.builders import MIB
from tests.unit.eviction.eviction_node import Node, run_pass
from tests.unit.eviction.plan.cases import pod, read

if TYPE_CHECKING:
    from nodeagent.eviction.loop import EvictionLoop
    from nodeagent.model.pods import PodHandle, PodInventory


@dataclass
class Cache:
    """Fake page cache of a pod; a reclaim frees the fraction ``yields`` of the requested bytes."""

    active_mib: float = 340
    inactive_mib: float = 10
    available_mib: float = 60
    kernel_mib: float = 470
    yields: float = 1.0
    permitted: bool = True
    stall_us: int = 0
    hangs: bool = False
    used_mib: float = 900
    calls: list[tuple[str, int, bool]] = field(default_factory=list)

    async def read(self, pods: PodInventory) -> tuple[PodPageCache, ...]:
        sizes = (round(self.active_mib * MIB), round(self.inactive_mib * MIB), round(self.used_mib * MIB))
        return tuple(PodPageCache(each.uid, *sizes, 0) for each in pods.facts)

    async def read_one(self, handle: PodHandle) -> CgroupCache | None:
        assert handle.uid == "uid-reader"
        self.stall_us += 100_000 if self.stall_us else 0
        return CgroupCache(0, 0, round(self.used_mib * MIB), 0, self.stall_us)

    async def is_permitted(self, handle: PodHandle) -> bool:
        assert handle.uid == "uid-reader"
        return self.permitted

    async def reclaim(self, handle: PodHandle, size_bytes: int, *, swap: bool) -> str:
        self.calls.append((handle.uid, size_bytes // MIB, swap))
        if self.hangs:
            self.kernel_mib = 40
            await asyncio.Event().wait()
        freed_mib = (size_bytes / MIB - self.inactive_mib) * self.yields
        self.available_mib += freed_mib
        self.used_mib -= freed_mib
        self.inactive_mib = 0
        return ""


def loop_of(node: Node, cache: Cache) -> EvictionLoop:
    node.pods = (pod("reader", memory=500),)
    node.readings = lambda: (read(available_mib=cache.available_mib, kernel_mib=cache.kernel_mib),)
    return node.loop(page_cache=lambda monitors: PageCache(cache, monitors, node.clock, watch_s=0.001))


@pytest.mark.difference("page-cache-reclaim")
async def test_no_pod_is_evicted_if_page_cache_suffices() -> None:
    node, cache = Node(), Cache()
    loop = loop_of(node, cache)
    await run_pass(node, loop)
    await run_pass(node, loop)
    assert (node.evicted, cache.calls) == ([], [("uid-reader", 54, False)])
    (event,) = node.events("page_cache_reclaimed")
    assert (event["pods"], event["cleared"], event["stopped"]) == (["shop/reader"], True, "")


async def test_pod_is_evicted_if_its_cache_is_back_a_moment_later() -> None:
    node, cache = Node(), Cache()
    loop = loop_of(node, cache)
    await run_pass(node, loop)
    cache.available_mib = 60
    node.clock.seconds += 5
    await run_pass(node, loop)
    assert (node.evicted, len(cache.calls)) == (["reader"], 1)


async def test_pod_is_evicted_if_reclaim_yields_too_little() -> None:
    node, cache = Node(limits="memory.available<250Mi"), Cache(active_mib=600, yields=0.2)
    await run_pass(node, loop_of(node, cache))
    assert (node.evicted, len(cache.calls)) == (["reader"], 1)
    (event,) = node.events("page_cache_reclaimed")
    assert "working set fell by" in event["stopped"]


async def test_no_further_cache_is_reclaimed_from_a_pod_that_waits_for_memory() -> None:
    node, cache = Node(limits="memory.available<250Mi"), Cache(active_mib=600, stall_us=1, yields=0.9)
    await run_pass(node, loop_of(node, cache))
    assert (node.evicted, len(cache.calls)) == (["reader"], 1)
    (event,) = node.events("page_cache_reclaimed")
    assert "waited" in event["stopped"]


async def test_reclaim_that_hangs_delays_no_eviction_once_the_kernel_is_short_of_memory() -> None:
    node, cache = Node(), Cache(hangs=True)
    await run_pass(node, loop_of(node, cache))
    assert node.evicted == ["reader"]
    (event,) = node.events("page_cache_reclaimed")
    assert "estimate" in event["stopped"]


async def test_pod_is_evicted_without_permission_to_reclaim() -> None:
    node, cache = Node(), Cache(permitted=False)
    await run_pass(node, loop_of(node, cache))
    assert (node.evicted, cache.calls) == (["reader"], [])
    (warning,) = node.events("eviction_warning")
    assert "page-cache.conf" in warning["warning"]


async def test_pod_is_evicted_at_once_if_the_kernel_is_short_of_memory_too() -> None:
    node, cache = Node(), Cache(kernel_mib=40)
    await run_pass(node, loop_of(node, cache))
    assert (node.evicted, cache.calls) == (["reader"], [])


async def test_page_cache_is_reclaimed_also_while_the_limit_of_evictions_keeps_all_pods() -> None:
    node, cache = Node(policy=EvictionPolicy(max_evictions_per_window=1)), Cache(permitted=False)
    loop = loop_of(node, cache)
    await run_pass(node, loop)
    node.pods, cache.permitted = (pod("reader", memory=500),), True
    node.evicted.clear()
    await run_pass(node, loop)
    assert (node.evicted, len(cache.calls)) == ([], 1)
