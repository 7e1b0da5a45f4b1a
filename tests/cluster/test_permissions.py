"""Permissions of the printed roles against the audit log of a real API server: each is used, and none is missing."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

import pytest

from tests.cluster.workloads import IMAGE, SETS, create, phase, pod
from tests.support import images
from tests.support.cluster import LEASE, NODES, PODS, STRATEGIC
from tests.support.cluster_node import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster import Cluster

ACCOUNT: Final = "nodeagent"
TAINTS: Final = "nodeagent.dev/image-gc-degraded:NoSchedule"
MISSED: Final = (
    '[image_gc]\ninterval = "2s"\nminimum_age = "24h"\nhigh_threshold_percent = 2\nlow_threshold_percent = 1\n'
)
"""Thresholds that no pass can meet, so that the condition is true."""
EVICTING: Final = '[eviction]\nenabled = "on"\nhard = "nodefs.available<99%"\n'
FAILED_AGE_S: Final = 70.0
"""Age of the failed pod, above the minimum of ``delete_failed_after``."""
BESIDE: Final = {
    "watch_pods": "watch_pods = true\n",
    "publish_conditions": "publish_conditions = true\n",
    "condition_taints": f'condition_taints = "{TAINTS}"\n',
    "publish_events": "publish_events = true\n",
    "evict_pods": "evict_pods = true\n",
    "delete_failed_after": 'delete_failed_after = "1m"\n',
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
    for path, options in ((SETS, {"propagationPolicy": "Orphan"}), (PODS, {"gracePeriodSeconds": 0})):
        for each in cluster.items(path):
            cluster.request("DELETE", f"{path}/{each['metadata']['name']}", options)


@pytest.mark.usefixtures("_kubelet")
@pytest.mark.parametrize(
    "settings",
    [
        ("watch_pods",),
        ("publish_conditions",),
        ("publish_conditions", "condition_taints"),
        tuple(BESIDE),
    ],
    ids="+".join,
)
def test_agent_beside_a_kubelet_uses_exactly_the_permissions_of_its_settings(
    cluster: Cluster, agent: ClusterAgent, settings: tuple[str, ...]
) -> None:
    evicts = "evict_pods" in settings
    if evicts:
        fail_a_pod(cluster, agent)
        create(cluster, pod("large", "dd if=/dev/zero of=/tmp/data bs=1M count=64; sleep 1000"))
        agent.wait("the pod runs", lambda: phase(cluster, "large") == "Running")
    since = len(cluster.audit())
    kubeconfig = agent.service_account(*settings)
    kubernetes = "".join(BESIDE[each] for each in settings)
    agent.configure(f'{kubernetes}kubeconfig = "{kubeconfig}"', role="auto", more=MISSED + (EVICTING if evicts else ""))
    agent.start()
    agent.wait("each permission is used", lambda: complete(agent, since), timeout_s=400)
    assert agent.events("api_request_failed", "pass_crashed") == []


def fail_a_pod(cluster: Cluster, agent: ClusterAgent) -> None:
    """Let the kubelet evict a pod of a ReplicaSet; wait until the failed pod is old enough for its deletion."""
    template = pod("web", "dd if=/dev/zero of=/data/file bs=1M count=8; sleep 1000")
    template["spec"]["volumes"] = [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    cluster.request("POST", SETS, {"metadata": {"name": "web"}, "spec": spec})
    agent.wait("the pod is evicted", lambda: "Evicted" in reasons(cluster), timeout_s=120)
    cluster.request("PATCH", f"{SETS}/web", {"spec": {"replicas": 0}}, content_type=STRATEGIC)
    evicted = monotonic()
    agent.wait("the pod is old enough", lambda: monotonic() - evicted > FAILED_AGE_S, timeout_s=2 * FAILED_AGE_S)
    assert "Evicted" in reasons(cluster)


def reasons(cluster: Cluster) -> set[str]:
    """Return the reasons in the statuses of the pods."""
    return {each["status"].get("reason", "") for each in cluster.items(PODS)}
