"""The agent beside a real kubelet: detection, garbage collection of both, conditions, evictions and logs of pods."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import images
from tests.support.cluster import EVENTS, PODS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster import Cluster, Document

IMAGE = "registry.test/app:v1"
CHURNED = tuple(f"registry.test/churn:v{number}" for number in range(8))
CHURN_S = 180.0
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


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


def pod(name: str, script: str, *, image: str = IMAGE, **spec: Any) -> Document:
    container = {"name": "app", "image": image, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "hostNetwork": True, "terminationGracePeriodSeconds": 1, **spec},
    }


def create(cluster: Cluster, *pods: Document) -> None:
    for each in pods:
        cluster.request("POST", PODS, each)


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.get(f"{PODS}/{name}")["status"].get("phase"))


def has_ended(cluster: Cluster, name: str) -> bool:
    return phase(cluster, name) in ("Succeeded", "Failed")


def restarts(cluster: Cluster, name: str) -> int:
    return int(cluster.get(f"{PODS}/{name}")["status"]["containerStatuses"][0]["restartCount"])


def logs(cluster: Cluster, name: str) -> str:
    return cluster.text("GET", f"{PODS}/{name}/log")


def doctor(agent: ClusterAgent) -> dict[str, Document]:
    return {each["check"]: each for each in json.loads(agent.command("doctor", "--output", "json"))["findings"]}


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
    agent.configure(f'register_node = true\nkubeconfig = "{agent.service_account()}"', role="auto")
    agent.start()
    agent.wait("the refusal is logged", lambda: bool(agent.events("loop_disabled")))
    after = cluster.node_object()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == before["spec"]
    managers = {each["manager"] for each in after["metadata"]["managedFields"]}
    assert "nodeagent" not in managers


def test_conditions_are_applied_beside_those_of_the_kubelet_and_removed(cluster: Cluster, agent: ClusterAgent) -> None:
    kubeconfig = agent.service_account()
    agent.configure(f'publish_conditions = true\nkubeconfig = "{kubeconfig}"', role="auto")
    agent.start()
    agent.wait("the condition is present", lambda: bool(cluster.condition("nodeagent.dev/ImageGCDegraded")))
    assert cluster.condition("Ready")["reason"] == "KubeletReady"
    assert agent.events("api_request_failed") == []


def test_logs_and_restarts_of_pods_are_as_without_the_agent(cluster: Cluster, agent: ClusterAgent) -> None:
    agent.configure(
        f'watch_pods = true\nkubeconfig = "{agent.service_account()}"',
        role="auto",
        more='[container_gc]\ninterval = "1s"\nminimum_age = "0s"\nmax_per_pod_container = 0\nmax_containers = 0\n'
        'deleted_pod_grace = "0s"\nsandbox_minimum_age = "0s"\nlog_minimum_age = "0s"\n',
    )
    agent.start()
    create(
        cluster,
        pod("loop", "echo attempt $RANDOM; exit 1"),
        pod("job", "echo result; exit 0", restartPolicy="Never"),
        pod("web", "echo serving; trap 'exit 0' TERM; sleep 1000 & wait"),
    )
    agent.wait("the pod has restarted", lambda: restarts(cluster, "loop") >= 3, timeout_s=120)
    agent.wait("the job has ended", lambda: phase(cluster, "job") == "Succeeded")
    agent.wait("the pod runs", lambda: phase(cluster, "web") == "Running")
    passes = len(agent.events("pass_finished"))
    agent.wait("further passes", lambda: len(agent.events("pass_finished")) > passes + 6)
    assert "attempt" in logs(cluster, "loop"), "of the newest dead container; the kubelet removes the one before itself"
    assert logs(cluster, "job") == "result\n"
    assert logs(cluster, "web") == "serving\n"
    assert agent.events("pass_crashed") == []


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
    kubeconfig = agent.service_account("--publish-events", "--evict-pods")
    agent.configure(
        f'watch_pods = true\nevict_pods = true\npublish_events = true\nkubeconfig = "{kubeconfig}"',
        role="auto",
        more='[eviction]\nenabled = "on"\nhard = "nodefs.available<99%"\n',
    )
    agent.start()
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


def test_garbage_collection_with_the_thresholds_of_the_kubelet_fails_no_pod_during_churn(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    cluster.node.stop("kubelet")
    cluster.start_kubelet(
        imageMinimumGCAge="2s",
        imageGCHighThresholdPercent=2,
        imageGCLowThresholdPercent=1,
        containerLogMaxSize="1Mi",
    )
    agent.configure(
        f'watch_pods = true\nkubeconfig = "{agent.service_account()}"',
        role="auto",
        more='[image_gc]\ninterval = "2s"\nminimum_age = "2s"\nhigh_threshold_percent = 2\n'
        'low_threshold_percent = 1\n[container_gc]\ninterval = "2s"\ndeleted_pod_grace = "0s"\n'
        'sandbox_minimum_age = "0s"\nlog_minimum_age = "0s"\n',
    )
    agent.start()
    until, number = time.monotonic() + CHURN_S, 0
    failed: list[str] = []
    while time.monotonic() < until:
        image = CHURNED[number % len(CHURNED)]
        cluster.node.import_images([images.image(image, layers=[images.blob(image, 4 << 20, seed=number)])])
        name = f"churn-{number}"
        create(cluster, pod(name, "echo run; exit 0", image=image, restartPolicy="Never"))
        agent.wait(f"{name} has ended", partial(has_ended, cluster, name), 90)
        if phase(cluster, name) == "Failed":
            failed.append(name)
        if number % 2:
            cluster.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        number += 1
    assert failed == []
    assert agent.events("pass_crashed") == []
    removed = [each["id"] for each in agent.events("removal") if each.get("outcome") == "done"]
    assert removed
    assert len(removed) == len(set(removed)), "no item is removed twice"
