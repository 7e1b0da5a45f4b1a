"""Registration session during a graceful shutdown: cordon, NotReady, and their end, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.cluster.plan.registration import CORDONED_ANNOTATION as CORDONED, RegistrationPolicy
from tests.support.virtual_time import play
from tests.unit.cluster.cluster import Cluster


def test_schedulable_node_is_cordoned_at_a_shutdown_and_uncordoned_after_its_cancellation() -> None:
    cluster = Cluster(policy=RegistrationPolicy(unschedulable=False))
    seen = []

    async def script() -> None:
        await asyncio.sleep(33)
        for shutting_down in (True, False):
            cluster.shutting_down = shutting_down
            await asyncio.sleep(1)
            seen.append((cluster.unschedulable, cluster.server.node["metadata"]["annotations"].get(CORDONED)))

    cluster.run(40, script)
    assert seen == [(True, "shutdown"), (False, None)]
    assert len(cluster.logged("node_cordoned")) == len(cluster.logged("node_uncordoned")) == 1


def test_node_that_was_shut_down_is_uncordoned_by_the_next_start_after_10_s_without_a_shutdown() -> None:
    cluster = Cluster(policy=RegistrationPolicy(unschedulable=False))
    cluster.run(5)
    cluster.shutting_down = True
    cluster.run(5)
    cluster.shutting_down = False
    seen = []
    for seconds in (9, 20):
        cluster.run(seconds)
        seen.append(cluster.unschedulable)
    assert seen == [True, False]
    assert CORDONED not in cluster.server.node["metadata"]["annotations"]


@pytest.mark.parametrize("registered_cordoned", [False, True])
def test_cordon_of_an_operator_or_of_the_registration_outlasts_a_cancelled_shutdown(registered_cordoned: bool) -> None:
    cluster = Cluster(policy=RegistrationPolicy(unschedulable=registered_cordoned))

    async def script() -> None:
        await asyncio.sleep(5)
        cluster.server.node["spec"]["unschedulable"] = True
        for shutting_down in (True, False):
            cluster.shutting_down = shutting_down
            await asyncio.sleep(5)

    cluster.run(40, script)
    assert cluster.unschedulable
    assert cluster.logged("node_cordoned") == cluster.logged("node_uncordoned") == []


def test_node_that_an_operator_uncordoned_is_schedulable_after_a_cancelled_shutdown() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(33)
        cluster.server.node["spec"]["unschedulable"] = False
        for shutting_down in (True, False):
            cluster.shutting_down = shutting_down
            await asyncio.sleep(5)

    cluster.run(60, script)
    assert len(cluster.logged("node_cordoned")) == 1
    assert not cluster.unschedulable


def test_cordon_of_the_registration_is_ended_after_a_change_of_the_configuration() -> None:
    cluster = Cluster()
    cluster.run(5)
    cluster.policy = RegistrationPolicy(unschedulable=False)
    cluster.run(20)
    assert not cluster.unschedulable
    assert CORDONED not in cluster.server.node["metadata"]["annotations"]
    assert len(cluster.logged("node_uncordoned")) == 1


def test_cordon_of_an_operator_is_kept_when_the_configuration_requires_none() -> None:
    cluster = Cluster(policy=RegistrationPolicy(unschedulable=False))
    cluster.run(5)
    cluster.server.node["spec"]["unschedulable"] = True
    cluster.run(20)
    assert cluster.unschedulable


@pytest.mark.parametrize("restart", [False, True])
def test_cordon_of_an_operator_after_the_end_of_the_registration_cordon_is_kept(*, restart: bool) -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        cluster.server.node["spec"]["unschedulable"] = False
        await asyncio.sleep(400)

    if restart:
        cluster.run(5)
        cluster.server.node["spec"]["unschedulable"] = False
        cluster.run(2)
    else:
        cluster.run(420, script)
    assert CORDONED not in cluster.server.node["metadata"]["annotations"]
    cluster.server.node["spec"]["unschedulable"] = True
    cluster.policy = RegistrationPolicy(unschedulable=False)
    cluster.run(60)
    assert cluster.unschedulable
    assert cluster.logged("node_uncordoned") == []


@pytest.mark.parametrize("cause", ["no-kubelet", "shutdown"])
def test_cordon_of_an_operator_before_the_removal_of_a_stale_annotation_is_kept(cause: str) -> None:
    cluster = Cluster(policy=RegistrationPolicy(unschedulable=False))
    cluster.run(5)
    cluster.server.node["metadata"]["annotations"][CORDONED] = cause
    cluster.status_api.outdated = 1

    async def script() -> None:
        await asyncio.sleep(0.05)
        cluster.server.node["spec"]["unschedulable"] = True

    cluster.run(60, script)
    assert cluster.unschedulable
    assert CORDONED not in cluster.server.node["metadata"]["annotations"]


def test_refused_removal_of_a_stale_annotation_does_not_affect_the_status() -> None:
    cluster = Cluster()
    cluster.run(5)
    cluster.server.node["spec"]["unschedulable"] = False
    cluster.server.denied = {("PATCH", "nodes")}
    cluster.run(700)
    assert len(cluster.status_api.times("/status")) == 4
    assert [each["part"] for each in cluster.logged("api_request_failed")] == ["cordon"]


def test_cordon_of_the_registration_is_kept_during_a_shutdown_that_starts_before_its_end() -> None:
    cluster = Cluster()
    cluster.run(5)
    cluster.policy = RegistrationPolicy(unschedulable=False)
    reported = []

    async def script() -> None:
        await asyncio.sleep(5)
        cluster.shutting_down = True
        reported.append(await cluster.announcement.wait(2))

    cluster.run(40, script)
    assert reported == [True]
    assert cluster.unschedulable


def test_cordon_whose_response_is_lost_is_ended_after_the_cancellation() -> None:
    cluster = Cluster(policy=RegistrationPolicy(unschedulable=False))
    seen = []

    async def script() -> None:
        await asyncio.sleep(33)
        cluster.status_api.lost = 2
        cluster.shutting_down = True
        while not cluster.unschedulable:  # noqa: ASYNC110 - the fake API server sets no asyncio.Event
            await asyncio.sleep(0.05)
        seen.append(cluster.status_api.lost)
        cluster.shutting_down = False

    cluster.run(120, script)
    assert seen[0] < 2
    assert not cluster.unschedulable
    assert CORDONED not in cluster.server.node["metadata"]["annotations"]


def test_cordon_is_repeated_after_a_change_of_the_object_meanwhile() -> None:
    cluster = Cluster(policy=RegistrationPolicy(unschedulable=False))

    async def script() -> None:
        await asyncio.sleep(33)
        cluster.status_api.outdated = 2
        cluster.shutting_down = True

    cluster.run(40, script)
    assert cluster.unschedulable
    assert cluster.logged("api_request_failed") == []


def test_shutdown_counts_as_announced_once_the_node_is_not_ready_and_cordoned() -> None:
    cluster = Cluster(policy=RegistrationPolicy(unschedulable=False))
    reported = []

    async def script() -> None:
        await asyncio.sleep(33)
        reported.append(await cluster.announcement.wait(0))
        cluster.shutting_down = True
        reported.append(await cluster.announcement.wait(2))
        assert (cluster.ready()["status"], cluster.unschedulable) == ("False", True)
        cluster.shutting_down = False
        await asyncio.sleep(2)
        reported.append(await cluster.announcement.wait(0))

    cluster.run(40, script)
    assert reported == [False, True, False]
    assert play(cluster.announcement.wait(0))  # nothing is expected without a session


def test_shutdown_waits_its_limit_only_while_the_api_server_is_away() -> None:
    cluster = Cluster()
    waited: list[bool] = []
    took_s: list[float] = []

    async def script() -> None:
        await asyncio.sleep(33)
        cluster.status_api.down = cluster.shutting_down = True
        before_s = asyncio.get_running_loop().time()
        waited.append(await cluster.announcement.wait(2))
        took_s.append(asyncio.get_running_loop().time() - before_s)

    cluster.run(40, script)
    assert waited == [False]
    assert took_s == pytest.approx([2.0])


def test_shutdown_does_not_wait_for_a_cordon_that_is_refused() -> None:
    cluster = Cluster(policy=RegistrationPolicy(unschedulable=False))
    cluster.server.denied = {("PATCH", "nodes")}
    reported = []

    async def script() -> None:
        await asyncio.sleep(33)
        cluster.shutting_down = True
        reported.append(await cluster.announcement.wait(2))

    cluster.run(40, script)
    assert reported == [True]
    assert 'cannot patch resource "nodes"' in cluster.logged("api_request_failed")[0]["error"]
