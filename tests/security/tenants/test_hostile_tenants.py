"""Tests of tenant attacks on a real containerd: immunity, hidden usage, another victim, blocked collection, history.

The attacks use the parts of pods that the author of a pod controls: files, names, labels, annotations and processes.
``NODEAGENT_TEST_RUNS`` repeats the tests; see ``make campaign-tenants``.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tests.support import images, reclaim
from tests.support.answer_times import measured_answers
from tests.support.command import nodeagent
from tests.support.containerd import LoopFs
from tests.support.hung_mount import hung_mount
from tests.support.pressed import APP, MIB, PressedNode

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory

pytestmark = [pytest.mark.real, pytest.mark.campaign]

RUNS = int(os.environ.get("NODEAGENT_TEST_RUNS", "1"))
HOG_MIB = 160
NEIGHBOUR_MIB = 40
SHORT_MIB = 60
LONGEST_S = 2.0
"""Upper limit in seconds for a stall of the event loop, far above the measured stalls."""

FORGED = {
    "nodeagent.dev/priority": "2000000000",
    "scheduler.alpha.kubernetes.io/critical-pod": "",
    "kubernetes.io/config.source": "file",
    "kubernetes.io/config.mirror": "0123456789abcdef",
    "io.kubernetes.cri.priorityClassName": "system-node-critical",
}
"""Annotations and labels that mark a pod as critical, as static or as a mirror pod."""

HUGE = {f"E{number}": "<" * 120_000 for number in range(13)}
"""Environment variables that, as JSON in a container's status, exceed the runtime's maximum message size of 16 MiB."""

LARGE = {f"tenant.example/{number}": "a" * 1_000_000 for number in range(3)}
"""Annotations of 3 MB."""

LARGE_PODS = 7
"""Number of pods with large annotations that, in one list, exceed the runtime's maximum message size of 16 MiB."""

HIDING = f"""
mkdir /links && cd /links && seq 1000 | xargs touch && for copy in $(seq 15); do cp -al /links /copy$copy; done
mkdir /swapped; while :; do mv /swapped /away; ln -s /links /swapped; sleep 0.02; rm /swapped; mv /away /swapped; done &
mkfifo /fifo; ln -s /proc/1/root /outside
cd -P /
name=$(printf 'd%.0s' $(seq 200))
for level in $(seq 30); do mkdir $name && cd -P $name; done
dd if=/dev/zero of=data bs=1M count={HOG_MIB}
cd -P /; sync
"""
"""Script that writes data below a path longer than PATH_MAX, beside 16,000 hard links and a directory that is
repeatedly replaced by a symbolic link.
"""


@pytest.fixture
def node(containerd_factory: ContainerdFactory, tmp_path: Path) -> PressedNode:
    pressed = PressedNode(containerd_factory(imagefs=LoopFs(700, "ext4")), tmp_path)
    pressed.import_images()
    return pressed


def evicted_under_pressure(node: PressedNode) -> list[str]:
    """Run the daemon with a met threshold until it is cleared; return the evicted pods, each as NAMESPACE/NAME.

    Assert that the daemon's event loop does not stall during the eviction.
    """
    limit = f'hard = "imagefs.available<{node.available_bytes // MIB + SHORT_MIB}Mi"'
    with node.daemon(limit), measured_answers(node.metrics_socket) as times:
        node.wait_for("threshold_cleared", timeout_s=120)
        node.wait_passes(3)
    assert not node.events("pass_crashed")
    assert times.answers
    assert times.longest_s < LONGEST_S
    print(f"longest answer {times.longest_s:.3f} s of {times.answers}")
    return [f"{each['pod_namespace']}/{each['pod_name']}" for each in node.events("evicted")]


def run_neighbours(node: PressedNode) -> set[str]:
    """Run two pods that write ``NEIGHBOUR_MIB`` each; return their names."""
    names = {"neighbour-0", "neighbour-1"}
    for name in names:
        node.run_writer(name, NEIGHBOUR_MIB)
    return names


@pytest.mark.parametrize("attempt", range(RUNS))
def test_marks_of_critical_and_static_pods_in_annotations_and_labels_protect_no_hog(
    node: PressedNode, attempt: int
) -> None:
    del attempt
    neighbours = run_neighbours(node)
    node.run_pod("hog", f"dd if=/dev/zero of=/data bs=1M count={HOG_MIB}; sync", labels=FORGED, annotations=FORGED)
    assert evicted_under_pressure(node) == ["default/hog"]
    assert node.running() == neighbours


@pytest.mark.parametrize("attempt", range(RUNS))
def test_hog_with_hidden_files_is_evicted_and_no_neighbour(node: PressedNode, attempt: int) -> None:
    del attempt
    neighbours = run_neighbours(node)
    node.run_pod("hog", HIDING.strip())
    os.sync()
    assert evicted_under_pressure(node) == ["default/hog"]
    assert node.running() == neighbours


