"""Pods of a registered node without a kubelet whose end the agent publishes, with a real control plane.

Bound pods are started through CRI, as a pod starter does that is not a kubelet. A pod fills the disk, the agent evicts
it, and the controllers of the control plane react to the published status. The tests of this reaction also run with a
kubelet in place of agent and pod starter, with the same expectations.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from nodeagent.cluster.plan.pod_status import NODE_STOPPED_MESSAGE, TERMINATED_MESSAGE
from nodeagent.shutdown.recorder import BOOT_FILE
from tests.cluster.agent import ClusterAgent
from tests.cluster.conftest import separate_node
from tests.cluster.logind import logind, wait
from tests.cluster.workloads import IMAGE, SETS, container, pod
from tests.support import images
from tests.support.cluster import JSON, LEASE, NODES, PODS, STRATEGIC, RefusedError
from tests.support.cluster_node import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import login1
    from tests.support.cluster import Cluster, Document
    from tests.support.pods import Pods

ACCOUNT: Final = "nodeagent"
SETTINGS: Final = ("register_node", "watch_pods", "publish_pod_status")
SCHEDULABLE: Final = "unschedulable = false\nmax_pods = 110\n"
"""The scheduler binds pods to the node that tolerate its taint ``nodeagent.dev/no-kubelet``."""
EVICTION: Final = (
    '[eviction]\nenabled = "on"\nhard = "nodefs.available<500Mi"\n'
    "max_evictions_per_window = 100\nmax_limit_evictions_per_window = 100\n"
)
SHUTDOWN: Final = '[shutdown]\nenabled = "on"\nby_priority = [{ min_priority = 0, seconds = 4 }]\n'
FILL_MIB: Final = 500
LIMIT_MIB: Final = 10
OTHER: Final = "node-2"
OUT_OF_SERVICE: Final = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
ON_NODE: Final[Document] = {"nodeSelector": {"kubernetes.io/hostname": NAME}, "tolerations": [{"operator": "Exists"}]}
RATHER_ON_NODE: Final[Document] = {
    "nodeSelector": {},
    "tolerations": [{"key": "nodeagent.dev/no-kubelet", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {
                        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}]
                    },
                }
            ]
        }
    },
}
"""The scheduler chooses the node unless the node has a further taint, such as of its disk pressure."""
KINDS: Final = {
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "ReplicaSet": SETS,
    "StatefulSet": "/apis/apps/v1/namespaces/default/statefulsets",
    "DaemonSet": "/apis/apps/v1/namespaces/default/daemonsets",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
}
EVICTED: Final = re.compile(
    r"The node was low on resource: ephemeral-storage\. Threshold quantity: 500Mi, available: \d+Ki\. "
    r"(Container app was using \d+Ki, request is (0|unknown), has larger consumption of ephemeral-storage\. )?"
)
LIMIT_MESSAGE: Final = f"Pod ephemeral local storage usage exceeds the total limit of containers {LIMIT_MIB}Mi. "
NOT_READY: Final = {"Ready": ("False", "PodFailed"), "ContainersReady": ("False", "PodFailed")}
FINALIZER: Final = "example.com/hold"
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class Node:
    """The node whose pods end; its pods are started through CRI.

    Attributes:
        by: reason in the condition of an evicted pod.
        since: number of entries of the audit log before the requests that are checked.
    """

    by = "TerminationByNodeagent"

    def __init__(self, cluster: Cluster, agent: ClusterAgent, runtime: Pods) -> None:
        self.cluster = cluster
        self.agent = agent
        self.runtime = runtime
        self.since = len(cluster.audit())

    def add(self, kind: str, spec: Document | None = None, **pod_spec: Any) -> Document:
        """Create a workload of one pod; return the pod once it runs on the node.

        Args:
            kind: kind of the workload, also its name in lower case.
            spec: rest of its spec.
            pod_spec: fields of the pod spec; by default, the pod tolerates all taints of the node.
        """
        name = kind.lower()
        template = pod(name, "sleep 100000", **{**ON_NODE, **pod_spec})
        del template["metadata"]["name"]
        selector = {} if kind == "Job" else {"selector": {"matchLabels": template["metadata"]["labels"]}}
        document = {"metadata": {"name": name}, "spec": {"template": template, **selector, **(spec or {})}}
        self.cluster.request("POST", KINDS[kind], document)
        return self.run(kind)

    def pods(self, kind: str) -> list[Document]:
        return list(self.cluster.items(f"{PODS}?labelSelector=app={kind.lower()}"))

    def run(self, kind: str) -> Document:
        """Return the unfinished pod of a workload once it runs on the node."""
        found: list[Document] = []

        def is_bound() -> bool:
            found[:] = [
                each
                for each in self.pods(kind)
                if each["spec"].get("nodeName") == NAME and each["status"]["phase"] in ("Pending", "Running")
            ]
            return bool(found)

        self.agent.wait(f"a pod of the {kind} is bound", is_bound)
        self.start(found[0])
        path = f"{PODS}/{found[0]['metadata']['name']}"
        self.agent.wait("the pod runs", lambda: self.cluster.get(path)["status"]["phase"] == "Running", 120)
        return self.cluster.get(path)

    def start(self, found: Document) -> None:
        """Start a bound pod."""
        start_pod(self.cluster, self.runtime, found)

    def fill(self, uid: str, mib: int = FILL_MIB) -> None:
        """Start writing a file in the container of a pod, whose eviction may end the write."""
        (container,) = [
            each.id
            for each in self.runtime.list_containers()
            if each.labels["io.kubernetes.pod.uid"] == uid and each.state == "RUNNING"
        ]
        write = f"dd if=/dev/zero of=/data bs=1M count={mib} >/dev/null 2>&1 &"
        self.runtime.execute(container, "sh", "-c", write)

    def failed(self, found: Document) -> Document:
        """Return a pod as it was when its phase became ``Failed``, from the API server's events since ``found``."""
        seen: list[Document] = []

        def has_failed() -> bool:
            seen[:] = [each for each in history(self.cluster, found) if each["status"]["phase"] == "Failed"]
            return bool(seen)

        self.agent.wait("the pod has failed", has_failed, 120)
        return seen[0]

    def evicted(self, found: Document, mib: int = FILL_MIB) -> Document:
        """Fill the disk, or exceed a storage limit, from a pod; return the pod when it has failed."""
        self.fill(found["metadata"]["uid"], mib)
        return self.failed(found)

    def requests_on_pods(self) -> set[str]:
        """Return the permissions that the agent used on pods, without namespaces."""
        used = {each.partition(" in ")[0] for each in self.agent.used(ACCOUNT, self.since)}
        return {each for each in used if each.partition(" ")[2].partition("/")[0] == "pods"}

    def deletions(self, found: Document) -> set[str]:
        """Return the users that deleted a pod, from the audit log."""
        return {
            each["user"]["username"]
            for each in self.cluster.audit()[self.since :]
            if each["verb"] == "delete" and each["objectRef"].get("name") == found["metadata"]["name"]
        }

    def replaced(self, kind: str, found: Document) -> Document:
        """Return the bound replacement of a failed pod."""
        made: list[Document] = []

        def is_bound() -> bool:
            uid = found["metadata"]["uid"]
            made[:] = [each for each in self.pods(kind) if each["metadata"]["uid"] != uid]
            return bool(made and made[0]["spec"].get("nodeName"))

        self.agent.wait(f"the {kind} has a replacement", is_bound, 120)
        return made[0]


