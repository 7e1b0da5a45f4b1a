"""Eviction passes beside a kubelet, through a fake API server, in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nodeagent.errors import ApiServerUnavailableError
from nodeagent.eviction.api_evictor import KUBELET_FREED_WITHIN_S, RoleCleaner, RoleEvictor
from nodeagent.eviction.container_removal import CleanupResult
from nodeagent.eviction.plan.effects import Victim
from nodeagent.model.runtime import ContainerState
from tests.support.virtual_time import play
from tests.unit.builders import container
from tests.unit.eviction.api_evictions import Cluster
from tests.unit.eviction.eviction_node import DISK, LOW, NO_PRESSURE, Clock, Node
from tests.unit.eviction.plan.cases import disk, read

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from nodeagent.eviction.loop import EvictionLoop
    from nodeagent.model.pods import PodInventory
    from nodeagent.model.pressure import SignalReading
    from nodeagent.model.runtime import Container

BUDGET = "The disruption budget webpdb needs 2 healthy pods and has 2 currently"
LOST = ApiServerUnavailableError("no answer in 10 s")


class LoopTime(Clock):
    """Clock of the node: the time of the event loop plus the duration of readings."""

    def __init__(self) -> None:
        self._offset_s = 0.0

    @property
    def seconds(self) -> float:
        return self._offset_s + asyncio.get_running_loop().time()

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._offset_s += value - self.seconds


class ApiNode(Node):
    """A fake node beside a kubelet, with the pods of a fake cluster."""

    def beside(self, cluster: Cluster, **fields: Any) -> EvictionLoop:
        self.cluster = cluster
        self.is_beside = True
        self.through_api = RoleEvictor(self, cluster.evictor(clock=self.clock, **fields), lambda: self.is_beside)
        return self.loop()

    async def read_pods(self, with_disk: bool) -> PodInventory:
        del with_disk
        return await self.cluster.read_pods()


def node_with(cluster: Cluster, *names: str, **fields: Any) -> ApiNode:
    """Return a node under memory pressure with pods in eviction order."""
    values: dict[str, Any] = {"readings": lambda: (LOW,), "clock": cluster.clock}
    node = ApiNode(**(values | fields))
    for number, name in enumerate(names):
        cluster.add(name, memory=900 - 100 * number, writable=disk(300 - number))
    cluster.sync()
    return node


async def passes(node: ApiNode, loop: EvictionLoop, number: int, every_s: float = 1.0) -> list[str]:
    """Run ``number`` eviction passes; return their results."""
    found = []
    for _ in range(number):
        node.cluster.sync()
        await loop.run_pass(asyncio.Event())
        found.append(node.result())
        await asyncio.sleep(every_s)
    return found


def run(work: Callable[[Cluster], Awaitable[None]]) -> None:
    async def started() -> None:
        await work(Cluster(clock=LoopTime()))

    play(started())


def names(cluster: Cluster) -> list[str]:
    return [each[0] for each in cluster.pods.ended]


def soft_memory() -> dict[str, Any]:
    return {
        "limits": "memory.available<10Mi",
        "soft": {"soft": "memory.available<100Mi", "soft_grace_period": "memory.available=1s"},
    }


def test_pod_is_evicted_through_the_api_server_beside_a_kubelet_and_by_the_runtime_without_one() -> None:
    async def work(cluster: Cluster) -> None:
        node = node_with(cluster, "web")
        loop = node.beside(cluster)
        assert await passes(node, loop, 1) == ["evicted"]
        assert (names(cluster), node.evicted) == (["web"], [])
        (record,) = node.records
        assert record.result is not None
        assert record.result.detail == "evicted through the API server"
        cluster.add("local")
        node.is_beside = False
        node.context.eviction = type(node.context.eviction)()
        assert await passes(node, loop, 1) == ["evicted"]
        assert (names(cluster), node.evicted) == (["web"], ["local"])

    run(work)


def test_next_pod_is_evicted_at_a_hard_threshold_if_a_budget_keeps_the_first() -> None:
    async def work(cluster: Cluster) -> None:
        node = node_with(cluster, "web", "batch")
        cluster.pods.budgets["web"] = BUDGET
        assert await passes(node, node.beside(cluster), 1) == ["evicted"]
        assert names(cluster) == ["batch"]

    run(work)


def test_budget_is_retried_with_back_off_and_no_other_pod_is_evicted_below_the_hard_threshold() -> None:
    async def work(cluster: Cluster) -> None:
        node = node_with(cluster, "web", "batch", **soft_memory())
        cluster.pods.budgets["web"] = BUDGET
        loop = node.beside(cluster)
        assert set((await passes(node, loop, 50))[2:]) == {"postponed"}
        assert [each[1] for each in cluster.requests] == ["web"] * 3  # requests after 0 s, 10 s and 30 s
        assert names(cluster) == []
        del cluster.pods.budgets["web"]
        cluster.is_stuck = False
        results = await passes(node, loop, 12)
        assert "evicted" in results
        assert names(cluster)[0] == "web"
        assert len(node.events("eviction_postponed")) <= 6

    run(work)


def test_pods_kept_by_their_budgets_are_tried_in_turn_and_the_first_is_deleted_if_configured() -> None:
    async def work(cluster: Cluster) -> None:
        for overrides in (False, True):
            node = node_with(
                cluster, "web", "batch", readings=lambda: (LOW if "web" in cluster.running else NO_PRESSURE,)
            )
            cluster.pods.budgets = dict.fromkeys(("web", "batch"), BUDGET)
            results = await passes(node, node.beside(cluster, overrides_budgets=overrides), 12)
            assert ("evicted" in results) is overrides
            assert cluster.pods.ended == ([("web", 0)] if overrides else [])
            assert {"no-pod", "failed"} & set(results)

    run(work)


def test_server_that_does_not_answer_postpones_evictions_and_no_second_pod_is_tried() -> None:
    async def work(cluster: Cluster) -> None:
        node = node_with(cluster, "web", "batch")
        loop = node.beside(cluster)
        cluster.answers = [LOST] * 50
        assert set(await passes(node, loop, 30)) == {"postponed"}
        assert {each[1] for each in cluster.requests} == {"web"}
        assert len(cluster.requests) < 8
        cluster.answers = []
        results = await passes(node, loop, 40)
        assert "evicted" in results
        assert names(cluster)[0] == "web"

    run(work)


def test_eviction_with_a_lost_answer_has_one_victim() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.ends_s = 20.0
        readings = [LOW]
        node = node_with(cluster, "web", "batch", readings=lambda: (readings[0],))
        loop = node.beside(cluster)
        cluster.lost = 1
        await passes(node, loop, 1)
        cluster.running["batch"] = cluster.add("batch", memory=2000)  # now first in eviction order
        await passes(node, loop, 10)
        readings[0] = NO_PRESSURE
        await passes(node, loop, 20)
        assert set(names(cluster)) == {"web"}

    run(work)


def test_watch_that_is_interrupted_postpones_every_eviction() -> None:
    async def work(cluster: Cluster) -> None:
        node = node_with(cluster, "web")
        loop = node.beside(cluster)
        cluster.watched.reset()
        await loop.run_pass(asyncio.Event())
        assert (node.result(), cluster.requests) == ("postponed", [])
        (event,) = node.events("eviction_postponed")
        assert event["because"] == "the pods of the API server are not current"

    run(work)


def test_accepted_pod_that_continues_frees_nothing_and_its_effect_remains_outstanding() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.is_stuck = True
        values: dict[str, Any] = {"limits": DISK, "readings": lambda: (read("imagefs.available", 50),)}
        node = node_with(cluster, "web", "batch", **values)
        node.cleanup = lambda: CleanupResult(confirmed=False, running=True)
        results = await passes(node, node.beside(cluster), 30)
        assert (results[0], set(results[1:])) == ("failed", {"waiting"})
        assert names(cluster) == ["web"]
        (failed,) = node.events("eviction_failed")
        assert "accepted, but" in failed["detail"]

    run(work)


def test_accepted_pod_that_continues_has_no_second_victim_for_memory_within_a_minute() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.is_stuck = True
        node = node_with(cluster, "web", "batch")
        node.cleanup = lambda: CleanupResult(confirmed=False, running=True)
        loop = node.beside(cluster)
        await passes(node, loop, 30)
        assert names(cluster) == ["web"]
        await passes(node, loop, 60)
        assert "batch" in names(cluster)

    run(work)


def test_space_of_an_evicted_pod_is_awaited_until_the_kubelet_removed_its_containers() -> None:
    async def work(cluster: Cluster) -> None:
        available: dict[str, float] = {"mib": 50}

        def readings() -> tuple[SignalReading, ...]:
            return (read("imagefs.available", available["mib"]),)

        node = node_with(cluster, "web", "batch", limits=DISK, readings=readings)
        node.cleanup = lambda: CleanupResult(confirmed=False)
        loop = node.beside(cluster)
        results = await passes(node, loop, int(KUBELET_FREED_WITHIN_S) // 2)
        assert (results[0], set(results[1:])) == ("evicted", {"waiting"})
        assert names(cluster) == ["web"]
        available["mib"] = 900
        assert set((await passes(node, loop, 3))[1:]) == {"no-pressure"}

    run(work)


def test_dry_run_sends_no_request() -> None:
    async def work(cluster: Cluster) -> None:
        node = node_with(cluster, "web", dry_run=True)
        assert await passes(node, node.beside(cluster), 2) == ["dry-run", "dry-run"]
        assert cluster.requests == []

    run(work)


# ---- containers of evicted pods


def test_containers_of_an_evicted_pod_are_observed_beside_a_kubelet_and_never_removed(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()

    async def work(cluster: Cluster) -> None:
        node, is_beside = node_with(cluster, "web"), [True]
        listed = [container("c1", state=ContainerState.RUNNING, sandbox_id="s1"), container("c2", sandbox_id="s1")]

        async def list_containers() -> tuple[Container, ...]:
            return (*listed, container("other", sandbox_id="s9"))

        cleaner = RoleCleaner(node, list_containers, lambda: is_beside[0], cluster.watched)
        victim = Victim("uid-web", "shop", "web", ("s1",), (str(layer),))
        found = await cleaner.clean_up(victim)
        assert (found.confirmed, found.running) == (False, True)
        listed.clear()
        assert not (await cleaner.clean_up(victim)).confirmed
        layer.rmdir()
        assert (await cleaner.clean_up(victim)).confirmed
        assert node.cleaned_up == []
        is_beside[0] = False
        assert (await cleaner.clean_up(victim)).confirmed
        assert node.cleaned_up == ["web"]

    run(work)


def test_running_pod_counts_as_not_evicted_after_a_restart_only_if_the_api_server_shows_that() -> None:
    async def work(cluster: Cluster) -> None:
        node = node_with(cluster, "web")

        async def list_containers() -> tuple[Container, ...]:
            return (container("c1", state=ContainerState.RUNNING, sandbox_id="s1"),)

        cleaner = RoleCleaner(node, list_containers, lambda: True, cluster.watched)
        victim = Victim("uid-web", "shop", "web", ("s1",))
        assert (await cleaner.clean_up(victim)).running
        cluster.is_stuck = True
        await cluster.evict("shop", "web", "uid-web", "", 30)
        assert not (await cleaner.clean_up(victim)).running
        cluster.watched.reset()
        assert not (await cleaner.clean_up(victim)).running

    run(work)


def test_threshold_whose_pod_waits_for_its_budget_delays_neither_reclaim_nor_eviction_for_another_one() -> None:
    async def work(cluster: Cluster) -> None:
        soft = {"soft": "memory.available<100Mi", "soft_grace_period": "memory.available=1s"}
        low = (LOW, read("imagefs.available", 50))
        limits = "memory.available<10Mi,imagefs.available<100Mi"
        node = node_with(cluster, readings=lambda: low, limits=limits, soft=soft)
        cluster.add("web", memory=900)
        cluster.add("writer", memory=1, writable=disk(300))
        cluster.pods.budgets["web"] = BUDGET
        node.cleanup = lambda: CleanupResult(confirmed=False)
        await passes(node, node.beside(cluster), 6)
        assert names(cluster) == ["writer"]
        assert "dead-containers on nodefs" in node.reclaimed

    run(work)


def test_server_that_does_not_answer_delays_no_reclaim() -> None:
    async def work(cluster: Cluster) -> None:
        low = (LOW, read("imagefs.available", 50))
        node = node_with(cluster, "web", readings=lambda: low, limits="memory.available<100Mi,imagefs.available<100Mi")
        loop = node.beside(cluster)
        cluster.watched.reset()
        await loop.run_pass(asyncio.Event())
        assert "unused-images on nodefs" in node.reclaimed
        assert cluster.requests == []

    run(work)
