"""Taints of the agent's conditions beside a real kubelet, with the real scheduler and NodeRestriction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.workloads import IMAGE, create, phase, pod
from tests.support import images
from tests.support.cluster import NODES, PODS, STRATEGIC
from tests.support.cluster_node import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster import Cluster, Document

KEY = "nodeagent.dev/image-gc-degraded"
OWN = {"key": KEY, "effect": "NoSchedule"}
TYPE = "nodeagent.dev/ImageGCDegraded"
FOREIGN = [
    {"key": "example.com/gpu", "value": "yes", "effect": "PreferNoSchedule"},
    {"key": KEY, "value": "by-hand", "effect": "PreferNoSchedule"},
]
LATER = {"key": "example.com/later", "effect": "PreferNoSchedule"}
SETTINGS = f'publish_conditions = true\ncondition_taints = "{KEY}:NoSchedule"\n'
USED = ("publish_conditions", "condition_taints")
MISSED = '[image_gc]\ninterval = "2s"\nminimum_age = "24h"\nhigh_threshold_percent = 2\nlow_threshold_percent = 1\n'
"""Thresholds that no pass can meet, so that every pass ends with a shortfall."""


@pytest.fixture(scope="module", autouse=True)
def _kubelet(cluster: Cluster) -> None:
    cluster.start_controllers()
    cluster.node.import_images([images.image(IMAGE)])
    cluster.node.run("dd", "if=/dev/zero", "of=/var/lib/kubelet/filler", "bs=1M", "count=64")  # 6% of the disk
    cluster.start_kubelet()


@pytest.fixture(autouse=True)
def _restored(cluster: Cluster, agent: ClusterAgent) -> Iterator[None]:
    set_taints(cluster, FOREIGN)
    yield
    agent.stop()
    set_taints(cluster, [])
    for each in cluster.items(PODS):
        cluster.request("DELETE", f"{PODS}/{each['metadata']['name']}", {"gracePeriodSeconds": 0})


def set_taints(cluster: Cluster, taints: list[Document]) -> None:
    cluster.request("PATCH", f"{NODES}/{NAME}", {"spec": {"taints": taints}}, content_type=STRATEGIC)


def taints(cluster: Cluster) -> list[Document]:
    """Return the taints of the node without their times, in order."""
    found = cluster.node_object()["spec"].get("taints", [])
    return [{key: value for key, value in each.items() if key != "timeAdded"} for each in found]


def is_unschedulable(cluster: Cluster, name: str) -> bool:
    conditions = cluster.get(f"{PODS}/{name}")["status"].get("conditions", [])
    return any(
        each.get("reason") == "Unschedulable" and "untolerated taint" in each.get("message", "") for each in conditions
    )


def tainted(cluster: Cluster, agent: ClusterAgent, kubeconfig: str) -> None:
    """Start the agent with image garbage collection that misses its target; wait for the taint."""
    agent.configure(f'{SETTINGS}kubeconfig = "{kubeconfig}"', role="auto", more=MISSED)
    agent.start()
    agent.wait("the taint is set", lambda: OWN in taints(cluster))


def writes(cluster: Cluster, since: int) -> list[tuple[str, int]]:
    """Return user and status of the agent's patches of the Node object's spec, from the audit log."""
    return [
        (each["user"]["username"], each["responseStatus"]["code"])
        for each in cluster.audit()[since:]
        if each["verb"] == "patch"
        and each["objectRef"]["resource"] == "nodes"
        and not each["objectRef"].get("subresource")
        and each.get("userAgent", "").startswith("nodeagent/")
    ]


def test_pod_is_not_scheduled_while_tainted_and_taints_of_others_are_kept(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    since = len(cluster.audit())
    kubeconfig = agent.service_account(*USED)
    tainted(cluster, agent, kubeconfig)
    assert taints(cluster) == [*FOREIGN, OWN]
    agent.wait("the condition is true", lambda: cluster.condition(TYPE).get("status") == "True")
    create(cluster, pod("later", "sleep 1000"))
    agent.wait("the scheduler refuses the node for a taint", lambda: is_unschedulable(cluster, "later"))
    set_taints(cluster, [LATER, *FOREIGN, OWN])
    agent.configure(f'{SETTINGS}kubeconfig = "{kubeconfig}"', role="auto")
    agent.stop()
    agent.start()
    agent.wait("the condition is false", lambda: cluster.condition(TYPE).get("status") == "False")
    agent.wait("the taint is removed", lambda: OWN not in taints(cluster))
    assert taints(cluster) == [LATER, *FOREIGN]
    agent.wait("the pod runs", lambda: phase(cluster, "later") == "Running")
    assert [code for _, code in writes(cluster, since) if code != 409] == [200, 200]
    assert agent.events("api_request_failed", "pass_crashed") == []


def test_concurrent_changes_of_taints_are_all_kept(cluster: Cluster, agent: ClusterAgent) -> None:
    kubeconfig = agent.service_account(*USED)
    agent.configure(f'{SETTINGS}kubeconfig = "{kubeconfig}"', role="auto", more=MISSED)
    agent.start()
    others: list[Document] = []

    def added() -> bool:
        """Add one more taint as an operator does, by read and patch; return whether the agent's taint is present."""
        found = cluster.node_object()
        new = {"key": f"example.com/n{len(others)}", "effect": "PreferNoSchedule"}
        patch = {
            "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
            "spec": {"taints": [*found["spec"].get("taints", []), new]},
        }
        cluster.request("PATCH", f"{NODES}/{NAME}", patch, content_type=STRATEGIC)
        others.append(new)
        return OWN in taints(cluster)

    agent.wait("the taint is set", added)
    assert [each for each in taints(cluster) if each != OWN] == [*FOREIGN, *others]
    print(f"{len(others)} taints added by another program meanwhile")