class KubeletNode(Node):
    """The node with a kubelet, which starts and evicts its pods."""

    by = "TerminationByKubelet"

    def start(self, found: Document) -> None:
        """Do nothing, since the kubelet starts the pod."""


def start_pod(cluster: Cluster, runtime: Pods, found: Document) -> None:
    """Start the container of a bound pod through CRI and report the pod as running, as its starter does."""
    metadata, (container,) = found["metadata"], found["spec"]["containers"]
    sandbox = runtime.run_sandbox(metadata["name"], uid=metadata["uid"])
    runtime.run_container(sandbox, container["name"], container["image"], container["command"])
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
    status = {"phase": "Running", "conditions": conditions}
    cluster.request("PATCH", f"{PODS}/{metadata['name']}/status", {"status": status}, content_type=STRATEGIC)


def history(cluster: Cluster, found: Document) -> list[Document]:
    """Return the states of a pod since it was read as ``found``, oldest first; only its last one after an outage."""
    metadata = found["metadata"]
    query = f"watch=1&timeoutSeconds=1&resourceVersion={metadata['resourceVersion']}"
    path = f"{PODS}?fieldSelector=metadata.name={metadata['name']}"
    states = [json.loads(each)["object"] for each in cluster.text("GET", f"{path}&{query}").splitlines()]
    if any(each["kind"] == "Status" for each in states):  # a new API server has no earlier events
        states = list(cluster.items(path))
    return [each for each in states if each["metadata"]["uid"] == metadata["uid"]]


