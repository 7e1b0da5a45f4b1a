"""Storage limits of containers on a real containerd, with one filesystem and with a dedicated imagefs."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import images
from tests.support.certificates import Authority
from tests.support.command import nodeagent
from tests.support.containerd import LoopFs
from tests.support.kubelet_api import Answer, kubelet
from tests.support.pressed import APP, MIB, Pod, PressedNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

NEVER_MET = 'hard = "memory.available<1Mi"'
ROOMY = {"name": "other", "resources": {"limits": {"ephemeral-storage": "100Mi"}}}
"""Container that is not running; its limit keeps the usage of the pod below the limit of the pod."""


class LimitedNode(PressedNode):
    """Node with a kubelet API that lists the definitions of its pods."""

    answer: Answer

    def list_pods(self, *definitions: dict[str, Any]) -> None:
        self.answer.body = json.dumps({"kind": "PodList", "apiVersion": "v1", "items": definitions}).encode()

    def ask(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(nodeagent(*words, "-o", "json", "-c", str(self.configure(NEVER_MET))).stdout)
        return found

    def reasons(self) -> dict[str, dict[str, Any]]:
        """Return the reason of each pod in the preview of the next eviction, by pod name."""
        decisions = self.ask("evict", "--dry-run")["plan"]["decisions"]
        return {each["name"].removeprefix("default/"): each["reason"] for each in decisions}


def main_container(limit: str) -> dict[str, Any]:
    """Return the definition of the container that ``run_pod`` runs."""
    resources = {"requests": {"memory": "1Mi"}, "limits": {"ephemeral-storage": limit} if limit else {}}
    return {"name": "main", "resources": resources}


def definition(pod: Pod, *, containers: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    """Return the definition of a running pod as listed by a kubelet."""
    sandbox = pod.sandbox
    annotations = {"kubernetes.io/config.source": "api"}
    metadata = {"name": sandbox.name, "namespace": sandbox.namespace, "uid": sandbox.uid, "annotations": annotations}
    return {
        "metadata": metadata,
        "spec": {"priority": 0, "containers": containers, **spec},
        "status": {"phase": "Running", "qosClass": "Burstable"},
    }


NATIVE = """
[plugins."io.containerd.cri.v1.images".runtime_platforms.copying]
  platform = "linux/amd64"
  snapshotter = "native"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.copying]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = "native"