@pytest.mark.parametrize("attempt", range(RUNS))
def test_hog_in_files_mounted_by_the_runtime_is_evicted_and_no_neighbour(node: PressedNode, attempt: int) -> None:
    del attempt
    neighbours = run_neighbours(node)
    half = HOG_MIB // 2
    writes = (f"dd if=/dev/zero of=/etc/{name} bs=1M count={half}" for name in ("hostname", "resolv.conf"))
    hog = node.run_pod("hog", "; ".join((*writes, "sync")))
    node.pods.stop(hog.container)  # the container is stopped as a crashing container is between its restarts
    os.sync()
    assert evicted_under_pressure(node) == ["default/hog"]
    assert node.running() == neighbours


@pytest.mark.parametrize("attempt", range(RUNS))
def test_hog_in_an_exited_container_is_evicted_and_no_neighbour(node: PressedNode, attempt: int) -> None:
    del attempt
    neighbours = run_neighbours(node)
    hog = node.run_pod("hog", f"dd if=/dev/zero of=/data bs=1M count={HOG_MIB}; sync")
    other = node.pods.create_container(hog.sandbox, "other", APP, ["sh", "-c", "sleep 1000"])
    node.pods.start(other)
    node.pods.stop(hog.container)
    os.sync()
    assert evicted_under_pressure(node) == ["default/hog"]
    assert node.running() == neighbours


@pytest.mark.parametrize("attempt", range(RUNS))
def test_hog_in_volumes_declared_by_its_image_is_evicted_and_no_neighbour(node: PressedNode, attempt: int) -> None:
    del attempt
    declared = images.image("tenant.test/volumes:v1", volumes=("/running", "/exited"))
    node.containerd.import_images(images.write_oci(node.directory / "volumes.tar", declared))
    neighbours = run_neighbours(node)
    write = f"dd if=/dev/zero of=/{{}}/data bs=1M count={HOG_MIB // 2}; sync"
    hog = node.run_pod("hog", write.format("running"), image=declared.tags[0])
    ended = node.pods.create_container(hog.sandbox, "ended", declared.tags[0], ["sh", "-c", write.format("exited")])
    node.pods.start(ended)
    node.pods.wait_exited(ended, timeout_s=60)
    os.sync()
    assert evicted_under_pressure(node) == ["default/hog"]
    assert node.running() == neighbours


@pytest.mark.parametrize("attempt", range(RUNS))
def test_hog_with_an_environment_beyond_the_answers_of_the_runtime_is_evicted(node: PressedNode, attempt: int) -> None:
    del attempt
    neighbours = run_neighbours(node)
    node.run_pod("hog", f"dd if=/dev/zero of=/data bs=1M count={HOG_MIB}; sync", env=HUGE)
    assert evicted_under_pressure(node) == ["default/hog"]
    assert node.running() == neighbours


@pytest.mark.parametrize("attempt", range(RUNS))
def test_annotations_beyond_the_lists_of_the_runtime_protect_no_hog_and_stop_no_collection(
    node: PressedNode, attempt: int
) -> None:
    del attempt
    neighbours = run_neighbours(node)
    ordinary = node.run_pod("ordinary", "true")
    for number in range(1, 4):
        dead = node.pods.create_container(ordinary.sandbox, "dead", APP, ["false"], attempt=number)
        node.pods.start(dead)
        node.pods.wait_exited(dead)
    for number in range(LARGE_PODS):
        node.run_pod(f"large-{number}", "true", namespace="tenant", annotations=LARGE)
    node.run_pod("hog", f"dd if=/dev/zero of=/data bs=1M count={HOG_MIB}; sync", namespace="tenant", annotations=LARGE)
    for method in ("ListPodSandbox", "ListContainers", "ListContainerStats"):
        with pytest.raises(grpc.RpcError, match="message larger than max"):
            node.pods.call(method)
    collect(node)
    assert evicted_under_pressure(node) == ["tenant/hog"]
    for number in range(LARGE_PODS):  # so that this test can read the lists
        node.pods.remove_sandbox(node.created[f"large-{number}"].sandbox)
    dead_attempts = [each for each in node.pods.list_containers() if each.name == "dead"]
    assert len(dead_attempts) == 1
    assert node.running() == neighbours | {"ordinary"}


