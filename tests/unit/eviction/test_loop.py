"""Eviction passes with scripted readings: reclaim, pod selection, eviction, effects, log events."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError
from nodeagent.eviction.composition import past_eviction
from nodeagent.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.eviction.plan.preview import FALLING_S
from nodeagent.eviction.reclaimer import UNKNOWN_AMOUNTS, Reclaimable
from nodeagent.host.psi_triggers import MEMORY_EVENTS, PressureTriggers
from nodeagent.loops.passes import Pause, PausedBy
from nodeagent.model.pressure import MemoryCounters, NodeMemory
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.eviction_node import LOW, NO_PRESSURE, Node, disk_node, run_pass
from tests.unit.eviction.plan.cases import disk, known, pod, read
from tests.unit.eviction.test_storage_limits import over_limit

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.model.pods import PodHandle, PodInventory
    from nodeagent.model.pressure import SignalReading


async def test_pass_without_pressure_takes_no_action() -> None:
    node = Node(pods=(pod(),))
    assert await run_pass(node) > 1
    assert (node.evicted, node.result(), node.events()) == ([], "no-pressure", [])


async def test_pass_evicts_one_pod_and_the_next_one_reads_the_signals_again() -> None:
    node = Node(pods=(pod("small", memory=10), pod("big", memory=500)))
    node.readings = lambda: (LOW,) if not node.evicted else (NO_PRESSURE,)
    loop = node.loop()
    await run_pass(node, loop)
    assert node.evicted == ["big"]
    await run_pass(node, loop)
    assert node.evicted == ["big"]
    assert [each["event"] for each in node.events()] == [
        "condition_changed",
        "threshold_met",
        "eviction_started",
        "evicted",
        "threshold_cleared",
    ]
    (record,) = node.records
    assert (record.eviction.pod.name, record.after) == ("big", NO_PRESSURE.available)
    (begun,) = node.begun
    intended = past_eviction(begun)
    assert (intended.id, intended.result, intended.actions[0].outcome) == (record.id, "running", "planned")
    assert json.loads(intended.eviction)["outcome"] == "unknown"
    entry = past_eviction(record)
    assert (entry.id, entry.result, entry.actions[0].outcome) == (record.id, "complete", "done")
    document = json.loads(entry.eviction)
    assert [each["name"] for each in document["ranking"]] == ["shop/big", "shop/small"]
    assert document["available_before"] == LOW.available


@pytest.mark.parametrize(
    ("error", "recorded", "abandoned"),
    [
        (RuntimeUnavailableError("no socket"), ["runtime unavailable: no socket"], []),
        (NodeAgentError("no answer in time"), ["no answer in time"], []),
        (KeyError("bug"), [], ["crashed"]),
        (asyncio.CancelledError(), [], ["cancelled"]),
    ],
    ids=["runtime lost", "pods unreadable", "bug", "cancelled"],
)
async def test_eviction_that_raises_is_logged_and_recorded_with_its_cause(
    error: BaseException, recorded: list[str], abandoned: list[str]
) -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))

    async def evict(eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        del eviction, handle, hurry
        raise error

    node.evict = evict  # type: ignore[method-assign]
    with suppress(asyncio.CancelledError):
        await run_pass(node)
    assert [each["detail"] for each in node.events("eviction_failed")] == recorded
    assert [each.result.detail for each in node.records if each.result] == recorded
    assert node.abandoned == [(node.begun[0].id, each) for each in abandoned]


@pytest.mark.difference("failed-eviction")
@pytest.mark.parametrize("outcome", [EvictionOutcome.FAILED, EvictionOutcome.CHANGED])
async def test_next_pod_is_evicted_after_a_failed_eviction(outcome: EvictionOutcome) -> None:
    node = Node(pods=(pod("stuck", memory=500), pod("next", memory=400)), readings=lambda: (LOW,))
    node.outcomes["stuck"] = outcome
    await run_pass(node)
    assert node.evicted == ["next"]
    assert [each["outcome"] for each in node.events("eviction_failed")] == [outcome.value]


async def test_pod_that_ended_by_itself_ends_the_pass() -> None:
    node = Node(pods=(pod("ended", memory=500), pod("next", memory=400)), readings=lambda: (LOW,))
    node.outcomes["ended"] = EvictionOutcome.GONE
    await run_pass(node)
    assert (node.evicted, node.result()) == ([], "gone")


@pytest.mark.parametrize("outcome", [EvictionOutcome.EVICTED, EvictionOutcome.GONE])
async def test_signals_are_read_at_once_after_the_end_of_a_pod_while_others_grow(outcome: EvictionOutcome) -> None:
    node = Node(pods=(pod("first", memory=500), pod("second", memory=400)), readings=lambda: (LOW,))
    node.outcomes["first"] = outcome
    assert await run_pass(node) == FALLING_S


async def test_rejected_reading_is_repeated_within_a_second() -> None:
    node = Node(pods=(pod(),), readings=lambda: (read(available_mib=2000),))
    assert await run_pass(node) <= 1


async def test_protected_pods_are_kept_and_logged_once() -> None:
    node = Node(pods=(pod(namespace="kube-system"), pod("static", static=known(value=True))))
    node.readings = lambda: (LOW,)
    loop = node.loop()
    assert await run_pass(node, loop) == 10.0
    await run_pass(node, loop)
    assert node.evicted == []
    (event,) = node.events("no_evictable_pod")
    assert event["reasons"] == "1 protected-namespace, 1 static-pod"
    assert event["because"] == (
        "memory.available<100Mi is met, and no eviction ends the shortage of 50.0 MiB: every pod is protected; "
        "pods use 200 MiB, others 750 MiB"
    )


async def test_pod_is_evicted_only_after_insufficient_node_level_reclaim() -> None:
    node = Node(
        limits="nodefs.available<10%",
        pods=(pod("writer", writable=disk(300)),),
        readings=lambda: (read("nodefs.available", 50),),
    )
    await run_pass(node)
    assert node.reclaimed == [
        "dead-containers on nodefs",
        "unused-images on nodefs",
        "irreplaceable-images on nodefs",
    ]
    assert node.evicted == ["writer"]

    enough = Node(limits="nodefs.available<10%", pods=(pod("writer", writable=disk(300)),))
    enough.readings = lambda: (read("nodefs.available", 50 if len(enough.reclaimed) < 2 else 500),)
    await run_pass(enough)
    assert enough.reclaimed == ["dead-containers on nodefs", "unused-images on nodefs"]
    assert (enough.evicted, enough.result()) == ([], "reclaimed")


async def test_no_pod_is_evicted_while_another_pass_runs() -> None:
    node = Node(
        limits="nodefs.available<10%",
        pods=(pod("writer", writable=disk(300)),),
        readings=lambda: (read("nodefs.available", 50),),
        reclaim_error=PassBusyError("another pass is running"),
    )
    assert await run_pass(node) <= 1
    assert (node.evicted, node.result()) == ([], "reclaiming")


async def test_pod_is_evicted_after_failed_reclaim_steps() -> None:
    node = Node(
        limits="nodefs.available<10%",
        pods=(pod("writer", writable=disk(300)),),
        readings=lambda: (read("nodefs.available", 50),),
        reclaim_error=NodeAgentError("no snapshot"),
    )
    await run_pass(node)
    assert node.evicted == ["writer"]
    assert len(node.events("reclaim_failed")) == 3


async def test_dry_run_logs_the_eviction_once_and_evicts_nothing() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,), dry_run=True)
    loop = node.loop()
    await run_pass(node, loop)
    await run_pass(node, loop)
    assert node.evicted == []
    (event,) = node.events("would_evict")
    assert event["pod_name"] == "web"
    assert [each.dry_run for each in node.records] == [True]


@pytest.mark.parametrize(
    ("reclaimable", "result", "events", "statement"),
    [
        (Reclaimable(50 * MIB), "dry-run", [], ""),
        (
            Reclaimable(49 * MIB),
            "no-pod",
            ["no_evictable_pod"],
            "no dead containers, logs and images are removed first",
        ),
        (UNKNOWN_AMOUNTS, "no-pod", ["no_evictable_pod"], "no dead containers, logs and images are removed first"),
    ],
    ids=["enough", "too-little", "unknown"],
)
async def test_dry_run_reports_no_shortage_that_node_level_reclaim_would_end(
    reclaimable: Reclaimable, result: str, events: list[str], statement: str
) -> None:
    protected = pod("static", static=known(value=True), writable=disk(300))
    node = disk_node(pods=(protected,), dry_run=True, reclaimable=reclaimable)
    loop = node.loop()
    for _ in range(2):
        await run_pass(node, loop)
        assert node.result() == result
        assert [statement in each.text for each in node.context.eviction.unrelieved.values()] == [True] * len(events)
    assert [each["event"] for each in node.events() if each["event"] == "no_evictable_pod"] == events
    assert len(node.events("would_reclaim")) == 3


@pytest.mark.parametrize(("seconds", "result"), [(30, "dry-run"), (61, "no-pod")])
async def test_dry_run_plans_reclaim_again_after_a_minute(seconds: float, result: str) -> None:
    protected = pod("static", static=known(value=True), writable=disk(300))
    node = disk_node(pods=(protected,), dry_run=True, reclaimable=Reclaimable(50 * MIB))
    loop = node.loop()
    await run_pass(node, loop)
    assert node.result() == "dry-run"
    node.reclaimable = Reclaimable(MIB)
    node.clock.seconds += seconds
    await run_pass(node, loop)
    assert node.result() == result


async def test_dry_run_evicts_no_pod_that_node_level_reclaim_would_spare() -> None:
    node = disk_node(dry_run=True, reclaimable=Reclaimable(60 * MIB))
    await run_pass(node)
    assert (node.result(), node.records, node.events("would_evict")) == ("dry-run", [], [])


async def test_dry_run_checks_storage_limits_behind_a_threshold_that_reclaim_would_clear() -> None:
    pods = (pod("writer", writable=disk(300)), over_limit("greedy"))
    node = disk_node(dry_run=True, reclaimable=Reclaimable(60 * MIB), pods=pods)
    await run_pass(node)
    assert [(each["pod_name"], each["reason"]) for each in node.events("would_evict")] == [
        ("greedy", "empty-dir-over-limit")
    ]


async def test_dry_run_acts_on_the_next_threshold_after_one_that_reclaim_would_clear() -> None:
    node = disk_node(
        dry_run=True,
        reclaimable=Reclaimable(60 * MIB),
        limits="imagefs.available<100Mi,nodefs.available<100Mi",
        pods=(pod("writer", logs=disk(300)),),
        readings=lambda: (read("imagefs.available", 50), read("nodefs.available", 50)),
    )
    await run_pass(node)
    assert node.result() == "dry-run"
    assert [each["threshold"] for each in node.events("would_evict")] == ["nodefs.available<100Mi"]


async def test_no_pod_is_evicted_during_a_pause() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))
    node.context.pass_lock.add_pause(Pause(PausedBy.SHUTDOWN, "the node is shutting down"))
    await run_pass(node)
    assert (node.evicted, node.result()) == ([], "pressure")


@pytest.mark.parametrize("end", ["pause", "stop"])
async def test_chosen_pod_is_not_evicted_after_a_pause_or_stop(end: str) -> None:
    stop = asyncio.Event()

    class Interrupted(Node):
        async def read_pods(self, with_disk: bool) -> PodInventory:
            if end == "pause":
                self.context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, "debugging"))
            else:
                stop.set()
            return await super().read_pods(with_disk)

    node = Interrupted(readings=lambda: (LOW,), pods=(pod("hog", memory=500),))
    await node.loop().run_pass(stop)
    assert node.evicted == []
    assert node.context.loop_statuses.all[0].failures == 0


@pytest.mark.difference("shortened-grace-period")
async def test_hard_threshold_shortens_the_grace_period_of_a_soft_eviction() -> None:
    node = Node(
        pods=(pod("slow", memory=500),),
        limits="memory.available<100Mi",
        soft={"soft": "memory.available<300Mi", "soft_grace_period": "memory.available=50ms"},
    )
    reads = 0

    def readings() -> tuple[SignalReading, ...]:
        nonlocal reads
        reads += 1
        return (read(available_mib=200 if reads < 6 else 50),)

    node.readings = readings
    loop = node.loop()
    for _ in range(3):
        await run_pass(node, loop)
        if node.evicted:
            break
    assert node.evicted == ["slow"]
    assert node.records[0].result is not None
    assert node.records[0].result.hurried
    assert len(node.events("eviction_grace_shortened")) == 1


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (RuntimeUnavailableError("no socket"), "runtime-unavailable"),
        (NodeAgentError("x"), "failed"),
        (KeyError("bug"), "crashed"),
    ],
)
async def test_pass_after_a_failed_one_evicts(error: Exception, result: str) -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,), pods_error=error)
    loop = node.loop()
    await run_pass(node, loop)
    assert (node.evicted, node.result()) == ([], result)
    node.pods_error = None
    await run_pass(node, loop)
    assert node.evicted == ["web"]


async def test_eviction_is_cancelled_when_a_kubelet_starts_during_the_pass() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))

    async def read_pods(with_disk: bool) -> PodInventory:
        node.refusal = "a kubelet manages this node"
        return await Node.read_pods(node, with_disk)

    node.read_pods = read_pods  # type: ignore[method-assign]
    await run_pass(node)
    assert (node.evicted, node.result()) == ([], "called-off")


def test_eviction_state_outlives_the_loop() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))
    asyncio.run(run_pass(node))
    assert len(node.context.eviction.evicted_s) == 1


async def test_memory_events_are_watched_from_the_first_pod_on(tmp_path: Path) -> None:
    triggers, stop, watched = PressureTriggers(print, root=tmp_path), asyncio.Event(), []

    def readings() -> tuple[SignalReading, ...]:
        watched.append(triggers.names)
        if len(watched) == 1:
            pods = tmp_path / "sys/fs/cgroup/kubepods.slice"
            pods.mkdir(parents=True)
            os.mkfifo(pods / "memory.events")  # a FIFO, since epoll refuses regular files
            loop.wake("test")
        elif triggers.names or len(watched) > 20:
            stop.set()
        return (LOW,)

    loop = Node(readings=readings).loop(triggers=triggers)
    await loop.run(stop)
    assert (watched[0], watched[-1]) == ((), (MEMORY_EVENTS,))


@pytest.mark.difference("disputed-memory")
async def test_contradicting_estimates_evict_only_with_evidence_and_are_logged_at_the_change() -> None:
    quiet = read(available=40 << 30, capacity=64 << 30)
    counters = MemoryCounters(64 << 30, 0, 0, 0, 0, 0, 0, 0, 0)
    memory = NodeMemory(57 << 30, 70 << 20, counters)
    node = Node(pods=(pod("web"),), readings=lambda: (replace(quiet, memory=memory),))
    loop = node.loop()
    for _ in range(5):
        await run_pass(node, loop)
        node.clock.seconds += 10
    assert node.evicted == []
    (event,) = node.events("memory_estimates_differ")
    assert (event["threshold"], event["lowest"]) == ("memory.available<100Mi", 70 << 20)
    assert "unexplained 64.0 GiB" in event["why"]
    node.readings = lambda: (replace(quiet, available=70 << 20, memory=memory),)
    await run_pass(node, loop)
    assert node.evicted == ["web"]
    assert len(node.events("memory_estimates_agree")) == 1