def conditions(found: Document) -> dict[str, tuple[str, str]]:
    """Return status and reason of the conditions of a pod by type."""
    return {each["type"]: (each["status"], each.get("reason", "")) for each in found["status"]["conditions"]}


@pytest.fixture(scope="module", autouse=True)
def _control_plane(cluster: Cluster) -> None:
    cluster.start_controllers()
    cluster.node.import_images([images.image(IMAGE)])


@pytest.fixture
def runtime(cluster: Cluster) -> Iterator[Pods]:
    with cluster.node.pods() as client:
        yield client
        for each in client.list_sandboxes():
            client.call("StopPodSandbox", {"pod_sandbox_id": each.id})
            client.call("RemovePodSandbox", {"pod_sandbox_id": each.id})


@pytest.fixture(autouse=True)
def _without_workloads(cluster: Cluster) -> Iterator[None]:
    """Remove workloads, pods and Node objects after the test."""
    yield
    for path in KINDS.values():
        for each in cluster.items(path):
            send(cluster, "DELETE", f"{path}/{each['metadata']['name']}", {"propagationPolicy": "Background"})
    for each in cluster.items(PODS):
        path = f"{PODS}/{each['metadata']['name']}"
        send(cluster, "PATCH", path, {"metadata": {"finalizers": None}})
        send(cluster, "DELETE", path, {"gracePeriodSeconds": 0})
    for path in (f"{NODES}/{NAME}", LEASE):
        send(cluster, "DELETE", path)


def send(cluster: Cluster, method: str, path: str, body: Document | None = None) -> None:
    """Delete or patch an object, unless a controller deletes it first."""
    try:
        cluster.request(method, path, body, content_type=STRATEGIC if method == "PATCH" else JSON)
    except RefusedError as error:
        if error.status != 404:
            raise


@pytest.fixture
def node(cluster: Cluster, agent: ClusterAgent, runtime: Pods) -> Iterator[Node]:
    """Return the node with a running agent; all its requests were permitted, and on pods only these."""
    made = Node(cluster, agent, runtime)
    register(cluster, agent)
    yield made
    agent.stop()
    used = agent.used(ACCOUNT, made.since)
    assert not {each for each, codes in used.items() if 403 in codes}
    assert made.requests_on_pods() <= {"list pods", "watch pods", "patch pods/status"}
    assert agent.events("pass_crashed") == []


def register(cluster: Cluster, agent: ClusterAgent, more: str = "") -> None:
    """Start the agent, with the printed roles of its settings; wait until the node is ready."""
    enabled = "".join(f"{each} = true\n" for each in SETTINGS)
    kubeconfig = agent.service_account(*SETTINGS)
    agent.configure(f'{enabled}{SCHEDULABLE}kubeconfig = "{kubeconfig}"', more=EVICTION + more)
    agent.start()
    agent.wait("the node is ready", cluster.is_node_ready)


def start_kubelet(cluster: Cluster) -> None:
    cluster.start_kubelet(
        evictionHard={"nodefs.available": "500Mi", "memory.available": "1Mi"}, evictionPressureTransitionPeriod="1s"
    )


@pytest.fixture(params=["agent", "kubelet"])
def evicting(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Node]:
    """Return the node with the agent, and the node with a kubelet."""
    if request.param == "agent":
        yield request.getfixturevalue("node")
        return
    agent, client = request.getfixturevalue("agent"), request.getfixturevalue("runtime")
    start_kubelet(cluster)
    yield KubeletNode(cluster, agent, client)
    cluster.node.stop("kubelet")


