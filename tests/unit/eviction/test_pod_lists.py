"""Pod lists of the eviction loop: recent lists, lists in progress, and a runtime that does not answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import NodeAgentError
from nodeagent.eviction.evictor import EvictionOutcome
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.preview import FALLING_S, SOONEST_S
from nodeagent.host.psi_triggers import MEMORY_EVENTS, PressureTriggers
from tests.unit.eviction.eviction_node import LOW, Node, run_pass
from tests.unit.eviction.plan.cases import pod, read

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.model.pods import PodInventory
    from nodeagent.model.pressure import SignalReading


async def test_pod_is_evicted_by_the_last_list_while_the_runtime_does_not_answer() -> None:
    node = Node(pods=(pod("small", memory=10), pod("big", memory=500)), readings=lambda: (LOW,), hangs=True)
    await asyncio.wait_for(run_pass(node), 5)
    assert node.evicted == ["big"]
    (event,) = node.events("pods_not_listed")
    assert (event["pods"], event["level"]) == (2, "warning")


async def test_pod_missing_in_the_last_list_is_evicted_as_soon_as_the_runtime_lists_it() -> None:
    node = Node(readings=lambda: (read(available_mib=900),), hangs=True)

    async def use_last_list() -> PodInventory | None:
        if node.gate is not None:
            node.gate.set()
        return node.listed

    loop = node.loop(read_usage=use_last_list)
    node.hangs = False
    await run_pass(node, loop)
    node.clock.seconds += 10
    node.pods, node.gate, node.readings = (pod("big", memory=500),), asyncio.Event(), lambda: (LOW,)
    await asyncio.wait_for(run_pass(node, loop), 5)
    assert (node.evicted, node.result()) == (["big"], "evicted")
    assert [len(node.events(name)) for name in ("pods_not_listed", "no_evictable_pod")] == [1, 0]


async def test_lost_runtime_ends_the_wait_for_a_pod_missing_in_the_last_list() -> None:
    node = Node(readings=lambda: (read(available_mib=900),), hangs=True)

    async def use_last_list() -> PodInventory | None:
        if node.gate is not None:
            node.pods_error = NodeAgentError("no answer")
            node.gate.set()
        return node.listed

    loop = node.loop(read_usage=use_last_list)
    node.hangs = False
    await run_pass(node, loop)
    node.clock.seconds += 10
    node.gate, node.readings = asyncio.Event(), lambda: (LOW,)
    await asyncio.wait_for(run_pass(node, loop), 5)
    assert (node.evicted, node.result()) == ([], "failed")
    assert node.events("no_evictable_pod") == []


ALWAYS_EVICT = EvictionPolicy(always_evict=True)


@pytest.mark.parametrize(("age_s", "result"), [(1.0, "evicted"), (3.0, "failed")])
async def test_pods_of_a_recent_list_are_not_listed_again_for_an_eviction(age_s: float, result: str) -> None:
    available_mib = iter((900, *[90] * 50))
    node = Node(pods=(pod("big", memory=500),), readings=lambda: (read(available_mib=next(available_mib)),))
    loop = node.loop(read_usage=node.usage_of_last_list)
    await run_pass(node, loop)
    node.pods_error = NodeAgentError("listed")
    node.clock.seconds += age_s
    await run_pass(node, loop)
    assert node.result() == result
    assert node.events("pods_not_listed") == []


async def test_pod_evicted_after_the_last_list_is_not_evicted_again() -> None:
    available_mib = iter((900, *[90] * 1000))
    pods = (pod("big", memory=500), pod("next", memory=300))
    node = Node(pods=pods, readings=lambda: (read(available_mib=next(available_mib)),), hangs=True, policy=ALWAYS_EVICT)
    loop = node.loop(read_usage=node.usage_of_last_list)
    node.hangs = False
    await run_pass(node, loop)
    node.hangs = True
    while len(node.evicted) < 2:
        await asyncio.wait_for(run_pass(node, loop), 10)
    assert node.evicted == ["big", "next"]


@pytest.mark.parametrize(
    ("eviction_s", "age_s", "result"),
    [(3.0, 0.0, "evicted"), (0.0, 3.0, "failed"), (3.0, 3.0, "failed"), (9.0, 0.0, "failed")],
    ids=["long eviction", "old list", "old list after a long eviction", "longer than the limit"],
)
async def test_duration_of_an_eviction_does_not_age_the_pod_list(eviction_s: float, age_s: float, result: str) -> None:
    pods = (pod("big", memory=500), pod("next", memory=300))
    node = Node(pods=pods, readings=lambda: (read(available_mib=900),), eviction_s=eviction_s, policy=ALWAYS_EVICT)
    loop = node.loop(read_usage=node.usage_of_last_list)
    await run_pass(node, loop)
    node.readings = lambda: (read(available_mib=10 if node.evicted else 90),)
    await run_pass(node, loop)
    assert node.evicted == ["big"]
    node.pods_error = NodeAgentError("listed")
    node.clock.seconds += age_s
    await run_pass(node, loop)
    assert node.result() == result


async def test_pods_are_listed_again_after_a_pod_that_ended_by_itself() -> None:
    available_mib = iter((900, *[90] * 1000))
    node = Node(pods=(pod("big", memory=500),), readings=lambda: (read(available_mib=next(available_mib)),))
    node.outcomes["big"] = EvictionOutcome.GONE
    loop = node.loop(read_usage=node.usage_of_last_list)
    await run_pass(node, loop)
    await run_pass(node, loop)
    assert node.lists == 1
    await run_pass(node, loop)
    assert node.lists == 2


@pytest.mark.parametrize("expired", [False, True])
async def test_list_expired_while_it_is_read_is_repeated(expired: bool) -> None:
    node = Node(readings=lambda: (read(available_mib=900),))
    node.on_list = lambda: loop.wake(MEMORY_EVENTS) if expired and node.lists == 1 else None
    loop = node.loop()
    await run_pass(node, loop)
    await run_pass(node, loop)
    assert node.lists == (2 if expired else 1)


async def test_poll_interval_includes_the_time_in_which_the_pods_are_listed() -> None:
    node = Node(readings=lambda: (read(available_mib=900),), list_s=1.0)
    assert await run_pass(node) == pytest.approx((900 - 100) / 256 - 1.0)


async def test_pods_are_not_listed_while_memory_falls_to_the_threshold() -> None:
    available_mib = iter((900, 130, 130))
    node = Node(pods=(pod(),), readings=lambda: (read(available_mib=next(available_mib)),))
    loop = node.loop()
    await run_pass(node, loop)
    node.pods_error = NodeAgentError("listed")
    node.clock.seconds += 2
    assert await run_pass(node, loop) < SOONEST_S
    assert node.result() == "no-pressure"
    node.clock.seconds += 2
    await run_pass(node, loop)
    assert node.result() == "failed"


async def test_pod_is_evicted_by_the_last_list_if_memory_falls_while_the_runtime_lists_the_pods() -> None:
    node = Node(pods=(pod("big", memory=500),), hangs=True)
    loop = node.loop()
    node.hangs = False
    await run_pass(node, loop)
    node.clock.seconds += 60
    available_mib = iter((130, *[90] * 100))
    node.readings = lambda: (read(available_mib=next(available_mib)),)
    node.hangs = True
    assert await asyncio.wait_for(run_pass(node, loop), 10) == FALLING_S
    assert node.evicted == ["big"]


async def test_list_in_progress_is_not_repeated_when_a_threshold_is_met() -> None:
    node = Node(pods=(pod("big", memory=500),), hangs=True, gate=asyncio.Event())
    loop = node.loop(read_usage=node.usage_of_last_list)
    node.hangs = False
    available_mib = iter((130, *[90] * 100))

    def readings() -> tuple[SignalReading, ...]:
        found = read(available_mib=next(available_mib))
        if found.available < 100 << 20 and node.gate is not None:
            node.gate.set()
        return (found,)

    node.readings = readings
    await asyncio.wait_for(run_pass(node, loop), 10)
    assert node.evicted == ["big"]
    assert node.lists == 1


async def test_evaluated_readings_are_not_repeated_before_the_pod_is_chosen() -> None:
    available_mib = iter((90, 90, *[900] * 100))  # of the evaluation, and of the choice of the pod
    node = Node(pods=(pod("big", memory=500),), readings=lambda: (read(available_mib=next(available_mib)),))
    await run_pass(node)
    assert node.evicted == ["big"]


async def test_end_of_the_loop_cancels_a_list_in_progress(tmp_path: Path) -> None:
    """A list that outlived the loop would call a closed connection to the runtime."""
    available_mib = iter((130, *[110] * 5, *[90] * 100))
    node = Node(readings=lambda: (read(available_mib=next(available_mib)),), hangs=True, known=False)
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(with_disk: bool) -> PodInventory:
        del with_disk
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    node.read_pods = hang  # type: ignore[method-assign] # read when the loop is composed
    run = asyncio.ensure_future(node.loop(triggers=PressureTriggers(print, root=tmp_path)).run(asyncio.Event()))
    await asyncio.wait_for(started.wait(), 30)
    run.cancel()
    await asyncio.wait({run}, timeout=30)
    assert cancelled.is_set()
