"""The printed DaemonSet, applied unedited to a real API server and kubelet, with access to the API server.

As a build of the image lasts minutes, the tests are skipped without ``NODEAGENT_TEST_IMAGE``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from tests.cluster.agent import granted
from tests.cluster.workloads import IMAGE, create, has_ended, pod
from tests.support import agent_image, images, reclaim
from tests.support.cluster import EVENTS, PODS, SERVICE_ADDRESS
from tests.support.cluster_node import NAME

if TYPE_CHECKING:
    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster import Cluster, Document

pytestmark = pytest.mark.skipif(
    agent_image.image_path() is None, reason=f"{agent_image.VARIABLE} names no image, see make test-image"
)

ACCOUNT: Final = "nodeagent-daemonset"
FEATURES: Final = (
    "--api",
    "--condition-taints=nodeagent.dev/image-gc-degraded:PreferNoSchedule",
    "--evict-pods",
    "--override-disruption-budgets",
    "--delete-failed-after=24h",
)
"""All features of the API server."""
OF_SHORTAGES: Final = frozenset({"create pods/eviction", "delete pods"})
"""Permissions that are used only with a shortage or an old failed pod; test_permissions covers them."""
TAINT: Final = "nodeagent.dev/image-gc-degraded"
AGENTS: Final = "/api/v1/namespaces/kube-system/pods"
EVENT: Final = "FreeDiskSpaceFailed"
PROOF_S: Final = 400.0
"""Upper bound until the containers of a deleted pod are removed: the default intervals and grace of container GC."""


@pytest.fixture(scope="module", autouse=True)
def _kubelet(cluster: Cluster) -> None:
    node = cluster.node
    for each in ("/run", f"{node.base}/disk"):
        node.run("mount", "--make-shared", each)
    node.run("ip", "address", "add", f"{SERVICE_ADDRESS}/32", "dev", "lo")
    node.start_module("services", "tests.support.cluster_services", SERVICE_ADDRESS, "6443")
    cluster.start_controllers()
    node.run("fallocate", "--length", "700M", f"{node.base}/disk/filler")  # the target of image GC is unreachable
    with node.pods() as pods:
        node.import_images([images.image(IMAGE)])
        agent_image.import_image(partial(node.run, "ctr", "--namespace", "k8s.io"), pods)
    cluster.start_kubelet(clusterDNS=["127.0.0.1"], clusterDomain="cluster.local")


def is_ready(cluster: Cluster) -> bool:
    """Return whether the pod of the DaemonSet is ready."""
    conditions = [each for found in agents(cluster) for each in found["status"].get("conditions", ())]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def agents(cluster: Cluster) -> list[Document]:
    return [each for each in cluster.items(AGENTS) if each["spec"].get("nodeName") == NAME]


def test_printed_daemonset_with_all_features_proves_deletions_and_reports_the_node_with_the_printed_permissions(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    since = len(cluster.audit())
    options = (*FEATURES, "--no-dry-run", "--image-root", f"{cluster.node.base}/disk/containerd")
    documents = agent.apply("daemonset", "--image", agent_image.IMAGE, *options)
    reclaim.poll("the agent is ready", lambda: is_ready(cluster), timeout_s=180, interval_s=0.5)
    agent.wait("the condition is published", lambda: bool(cluster.condition("nodeagent.dev/ContainerGCDegraded")))
    agent.wait("the Event exists", lambda: any(each["reason"] == EVENT for each in cluster.items(EVENTS)))
    agent.wait(
        "the node is tainted", lambda: TAINT in {each["key"] for each in cluster.node_object()["spec"]["taints"]}
    )

    create(cluster, pod("deleted", "exit 0", restartPolicy="Never"))
    agent.wait("the pod has ended", lambda: has_ended(cluster, "deleted"))
    with cluster.node.pods() as runtime:
        cluster.node.stop("kubelet")  # it would remove the containers itself
        cluster.request("DELETE", f"{PODS}/deleted", {"gracePeriodSeconds": 0})
        reclaim.poll(
            "the containers of the deleted pod are removed",
            lambda: not [each for each in runtime.list_containers() if each.name == "app"],
            timeout_s=PROOF_S,
            interval_s=1,
        )
    used = agent.used(ACCOUNT, since)
    assert not {each for each, codes in used.items() if 403 in codes}
    assert granted(documents) - OF_SHORTAGES <= used.keys()


def test_account_of_the_daemonset_does_not_depend_on_the_printed_rbac(cluster: Cluster, agent: ClusterAgent) -> None:
    agent.service_account("watch_pods")
    cluster.request("DELETE", "/api/v1/namespaces/kube-system/serviceaccounts/nodeagent")
    assert cluster.exists(f"/api/v1/namespaces/kube-system/serviceaccounts/{ACCOUNT}")
