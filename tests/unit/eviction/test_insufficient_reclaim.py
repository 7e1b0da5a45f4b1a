"""Evictions beside a running reclaim step that cannot clear its threshold."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import RuntimeUnavailableError
from nodeagent.eviction import loop as loop_module
from nodeagent.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.eviction.reclaimer import UNKNOWN_AMOUNTS, Reclaimable, Reclaimed
from nodeagent.eviction.signals import RATE_S
from nodeagent.host.psi_triggers import PressureTriggers
from tests.unit.builders import MIB
from tests.unit.eviction.eviction_node import Node, disk_node, run_pass
from tests.unit.eviction.plan.cases import disk, known, pod, read
from tests.unit.eviction.plan.test_other_filesystems import KATA, on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.eviction.plan.reclaim import ReclaimStep
    from nodeagent.gc.plan.image_targets import SpaceNeeded
    from nodeagent.model.pods import PodHandle
    from nodeagent.model.pressure import SignalReading

IMAGES = ["unused-images on imagefs", "irreplaceable-images on imagefs"]
STEPS = ["dead-containers on imagefs", *IMAGES]


class BlockedNode(Node):
    """A node with image reclaim that ends only after ``reclaim_gate`` is set; an eviction sets the gate."""

    evicted_during_reclaim: bool = False

    async def evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        assert self.reclaim_gate is not None
        self.evicted_during_reclaim = not self.reclaim_gate.is_set()
        self.reclaim_gate.set()
        return await super().evict(eviction, handle, hurry)


def blocked_node(reclaimable: Reclaimable, **fields: Any) -> BlockedNode:
    """Return a node with 50 MiB below the threshold and image reclaim that is blocked."""
    values = {name: getattr(disk_node(), name) for name in ("limits", "layout", "pods", "readings")}
    gate = asyncio.Event()
    return BlockedNode(**(values | {"reclaimable": reclaimable, "reclaim_gate": gate, "watch_s": 0.001} | fields))


@pytest.mark.difference("eviction-during-reclaim")
@pytest.mark.parametrize(
    ("limits", "reading", "reclaimable"),
    [
        ("imagefs.available<100Mi", read("imagefs.available", 50), Reclaimable(10 * MIB)),
        ("imagefs.inodesFree<9000", read("imagefs.inodesFree", available=5000, capacity=99_000), Reclaimable(0, 2000)),
    ],
    ids=["bytes", "inodes"],
)
async def test_pod_is_evicted_during_reclaim_that_frees_less_than_the_shortfall(
    limits: str, reading: SignalReading, reclaimable: Reclaimable
) -> None:
    node = blocked_node(
        reclaimable, limits=limits, readings=lambda: (reading,), pods=(pod("writer", writable=disk(300, 3000)),)
    )
    await run_pass(node)
    assert (node.evicted, node.evicted_during_reclaim) == (["writer"], True)
    (event,) = node.events("reclaim_insufficient")
    assert event["step"] == IMAGES[0]
    assert [each["step"] for each in node.events("reclaimed")] == STEPS[:2]


async def test_eviction_does_not_wait_for_a_later_step_after_the_plan_of_an_earlier_one() -> None:
    node = blocked_node(Reclaimable(10 * MIB), watch_s=60.0)

    async def run(
        step: ReclaimStep, needed: SpaceNeeded, stop: asyncio.Event, planned: Callable[[Reclaimable], None]
    ) -> Reclaimed:
        del needed
        del stop
        if step.text in IMAGES:
            planned(node.reclaimable)
        if step.text == IMAGES[1] and node.reclaim_gate is not None:
            await node.reclaim_gate.wait()
        return Reclaimed(step, None)

    node.run = run  # type: ignore[assignment]
    await run_pass(node)
    assert (node.evicted, node.evicted_during_reclaim) == (["writer"], True)
    assert [each["step"] for each in node.events("reclaim_insufficient")] == [IMAGES[1]]


@pytest.mark.parametrize(
    ("reclaimable", "fields"),
    [
        (Reclaimable(60 * MIB), {}),
        (Reclaimable(50 * MIB), {}),
        (UNKNOWN_AMOUNTS, {}),
        (Reclaimable(None, 10), {}),
        (Reclaimable(0), {}),
        (Reclaimable(10 * MIB), {"dry_run": True}),
    ],
    ids=["more", "exactly", "unknown", "other-unit", "nothing", "dry-run"],
)
async def test_no_pod_is_evicted_before_the_end_of_reclaim(reclaimable: Reclaimable, fields: dict[str, Any]) -> None:
    node = blocked_node(reclaimable, **fields)
    evicted: list[list[str]] = []
    reads = 0

    def readings() -> tuple[SignalReading, ...]:
        nonlocal reads
        reads += 1
        if reads > 8 and node.reclaim_gate is not None and not node.reclaim_gate.is_set():
            evicted.append([*node.evicted])
            node.reclaim_gate.set()
        return (read("imagefs.available", 50),)

    node.readings = readings
    await run_pass(node)
    assert evicted in ([[]], [])
    assert not node.evicted_during_reclaim
    assert not node.events("reclaim_insufficient")


async def test_eviction_is_postponed_if_a_later_reading_shows_that_reclaim_suffices() -> None:
    node = blocked_node(Reclaimable(10 * MIB))

    def on_list() -> None:
        assert node.reclaim_gate is not None
        node.readings = lambda: (read("imagefs.available", 95),)
        asyncio.get_running_loop().call_later(0.05, node.reclaim_gate.set)

    node.on_list = on_list
    await run_pass(node)
    assert (node.evicted, node.result()) == ([], "reclaiming")


async def test_lost_runtime_during_reclaim_is_logged_after_the_eviction() -> None:
    node = blocked_node(Reclaimable(10 * MIB))

    def lost() -> Reclaimed:
        raise RuntimeUnavailableError("no socket")

    node.reclaims[IMAGES[0]] = lost
    await run_pass(node)
    assert (node.evicted, node.result()) == (["writer"], "evicted")
    assert "node-level reclaim ended: no socket" in [each["warning"] for each in node.events("eviction_warning")]


async def test_running_step_ends_before_the_steps_of_another_filesystem() -> None:
    node = blocked_node(Reclaimable(10 * MIB), others=(KATA,), pods=(pod("static", static=known(value=True)),))
    node.readings = lambda: (read("imagefs.available", 50), on(KATA, 50))

    async def run(
        step: ReclaimStep, needed: SpaceNeeded, stop: asyncio.Event, planned: Callable[[Reclaimable], None]
    ) -> Reclaimed:
        del needed
        del stop
        node.reclaimed.append(step.text)
        if step.text in IMAGES:
            planned(node.reclaimable)
            await asyncio.sleep(0.05)
            raise RuntimeUnavailableError("no socket")
        assert step.other is None or node.events("eviction_warning")
        return Reclaimed(step, None)

    node.run = run  # type: ignore[assignment]
    await run_pass(node)
    assert node.evicted == []
    assert "dead-containers on /kata" in node.reclaimed
    assert "node-level reclaim ended: no socket" in [each["warning"] for each in node.events("eviction_warning")]


async def test_lost_runtime_before_the_choice_of_a_pod_is_reported_once() -> None:
    node = blocked_node(UNKNOWN_AMOUNTS)
    node.reclaim_error = RuntimeUnavailableError("no socket")
    await run_pass(node)
    assert (node.evicted, node.result()) == ([], "runtime-unavailable")
    assert not node.events("eviction_warning")


async def test_cancelled_pass_cancels_the_running_step() -> None:
    node = blocked_node(Reclaimable(10 * MIB))
    started = asyncio.Event()

    async def evict(eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        del eviction, handle, hurry
        started.set()
        await asyncio.Event().wait()
        return EvictionResult(EvictionOutcome.EVICTED)

    node.evict = evict  # type: ignore[method-assign]
    running = asyncio.ensure_future(run_pass(node))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    assert not [each for each in node.events("reclaimed") if each["step"] in IMAGES]


async def test_shortage_has_an_unknown_growth_until_it_was_read_for_a_second() -> None:
    """A program that writes in bursts seems to write nothing between two readings of one pass."""
    node = disk_node(pods=())
    loop = node.loop()
    await run_pass(node, loop)
    first = node.needed.copy()
    node.needed.clear()
    node.clock.seconds += 2
    await run_pass(node, loop)
    assert first[-1].growing_bytes > 1 << 30  # no image that cannot be pulled again is removed
    assert [each.growing_bytes for each in node.needed] == [0] * len(node.needed) != []


@pytest.mark.parametrize("available_mib", [50, 900], ids=["short at the start", "not short"])
async def test_first_pass_knows_the_growth_of_a_filesystem_that_is_short_at_the_start(
    available_mib: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it evicts a pod before it removes an image that cannot be pulled again."""
    node, stop, waits = disk_node(pods=()), asyncio.Event(), []

    async def wait(seconds: float, *events: asyncio.Event) -> bool:
        waits.append(seconds)
        node.clock.seconds += seconds
        if seconds != RATE_S:  # the wait after the first pass
            stop.set()
        return any(each.is_set() for each in events)

    monkeypatch.setattr(loop_module, "wait_for_any", wait)
    node.readings = lambda: (read("imagefs.available", available_mib),)
    await node.loop(triggers=PressureTriggers(print, root=tmp_path)).run(stop)
    assert (RATE_S in waits) == bool(node.needed) == (available_mib < 100)
    assert {each.growing_bytes for each in node.needed} <= {0}