@pytest.mark.parametrize("attempt", range(RUNS))
def test_hog_with_hidden_files_and_a_hung_mount_in_its_volume_among_throw_away_pods_is_evicted(
    node: PressedNode, containerd_version: str, attempt: int
) -> None:
    del attempt
    if containerd_version != "host":
        pytest.skip("mounts are not shared with a containerd in its own mount namespace")
    node.nodefs = node.directory / "kubelet"
    neighbours = run_neighbours(node)
    others = {f"throw-away-{number}" for number in range(10)}
    for name in others:
        node.run_pod(name, "dd if=/dev/zero of=/data bs=1M count=2", namespace="tenant")
    hog = node.run_pod("hog", HIDING.strip(), labels=FORGED, annotations=FORGED)
    os.sync()
    volume = node.nodefs / "pods" / hog.sandbox.uid / "volumes" / "kubernetes.io~empty-dir" / "scratch"
    (volume / "mount").mkdir(parents=True)
    with hung_mount(volume / "mount"):
        assert evicted_under_pressure(node) == ["default/hog"]
    assert node.running() == neighbours | others


@pytest.mark.parametrize("attempt", range(RUNS))
def test_hog_with_the_name_of_its_neighbour_among_throw_away_pods_is_evicted(node: PressedNode, attempt: int) -> None:
    del attempt
    neighbours = run_neighbours(node)
    for number in range(6):
        node.run_pod(f"throw-away-{number}", "dd if=/dev/zero of=/data bs=1M count=2", namespace="tenant")
    write = f"dd if=/dev/zero of=/data bs=1M count={HOG_MIB}"
    node.run_pod("neighbour-0", f"touch /done; while [ ! -e /go ]; do sleep 0.1; done; {write}", namespace="tenant")
    with node.daemon(f'hard = "imagefs.available<{node.available_bytes // MIB - HOG_MIB + SHORT_MIB}Mi"'):
        node.touch("neighbour-0", "/go")
        node.wait_for("threshold_cleared", timeout_s=120)
        node.wait_passes(3)
    assert [f"{each['pod_namespace']}/{each['pod_name']}" for each in node.events("evicted")] == ["tenant/neighbour-0"]
    assert neighbours <= node.running()
    assert len(node.running()) == len(neighbours) + 6


@pytest.mark.parametrize("attempt", range(RUNS))
def test_hostile_log_directory_stops_no_collection_and_redirects_no_removal(node: PressedNode, attempt: int) -> None:
    del attempt
    target = node.directory / "target"
    (target / "main").mkdir(parents=True)
    (target / "main" / "0.log").write_text("of another user")
    pods = [node.run_pod(name, "echo a line") for name in ("hostile", "linked", "ordinary")]
    directories = [pod.sandbox.log_directory for pod in pods]
    for pod in pods:
        node.pods.stop(pod.container)
        node.pods.stop_sandbox(pod.sandbox)
    hostile, linked, ordinary = (directory for directory in directories if directory is not None)
    os.mkfifo(hostile / "main" / "1.log")
    (hostile / "main" / "up").symlink_to(target)
    (hostile / os.fsdecode(b"\xff\x1b[31m\n" + b"n" * 240)).mkdir()
    deepest = hostile / "main"
    for level in range(40):
        deepest /= f"level-{level}"
    deepest.mkdir(parents=True)
    shutil.rmtree(linked)
    linked.symlink_to(target, target_is_directory=True)

    def collected() -> bool:
        collect(node)
        return not ordinary.exists() and not hostile.exists()

    reclaim.poll("the logs of both pods are removed", collected, timeout_s=60)
    assert node.pods.list_containers() == []
    assert node.pods.list_sandboxes() == []
    assert (target / "main" / "0.log").read_text() == "of another user"
    failed = [each for one in passes(node) for each in one["actions"] if each["outcome"] != "done"]
    assert failed == []


@pytest.mark.parametrize("attempt", range(RUNS))
def test_history_grows_by_the_removals_and_not_by_the_text_of_a_tenant(node: PressedNode, attempt: int) -> None:
    del attempt
    pod = node.run_pod("hostile", "true")
    text = {f"tenant.example/{number}": "\x1b[31m\n" * 10_000 for number in range(3)}
    for number in range(1, 13):
        dead = node.pods.create_container(pod.sandbox, "main", APP, ["false"], attempt=number, annotations=text)
        node.pods.start(dead)
        node.pods.wait_exited(dead)
    collect(node)
    removals = [each for one in passes(node) for each in one["actions"] if each["outcome"] == "done"]
    assert len(removals) == 11
    state = node.directory / "state"
    assert sum(path.stat().st_size for path in state.iterdir() if path.is_file()) < 1 << 20


def collect(node: PressedNode) -> None:
    """Run ``gc`` once for dead containers, sandboxes and logs, without minimum ages; return its report."""
    ages = ("deleted_pod_grace", "minimum_age", "sandbox_minimum_age", "log_minimum_age")
    node.container_gc = "\n".join(f'{each} = "0s"' for each in ages)
    run(node, "gc", "containers", "--yes")


def passes(node: PressedNode) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(run(node, "history", "--details", "--output", "json"))["passes"]
    return listed


def run(node: PressedNode, *words: str) -> str:
    """Run a command with the configuration of the node; return its output."""
    done = nodeagent(*words, "--config", str(node.configure("")))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
