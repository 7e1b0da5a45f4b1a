"""Tests of an API server that is unreachable for minutes: local work continues and is reported afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from nodeagent.cluster.plan.registration import CORDONED_ANNOTATION
from tests.cluster.logind import logind, wait
from tests.cluster.workloads import IMAGE
from tests.support import images
from tests.support.cluster import LEASE, NODES
from tests.support.cluster_node import NAME

if TYPE_CHECKING:
    from tests.cluster.agent import ClusterAgent
    from tests.support import login1
    from tests.support.cluster import Cluster
    from tests.support.pods import Container, Pods

OUTAGE_S = 60.0 * float(os.environ.get("NODEAGENT_TEST_MINUTES", "1"))
WRITES = "dd if=/dev/zero of=/data bs=1M count=500; sleep 1000"
SERVES = "trap 'exit 0' TERM; sleep 1000 & wait"
SECTIONS = (
    '[shutdown]\nenabled = "on"\nby_priority = [{ min_priority = 0, seconds = 4 }]\n'
    '[eviction]\nenabled = "on"\nhard = "nodefs.available<500Mi"\n'
    '[container_gc]\ninterval = "2s"\nminimum_age = "0s"\nmax_per_pod_container = 0\n'
)


def exists(runtime: Pods, container: Container) -> bool:
    return any(each.id == container.id for each in runtime.list_containers())


@pytest.mark.campaign
async def test_collection_eviction_and_shutdown_continue_without_the_api_server_and_the_status_converges(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    cluster.node.import_images([images.image(IMAGE)])
    with cluster.node.pods() as runtime:
        async with logind(cluster.node) as manager:
            account = agent.service_account("register_node", "watch_pods")
            agent.configure(f'register_node = true\nwatch_pods = true\nkubeconfig = "{account}"', more=SECTIONS)
            agent.start()
            await wait(agent, "the node is ready", cluster.is_node_ready)
            await wait(agent, "the Lease exists", lambda: cluster.exists(LEASE))
            await wait(agent, "the lock is held", lambda: bool(manager.locks))
            renewed = cluster.get(LEASE)["spec"]["renewTime"]

            cluster.node.stop("kube-apiserver", kill=True)
            until = time.monotonic() + OUTAGE_S
            web = runtime.run_container(runtime.run_sandbox("web"), "app", IMAGE, ("sh", "-c", SERVES))
            dead = runtime.run_container(runtime.run_sandbox("dead"), "app", IMAGE, ("sh", "-c", "exit 0"))
            runtime.wait_exited(dead)
            runtime.stop_sandbox(dead.sandbox)
            await wait(agent, "the dead container is removed", lambda: not exists(runtime, dead))
            big = runtime.run_container(runtime.run_sandbox("big"), "app", IMAGE, ("sh", "-c", WRITES))
            await wait(agent, "a pod is evicted", lambda: bool(agent.events("evicted")))
            assert [each["pod_name"] for each in agent.events("evicted")] == ["big"]
            await wait(agent, "its container is removed", lambda: not exists(runtime, big))
            cluster.compact()
            await wait(agent, "the outage has lasted", lambda: time.monotonic() >= until, OUTAGE_S + 60)
            manager.request_shutdown()
            await manager.until(lambda: manager.executed == 1)
            await wait(agent, "the shutdown has finished", lambda: bool(agent.events("shutdown_finished")))
            assert runtime.status(web.id).state != "CONTAINER_RUNNING"
            manager.cancel_shutdown()

            await asyncio.to_thread(cluster.restart_api_server)
            await wait(agent, "the Lease is renewed", lambda: cluster.get(LEASE)["spec"]["renewTime"] > renewed)
            await wait(agent, "the node is ready", cluster.is_node_ready)
            await wait(agent, "pods are listed again", lambda: is_listed(agent))
    assert agent.events("api_request_recovered")
    assert agent.events("pass_crashed") == []


async def test_schedulable_node_is_cordoned_and_not_ready_before_the_lock_is_released_and_uncordoned_later(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    for path in (f"{NODES}/{NAME}", LEASE):
        if cluster.exists(path):
            cluster.request("DELETE", path)
    async with logind(cluster.node) as manager:
        account = agent.service_account("register_node")
        agent.configure(f'register_node = true\nunschedulable = false\nkubeconfig = "{account}"', more=SECTIONS)
        agent.start()
        await wait(agent, "the node is ready", cluster.is_node_ready)
        await wait(agent, "the lock is held", lambda: bool(manager.locks))
        for executed, end in enumerate(("cancelled", "restarted"), 1):
            manager.request_shutdown()
            await manager.until(partial(has_executed, manager, executed))
            node = cluster.node_object()
            assert node["spec"]["unschedulable"] is True
            assert node["metadata"]["annotations"][CORDONED_ANNOTATION] == "shutdown"
            assert not cluster.is_node_ready()
            if end == "restarted":
                agent.stop()
            manager.cancel_shutdown()
            if end == "restarted":
                agent.start()
            await wait(agent, "the node is uncordoned", lambda: "unschedulable" not in cluster.node_object()["spec"])
            await wait(agent, "the node is ready again", cluster.is_node_ready)
            assert CORDONED_ANNOTATION not in cluster.node_object()["metadata"]["annotations"]
            await wait(agent, "the lock is held again", lambda: bool(manager.locks))
    assert agent.events("shutdown_not_announced", "pass_crashed") == []


def has_executed(manager: login1.Login1, number: int) -> bool:
    return manager.executed == number


def is_listed(agent: ClusterAgent) -> bool:
    """Return whether the agent's watch of pods is connected and its list is up to date."""
    lists = json.loads(agent.command("status", "--output", "json"))["pod_lists"]
    return any(each["source"] == "API server" and not each["problem"] for each in lists)
