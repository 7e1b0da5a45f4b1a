"""Tests of the agent beside a real kubelet: detection, both garbage collections, conditions and evictions."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.cluster.workloads import BUDGETS, IMAGE, SETS, create, has_ended, phase, pod
from tests.support import images
from tests.support.cluster import EVENTS, NODES, PODS, STRATEGIC
from tests.support.cluster_node import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster import Cluster, Document

CHURNED = tuple(f"registry.test/churn:v{number}" for number in range(8))
OTHER = "node-2"
PODS_PER_PROBLEM = 5
ENDED_PODS = 8
"""Every second pod is deleted after this number of further pods; an even number."""
KUBELET_INTERVAL_S = 300.0
"""Interval of the kubelet's image garbage collection. Source: kubelet ``ImageGCPeriod``."""
REMOVAL_ERROR = "Failed to remove image"
CHURN_S = 60.0 * float(os.environ.get("NODEAGENT_TEST_MINUTES", "3"))


@pytest.fixture(scope="module", autouse=True)
def _kubelet(cluster: Cluster) -> None:
    cluster.start_controllers()
    cluster.node.import_images([images.image(IMAGE)])
    cluster.start_kubelet(containerLogMaxSize="1Mi", imageMinimumGCAge="2s")


@pytest.fixture(autouse=True)
def _without_pods(cluster: Cluster) -> Iterator[None]:
    yield
    for each in cluster.items(PODS):
        cluster.request("DELETE", f"{PODS}/{each['metadata']['name']}", {"gracePeriodSeconds": 0})


def doctor(agent: ClusterAgent) -> dict[str, Document]:
    return {each["check"]: each for each in json.loads(agent.command("doctor", "--output", "json"))["findings"]}


def start_evicting(agent: ClusterAgent) -> None:
    """Start the agent with evictions through the API server and a met threshold of nodefs."""
    kubeconfig = agent.service_account("watch_pods", "evict_pods", "publish_events")
    agent.configure(
        f'watch_pods = true\nevict_pods = true\npublish_events = true\nkubeconfig = "{kubeconfig}"',
        role="auto",
        more='[eviction]\nenabled = "on"\nhard = "nodefs.available<99%"\n',
    )
    agent.start()


@pytest.mark.usefixtures("cluster")
def test_kubelet_is_detected_and_its_configuration_reported(agent: ClusterAgent) -> None:
    agent.configure("", role="auto")
    agent.start()
    agent.wait("passes run", lambda: bool(agent.events("pass_finished")))
    status = json.loads(agent.command("status", "--output", "json"))
    assert "beside-kubelet" in json.dumps(status)
    findings = doctor(agent)
    assert findings["kubelet-config"]["verdict"] == "ok", findings["kubelet-config"]
    assert "/var/lib/kubelet/config.yaml" in json.dumps(findings["kubelet-config"])
    assert findings["sandbox-image"]["verdict"] == "warning", findings["sandbox-image"]


def test_registration_is_refused_and_the_kubelets_object_unchanged(cluster: Cluster, agent: ClusterAgent) -> None:
    before = cluster.node_object()
    agent.configure(f'register_node = true\nkubeconfig = "{agent.service_account("register_node")}"', role="auto")
    agent.start()
    agent.wait("the refusal is logged", lambda: bool(agent.events("loop_disabled")))
    after = cluster.node_object()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == before["spec"]
    managers = {each["manager"] for each in after["metadata"]["managedFields"]}
    assert "nodeagent" not in managers


def test_conditions_are_applied_beside_those_of_the_kubelet_and_removed(cluster: Cluster, agent: ClusterAgent) -> None:
    kubeconfig = agent.service_account("publish_conditions")
    agent.configure(f'publish_conditions = true\nkubeconfig = "{kubeconfig}"', role="auto")
    agent.start()
    agent.wait("the condition is present", lambda: bool(cluster.condition("nodeagent.dev/ImageGCDegraded")))
    assert cluster.condition("Ready")["reason"] == "KubeletReady"
    assert agent.events("api_request_failed") == []
    agent.stop()
    before = cluster.node_object()["status"]
    agent.withdraw()
    after = cluster.node_object()["status"]
    assert [each["type"] for each in after["conditions"]] == [
        each["type"] for each in before["conditions"] if not each["type"].startswith("nodeagent.dev/")
    ]
    for field in ("addresses", "capacity", "nodeInfo"):
        assert after[field] == before[field]


