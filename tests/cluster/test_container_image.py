"""Tests of the container image as a static pod of a real kubelet without a control plane.

The agent of the checkout on the same node, which has the view of a service of the host, is the reference. As a build of
the image lasts minutes, the tests are skipped without ``NODEAGENT_TEST_IMAGE``, which ``make test-image`` sets.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support import agent_image, images, reclaim
from tests.support.agent_image import NOT_RUNNING, decisions
from tests.support.cluster import binary_directory, start_kubelet
from tests.support.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.agent_image import Document
    from tests.support.cluster_node import ClusterNode
    from tests.support.pods import ContainerInfo

pytestmark = [
    pytest.mark.kubelet_only,
    pytest.mark.skipif(
        agent_image.image_path() is None, reason=f"{agent_image.VARIABLE} names no image, see make test-image"
    ),
]

MIB = 1 << 20
MANIFESTS = "/etc/kubernetes/manifests"
PORT = 10255
BARE = "registry.test/static:v1"
"""Image of a static pod that the kubelet cannot start: only the pod's manifest refers to it."""
UNUSED = tuple(f"registry.test/unused:v{number}" for number in range(8))
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"


class ImagePod:
    """Static pod of the image on a node with a kubelet, and the agent of the checkout on the same node."""

    def __init__(self, node: ClusterNode) -> None:
        self.node = node
        self.pods = node.pods()
        self._numbers = itertools.count()

    def prepare(self) -> None:
        """Import the images and start the kubelet, as on a host with shared mounts."""
        for each in ("/run", f"{self.node.base}/disk"):
            self.node.run("mount", "--make-shared", each)
        made = [images.image(name, layers=[images.blob(name, 6 * MIB)]) for name in (*UNUSED, BARE)]
        self.node.import_images(made)
        agent_image.import_image(partial(self.node.run, "ctr", "--namespace", "k8s.io"), self.pods)
        reclaim.poll("CRI lists the image", lambda: agent_image.IMAGE in self.tags(), timeout_s=60)
        for each in ("/etc/nodeagent", MANIFESTS):
            self.node.path(each).mkdir(parents=True)
        binaries = binary_directory()
        assert binaries is not None
        start_kubelet(
            self.node,
            binaries,
            staticPodPath=MANIFESTS,
            readOnlyPort=PORT,
            fileCheckFrequency="1s",
            authentication={"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            authorization={"mode": "AlwaysAllow"},
        )
        reclaim.poll("the kubelet answers", lambda: self.kubelet_pods() is not None, timeout_s=120, interval_s=0.2)

    def configure(self, *, dry_run: bool) -> None:
        """Write the configuration required by the manifest, and one with another socket for commands without a daemon.

        A part of the unused images has to be removed.
        """
        usage = os.statvfs(self.node.path(f"{self.node.base}/disk"))
        used = 100 - usage.f_bavail * 100 // usage.f_blocks
        text = (
            f'dry_run = {str(dry_run).lower()}\nrole = "beside-kubelet"\n'
            '[runtime]\nendpoint = "unix:///run/containerd/containerd.sock"\n'
            f"[image_gc]\nhigh_threshold_percent = {used - 1}\nlow_threshold_percent = {used - 3}\n"
            'minimum_age = "0s"\nundo_window = "0s"\n[eviction]\nenabled = "on"\n'
        )
        directory = self.node.path("/etc/nodeagent")
        (directory / "config.toml").write_text(text)
        (directory / "alone.toml").write_text(f'{text}[control]\nsocket = "/run/nodeagent/absent.sock"\n')

    def apply(self, name: str, manifest: Document) -> None:
        """Write the manifest of a static pod, which the kubelet starts or replaces."""
        directory = self.node.path(MANIFESTS)
        (directory / f".{name}").write_text(json.dumps(manifest))  # the kubelet ignores names with a leading dot
        (directory / f".{name}").replace(directory / f"{name}.yaml")

    def start(self, *options: str) -> None:
        """Write the printed manifest of the agent, and wait until the kubelet reports the pod as ready."""
        before = self.agents()
        self.apply("nodeagent", agent_image.static_pod("--image-root", f"{self.node.base}/disk/containerd", *options))
        reclaim.poll(
            "the pod is started", lambda: bool(set(self.agents()) - set(before)), timeout_s=120, interval_s=0.2
        )
        reclaim.poll("the pod is ready", lambda: self.is_ready("nodeagent"), timeout_s=120, interval_s=0.2)

    def kubelet_pods(self) -> Mapping[str, Document] | None:
        """Return the pods of the kubelet by name; ``None`` if the kubelet does not answer."""
        done = self._run(sys.executable, "-c", FETCH, f"http://127.0.0.1:{PORT}/pods")
        if done.returncode != 0:
            return None
        return {each["metadata"]["name"]: each for each in json.loads(done.stdout)["items"] or ()}

    def is_ready(self, name: str) -> bool:
        """Return whether the probes of a static pod succeed."""
        found = {key: pod for key, pod in (self.kubelet_pods() or {}).items() if key.startswith(f"{name}-")}
        conditions = [each for pod in found.values() for each in pod["status"].get("conditions", ())]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def agents(self) -> dict[str, ContainerInfo]:
        """Return the running containers of the agent, by id."""
        listed = self.pods.list_containers()
        return {each.id: each for each in listed if each.name == "nodeagent" and each.state == "RUNNING"}

    def tags(self) -> set[str]:
        return {tag for each in self.pods.list_images() for tag in each.tags}

    def ids(self, *tags: str) -> set[str]:
        return {each.id for each in self.pods.list_images() if set(tags) & set(each.tags)}

    def inside(self, *words: str, config: str = "alone", code: int = 0) -> Document:
        """Run a command in the container of the pod; return its JSON document."""
        (container,) = self.agents()
        options = ("--exec-id", f"test-{next(self._numbers)}", container)
        return self._document(("ctr", "-n", "k8s.io", "tasks", "exec", *options, "nodeagent"), words, config, code)

    def outside(self, *words: str, config: str = "alone", code: int = 0) -> Document:
        """Run a command of the checkout on the node; return its JSON document."""
        return self._document((sys.executable, "-m", "nodeagent"), words, config, code)

    def _document(self, program: tuple[str, ...], words: tuple[str, ...], config: str, code: int) -> Document:
        done = self._run(*program, *words, "--config", f"/etc/nodeagent/{config}.toml", "--output", "json")
        assert done.returncode == code, done.stderr
        document: Document = json.loads(done.stdout)
        return document

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = self.node.command(*words)
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)


