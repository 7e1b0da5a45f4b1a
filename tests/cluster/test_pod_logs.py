"""Test of logs and restarts of all kinds of pods beside a real kubelet: with the agent as without it."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.workloads import IMAGE, container, create, logs, pod
from tests.support import images
from tests.support.cluster import PODS, RefusedError
from tests.support.cluster_node import NAME

if TYPE_CHECKING:
    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster import Cluster, Document

MANIFESTS = "/etc/kubernetes/manifests"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
DAEMON_SETS = "/apis/apps/v1/namespaces/default/daemonsets"
STARTS = "echo >> /data/starts; n=$(wc -l < /data/starts); echo attempt $n"
FAILS_ONCE = f"{STARTS}; test $n -gt 1 || exit 1"
LOOPS = f"{STARTS}; test $n -gt 4 || exit 1"
SERVES = "trap 'exit 0' TERM; sleep 1000 & wait"
ONCE = ("restarted", "init", "sidecar", "daemon", "terminating", "forced", f"static-{NAME}")
RESTARTS = {"loop": 4, **dict.fromkeys(ONCE, 1)}
BACK_OFFS = ("10s", "20s", "40s")
"""The first restart is immediate, the fourth is delayed by 40 s. Source: kubelet ``doBackOff``."""
PASSES = 6
NO_LOG = "unable to retrieve container logs for containerd://ID"
COLLECTION = (
    '[container_gc]\ninterval = "1s"\nminimum_age = "0s"\nmax_per_pod_container = 0\nmax_containers = 0\n'
    'deleted_pod_grace = "0s"\nsandbox_minimum_age = "0s"\nlog_minimum_age = "0s"\n'
)


@pytest.fixture(scope="module", autouse=True)
def _kubelet(cluster: Cluster) -> None:
    cluster.start_controllers()
    cluster.node.import_images([images.image(IMAGE)])
    cluster.node.path(MANIFESTS).mkdir(parents=True, exist_ok=True)
    cluster.start_kubelet(staticPodPath=MANIFESTS)


def data_pod(name: str, script: str, **spec: Any) -> Document:
    """Return a pod with a directory ``/data`` that restarts of its containers keep."""
    made = pod(name, script, volumes=[{"name": "data", "emptyDir": {}}], **spec)
    for each in (*made["spec"]["containers"], *made["spec"].get("initContainers", ())):
        each["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    return made


class Pods:
    """One pod of each kind; names of pods that a controller creates are looked up by label."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        self._cluster = cluster
        self._static = cluster.node.path(f"{MANIFESTS}/static.json")
        restarted = f"{FAILS_ONCE}; {SERVES}"
        create(
            cluster,
            data_pod("loop", f"{LOOPS}; {SERVES}"),
            data_pod("restarted", restarted),
            data_pod("init", SERVES, initContainers=[container(FAILS_ONCE, name="first")]),
            data_pod("sidecar", SERVES, initContainers=[container(restarted, name="side", restartPolicy="Always")]),
            data_pod("terminating", f"{FAILS_ONCE}; trap '' TERM; sleep 1000", terminationGracePeriodSeconds=600),
            data_pod("forced", restarted),
        )
        for name, policy in (("job", "Never"), ("retried", "OnFailure")):
            template = data_pod(name, FAILS_ONCE if policy == "OnFailure" else STARTS, restartPolicy=policy)
            cluster.request("POST", JOBS, {"metadata": {"name": name}, "spec": {"template": template}})
        daemon = {"selector": {"matchLabels": {"app": "daemon"}}, "template": data_pod("daemon", restarted)}
        cluster.request("POST", DAEMON_SETS, {"metadata": {"name": "daemon"}, "spec": daemon})
        static = data_pod("static", restarted)
        static["metadata"]["labels"]["run"] = run  # another UID, which is a digest of the manifest
        self._static.write_text(json.dumps(static))

    def remove(self) -> None:
        """Delete the pods and their controllers; wait until the API server has none."""
        self._static.unlink()
        for path in (f"{JOBS}/job", f"{JOBS}/retried", f"{DAEMON_SETS}/daemon"):
            self._cluster.request("DELETE", path, {"propagationPolicy": "Background"})
        for each in self._cluster.items(PODS):
            with contextlib.suppress(RefusedError):  # already deleted with its controller
                self.delete(each["metadata"]["name"], grace_s=0)

    def delete(self, name: str, *, grace_s: int) -> None:
        self._cluster.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": grace_s})

    def found(self) -> dict[str, Document]:
        """Return the pods by name, without the suffix by a controller."""
        owned = {"job", "retried", "daemon"}
        pods = self._cluster.items(PODS)
        labels = [(each["metadata"]["labels"]["app"], each["metadata"]["name"]) for each in pods]
        return {app if app in owned else name: each for (app, name), each in zip(labels, pods, strict=True)}

    def have_restarted(self) -> bool:
        """Return whether all pods have reached their last state."""
        found = self.found()
        return (
            set(RESTARTS) < set(found)
            and all(most_restarts(found[name]) == RESTARTS[name] for name in RESTARTS)
            and all("running" in statuses(found[name])[-1]["state"] for name in RESTARTS)
            and all(found[name]["status"]["phase"] == "Succeeded" for name in ("job", "retried"))
        )

    def back_offs(self, name: str) -> tuple[str, ...]:
        """Return the delays of a pod's restarts, in order, from the log of the kubelet.

        The status of the pod has a delay only after another synchronisation of the pod during the delay.
        """
        uid = self.found()[name]["metadata"]["uid"]
        text = self._cluster.node.parts["kubelet"].log.read_text()
        return tuple(dict.fromkeys(re.findall(rf"back-off (\w+) restarting [^\n]*{uid}", text)))

    def dead(self) -> Counter[tuple[str, str]]:
        """Return the numbers of dead containers by pod UID and container name."""
        with self._cluster.node.pods() as runtime:
            listed = [each for each in runtime.list_containers() if each.state == "EXITED"]
        return Counter((each.labels["io.kubernetes.pod.uid"], each.name) for each in listed)

    def has_containers(self, uid: str) -> bool:
        with self._cluster.node.pods() as runtime:
            return any(each.labels["io.kubernetes.pod.uid"] == uid for each in runtime.list_containers())

    def observed(self) -> dict[str, tuple[object, ...]]:
        """Return restarts, states and logs of the containers, which are to be equal with and without the agent."""
        found = self.found()
        return {
            f"{name}/{each['name']}": (
                each["restartCount"],
                sorted(each["state"]),
                each["lastState"].get("terminated", {}).get("exitCode"),
                self._log(found[name], f"?container={each['name']}"),
                self._log(found[name], f"?container={each['name']}&previous=true"),
            )
            for name in sorted(found)
            for each in statuses(found[name])
        }

    def previous(self) -> dict[str, str]:
        """Return the IDs of the containers whose logs are the previous logs."""
        return {
            f"{name}/{each['name']}": each["lastState"].get("terminated", {}).get("containerID", "").rpartition("/")[2]
            for name, found in self.found().items()
            for each in statuses(found)
        }

    def _log(self, found: Document, query: str) -> str:
        return re.sub(r"[0-9a-f]{64}", "ID", logs(self._cluster, found["metadata"]["name"], query))


