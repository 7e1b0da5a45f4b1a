"""Outstanding effects of evictions and reclaim between passes: waits, time limits, further evictions."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.eviction.container_removal import CleanupResult
from nodeagent.eviction.evictor import EvictionOutcome
from nodeagent.eviction.plan.reclaim import ReclaimAction, ReclaimStep
from nodeagent.eviction.reclaimer import Reclaimed
from nodeagent.gc.executor import Outcome, PassEnd, PassReport, Result
from nodeagent.model.decision import Decision, ItemKind, Reason, ReasonCode, Verdict
from nodeagent.model.pressure import FilesystemLayout, FilesystemRole, SignalReading
from tests.unit.builders import MIB
from tests.unit.eviction.eviction_node import DISK, LOW, NO_PRESSURE, Node, disk_node, run_pass, run_passes
from tests.unit.eviction.plan.cases import at, disk, pod, read


async def test_containers_of_a_pod_evicted_for_memory_are_removed_three_seconds_later() -> None:
    node = Node(pods=(pod("web", memory=500),))
    node.readings = lambda: (NO_PRESSURE if node.evicted else LOW,)
    loop = node.loop()
    await run_pass(node, loop)
    await run_pass(node, loop)
    await asyncio.sleep(0)
    node.clock.seconds += 2
    await run_pass(node, loop)
    await asyncio.sleep(0)
    assert (node.evicted, node.cleaned_up) == (["web"], [])
    node.clock.seconds += 1
    await run_pass(node, loop)
    await asyncio.sleep(0)
    assert node.cleaned_up == ["web"]


async def test_no_second_pod_is_evicted_before_the_bytes_of_the_first_are_freed() -> None:
    node = disk_node(cleanup=lambda: CleanupResult(confirmed=False, detail="snapshot still on the disk"))
    loop = node.loop()
    await run_passes(node, loop, 25)
    assert node.evicted == ["writer"]
    assert len(node.cleaned_up) > 1
    (withheld,) = node.events("eviction_withheld")
    assert (withheld["reason"], withheld["action"]) == ("effect-outstanding", "eviction of shop/writer")
    assert [each["detail"] for each in node.events("eviction_cleanup_failed")] == ["snapshot still on the disk"]
    node.cleanup = lambda: CleanupResult(confirmed=True)
    node.readings = lambda: (read("imagefs.available", 350),)
    await run_passes(node, loop, 15)
    assert node.evicted == ["writer"]
    (measured,) = node.events("effect_measured")
    assert measured["end"] == "measured"
    assert node.context.eviction.outstanding == ()


async def test_another_pod_is_evicted_after_a_verified_effect_that_does_not_suffice() -> None:
    node = disk_node()
    node.pods = (pod("writer", writable=disk(30)), pod("other", writable=disk(20)), pod("quiet", writable=disk(0.1)))
    node.readings = lambda: (read("imagefs.available", 50 + 30 * ("writer" in node.evicted)),)
    loop = node.loop()
    await run_passes(node, loop, 30)
    assert node.evicted == ["writer", "other"]
    assert node.events("effect_measured")[0]["end"] == "measured"


@pytest.mark.parametrize("confirmed", [True, False])
async def test_eviction_without_effect_ends_evictions_and_not_reclaim_until_the_threshold_is_cleared(
    confirmed: bool,
) -> None:
    node = disk_node(cleanup=lambda: CleanupResult(confirmed=confirmed, detail="" if confirmed else "busy"))
    node.pods = (*node.pods, pod("other", writable=disk(200)))
    loop = node.loop()
    await run_passes(node, loop, 35)
    before = len(node.reclaimed)
    await run_passes(node, loop, 300)
    assert node.evicted == ["writer"]
    assert len(node.reclaimed) > before
    (ineffective,) = node.events("eviction_ineffective")
    assert (ineffective["level"], ineffective["end"]) == ("error", "confirmed" if confirmed else "missing")
    assert node.result() == "ineffective"
    readings, node.readings = node.readings, lambda: (read("imagefs.available", 550),)
    await run_passes(node, loop, 2)
    node.readings = readings
    await run_passes(node, loop, 5)
    assert node.evicted == ["writer", "other"]


async def test_pod_that_drives_the_shortage_is_evicted_after_an_eviction_without_effect() -> None:
    node = disk_node()
    grows = pod("grows", writable=disk(200))
    node.pods = (*node.pods, pod("other", writable=disk(250)), grows)
    available_mib = 50.0

    def readings() -> tuple[SignalReading, ...]:
        nonlocal available_mib, grows
        if "writer" in node.evicted and "grows" not in node.evicted:
            available_mib -= 0.1
            used = (grows.usage.writable.used_bytes or 0) if grows.usage is not None else 0
            grows = pod("grows", writable=disk(used / MIB + 0.1))
            node.pods = (*node.pods[:-1], grows)
        return (read("imagefs.available", max(0.0, available_mib)),)

    node.readings = readings
    loop = node.loop()
    await run_passes(node, loop, 120)
    assert node.evicted[:2] == ["writer", "grows"]


async def test_logs_of_an_evicted_pod_are_part_of_the_effect_for_nodefs() -> None:
    node = disk_node(
        limits="nodefs.available<100Mi",
        layout=FilesystemLayout.SINGLE,
        pods=(pod("chatty", logs=disk(300), writable=disk(2)), pod("quiet", logs=disk(90))),
    )
    node.readings = lambda: (read("nodefs.available", 352 if "chatty" in node.evicted else 50),)
    loop = node.loop()
    await run_passes(node, loop, 30)
    assert node.evicted == ["chatty"]
    (measured,) = node.events("effect_measured")
    assert (measured["end"], measured["predicted_bytes"]) == ("measured", 302 * MIB)


async def test_reclaim_is_measured_before_the_next_step() -> None:
    node = disk_node(reclaims={"dead-containers on imagefs": reclaimed})
    loop = node.loop()
    await run_pass(node, loop)
    node.reclaims.clear()
    await run_passes(node, loop, 20)
    assert (node.reclaimed, node.evicted) == (["dead-containers on imagefs"], [])
    node.readings = lambda: (read("imagefs.available", 550),)
    await run_passes(node, loop, 20)
    assert (node.reclaimed, node.evicted) == (["dead-containers on imagefs"], [])


async def test_next_reclaim_step_follows_a_missing_effect_at_its_bound() -> None:
    node = disk_node(reclaims={"dead-containers on imagefs": reclaimed})
    loop = node.loop()
    await run_pass(node, loop)
    node.reclaims.clear()
    await run_passes(node, loop, 35)
    assert node.reclaimed[:3] == [
        "dead-containers on imagefs",
        "dead-containers on imagefs",
        "unused-images on imagefs",
    ]
    assert node.evicted[:1] == ["writer"]
    assert [each["action"] for each in node.events("effect_missing")] == ["dead-containers on imagefs"]


async def test_pods_of_two_filesystems_are_evicted_while_one_effect_is_outstanding() -> None:
    node = disk_node(
        limits=f"nodefs.available<100Mi,{DISK}",
        pods=(
            pod("writer", writable=disk(300)),
            pod("chatty", logs=disk(300), writable=disk(1)),
            pod("quiet", writable=disk(1), logs=disk(1)),
        ),
        readings=lambda: (read("imagefs.available", 50), read("nodefs.available", 50)),
        cleanup=lambda: CleanupResult(confirmed=False, detail="busy"),
    )
    await run_passes(node, node.loop(), 25)
    assert sorted(node.evicted) == ["chatty"]  # its layer also has an outstanding effect on imagefs

    node = disk_node(
        limits=f"{DISK},pid.available<100",
        pods=(pod("writer", writable=disk(300), pids=1), pod("forks", pids=500, writable=disk(0))),
        readings=lambda: (read("imagefs.available", 50), read("pid.available", available=50, capacity=1000)),
        cleanup=lambda: CleanupResult(confirmed=False, detail="busy"),
    )
    await run_passes(node, node.loop(), 20)
    assert sorted(node.evicted) == ["forks", "writer"]


@pytest.mark.parametrize("outcome", [EvictionOutcome.GONE, EvictionOutcome.CHANGED])
async def test_eviction_not_carried_out_has_no_outstanding_effect(outcome: EvictionOutcome) -> None:
    node = disk_node(pods=(pod("writer", writable=disk(300)),))
    node.outcomes["writer"] = outcome
    await run_pass(node)
    assert (node.context.eviction.outstanding, node.context.eviction.victims) == ((), ())


async def test_new_memory_pressure_after_an_eviction_is_acted_on_at_once() -> None:
    node = Node(pods=(pod("one", memory=500), pod("two", memory=400)))
    reads = 0

    def readings() -> tuple[SignalReading, ...]:
        nonlocal reads
        reads += 1 if node.evicted == ["one"] else 0
        return (NO_PRESSURE,) if reads == 1 else (LOW,)

    node.readings = readings
    loop = node.loop()
    await run_pass(node, loop)
    assert node.evicted == ["one"]
    await run_pass(node, loop)
    assert node.evicted == ["one", "two"]


async def test_no_second_pod_is_evicted_for_a_stall_within_its_averaging_window() -> None:
    node = Node(
        pods=(pod("one", memory=500, stalled=60.0), pod("two", memory=400, stalled=50.0)),
        limits="memory.psi.full>10%",
        readings=lambda: (read("memory.psi.full", available=50, capacity=100), NO_PRESSURE),
    )
    loop = node.loop()
    await run_passes(node, loop, 8)
    assert node.evicted == ["one"]
    await run_passes(node, loop, 5)
    assert node.evicted == ["one", "two"]


def reclaimed() -> Reclaimed:
    return Reclaimed(ReclaimStep(ReclaimAction.DEAD_CONTAINERS, FilesystemRole.IMAGEFS), report(500 << 20))


def report(frees_bytes: int | None) -> PassReport:
    """Return the report of a pass that removed one container with these predicted bytes."""
    reason = Reason(ReasonCode.OVER_TOTAL_LIMIT, {"total": 2, "limit": 1})
    decision = Decision(ItemKind.CONTAINER, "c", "c", Verdict.REMOVE, reason, frees_bytes)
    results = (Result(decision, Outcome.DONE),)
    return PassReport("id", "containers", "eviction", at(0).at, 0.1, False, (), results, PassEnd.COMPLETE)
