"""Eviction of one pod through a fake API server, in virtual time, with correct and incorrect responses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import ApiServerRefusedError, ApiServerUnavailableError, RuntimeUnavailableError
from nodeagent.eviction.api_evictor import KILLED_WITHIN_S
from nodeagent.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.model.pods import PodHandle
from nodeagent.record import replace
from tests.support.api_pods import pod as api_pod
from tests.support.virtual_time import play
from tests.unit.eviction.api_evictions import Cluster
from tests.unit.eviction.plan.cases import planned, read, thresholds

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.eviction.api_evictor import ApiEvictor
    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.model.pressure import PodFacts

BUDGET = "The disruption budget webpdb needs 2 healthy pods and has 2 currently"


def chosen(facts: PodFacts, *, soft: bool = False) -> Eviction:
    """Return the planned eviction of a pod for a hard threshold, or with ``soft`` for a soft threshold."""
    limits = thresholds()
    if soft:
        limits = thresholds(hard="", soft="memory.available<100Mi", soft_grace_period="memory.available=0s")
    plan = planned((facts,), read(), limits=limits)
    assert plan.victim is not None
    assert plan.victim.status is not None
    found = replace(plan.victim, grace_s=30.0 if soft else 0.0)
    if soft:
        found = replace(found, status=replace(plan.victim.status, threshold=replace(limits[0], grace_s=60.0)))
        assert not found.status.threshold.hard  # type: ignore[union-attr] # set above
    return found


def evicted(
    cluster: Cluster,
    *,
    soft: bool = False,
    script: Callable[[asyncio.Event], object] | None = None,
    prepare: Callable[[ApiEvictor, Eviction], Any] | None = None,
    **fields: Any,
) -> tuple[EvictionResult, float]:
    """Evict the pod ``web``; return the result and the elapsed virtual time in seconds."""

    async def work() -> tuple[EvictionResult, float]:
        facts = cluster.running.get("web") or cluster.add("web")
        cluster.sync()
        hurry = asyncio.Event()
        if script is not None:
            script(hurry)
        evictor = cluster.evictor(**fields)
        eviction = chosen(facts, soft=soft)
        if prepare is not None:
            prepare(evictor, eviction)
        try:
            result = await evictor.evict(eviction, PodHandle(facts.uid, ("s",)), hurry)
        finally:
            assert cluster.is_closed  # the connection is closed even if the eviction raises
        return result, asyncio.get_running_loop().time()

    return play(work())


def test_pod_counts_as_evicted_when_its_kubelet_has_ended_it() -> None:
    cluster = Cluster(ends_s=4.0)
    result, took_s = evicted(cluster)
    assert result.outcome is EvictionOutcome.EVICTED
    assert took_s >= 4.0
    assert cluster.pods.ended == [("web", 1)]


def test_request_has_the_version_by_which_the_pod_was_chosen_and_never_grace_period_0() -> None:
    cluster = Cluster()
    evicted(cluster)
    assert cluster.requests == [("POST", "web", str(cluster.pods.history[0][0]), 1)]


def test_soft_eviction_has_its_grace_period() -> None:
    cluster = Cluster(ends_s=0.1)
    result, took_s = evicted(cluster, soft=True)
    assert (result.outcome, result.hurried) == (EvictionOutcome.EVICTED, False)
    assert [each[3] for each in cluster.requests] == [30]
    assert took_s >= 3.0


def test_hard_threshold_meanwhile_shortens_the_grace_period() -> None:
    cluster = Cluster(ends_s=1.0)
    result, took_s = evicted(
        cluster, soft=True, script=lambda hurry: asyncio.get_running_loop().call_later(5.0, hurry.set)
    )
    assert (result.outcome, result.hurried) == (EvictionOutcome.EVICTED, True)
    assert [(each[2] != "", each[3]) for each in cluster.requests] == [(True, 30), (False, 1)]
    assert took_s < 10


def test_accepted_pod_that_continues_is_a_failure_and_may_still_end() -> None:
    cluster = Cluster(is_stuck=True)
    result, took_s = evicted(cluster)
    assert (result.outcome, result.may_end) == (EvictionOutcome.FAILED, True)
    assert "accepted, but the runtime lists the pod as active after 15 s" in result.detail
    assert took_s >= KILLED_WITHIN_S
    assert len(cluster.requests) == 1


def test_budget_refuses_the_eviction_with_its_cause_and_nothing_is_ended() -> None:
    cluster = Cluster()
    cluster.pods.budgets["web"] = BUDGET
    for soft in (False, True):
        result, _ = evicted(cluster, soft=soft)
        assert (result.outcome, result.may_end) == (EvictionOutcome.REFUSED, False)
    assert cluster.pods.ended == []


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (ApiServerUnavailableError("no answer in 10 s"), EvictionOutcome.FAILED),
        (ApiServerRefusedError("HTTP 500", 500), EvictionOutcome.FAILED),
        (ApiServerRefusedError("HTTP 401", 401), EvictionOutcome.REFUSED),
        (ApiServerRefusedError("HTTP 403", 403), EvictionOutcome.REFUSED),
        (ApiServerRefusedError("HTTP 429", 429, retry_after_s=3.0), EvictionOutcome.REFUSED),
    ],
)
def test_failed_request_is_no_eviction(failure: Exception, outcome: EvictionOutcome) -> None:
    cluster = Cluster(answers=[failure])
    result, _ = evicted(cluster)
    assert (result.outcome, result.detail) == (outcome, str(failure))
    assert len(cluster.requests) == 1


def test_pod_changed_meanwhile_is_compared_and_requested_by_its_new_version() -> None:
    cluster = Cluster()

    def change(_: ApiEvictor, __: Eviction) -> None:
        cluster.pods.put(api_pod("web", metadata={"namespace": "shop"}))
        asyncio.get_running_loop().call_later(0.5, cluster.sync)

    result, _ = evicted(cluster, prepare=change)
    assert result.outcome is EvictionOutcome.EVICTED
    assert len({each[2] for each in cluster.requests}) == 2


def test_pod_of_the_same_name_and_another_uid_is_never_evicted() -> None:
    cluster = Cluster()

    def replaced(_: ApiEvictor, __: Eviction) -> None:
        cluster.pods.delete("uid-web")
        cluster.pods.put(api_pod("web", "uid-new", metadata={"namespace": "shop"}))

    result, _ = evicted(cluster, prepare=replaced)
    assert (result.outcome, cluster.pods.ended) == (EvictionOutcome.REFUSED, [])


def test_pod_that_another_one_deleted_is_awaited() -> None:
    cluster = Cluster(ends_s=2.0)

    def deleted(_: ApiEvictor, __: Eviction) -> None:
        cluster.pods.delete("uid-web")
        asyncio.get_running_loop().call_later(2.0, cluster.running.pop, "web")

    result, took_s = evicted(cluster, prepare=deleted)
    assert result.outcome is EvictionOutcome.EVICTED
    assert took_s > 1.9


def test_static_pod_is_never_requested_although_its_facts_say_otherwise() -> None:
    cluster = Cluster()
    cluster.add("web", static=True)
    result, _ = evicted(cluster)
    assert (result.outcome, result.detail) == (EvictionOutcome.REFUSED, "kept: mirror pod")
    assert cluster.requests == []


def test_pod_unknown_to_the_api_server_is_never_requested() -> None:
    cluster = Cluster()
    cluster.add("web")
    cluster.pods.delete("uid-web")
    result, _ = evicted(cluster)
    assert (result.outcome, cluster.requests) == (EvictionOutcome.REFUSED, [])


def test_nothing_is_requested_while_the_watch_is_interrupted() -> None:
    cluster = Cluster()

    def lose(evictor: ApiEvictor, eviction: Eviction) -> None:
        cluster.watched.state = replace(cluster.watched.state, connected_s=None)
        held = evictor.refused_eviction(eviction)
        assert held is not None
        assert not held.tries_next

    result, _ = evicted(cluster, prepare=lose)
    assert (result.outcome, cluster.requests) == (EvictionOutcome.REFUSED, [])


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda cluster: cluster.running.clear(), EvictionOutcome.GONE),
        (
            lambda cluster: cluster.running.update(
                web=replace(cluster.running["web"], priority_class="system-node-critical")
            ),
            EvictionOutcome.CHANGED,
        ),
    ],
    ids=["ended", "critical"],
)
def test_pod_that_ended_or_changed_is_not_requested(
    change: Callable[[Cluster], None], outcome: EvictionOutcome
) -> None:
    cluster = Cluster()
    result, _ = evicted(cluster, prepare=lambda *_: change(cluster))
    assert (result.outcome, cluster.requests) == (outcome, [])


async def test_processes_decide_where_they_can_be_read() -> None:
    cluster, readings = Cluster(is_stuck=True), [frozenset({7}), frozenset()]
    facts = cluster.add("web")
    cluster.sync()
    evictor = cluster.evictor(read_processes=lambda _: readings.pop(0))
    handle = PodHandle(facts.uid, ("s",), cgroup="/cgroup/web")
    result = await evictor.evict(chosen(facts), handle, asyncio.Event())
    assert (result.outcome, readings) == (EvictionOutcome.EVICTED, [])


def test_lost_runtime_ends_the_pass() -> None:
    cluster = Cluster(is_stuck=True)

    def lose() -> None:
        cluster.runtime_error = RuntimeUnavailableError("runtime away")

    with pytest.raises(RuntimeUnavailableError):
        evicted(cluster, prepare=lambda *_: asyncio.get_running_loop().call_later(3.0, lose))
    assert len(cluster.requests) == 1


# ---- deletion despite a disruption budget


def test_budget_used_by_a_conflicting_request_of_the_agent_is_not_overridden() -> None:
    async def work() -> tuple[list[EvictionOutcome], frozenset[str]]:
        cluster = Cluster()
        eviction = chosen(cluster.add("web"))
        cluster.sync()
        cluster.pods.last_disruptions["web"] = BUDGET
        # The pod watch has not delivered this newer version of the pod, so that the first eviction is a conflict.
        cluster.pods.put(api_pod("web", metadata={"namespace": "shop"}))
        asyncio.get_running_loop().call_later(0.5, cluster.sync)
        evictor = cluster.evictor(overrides_budgets=True)
        results = [await evictor.evict(eviction, PodHandle("uid-web", ("s",)), asyncio.Event()) for _ in range(3)]
        assert [each[0] for each in cluster.requests] == ["POST"] * 4
        return [each.outcome for each in results], evictor.permit_deletion(["uid-web"])

    outcomes, permitted = play(work())
    assert outcomes == [EvictionOutcome.REFUSED] * 3
    assert permitted == frozenset()


def test_pod_with_two_budgets_is_refused_without_an_unknown_effect() -> None:
    async def work() -> None:
        cluster = Cluster()
        web, other = (chosen(cluster.add(name)) for name in ("web", "other"))
        cluster.sync()
        cluster.pods.several_budgets.add("web")
        evictor = cluster.evictor()
        result = await evictor.evict(web, PodHandle("uid-web", ("s",)), asyncio.Event())
        assert result.outcome is EvictionOutcome.REFUSED
        assert evictor.refused_eviction(other) is None

    play(work())


def refused_twice(**fields: Any) -> tuple[Cluster, frozenset[str], EvictionResult]:
    """Refuse two evictions by a disruption budget.

    Returns:
        The cluster, the UIDs of pods with permitted deletion, and the result of the next eviction.
    """

    async def work() -> tuple[Cluster, frozenset[str], EvictionResult]:
        cluster = Cluster()
        eviction = chosen(cluster.add("web"))
        cluster.pods.budgets["web"] = BUDGET
        cluster.sync()
        evictor = cluster.evictor(**fields)
        handle = PodHandle("uid-web", ("s",))
        assert evictor.permit_deletion(["uid-web"]) == frozenset()
        for _ in range(2):
            await evictor.evict(eviction, handle, asyncio.Event())
        assert evictor.refused_eviction(eviction) is not None
        permitted = evictor.permit_deletion(["uid-web", "uid-other"])
        return cluster, permitted, await evictor.evict(eviction, handle, asyncio.Event())

    return play(work())


def test_pod_kept_by_its_budget_is_deleted_with_grace_period_0_as_the_last_resort_only() -> None:
    cluster, permitted, result = refused_twice(overrides_budgets=True)
    assert permitted == {"uid-web"}
    assert (result.outcome, cluster.pods.ended) == (EvictionOutcome.EVICTED, [("web", 0)])
    assert [each[0] for each in cluster.requests] == ["POST", "POST", "DELETE"]
    assert result.detail == "deleted despite its disruption budget"


def test_pod_kept_by_its_budget_is_not_deleted_unless_configured() -> None:
    cluster, permitted, result = refused_twice()
    assert permitted == frozenset()
    assert (result.outcome, cluster.pods.ended) == (EvictionOutcome.REFUSED, [])
    assert {each[0] for each in cluster.requests} == {"POST"}
