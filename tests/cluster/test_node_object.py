"""The Node object of a registered node: deletion, contents, changes at run time, cordon, unclean stop."""

from __future__ import annotations

import asyncio
import json
import uuid
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from nodeagent.cluster.plan.registration import CORDONED_ANNOTATION, UNCLEAN_STOP_ANNOTATION
from nodeagent.units import parse_quantity
from tests.cluster.logind import logind
from tests.support import images
from tests.support.cluster import EVENTS, LEASE, NODES, STRATEGIC
from tests.support.cluster_node import ADDRESS, NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster import Cluster, Document

IMAGE: Final = "registry.test/later:v1"
GPU: Final = "example.com/gpu"
DELAYS_S: Final = (10.0, 20.0)
"""Delays of a registration after the first and the second deletion of the Node object."""
PASSES: Final = 30
"""Number of passes of two loops with an interval of 2 s, about 30 s."""
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


@pytest.fixture(scope="module", autouse=True)
def _controllers(cluster: Cluster) -> None:
    cluster.start_controllers()


@pytest.fixture(autouse=True)
def _without_node(cluster: Cluster, agent: ClusterAgent) -> Iterator[None]:
    since = len(cluster.audit())
    yield
    agent.stop()
    assert not [each for each, codes in agent.used("nodeagent", since).items() if 403 in codes]
    cluster.request("DELETE", f"{NODES}/{NAME}")
    agent.wait("the Lease is collected", lambda: not cluster.exists(LEASE))


def register(cluster: Cluster, agent: ClusterAgent, *lines: str, mode: str = "true", more: str = "") -> Document:
    """Start the agent with these lines of the section; return the registered object."""
    agent.configure("\n".join((f"register_node = {mode}", f'kubeconfig = "{account(agent)}"', *lines)), more=more)
    agent.start()
    agent.wait("the node is ready", cluster.is_node_ready)
    agent.wait("the Lease exists", lambda: cluster.exists(LEASE))
    return cluster.node_object()


def account(agent: ClusterAgent) -> str:
    return agent.service_account("register_node")


def wait_for_passes(agent: ClusterAgent) -> None:
    until = len(agent.events("pass_finished")) + PASSES
    agent.wait("passes run", lambda: len(agent.events("pass_finished")) >= until, timeout_s=120)


def created(cluster: Cluster, since: int, resource: str) -> list[datetime]:
    """Return the times at which the agent created objects of a resource, from the audit log."""
    return [
        datetime.fromisoformat(each["requestReceivedTimestamp"])
        for each in cluster.audit()[since:]
        if each["verb"] == "create"
        and each["objectRef"]["resource"] == resource
        and each.get("userAgent", "").startswith("nodeagent/")
    ]


def task(agent: ClusterAgent) -> Document:
    """Return the status of the registration task."""
    loops = json.loads(agent.command("status", "--output", "json"))["loops"]
    (found,) = [each for each in loops if each["name"] == "kubernetes"]
    return dict(found)


def delete_and_wait(cluster: Cluster, agent: ClusterAgent) -> None:
    """Delete the Node object, and wait until the agent has noticed."""
    ended = len(agent.events("node_heartbeat_ended"))
    cluster.request("DELETE", f"{NODES}/{NAME}")
    agent.wait("the deletion is noticed", lambda: len(agent.events("node_heartbeat_ended")) > ended, timeout_s=30)


def test_deleted_node_object_ends_the_heartbeats_until_a_restart(cluster: Cluster, agent: ClusterAgent) -> None:
    uid = register(cluster, agent)["metadata"]["uid"]
    since = len(cluster.audit())
    delete_and_wait(cluster, agent)
    agent.wait("the task is disabled", lambda: task(agent)["activity"] == "disabled")
    assert task(agent)["why"] == "the Node object was deleted; a restart or reload registers again"
    wait_for_passes(agent)
    assert [created(cluster, since, each) for each in ("nodes", "leases")] == [[], []]
    assert not cluster.exists(LEASE)
    agent.stop()
    agent.start()
    agent.wait("the node is registered again", cluster.is_node_ready)
    assert cluster.node_object()["metadata"]["uid"] != uid
    agent.wait("the Lease exists", lambda: cluster.exists(LEASE))