def test_taint_is_removed_by_a_start_without_the_setting_and_by_an_uninstallation(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    kubeconfig = agent.service_account(*USED)
    tainted(cluster, agent, kubeconfig)
    agent.stop()
    assert OWN in taints(cluster), "the taint remains without an agent"
    agent.configure(f'kubeconfig = "{kubeconfig}"', role="auto", more=MISSED)
    agent.start()
    agent.wait("the taint is removed", lambda: taints(cluster) == FOREIGN)
    (removed,) = agent.events("node_untainted")
    assert removed["taints"] == f"{KEY}:NoSchedule"
    agent.stop()
    tainted(cluster, agent, kubeconfig)
    agent.stop()
    agent.withdraw()
    assert taints(cluster) == FOREIGN
    assert cluster.condition(TYPE) == {}


def test_refusal_to_a_node_certificate_is_one_warning_and_the_conditions_are_reported(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    since = len(cluster.audit())
    agent.configure(f'{SETTINGS}kubeconfig = "{cluster.kubeconfig("node")}"', role="auto", more=MISSED)
    agent.start()
    agent.wait("the condition is true", lambda: cluster.condition(TYPE).get("status") == "True")
    agent.wait("the taint is refused repeatedly", lambda: len(writes(cluster, since)) > 2)
    (warning,) = agent.events("api_request_failed")
    assert warning["part"] == "taints"
    assert "is not allowed to modify taints" in warning["error"]
    assert {code for _, code in writes(cluster, since)} - {409} == {403}
    assert taints(cluster) == FOREIGN
    finding = access_finding(agent)
    assert "patch nodes with taints (not permitted to node certificates" in finding["evidence"]
    agent.configure(f'{SETTINGS}kubeconfig = "{agent.service_account(*USED)}"', role="auto", more=MISSED)
    assert access_finding(agent)["verdict"] == "ok"
    assert taints(cluster) == FOREIGN


def access_finding(agent: ClusterAgent) -> dict[str, Any]:
    findings = json.loads(agent.command("doctor", "--output", "json"))["findings"]
    (found,) = [each for each in findings if each["check"] == "kubernetes"]
    return dict(found)