def statuses(found: Document) -> list[Document]:
    """Return the statuses of a pod's init containers and containers."""
    status = found["status"]
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def most_restarts(found: Document) -> int:
    """Return the largest restart count of a pod's containers."""
    return max((int(each["restartCount"]) for each in statuses(found)), default=0)


def observe(cluster: Cluster, agent: ClusterAgent, run: str) -> tuple[dict[str, tuple[object, ...]], dict[str, str]]:
    """Return back-offs, restarts and logs of one pod of each kind, and the IDs of the previous containers."""
    pods = Pods(cluster, run)
    try:
        agent.wait("all pods have restarted", pods.have_restarted, timeout_s=300)
        forced = pods.found()["forced"]["metadata"]["uid"]
        pods.delete("terminating", grace_s=600)
        pods.delete("forced", grace_s=0)
        agent.wait("containers of the deleted pod are removed", lambda: not pods.has_containers(forced), timeout_s=180)
        agent.wait("older dead containers are removed", lambda: max(pods.dead().values()) == 1, timeout_s=180)
        if done := len(agent.events("pass_finished")):
            agent.wait("further passes", lambda: len(agent.events("pass_finished")) > done + PASSES)
        assert "deletionTimestamp" in pods.found()["terminating"]["metadata"]
        found = pods.observed()
        found["forced"] = (logs(cluster, "forced"), logs(cluster, "forced", "?previous=true"))
        found["back-offs"] = pods.back_offs("loop")
        previous = pods.previous()
    finally:
        pods.remove()
        agent.wait("no pod exists", lambda: not cluster.items(PODS), timeout_s=60)
    return found, previous


def test_back_off_and_previous_logs_of_all_kinds_of_pods_are_as_without_the_agent(
    cluster: Cluster, agent: ClusterAgent
) -> None:
    without, _ = observe(cluster, agent, "without")
    print(json.dumps(without, indent=1))
    assert without["back-offs"] == BACK_OFFS
    assert without["loop/app"][:-1] == (4, ["running"], 1, "attempt 5\n")
    assert without["loop/app"][-1] in ("attempt 4\n", NO_LOG)
    for name in ("restarted/app", "sidecar/side", f"static-{NAME}/app", "daemon/app", "terminating/app"):
        assert without[name][:-1] == (1, ["running"], 1, "attempt 2\n"), name
        assert without[name][-1] in ("attempt 1\n", NO_LOG), name
    assert without["forced"] == ("HTTP 404", "HTTP 404")

    account = agent.service_account("watch_pods")
    agent.configure(f'watch_pods = true\nkubeconfig = "{account}"', role="auto", more=COLLECTION)
    agent.start()
    agent.wait("passes run", lambda: bool(agent.events("pass_finished")))
    found, previous = observe(cluster, agent, "with")
    removed = {each["id"] for each in agent.events("removal")}
    # The kubelet counts a container that it is starting as dead: a pass in that second removes the container before it.
    uncertain = {
        name
        for name, container_id in previous.items()
        if NO_LOG in (found[name][-1], without[name][-1]) and container_id not in removed
    }
    assert {name: each[:-1] if name in uncertain else each for name, each in found.items()} == {
        name: each[:-1] if name in uncertain else each for name, each in without.items()
    }
    assert agent.events("pass_crashed") == []