def test_deleted_node_object_is_created_again_after_doubled_delays_if_configured(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    register(cluster, agent, mode='"always"')
    since = len(cluster.audit())
    for count, delay_s in enumerate(DELAYS_S, 1):
        delete_and_wait(cluster, agent)
        agent.wait("the delay is reported", partial(is_due, agent, delay_s))
        assert len(created(cluster, since, "nodes")) == count - 1
        agent.wait("the node is registered again", cluster.is_node_ready)
        agent.wait("the Lease exists", lambda: cluster.exists(LEASE))
        assert [len(created(cluster, since, each)) for each in ("nodes", "leases")] == [count, count]
    (gap,) = [(b - a).total_seconds() for a, b in pairwise(created(cluster, since, "nodes"))]
    assert gap > DELAYS_S[-1]
    assert agent.events("pass_crashed") == []


def is_due(agent: ClusterAgent, delay_s: float) -> bool:
    """Return whether the status reports a registration after this delay."""
    return f"registering again after {delay_s:g} s" in task(agent)["why"]


def test_changes_at_run_time_are_reported_and_an_extended_resource_of_another_program_is_kept(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    labels = cluster.node.base / "labels"
    labels.write_text("topology.kubernetes.io/zone=eu-1\nexample.com/rack=r1\n")
    node = register(
        cluster,
        agent,
        'reserved = "cpu=200m,memory=512Mi,ephemeral-storage=64Mi"',
        "max_pods = 20",
        'labels = "topology.kubernetes.io/region=eu,topology.kubernetes.io/zone=other"',
        f'labels_file = "{labels}"',
        'addresses = "ExternalIP=203.0.113.7,InternalDNS=node-1.internal,ExternalDNS=node-1.example.com"',
    )
    assert (
        node["metadata"]["labels"].items()
        >= {
            "topology.kubernetes.io/region": "eu",
            "topology.kubernetes.io/zone": "eu-1",
            "example.com/rack": "r1",
        }.items()
    )
    assert addresses(node) == {
        ("InternalIP", ADDRESS),
        ("Hostname", NAME),
        ("ExternalIP", "203.0.113.7"),
        ("InternalDNS", "node-1.internal"),
        ("ExternalDNS", "node-1.example.com"),
    }
    reserved = {"cpu": "200m", "memory": "512Mi", "ephemeral-storage": "64Mi", "pods": "0"}
    for name, amount in reserved.items():
        capacity, allocatable = (parse_quantity(node["status"][each][name]) for each in ("capacity", "allocatable"))
        assert capacity - allocatable == parse_quantity(amount), name
    gpus = {"status": {"capacity": {GPU: "2"}, "allocatable": {GPU: "2"}}}
    cluster.request("PATCH", f"{NODES}/{NAME}/status?fieldManager=device-plugin", gpus, content_type=STRATEGIC)
    cluster.request(
        "PATCH", f"{NODES}/{NAME}", {"metadata": {"labels": {"example.com/owner": "ops"}}}, content_type=STRATEGIC
    )

    labels.write_text("topology.kubernetes.io/zone=eu-2\n")
    cluster.node.run("ip", "address", "add", "2001:db8::10/64", "dev", "eth0", "nodad")
    try:
        agent.wait(
            "the address is reported", lambda: ("InternalIP", "2001:db8::10") in addresses(cluster.node_object())
        )
    finally:
        cluster.node.run("ip", "address", "del", "2001:db8::10/64", "dev", "eth0")
    agent.wait("its removal is reported", lambda: addresses(cluster.node_object()) == addresses(node))
    cluster.node.import_images([images.image(IMAGE)])
    agent.wait("the image is reported", lambda: IMAGE in json.dumps(cluster.node_object()["status"]["images"]))
    agent.wait("the label is changed", lambda: "r1" not in cluster.node_object()["metadata"]["labels"].values())
    found = cluster.node_object()
    assert found["metadata"]["labels"]["topology.kubernetes.io/zone"] == "eu-2"
    assert found["metadata"]["labels"]["example.com/owner"] == "ops"
    assert [found["status"][each][GPU] for each in ("capacity", "allocatable")] == ["2", "2"]
    assert agent.events("api_request_failed", "pass_crashed") == []


def addresses(node: Document) -> set[tuple[str, str]]:
    return {(each["type"], each["address"]) for each in node["status"]["addresses"]}


def test_cordon_of_the_agent_is_ended_by_the_configuration_and_one_of_an_operator_is_kept(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    node = register(cluster, agent)
    assert node["metadata"]["annotations"][CORDONED_ANNOTATION] == "no-kubelet"
    agent.stop()
    register(cluster, agent, "unschedulable = false")
    agent.wait("the node is uncordoned", lambda: "unschedulable" not in cluster.node_object()["spec"])
    assert CORDONED_ANNOTATION not in cluster.node_object()["metadata"]["annotations"]
    cluster.request("PATCH", f"{NODES}/{NAME}", {"spec": {"unschedulable": True}}, content_type=STRATEGIC)
    agent.stop()
    register(cluster, agent, "unschedulable = false")
    wait_for_passes(agent)
    assert cluster.node_object()["spec"]["unschedulable"] is True
    assert agent.events("node_uncordoned") == []


async def test_unclean_stop_is_an_event_and_an_annotation_until_a_start_after_a_shutdown(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    def is_annotated() -> bool:
        return UNCLEAN_STOP_ANNOTATION in cluster.node_object()["metadata"]["annotations"]

    sections = '[shutdown]\nenabled = "on"\n'
    async with logind(cluster.node) as manager:
        await asyncio.to_thread(register, cluster, agent, more=sections)
        await asyncio.to_thread(agent.wait, "the lock is held", lambda: bool(manager.locks))
        assert not is_annotated()
        cluster.node.stop("agent", kill=True)
        new_boot(cluster)
        agent.start()
        await asyncio.to_thread(agent.wait, "the annotation is set", is_annotated)
        (event,) = [each for each in cluster.items(EVENTS) if each["reason"] == "UncleanStop"]
        assert (event["type"], event["regarding"]["name"]) == ("Warning", NAME)
        await asyncio.to_thread(agent.wait, "the lock is held again", lambda: bool(manager.locks))
        manager.request_shutdown()
        await manager.until(lambda: manager.executed == 1)
        await asyncio.to_thread(agent.wait, "it has finished", lambda: bool(agent.events("shutdown_finished")))
        assert is_annotated()
        cluster.node.stop("agent", kill=True)
        manager.cancel_shutdown()
        new_boot(cluster)
        agent.start()
        await asyncio.to_thread(agent.wait, "the annotation is removed", lambda: not is_annotated())
    assert agent.events("api_request_failed", "pass_crashed") == []


def new_boot(cluster: Cluster) -> None:
    """Give the node another boot id."""
    file = cluster.node.base / "boot-id"
    is_mounted = file.exists()
    file.write_text(f"{uuid.uuid4()}\n")
    if not is_mounted:
        cluster.node.run("mount", "--bind", str(file), BOOT_ID)
