"""Tests of a node without a kubelet in a real cluster: registration, heartbeats, node status at the API server."""

from __future__ import annotations

import json
import os
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import images, reclaim
from tests.support.cluster import LEASE, NODES, PODS
from tests.support.cluster_node import NAME

if TYPE_CHECKING:
    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster import Cluster, Document

IMAGE = "registry.test/app:v1"
NO_KUBELET = "nodeagent.dev/no-kubelet"
LEASE_RENEWALS = 6 * int(os.environ.get("NODEAGENT_TEST_MINUTES", "1"))
OUTAGE_PASSES = 20
CREDENTIAL = "authentication.kubernetes.io/credential-id"


@pytest.fixture(autouse=True)
def _without_node(cluster: Cluster) -> None:
    for path in (f"{NODES}/{NAME}", LEASE):
        if cluster.exists(path):
            cluster.request("DELETE", path)


def pod(name: str, **spec: Any) -> Document:
    container = {"name": "app", "image": IMAGE, "command": ["sleep", "1000"]}
    defaults = {"containers": [container], "hostNetwork": True, "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**defaults, **spec}}


def registered(cluster: Cluster, agent: ClusterAgent, kubeconfig: str) -> Document:
    agent.configure(f'register_node = true\nkubeconfig = "{kubeconfig}"')
    agent.start()
    agent.wait("the node is ready", cluster.is_node_ready)
    agent.wait("the Lease exists", lambda: cluster.exists(LEASE))
    return cluster.node_object()


@pytest.mark.parametrize("identity", ["service account", "node certificate"])
def test_registration_creates_a_ready_node_that_is_cordoned_and_tainted(
    cluster: Cluster, agent: ClusterAgent, identity: str
) -> None:
    by_account = identity == "service account"
    kubeconfig = agent.service_account("register_node") if by_account else str(cluster.kubeconfig("node"))
    node = registered(cluster, agent, kubeconfig)
    assert node["spec"]["unschedulable"] is True
    taints = {(each["key"], each["effect"]) for each in node["spec"]["taints"]}
    assert {(NO_KUBELET, "NoSchedule"), (NO_KUBELET, "NoExecute")} <= taints
    assert {"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} == {
        each["type"] for each in node["status"]["conditions"]
    }
    assert node["status"]["capacity"]["pods"] == "0"
    lease = cluster.get(LEASE)
    assert lease["spec"]["holderIdentity"] == NAME
    assert lease["spec"]["leaseDurationSeconds"] == 40
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    assert agent.events("api_request_failed", "node_not_registered", "pass_crashed") == []
    findings = {each["check"]: each for each in json.loads(agent.command("doctor", "--output", "json"))["findings"]}
    assert findings["kubernetes"]["verdict"] == "ok", findings["kubernetes"]


def test_described_node_equals_the_stored_one(cluster: Cluster, agent: ClusterAgent) -> None:
    node = registered(cluster, agent, agent.service_account("register_node"))
    printed = json.loads(agent.command("node", "describe", "-o", "json"))
    assert printed["spec"]["unschedulable"] is True
    assert {each["key"] for each in printed["spec"]["taints"]} == {each["key"] for each in node["spec"]["taints"]}
    stored, described = node["status"], printed["status"]
    for field in ("addresses", "capacity", "nodeInfo"):
        assert stored[field] == described[field]


@pytest.mark.campaign
def test_lease_is_renewed_every_ten_seconds(cluster: Cluster, agent: ClusterAgent) -> None:
    registered(cluster, agent, agent.service_account("register_node"))

    def renewals() -> list[datetime]:
        return [
            datetime.fromisoformat(each["requestReceivedTimestamp"])
            for each in cluster.audit()
            if each["verb"] == "update"
            and each["objectRef"].get("resource") == "leases"
            and each.get("userAgent", "").startswith("nodeagent/")
        ]

    before = len(renewals())
    reclaim.poll(
        "Lease renewals",
        lambda: len(renewals()) >= before + LEASE_RENEWALS,
        timeout_s=15 * LEASE_RENEWALS,
        interval_s=0.5,
    )
    moments = renewals()[before:]
    intervals = [(b - a).total_seconds() for a, b in pairwise(moments)]
    print(f"{len(intervals)} Lease intervals: {min(intervals):.2f} to {max(intervals):.2f} s")
    assert all(9 <= each <= 12.4 for each in intervals), intervals


def test_garbage_collection_continues_without_the_api_server_and_the_status_converges(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    registered(cluster, agent, agent.service_account("register_node"))
    renewed = cluster.get(LEASE)["spec"]["renewTime"]
    cluster.node.stop("kube-apiserver", kill=True)
    passes = len(agent.events("pass_finished"))
    agent.wait("the failure is logged", lambda: bool(agent.events("api_request_failed")))
    agent.wait("passes continue", lambda: len(agent.events("pass_finished")) >= passes + OUTAGE_PASSES, timeout_s=120)
    cluster.restart_api_server()
    agent.wait("the Lease is renewed", lambda: cluster.get(LEASE)["spec"]["renewTime"] > renewed)
    agent.wait("the recovery is logged", lambda: bool(agent.events("api_request_recovered")))
    agent.wait("the node is ready", cluster.is_node_ready)
    assert agent.events("pass_crashed") == []


def test_renewed_client_certificate_is_used(cluster: Cluster, agent: ClusterAgent) -> None:
    subject = f"/O=system:nodes/CN=system:node:{NAME}"
    cluster.authority.issue("rotated", subject, days=30)
    registered(cluster, agent, str(cluster.kubeconfig("rotated")))

    def used() -> set[str]:
        found = [each["user"] for each in cluster.audit() if each.get("userAgent", "").startswith("nodeagent/")]
        return {key for each in found for key in each.get("extra", {}).get(CREDENTIAL, ()) if key.startswith("X509")}

    before = used()
    cluster.authority.issue("rotated", subject, days=60)
    agent.wait("the new certificate is used", lambda: len(used()) > len(before), timeout_s=90)
    renewed = cluster.get(LEASE)["spec"]["renewTime"]
    agent.wait("the Lease is renewed", lambda: cluster.get(LEASE)["spec"]["renewTime"] > renewed)
    assert agent.events("node_heartbeat_ended", "pass_crashed") == []


def test_missing_rule_of_a_node_certificate_is_logged_once(cluster: Cluster, agent: ClusterAgent) -> None:
    cluster.request("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})
    agent.configure(f'register_node = true\nkubeconfig = "{cluster.kubeconfig("node")}"')
    agent.start()
    agent.wait("the refusal is logged", lambda: bool(agent.events("api_request_failed")), timeout_s=90)
    (warning,) = agent.events("api_request_failed")
    assert warning["part"] == "registration"
    assert "403" in warning["error"]
    assert "taints" in warning["error"]


def test_pod_is_neither_scheduled_to_the_node_nor_kept_when_bound(cluster: Cluster, agent: ClusterAgent) -> None:
    cluster.node.import_images([images.image(IMAGE)])
    cluster.start_controllers()
    registered(cluster, agent, agent.service_account("register_node"))
    tolerant = pod("tolerant", tolerations=[{"operator": "Exists"}])
    for made in (pod("plain"), tolerant, pod("bound", nodeName=NAME)):
        cluster.request("POST", PODS, made)
    agent.wait(
        "the bound pod is deleted",
        lambda: not cluster.exists(f"{PODS}/bound") or "deletionTimestamp" in cluster.get(f"{PODS}/bound")["metadata"],
        timeout_s=60,
    )
    for name in ("plain", "tolerant"):
        (scheduled,) = [
            each for each in cluster.get(f"{PODS}/{name}")["status"]["conditions"] if each["type"] == "PodScheduled"
        ]
        assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