"""


@contextmanager
def listed_by_kubelet(node: LimitedNode) -> Iterator[LimitedNode]:
    """Serve the pods of the node by a kubelet API until the end of the block."""
    node.import_images()
    authority = Authority(node.directory / "certificates")
    authority.issue("kubelet")
    node.answer = Answer()
    with kubelet(node.answer, authority.server_context("kubelet")) as url:
        access = {"url": url, "ca_file": str(authority.ca_file), "server_name": "localhost"}
        node.kubelet = "\n".join(f"{key} = {json.dumps(value)}" for key, value in access.items())
        yield node


@pytest.fixture(params=["dedicated-imagefs", "single"])
def node(
    request: pytest.FixtureRequest, containerd_factory: ContainerdFactory, containerd_version: str, tmp_path: Path
) -> Iterator[LimitedNode]:
    """Return a node with this layout; logs and kubelet directory are on nodefs."""
    made = LimitedNode(containerd_factory(imagefs=LoopFs(500)), tmp_path)
    if request.param == "single":
        if containerd_version != "host":
            pytest.skip("mounts are not shared with a containerd in its own mount namespace")
        made.with_single_filesystem()
    with listed_by_kubelet(made):
        yield made


@pytest.mark.difference("layer-limits")
def test_pod_is_evicted_for_the_writable_layer_of_a_container_above_its_own_limit(node: LimitedNode) -> None:
    greedy, modest, unlimited = (node.run_writer(name, mib) for name, mib in (("a", 30), ("b", 10), ("c", 40)))
    node.list_pods(
        definition(greedy, containers=[main_container("20Mi"), ROOMY]),
        definition(modest, containers=[main_container("20Mi"), ROOMY]),
        definition(unlimited, containers=[main_container("")]),
    )
    with node.daemon(NEVER_MET):
        (evicted,) = node.wait_for("evicted")
        node.wait_passes(3)
    assert (evicted["pod_name"], evicted["signal"]) == ("a", "ephemeralcontainerfs.limit")
    assert evicted["message"] == 'Container main exceeded its local ephemeral storage limit "20Mi". '
    assert node.running() == {"b", "c"}
    (past,) = node.ask("explain", "default/a")["past"]
    assert past["reason"]["sentence"] == evicted["why"]
    (passed,) = node.ask("history")["passes"]
    details = passed["eviction"]["decisions"][0]["reason"]["details"]
    assert (details["container"], details["limit_bytes"]) == ("main", 20 * MIB)
    assert 30 * MIB <= details["writable_bytes"] < 31 * MIB
    assert details["usage_bytes"] == details["writable_bytes"] + details["logs_bytes"]


@pytest.mark.difference("init-container-limits")
def test_limits_of_init_containers_and_of_logs_are_previewed(node: LimitedNode) -> None:
    pod = node.run_pod("a", "yes $(seq 60) | head -c 6000000; dd if=/dev/zero of=/data bs=1M count=6 2>/dev/null; sync")
    app = main_container("100Mi") | {"name": "app"}
    for init in (main_container("10Mi"), main_container("10Mi") | {"restartPolicy": "Always"}):
        node.list_pods(definition(pod, containers=[app], initContainers=[init]))
        (reason,) = node.reasons().values()
        assert reason["code"] == "container-over-storage-limit"
        assert min(reason["details"]["writable_bytes"], reason["details"]["logs_bytes"]) >= 5 * MIB
    node.list_pods(definition(pod, containers=[app], initContainers=[main_container("20Mi")]))
    assert node.reasons()["a"]["code"] == "no-threshold-met"
    volume = {"name": "cache", "emptyDir": {"sizeLimit": "1Mi"}}
    node.list_pods(definition(pod, containers=[app], volumes=[volume]))
    assert node.reasons()["a"]["details"] == {"unread": ["files of emptyDir cache"]}


@pytest.mark.difference("exited-layers")
def test_pod_is_not_evicted_for_the_layer_of_an_earlier_instance_of_its_container(node: LimitedNode) -> None:
    pod = node.run_writer("a", 30)
    node.pods.stop(pod.container)
    node.pods.wait_exited(pod.container)
    again = node.pods.run_container(pod.sandbox, "main", APP, ["sleep", "1000"], attempt=1)
    for containers in ([main_container("20Mi"), ROOMY], [main_container("20Mi")]):
        node.list_pods(definition(pod, containers=containers))
        assert node.reasons()["a"]["code"] == "no-threshold-met"
    node.pods.stop(again)


@pytest.mark.containerd("2.1")
@pytest.mark.difference("image-copies")
def test_pod_is_not_evicted_for_the_size_of_its_image_in_its_layer(
    containerd_factory: ContainerdFactory, tmp_path: Path
) -> None:
    made = LimitedNode(containerd_factory(imagefs=LoopFs(500), config=NATIVE), tmp_path)
    large = images.image("limited.test/large:v1", layers=[images.blob("large", 30 * MIB)])
    made.containerd.import_images(images.write_oci(tmp_path / "large.tar", large), into="native")
    with listed_by_kubelet(made):
        pod = made.run_pod("a", "true", image=large.tags[0], runtime_handler="copying")
        for others in ([ROOMY], []):
            made.list_pods(definition(pod, containers=[main_container("20Mi"), *others]))
            reason = made.reasons()["a"]
            assert reason["code"] == "storage-limit-unchecked"
            assert "writable layer of container main" in reason["details"]["unread"]