@pytest.fixture
def agent(bare_node: ClusterNode) -> Iterator[ImagePod]:
    made = ImagePod(bare_node)
    with made.pods:
        made.prepare()
        yield made


def loop(status: Document, name: str) -> str:
    """Return the activity of a loop in the output of ``status``."""
    (found,) = (each for each in status["loops"] if each["name"] == name)
    return str(found["activity"])


def static(name: str, image: str) -> Document:
    """Return the manifest of a static pod whose container is never created, since its configuration is missing."""
    reference = {"name": "MISSING", "valueFrom": {"configMapKeyRef": {"name": "missing", "key": "missing"}}}
    container = {"name": "app", "image": image, "imagePullPolicy": "Never", "env": [reference]}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def test_image_as_a_static_pod_of_a_real_kubelet_sees_and_collects_the_node_as_the_checkout(agent: ImagePod) -> None:
    agent.configure(dry_run=True)
    agent.apply("bare", static("bare", BARE))
    agent.start()
    status = agent.inside("status", config="config")
    assert status["agent"]["role"] == "beside-kubelet"
    assert status["agent"]["dry_run"] is True
    assert loop(status, "eviction") == "disabled"
    seen, expected = agent.inside("status", code=NOT_RUNNING), agent.outside("status", code=NOT_RUNNING)
    assert seen["agent"]["role"] == expected["agent"]["role"] == "beside-kubelet"
    assert seen["runtime"] == expected["runtime"]
    evictions = [one("evict", "--dry-run")["plan"]["decisions"] for one in (agent.inside, agent.outside)]
    assert evictions[0] == evictions[1]
    assert [(each["verdict"], each["reason"]["code"]) for each in evictions[0]] == [("keep", "static-pod")]
    previewed = agent.inside("gc", "images", "--dry-run")
    assert decisions(previewed) == decisions(agent.outside("gc", "images", "--dry-run"))
    removed = {image for image, verdict, _, _ in decisions(previewed) if verdict == "remove"}
    before = {each.id for each in agent.pods.list_images()}
    assert removed
    assert removed < agent.ids(*UNUSED)
    kept = {image: code for image, verdict, code, _ in decisions(previewed) if verdict == "keep"}
    assert {kept[image] for image in agent.ids(BARE)} == {"named-by-pod"}
    assert {kept[image] for image in agent.ids(agent_image.IMAGE)} == {"in-use-by-container"}

    agent.configure(dry_run=False)
    agent.start("--no-dry-run")
    reclaim.poll(
        "the daemon removed the images",
        lambda: not removed & {each.id for each in agent.pods.list_images()},
        timeout_s=120,
        interval_s=0.2,
    )
    assert before - {each.id for each in agent.pods.list_images()} == removed
