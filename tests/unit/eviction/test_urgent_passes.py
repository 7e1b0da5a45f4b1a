"""Shortages of memory and PIDs while a pass waits for something that never answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.eviction import signals as signal_monitor
from nodeagent.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.eviction.plan.preview import SOONEST_S
from tests.unit.eviction.eviction_node import Node, run_pass, run_passes
from tests.unit.eviction.plan.cases import disk, pod, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.eviction.loop import EvictionLoop
    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.eviction.signals import SignalLayout
    from nodeagent.model.pods import PodHandle, PodInventory

ON_DISK = "memory.available<100Mi,nodefs.available<10%"
UNDER_PRESSURE = frozenset({"measurement", "pass lock", "reclaim", "eviction", "record"})


class Hanging:
    """A node on which one part never answers; from its first call on, memory is short until ``eater`` is evicted."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.hangs, self.relieved = asyncio.Event(), asyncio.Event()
        self.node = Node(
            limits=ON_DISK,
            pods=(pod("writer", writable=disk(300), memory=1), pod("eater", memory=500)),
            watch_s=SOONEST_S,
        )
        self._evict, self._read_pods, self._read_layout = self.node.evict, self.node.read_pods, self.node.read_layout
        self.node.readings = lambda: (
            read("nodefs.available", 50 if part in UNDER_PRESSURE else 900),
            read(available_mib=50 if self.hangs.is_set() and not self.relieved.is_set() else 900),
        )
        changes: dict[str, Callable[..., Any]] = {
            "evict": self.evict,
            "read_pods": self.read_pods,
            "read_layout": self.read_layout,
        }
        if part == "reclaim":
            changes["run"] = self.hang
        if part == "record":
            changes["begin"] = self.begin
        for name, function in changes.items():
            setattr(self.node, name, function)

    async def hang(self, *_: object) -> Any:
        self.hangs.set()
        await asyncio.Event().wait()

    async def evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        if self.part == "eviction" and eviction.pod.name == "writer":
            await self.hang()
        result = await self._evict(eviction, handle, hurry)
        if eviction.pod.name == "eater":
            self.relieved.set()
        return result

    async def read_pods(self, with_disk: bool) -> PodInventory:
        listed = self.part == "pod list" and self.node.listed is not None
        if listed or (self.part == "measurement" and with_disk):
            await self.hang()
        return await self._read_pods(with_disk)

    async def read_layout(self) -> SignalLayout:
        if self.part == "other filesystems" and self.node.listed is not None:
            await self.hang()
        return await self._read_layout()

    async def begin(self, record: Any) -> None:
        if record.eviction.pod.name == "writer":
            await self.hang()

    async def hold_lock(self) -> None:
        """Hold the pass lock although an urgent pass waits for it, as a pass does whose runtime never answers."""
        async with self.node.context.pass_lock.take() as end:
            await end.wait()
            await self.hang()

    def loop(self) -> EvictionLoop:
        self.node.hangs = self.part == "pod list"  # short time limits
        try:
            return self.node.loop(read_usage=self.node.usage_of_last_list)
        finally:
            self.node.hangs = False


@pytest.mark.difference("independent-resources")
@pytest.mark.parametrize("part", [*sorted(UNDER_PRESSURE), "other filesystems", "pod list"])
async def test_shortage_of_memory_does_not_wait_for_a_part_that_never_answers(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal_monitor, "_REFRESH_WITHIN_S", 600.0)
    made = Hanging(part)
    loop = made.loop()
    if part not in UNDER_PRESSURE:
        await run_pass(made.node, loop)
        made.node.clock.seconds += 3600
    holder = asyncio.ensure_future(made.hold_lock() if part == "pass lock" else asyncio.sleep(0))
    await asyncio.sleep(0)
    run = asyncio.ensure_future(run_passes(made.node, loop, 3600))
    async with asyncio.timeout(20):
        await made.relieved.wait()
    assert made.node.evicted == ["eater"]
    run.cancel()
    holder.cancel()
    await asyncio.wait({run, holder}, timeout=20)


async def test_second_pass_acts_on_no_resource_of_the_first() -> None:
    """A pod stops within its grace period, for a soft threshold on memory, while the node runs out of PIDs."""
    stopping, relieved, evicted = asyncio.Event(), asyncio.Event(), list[str]()
    node = Node(
        limits="pid.available<10%,memory.available<10Mi",
        soft={"soft": "memory.available<100Mi", "soft_grace_period": "memory.available=1s"},
        pods=(pod("slow", memory=500), pod("forker", pids=900, memory=1)),
        watch_s=SOONEST_S,
    )
    node.readings = lambda: (
        read(available_mib=50),
        read("pid.available", available=10 if stopping.is_set() and not relieved.is_set() else 900, capacity=1000),
    )

    async def evict(eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        del handle
        if eviction.pod.name == "slow":
            stopping.set()
            await relieved.wait()
        evicted.append(eviction.pod.name)
        relieved.set()
        return EvictionResult(EvictionOutcome.EVICTED, "", 0.5, hurry.is_set())

    node.evict = evict  # type: ignore[method-assign]
    loop = node.loop()
    await run_pass(node, loop)
    node.clock.seconds += 2
    async with asyncio.timeout(20):
        await run_pass(node, loop)
    assert evicted == ["forker", "slow"]
    assert node.result() == "evicted"