@contextmanager
def other_node(cluster: Cluster) -> Iterator[Pods]:
    """Add a second node in namespaces of its own, which its agent registers with a node certificate."""
    with separate_node("test_pod_status-2", OTHER, "192.0.2.11") as other, other.pods() as runtime:
        other.import_images([images.image(IMAGE)])
        agent, path = ClusterAgent(cluster, other), f"{NODES}/{OTHER}"
        agent.configure(f'register_node = true\n{SCHEDULABLE}kubeconfig = "{cluster.join(other)}"')
        agent.start()
        taints = [{"key": "nodeagent.dev/no-kubelet", "effect": each} for each in ("NoSchedule", "NoExecute")]

        def is_schedulable() -> bool:
            found = cluster.get(path)["spec"].get("taints", [])
            return [{key: each[key] for key in ("key", "effect")} for each in found] == taints

        agent.wait("the other node has only the taints of its registration", is_schedulable)
        yield runtime
        agent.stop()
        cluster.request("DELETE", path)


def assert_evicted(failed: Document, by: str, found: Document) -> None:
    """Check the status of a pod that was evicted for node pressure, and that nothing else was changed."""
    status = failed["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert EVICTED.fullmatch(status["message"]), status["message"]
    expected = {"DisruptionTarget": ("True", by), **NOT_READY}
    assert conditions(failed) | expected == conditions(failed)
    for field in ("finalizers", "ownerReferences", "deletionTimestamp", "labels", "annotations"):
        assert failed["metadata"].get(field) == found["metadata"].get(field)
    assert failed["spec"] == found["spec"]


def test_evicted_pod_of_a_deployment_is_replaced_on_the_other_node(cluster: Cluster, node: Node) -> None:
    found = node.add("Deployment", **RATHER_ON_NODE)
    with other_node(cluster) as runtime:
        filled_s = time.monotonic()
        failed = node.evicted(found)
        failed_s = time.monotonic()
        made = node.replaced("Deployment", found)
        print(f"failed {failed_s - filled_s:.1f} s, replaced {time.monotonic() - filled_s:.1f} s after the shortage")
        assert_evicted(failed, node.by, found)
        assert made["spec"]["nodeName"] == OTHER
        start_pod(cluster, runtime, made)
        path = f"{KINDS['Deployment']}/deployment"
        node.agent.wait("the replacement is ready", lambda: cluster.get(path)["status"].get("readyReplicas") == 1)
    assert len(node.pods("Deployment")) == 2
    assert node.deletions(found) == set()
    assert node.requests_on_pods() == {"list pods", "watch pods", "patch pods/status"}


@pytest.mark.parametrize(
    ("kind", "deleted_by"),
    [("ReplicaSet", ""), ("StatefulSet", "statefulset-controller"), ("DaemonSet", "daemon-set-controller")],
)
def test_controller_replaces_an_evicted_pod_as_after_an_eviction_by_a_kubelet(
    evicting: Node, kind: str, deleted_by: str
) -> None:
    found = evicting.add(kind)
    assert_evicted(evicting.evicted(found), evicting.by, found)
    made = evicting.replaced(kind, found)
    assert made["spec"]["nodeName"] == NAME
    assert (made["metadata"]["name"] == found["metadata"]["name"]) is (kind == "StatefulSet")
    users = {f"system:serviceaccount:kube-system:{deleted_by}"} if deleted_by else set()
    assert evicting.deletions(found) - {f"system:node:{NAME}"} == users


@pytest.mark.parametrize(
    ("policy", "limit", "counted"),
    [(False, False, 1), (True, False, 0), (True, True, 1)],
    ids=["no-policy", "disruption-ignored", "storage-limit"],
)
def test_job_counts_an_evicted_pod_unless_its_policy_ignores_disruptions(
    cluster: Cluster, evicting: Node, policy: bool, limit: bool, counted: int
) -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    spec = {"backoffLimit": 5, **({"podFailurePolicy": {"rules": rules}} if policy else {})}
    limited = [container("sleep 100000", resources={"limits": {"ephemeral-storage": f"{LIMIT_MIB}Mi"}})]
    found = evicting.add("Job", spec, restartPolicy="Never", **({"containers": limited} if limit else {}))
    assert found["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    failed = evicting.evicted(found, 2 * LIMIT_MIB if limit else FILL_MIB)
    if limit:
        assert failed["status"]["reason"] == "Evicted"
        assert failed["status"]["message"] == LIMIT_MESSAGE
        assert "DisruptionTarget" not in conditions(failed)
        assert conditions(failed) | NOT_READY == conditions(failed)
    else:
        assert_evicted(failed, evicting.by, found)
    made = evicting.replaced("Job", found)
    path = f"{PODS}/{found['metadata']['name']}"
    evicting.agent.wait("the pod is counted", lambda: "finalizers" not in cluster.get(path)["metadata"])
    status = cluster.get(f"{KINDS['Job']}/job")["status"]
    assert (status.get("failed", 0), status["active"]) == (counted, 1)
    assert made["metadata"]["uid"] != found["metadata"]["uid"]


@pytest.mark.parametrize("deletion", ["pod with a finalizer", "foreground", "orphan"])
def test_owners_finalizers_and_deletions_are_respected(cluster: Cluster, node: Node, deletion: str) -> None:
    found = node.add("ReplicaSet", terminationGracePeriodSeconds=3600)
    path, owner = f"{PODS}/{found['metadata']['name']}", f"{KINDS['ReplicaSet']}/replicaset"
    if deletion == "pod with a finalizer":
        send(cluster, "PATCH", path, {"metadata": {"finalizers": [FINALIZER]}})
        cluster.request("DELETE", path)
    else:
        cluster.request("DELETE", owner, {"propagationPolicy": deletion.title()})
        changed = "deletionTimestamp" if deletion == "foreground" else "ownerReferences"
        before = changed in found["metadata"]
        node.agent.wait("the pod is changed", lambda: (changed in cluster.get(path)["metadata"]) is not before)
    found = cluster.get(path)
    failed = node.evicted(found)
    assert_evicted(failed, node.by, found)
    if deletion == "orphan":
        assert [each["metadata"]["uid"] for each in node.pods("ReplicaSet")] == [found["metadata"]["uid"]]
        return
    if deletion == "foreground":
        assert cluster.get(owner)["metadata"]["finalizers"] == ["foregroundDeletion"]
    # the last step of a graceful deletion is that of the pod starter, as of a kubelet
    cluster.request("DELETE", path, {"gracePeriodSeconds": 0})
    if deletion == "foreground":
        node.agent.wait("the owner is deleted", lambda: not cluster.exists(owner))
        assert not cluster.exists(path)
    else:
        assert cluster.get(path)["metadata"]["finalizers"] == [FINALIZER]


def test_only_a_pod_with_the_uid_of_this_node_is_published(cluster: Cluster, node: Node) -> None:
    found = node.add("ReplicaSet")
    cluster.request("POST", NODES, {"metadata": {"name": OTHER}})
    elsewhere = cluster.request("POST", PODS, pod("elsewhere", "sleep 100000", nodeName=OTHER))
    start_pod(cluster, node.runtime, elsewhere)
    other_uid = str(uuid.uuid4())
    start_pod(cluster, node.runtime, {**found, "metadata": {**found["metadata"], "uid": other_uid}})
    strangers = {elsewhere["metadata"]["uid"], other_uid}
    for number, uid in enumerate(strangers, 1):
        node.fill(uid)
        node.agent.wait("the pod is evicted", partial(has_evicted, node.agent, number), 120)
    node.agent.stop()
    node.agent.start()  # a new list proves after a minute that the pods are not bound to the node
    node.agent.wait("the pods are dropped", lambda: strangers <= dropped(node.agent), 150)
    assert "patch pods/status" not in node.requests_on_pods()
    assert {each["status"]["phase"] for each in cluster.items(PODS)} == {"Running"}
    cluster.request("DELETE", f"{NODES}/{OTHER}")


def has_evicted(agent: ClusterAgent, number: int) -> bool:
    return len(agent.events("evicted")) == number


def dropped(agent: ClusterAgent) -> set[str]:
    return {each["pod_uid"] for each in agent.events("pod_status_dropped")}


def test_nothing_is_published_while_the_node_is_out_of_service(cluster: Cluster, node: Node) -> None:
    found = node.add("ReplicaSet")
    taints = cluster.node_object()["spec"]["taints"]
    send(cluster, "PATCH", f"{NODES}/{NAME}", {"spec": {"taints": [OUT_OF_SERVICE]}})
    node.fill(found["metadata"]["uid"])
    node.agent.wait(
        "the taint is logged",
        lambda: any(OUT_OF_SERVICE["key"] in each["error"] for each in node.agent.events("api_request_failed")),
        120,
    )
    assert {each["status"]["phase"] for each in history(cluster, found)} <= {"Running"}
    cluster.request("PATCH", f"{NODES}/{NAME}", {"spec": {"taints": taints}}, content_type=STRATEGIC)
    assert_evicted(node.failed(found), node.by, found)


def test_eviction_during_an_outage_is_published_after_a_restart(cluster: Cluster, node: Node) -> None:
    found = node.add("ReplicaSet")
    evict_during_an_outage(node, found)
    node.agent.start()
    cluster.restart_api_server()
    node.since = len(cluster.audit())  # a starting API server refuses all requests until it has read its rules
    assert_evicted(node.failed(found), node.by, found)
    assert node.agent.events("evicted") == []
    node.replaced("ReplicaSet", found)


def evict_during_an_outage(node: Node, found: Document) -> None:
    """Stop the API server and evict a pod, then kill the agent."""
    node.cluster.node.stop("kube-apiserver", kill=True)
    node.fill(found["metadata"]["uid"])
    node.agent.wait("the pod is evicted", lambda: bool(node.agent.events("evicted")), 120)
    node.agent.stop(kill=True)


def test_nothing_is_published_beside_a_kubelet(cluster: Cluster, node: Node) -> None:
    found = node.add("ReplicaSet")
    evict_during_an_outage(node, found)
    cluster.restart_api_server()
    node.since = len(cluster.audit())
    start_kubelet(cluster)
    node.agent.start()
    node.agent.wait("the registration is refused", lambda: is_refused(node.agent))
    node.agent.wait(
        "the kubelet has started the pod again",
        lambda: "containerStatuses" in node.pods("ReplicaSet")[0]["status"],
        120,
    )
    assert "patch pods/status" not in node.requests_on_pods()
    assert {each["status"]["phase"] for each in history(cluster, found)} <= {"Running", "Pending"}
    cluster.node.stop("kubelet")


def is_refused(agent: ClusterAgent) -> bool:
    return any(each["loop"] == "kubernetes" for each in agent.events("loop_disabled"))


async def test_pods_of_a_shutdown_are_reported_as_terminated(cluster: Cluster, node: Node) -> None:
    async with logind(cluster.node) as manager:
        await restart_with_shutdown(node, manager)
        found = await asyncio.to_thread(node.add, "ReplicaSet")
        manager.request_shutdown()
        await manager.until(lambda: manager.executed == 1)
        failed = await asyncio.to_thread(node.failed, found)
        assert (failed["status"]["reason"], failed["status"]["message"]) == ("Terminated", TERMINATED_MESSAGE)
        assert conditions(failed) | {"DisruptionTarget": ("True", node.by), **NOT_READY} == conditions(failed)
        manager.cancel_shutdown()


async def test_pods_of_an_unclean_stop_of_the_node_are_reported_after_its_start(cluster: Cluster, node: Node) -> None:
    async with logind(cluster.node) as manager:
        await restart_with_shutdown(node, manager)
        found = await asyncio.to_thread(node.add, "ReplicaSet")
        uid = found["metadata"]["uid"]
        record = node.agent.state / BOOT_FILE
        await wait(node.agent, "the pod is recorded", lambda: uid in record.read_text())
        node.agent.stop(kill=True)
        for each in node.runtime.list_sandboxes():
            node.runtime.call("StopPodSandbox", {"pod_sandbox_id": each.id})
        cluster.node.run(
            "sh", "-c", f"cat /proc/sys/kernel/random/uuid > /run/boot-id; mount --bind /run/boot-id {BOOT_ID}"
        )
        up_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
        node.agent.start("unshare", "--time", f"--boottime=-{up_s}", "--fork", "--kill-child")
        failed = await asyncio.to_thread(node.failed, found)
        assert (failed["status"]["reason"], failed["status"]["message"]) == ("NodeStopped", NODE_STOPPED_MESSAGE)
        assert conditions(failed) | {"DisruptionTarget": ("True", node.by), **NOT_READY} == conditions(failed)
        await asyncio.to_thread(node.replaced, "ReplicaSet", found)
        node.agent.stop(kill=True)
        cluster.node.run("umount", BOOT_ID)


async def restart_with_shutdown(node: Node, manager: login1.Login1) -> None:
    """Start the agent again with graceful shutdown enabled; wait until it delays shutdowns."""
    node.agent.stop()
    await asyncio.to_thread(register, node.cluster, node.agent, SHUTDOWN)
    await wait(node.agent, "the lock is held", lambda: bool(manager.locks))