def test_eviction_through_the_api_respects_a_budget(cluster: Cluster, agent: ClusterAgent) -> None:
    create(cluster, pod("kept", "dd if=/dev/zero of=/tmp/data bs=1M count=64; sleep 1000"))
    agent.wait("the pod runs", lambda: phase(cluster, "kept") == "Running")
    budget = {
        "metadata": {"name": "kept"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }
    cluster.request("POST", BUDGETS, budget)
    agent.wait(
        "the budget is processed",
        lambda: cluster.get(f"{BUDGETS}/kept")["status"].get("currentHealthy") == 1,
    )
    start_evicting(agent)
    agent.wait(
        "the refusal is logged",
        lambda: any("kept" in json.dumps(each) for each in agent.events("eviction_failed")),
        timeout_s=180,
    )
    assert phase(cluster, "kept") == "Running"
    assert "deletionTimestamp" not in cluster.get(f"{PODS}/kept")["metadata"]
    cluster.request("DELETE", f"{BUDGETS}/kept")
    agent.wait("the pod is evicted", lambda: bool(agent.events("evicted")), timeout_s=400)
    agent.wait("its Event exists", lambda: any(each["reason"] == "Evicted" for each in cluster.items(EVENTS)))


def test_evicted_pod_is_replaced_on_another_node_and_its_budget_respected(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    cluster.node.import_images([images.image(IMAGE)])
    template = pod("web", "dd if=/dev/zero of=/tmp/data bs=1M count=32; sleep 1000")
    selector = {"matchLabels": {"app": "web"}}
    cluster.request(
        "POST", SETS, {"metadata": {"name": "web"}, "spec": {"replicas": 2, "selector": selector, "template": template}}
    )
    agent.wait("both pods run", lambda: [each["status"]["phase"] for each in cluster.items(PODS)] == ["Running"] * 2)
    cluster.request("POST", BUDGETS, {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": selector}})
    agent.wait("a disruption is permitted", lambda: allowed(cluster) == 1)
    cluster.request("PATCH", f"{NODES}/{NAME}", {"spec": {"unschedulable": True}}, content_type=STRATEGIC)
    add_node(cluster)
    start_evicting(agent)

    def replaced() -> bool:
        beat(cluster)
        return any(each["spec"].get("nodeName") == OTHER for each in cluster.items(PODS))

    try:
        agent.wait("the replacement is bound elsewhere", replaced, timeout_s=180)
        agent.wait("another eviction is refused", lambda: bool(agent.events("eviction_failed")), timeout_s=180)
        remaining = [each for each in cluster.items(PODS) if each["spec"].get("nodeName") == NAME]
        assert [each["metadata"].get("deletionTimestamp") for each in remaining] == [None]
        assert [each["status"]["phase"] for each in remaining] == ["Running"]
        assert [each["code"] for each in evictions(cluster)].count(201) == 1
        assert len(agent.events("evicted")) == 1
    finally:
        agent.stop()
        cluster.request("DELETE", f"{SETS}/web", {"propagationPolicy": "Background"})
        cluster.request("DELETE", f"{BUDGETS}/web")
        cluster.request("DELETE", f"{NODES}/{OTHER}")
        cluster.request("PATCH", f"{NODES}/{NAME}", {"spec": {"unschedulable": None}}, content_type=STRATEGIC)


def evictions(cluster: Cluster) -> list[Document]:
    """Return the API server's responses to evictions of the ReplicaSet's pods, from the audit log."""
    targets = [(each.get("objectRef", {}), each["responseStatus"]) for each in cluster.audit()]
    return [
        answer
        for target, answer in targets
        if target.get("subresource") == "eviction" and target["name"].startswith("web-")
    ]


def allowed(cluster: Cluster) -> int:
    return int(cluster.get(f"{BUDGETS}/web")["status"].get("disruptionsAllowed", 0))


def add_node(cluster: Cluster) -> None:
    """Add a second node object, to which pods are bound but on which no pod is started."""
    cluster.request("POST", NODES, {"metadata": {"name": OTHER, "labels": {"kubernetes.io/hostname": OTHER}}})
    beat(cluster)


def beat(cluster: Cluster) -> None:
    """Set the status of the second node to ready."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
    capacity = {"cpu": "4", "memory": "4Gi", "pods": "10"}
    status = {"conditions": [ready], "capacity": capacity, "allocatable": capacity}
    cluster.request("PATCH", f"{NODES}/{OTHER}/status", {"status": status}, content_type=STRATEGIC)


def test_sandbox_image_is_labelled_by_the_fix_and_kept_by_the_kubelet_if_reported_as_pinned(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    agent.configure("", role="auto")
    before = doctor(agent)["sandbox-image"]
    assert before["verdict"] == "warning"
    agent.command("doctor", "--fix-pin")
    labels = cluster.node.run("ctr", "-n", "k8s.io", "images", "ls", f"name=={images.PAUSE}")
    assert "io.cri-containerd.pinned=pinned" in labels
    with cluster.node.pods() as runtime:
        (found,) = [each for each in runtime.list_images() if images.PAUSE in each.tags]
    assert doctor(agent)["sandbox-image"]["verdict"] == ("ok" if found.pinned else "warning")


@pytest.mark.campaign
def test_garbage_collection_with_the_thresholds_of_the_kubelet_fails_no_pod_during_churn(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    cluster.node.stop("kubelet")
    cluster.start_kubelet(
        imageMinimumGCAge="2s",
        imageGCHighThresholdPercent=25,
        imageGCLowThresholdPercent=20,
        containerLogMaxSize="1Mi",
    )
    # The kubelet removes only images that it listed in an earlier pass. After a pass of the agent between two passes of
    # the kubelet, some of these are left.
    agent.configure(
        f'watch_pods = true\nkubeconfig = "{agent.service_account("watch_pods")}"',
        role="auto",
        more='[image_gc]\ninterval = "5m30s"\nminimum_age = "2s"\nhigh_threshold_percent = 25\n'
        'low_threshold_percent = 20\n[container_gc]\ninterval = "2s"\ndeleted_pod_grace = "0s"\n'
        'sandbox_minimum_age = "0s"\nlog_minimum_age = "0s"\n',
    )
    agent.start()
    # the kubelet removes an unused sandbox image that is not pinned, as with containerd 1.6
    user = {"name": "app", "image": images.PAUSE, "imagePullPolicy": "Never"}
    create(cluster, pod("pause", "", containers=[user]))
    agent.wait("the sandbox image is in use", lambda: phase(cluster, "pause") == "Running")
    until, number = time.monotonic() + CHURN_S, 0
    failed: list[str] = []
    while time.monotonic() < until:
        image = CHURNED[number % len(CHURNED)]
        cluster.node.import_images([images.image(image, layers=[images.blob(image, 2 << 20, seed=number)])])
        name = f"churn-{number}"
        create(cluster, pod(name, "echo run; exit 0", image=image, restartPolicy="Never"))
        agent.wait(f"{name} has ended", partial(has_ended, cluster, name), 90)
        if phase(cluster, name) == "Failed":
            failed.append(name)
        if number % 2:
            cluster.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        elif number >= ENDED_PODS:  # the image of an existing pod is in use: without a limit, the disk becomes full
            cluster.request("DELETE", f"{PODS}/churn-{number - ENDED_PODS}")
        number += 1
    assert failed == []
    assert agent.events("pass_crashed") == []
    removed = [each["id"] for each in agent.events("removal") if each.get("outcome") == "done"]
    assert removed
    assert len(removed) == len(set(removed)), "no item is removed twice"
    by_kubelet = re.findall(r'Removing image to free bytes" imageID="(sha256:[0-9a-f]+)"', kubelet_log(cluster))
    assert set(by_kubelet).isdisjoint(removed), "no image is removed by both"
    assert by_kubelet or CHURN_S < 2 * KUBELET_INTERVAL_S
    problems = [each for each in agent.events() if each.get("level") in ("warning", "error")]
    assert len(problems) <= number // PODS_PER_PROBLEM, problems
    assert REMOVAL_ERROR not in kubelet_log(cluster)
    print(f"{number} pods; images removed: {len(set(by_kubelet))} by the kubelet, {len(removed)} items by the agent")


def kubelet_log(cluster: Cluster) -> str:
    return cluster.node.parts["kubelet"].log.read_text()
