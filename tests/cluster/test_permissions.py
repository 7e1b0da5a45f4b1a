"""Permissions of the printed roles against the audit log of a real API server: each is used, and none is missing."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

import pytest

from tests.cluster.workloads import BUDGETS, IMAGE, SETS, create, phase, pod
from tests.support import images
from tests.support.cluster import LEASE, NODES, PODS, STRATEGIC
from tests.support.cluster_node import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster import Cluster, Document

ACCOUNT: Final = "nodeagent"
TAINTS: Final = "nodeagent.dev/image-gc-degraded:NoSchedule"
MISSED: Final = (
    '[image_gc]\ninterval = "2s"\nminimum_age = "24h"\nhigh_threshold_percent = 2\nlow_threshold_percent = 1\n'
)
"""Thresholds that no pass can meet, so that the condition is true."""
FILLS: Final = "dd if=/dev/zero of=/tmp/data bs=1M count=64"
EVICTING: Final = '[eviction]\nenabled = "on"\nhard = "nodefs.available<99%"\n'
FAILED_AGE_S: Final = 70.0
"""Age of the failed pod, above the minimum of ``delete_failed_after``."""
BESIDE: Final = {
    "watch_pods": "watch_pods = true\n",
    "publish_conditions": "publish_conditions = true\n",
    "condition_taints": f'condition_taints = "{TAINTS}"\n',
    "publish_events": "publish_events = true\n",
    "evict_pods": "evict_pods = true\n",
    "override_disruption_budgets": "override_disruption_budgets = true\n",
    "delete_failed_after": 'delete_failed_after = "1m"\n',
}
ALONE: Final = {
    **{name: line for name, line in BESIDE.items() if name not in ("evict_pods", "override_disruption_budgets")},
    "register_node": "register_node = true\nno_kubelet_taint = false\n",  # the taint deletes the pods of the node
    "publish_pod_status": "publish_pod_status = true\n",
}


def complete(agent: ClusterAgent, since: int) -> bool:
    """Return whether each granted permission was used; fail if a request was refused for a missing one."""
    used = agent.used(ACCOUNT, since)
    assert not {each for each, codes in used.items() if 403 in codes}
    return agent.granted <= used.keys()


def test_registered_node_uses_exactly_the_permissions_of_a_registration(cluster: Cluster, agent: ClusterAgent) -> None:
    since = len(cluster.audit())
    kubeconfig = agent.service_account("register_node")
    agent.configure(f'register_node = true\nkubeconfig = "{kubeconfig}"', more=EVICTING)
    agent.start()
    agent.wait("the node is ready", cluster.is_node_ready)
    agent.wait("the Lease exists", lambda: cluster.exists(LEASE))
    agent.stop()
    cluster.request("PATCH", f"{NODES}/{NAME}", {"spec": {"taints": []}}, content_type=STRATEGIC)
    agent.start()  # sets the missing taints
    agent.wait("each permission is used", lambda: complete(agent, since), timeout_s=120)
    agent.stop()
    for path in (LEASE, f"{NODES}/{NAME}"):
        cluster.request("DELETE", path)


@pytest.fixture
def _kubelet(cluster: Cluster) -> Iterator[None]:
    if "kubelet" not in cluster.node.parts:
        cluster.start_controllers()
        cluster.node.import_images([images.image(IMAGE)])
        cluster.node.run("dd", "if=/dev/zero", "of=/var/lib/kubelet/filler", "bs=1M", "count=64")
        cluster.start_kubelet()
    yield
    cluster.request("PATCH", f"{NODES}/{NAME}", {"spec": {"taints": []}}, content_type=STRATEGIC)
    for path, options in ((BUDGETS, {}), (SETS, {"propagationPolicy": "Orphan"}), (PODS, {"gracePeriodSeconds": 0})):
        for each in cluster.items(path):
            cluster.request("DELETE", f"{path}/{each['metadata']['name']}", options)


@pytest.mark.usefixtures("_kubelet")
@pytest.mark.parametrize(
    "settings",
    [
        ("watch_pods",),
        ("publish_conditions",),
        ("publish_conditions", "condition_taints"),
        ("publish_events",),
        ("watch_pods", "evict_pods"),
        ("watch_pods", "evict_pods", "override_disruption_budgets"),
        ("delete_failed_after",),
        tuple(BESIDE),
    ],
    ids="+".join,
)
def test_agent_beside_a_kubelet_uses_exactly_the_permissions_of_its_settings(
    cluster: Cluster, agent: ClusterAgent, settings: tuple[str, ...]
) -> None:
    evicts = "evict_pods" in settings
    if "delete_failed_after" in settings:
        fail_a_pod(cluster, agent)
    if evicts:
        create(cluster, pod("large", f"{FILLS}; sleep 1000"))
        agent.wait("the pod runs", lambda: phase(cluster, "large") == "Running")
    if "override_disruption_budgets" in settings:
        protect(cluster, agent, "large")
    since = len(cluster.audit())
    kubeconfig = agent.service_account(*settings)
    kubernetes = "".join(BESIDE[each] for each in settings)
    agent.configure(f'{kubernetes}kubeconfig = "{kubeconfig}"', role="auto", more=MISSED + (EVICTING if evicts else ""))
    agent.start()
    agent.wait("each permission is used", lambda: complete(agent, since), timeout_s=400)
    assert agent.events("api_request_failed", "pass_crashed") == []


@pytest.mark.usefixtures("_kubelet")
def test_registered_node_with_all_settings_reports_an_evicted_pod_and_uses_exactly_their_permissions(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    create_set(cluster, pod("web", f"{FILLS}; sleep 1000"))
    agent.wait("the pod runs", lambda: [each["status"]["phase"] for each in cluster.items(PODS)] == ["Running"])
    (web,) = cluster.items(PODS)
    cluster.node.stop("kubelet")
    for path in (LEASE, f"{NODES}/{NAME}"):
        if cluster.exists(path):
            cluster.request("DELETE", path)
    since = len(cluster.audit())
    kubeconfig = agent.service_account(*ALONE)
    agent.configure(f'{"".join(ALONE.values())}kubeconfig = "{kubeconfig}"', more=MISSED + EVICTING)
    agent.start()
    agent.wait("the pod is reported as evicted", lambda: "Evicted" in reasons(cluster), timeout_s=180)
    evicted = monotonic()
    found = cluster.get(f"{PODS}/{web['metadata']['name']}")
    assert (found["metadata"]["uid"], found["status"]["phase"]) == (web["metadata"]["uid"], "Failed")
    assert found["status"]["message"].startswith("The node was low on resource: ephemeral-storage")
    conditions = {each["type"]: (each["status"], each.get("reason")) for each in found["status"]["conditions"]}
    assert conditions["DisruptionTarget"] == ("True", "TerminationByNodeagent")
    assert conditions["Ready"] == ("False", "PodFailed")
    agent.wait("the controller has created another pod", lambda: len(cluster.items(PODS)) > 1)
    cluster.request("PATCH", f"{SETS}/web", {"spec": {"replicas": 0}}, content_type=STRATEGIC)
    agent.wait("the pod is old enough", lambda: monotonic() - evicted > FAILED_AGE_S, timeout_s=2 * FAILED_AGE_S)
    agent.stop()
    agent.start()  # lists the failed pods at its start
    agent.wait("each permission is used", lambda: complete(agent, since), timeout_s=120)
    assert agent.events("api_request_failed", "pass_crashed") == []


def create_set(cluster: Cluster, template: Document) -> None:
    """Create a ReplicaSet with one pod."""
    name, selector = template["metadata"]["name"], {"matchLabels": template["metadata"]["labels"]}
    spec = {"replicas": 1, "selector": selector, "template": template}
    cluster.request("POST", SETS, {"metadata": {"name": name}, "spec": spec})


def protect(cluster: Cluster, agent: ClusterAgent, name: str) -> None:
    """Create a disruption budget that permits no eviction of a pod."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}}
    cluster.request("POST", BUDGETS, {"metadata": {"name": name}, "spec": spec})
    agent.wait(
        "the budget is processed",
        lambda: cluster.get(f"{BUDGETS}/{name}")["status"].get("currentHealthy") == 1,
    )


def fail_a_pod(cluster: Cluster, agent: ClusterAgent) -> None:
    """Let the kubelet evict a pod of a ReplicaSet; wait until the failed pod is old enough for its deletion."""
    template = pod("web", "dd if=/dev/zero of=/data/file bs=1M count=8; sleep 1000")
    template["spec"]["volumes"] = [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    create_set(cluster, template)
    agent.wait("the pod is evicted", lambda: "Evicted" in reasons(cluster), timeout_s=120)
    cluster.request("PATCH", f"{SETS}/web", {"spec": {"replicas": 0}}, content_type=STRATEGIC)
    evicted = monotonic()
    agent.wait("the pod is old enough", lambda: monotonic() - evicted > FAILED_AGE_S, timeout_s=2 * FAILED_AGE_S)
    assert "Evicted" in reasons(cluster)


def reasons(cluster: Cluster) -> set[str]:
    """Return the reasons in the statuses of the pods."""
    return {each["status"].get("reason", "") for each in cluster.items(PODS)}
