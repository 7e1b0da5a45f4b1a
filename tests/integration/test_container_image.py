"""Tests of the container image as a static pod on a real containerd, compared with the checkout on the same store.

Building the image lasts minutes, so that the tests run only in ``make test-image``, which passes the path of the image
in ``NODEAGENT_TEST_IMAGE``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import agent_image, reclaim
from tests.support.agent_image import IMAGE, NOT_RUNNING, decisions
from tests.support.command import ROOT
from tests.support.containerd import LoopFs
from tests.support.manifest_pod import ManifestPod
from tests.support.pressed import MIB, PressedNode
from tests.support.stacked import stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import ContainerdFactory
    from tests.support.agent_image import Document
    from tests.support.containerd import Containerd
    from tests.support.pods import Pods

pytestmark = [pytest.mark.real, pytest.mark.long]


@pytest.fixture(autouse=True)
def _shared_mounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put containerd's files on a shared mount, as on a host with systemd, so that mounts propagate to containers."""
    shared = Path(tempfile.mkdtemp(prefix="shared-"))
    subprocess.run(["mount", "--bind", str(shared), str(shared)], check=True)
    try:
        subprocess.run(["mount", "--make-shared", str(shared)], check=True)
        monkeypatch.setattr(tempfile, "tempdir", str(shared))
        yield
    finally:
        subprocess.run(["umount", str(shared)], check=True)
        shared.rmdir()


class AgentPod:
    """Agent in the pod of the image and agent of the checkout, with one configuration and one store."""

    def __init__(self, containerd: Containerd, pods: Pods) -> None:
        self.containerd = containerd
        self.pods = pods
        self.directory = containerd.base / "agent"
        self.directories = {
            "/etc/nodeagent": self.directory / "etc",
            "/var/lib/nodeagent": self.directory / "state",
            "/run/nodeagent": self.directory / "run",
            "/var/log/pods": containerd.log_root,
            "/var/log/containers": self.directory / "links",
        }
        for each in self.directories.values():
            each.mkdir(parents=True, exist_ok=True)
        self.config = self.directory / "etc/config.toml"

    def configure(self, role: str, more: str = "") -> None:
        """Write the common configuration of the pod and the checkout."""
        self.config.write_text(
            f"{role}\n[runtime]\nendpoint = {json.dumps(f'unix://{self.containerd.socket}')}\n"
            f'[kubelet]\nmanifests = ""\n[shutdown]\nenabled = "off"\n[metrics]\nlisten = "off"\n'
            f'[state]\ndirectory = "{self.directory}/state"\n[control]\nsocket = "{self.directory}/run/control.sock"\n'
            f'[container_gc]\npod_log_root = "{self.containerd.log_root}"\n'
            f'container_log_root = "{self.directory}/links"\n{more}'
        )

    def import_image(self) -> None:
        """Import the image with the reference in the manifest."""
        agent_image.import_image(self.containerd.ctr, self.pods)
        reclaim.poll(
            "CRI lists the image", lambda: any(IMAGE in each.tags for each in self.pods.list_images()), timeout_s=60
        )

    def manifest(self) -> Document:
        """Return the static pod printed by ``manifest static-pod``, adapted to this containerd."""
        runtime = ["--socket", str(self.containerd.socket), "--image-root", str(self.containerd.root)]
        return agent_image.static_pod(*runtime, "--manifests", "")

    def start(self, *, host_pid: bool = False) -> ManifestPod:
        """Run the sandbox of the pod printed by ``manifest static-pod``, with or without the host's PID namespace."""
        manifest = self.manifest()
        manifest["spec"]["hostPID"] = host_pid
        return ManifestPod(self.pods, manifest, self.directories)

    def words(self, *words: str) -> list[str]:
        """Return the arguments of a command with the common configuration and JSON output."""
        return ["nodeagent", *words, "--config", str(self.config), "--output", "json"]

    def inside(self, pod: ManifestPod, *words: str, code: int = 0) -> Document:
        """Run a command in the pod; return its JSON document."""
        found, output, errors = pod.run(self.words(*words))
        assert found == code, errors
        document: Document = json.loads(output)
        return document

    def outside(self, *words: str, code: int = 0) -> Document:
        """Run a command of the checkout; return its JSON document."""
        command = [sys.executable, "-m", *self.words(*words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
        assert done.returncode == code, done.stderr
        document: Document = json.loads(done.stdout)
        return document


def collecting(containerd: Containerd) -> AgentPod:
    """Return an agent on a store with many images, some of which have to be removed."""
    node = stack(containerd)
    agent = AgentPod(containerd, node.pods)
    agent.import_image()
    usage = os.statvfs(containerd.root)
    used = 100 - usage.f_bavail * 100 // usage.f_blocks
    agent.configure(
        'dry_run = false\nrole = "beside-kubelet"',
        f"[image_gc]\nhigh_threshold_percent = {used - 1}\nlow_threshold_percent = {used - 4}\n"
        'minimum_age = "0s"\nundo_window = "0s"\n[protect]\nimages = ["localhost/nodeagent*", "*/tools/*"]\n',
    )
    return agent


def test_pod_previews_and_removes_the_images_that_the_checkout_removes(containerd_factory: ContainerdFactory) -> None:
    in_pod = collecting(containerd_factory(imagefs=LoopFs(900, "ext4")))
    pod = in_pod.start()
    previewed = in_pod.inside(pod, "gc", "images", "--dry-run")
    assert decisions(previewed) == decisions(in_pod.outside("gc", "images", "--dry-run"))
    assert {verdict for _, verdict, _, _ in decisions(previewed)} >= {"remove", "keep"}
    expected = {image for image, verdict, _, _ in decisions(previewed) if verdict == "remove"}
    before = {each.id for each in in_pod.pods.list_images()}
    report = in_pod.inside(pod, "gc", "images", "--yes")
    left = {each.id for each in in_pod.pods.list_images()}
    assert before - left == expected

    checkout = collecting(containerd_factory(imagefs=LoopFs(900, "ext4")))
    checkout.start()
    again = checkout.outside("gc", "images", "--yes")
    assert [(each["id"], each["outcome"]) for each in report["results"]] == [
        (each["id"], each["outcome"]) for each in again["results"]
    ]
    assert left == {each.id for each in checkout.pods.list_images()}
    assert report["freed_bytes"] == pytest.approx(again["freed_bytes"], abs=MIB)


@pytest.mark.parametrize("host_pid", [False, True], ids=["own PIDs", "host PIDs"])
def test_pod_without_a_configured_role_runs_beside_a_kubelet(
    containerd_factory: ContainerdFactory, host_pid: bool
) -> None:
    containerd = containerd_factory()
    agent = AgentPod(containerd, containerd.pods())
    agent.import_image()
    agent.configure("dry_run = false")
    pod = agent.start(host_pid=host_pid)
    status = agent.inside(pod, "status", code=NOT_RUNNING)
    assert status["agent"]["role"] == "beside-kubelet"
    assert "hidden" in status["agent"]["role_because"]


def test_pod_reads_the_node_as_the_checkout(containerd_factory: ContainerdFactory) -> None:
    containerd = containerd_factory(imagefs=LoopFs(400, "ext4"))
    agent = AgentPod(containerd, containerd.pods())
    agent.import_image()
    agent.configure('role = "beside-kubelet"')
    pod = agent.start()
    inside, outside = agent.inside(pod, "status", code=NOT_RUNNING), agent.outside("status", code=NOT_RUNNING)
    assert inside["runtime"] == outside["runtime"]
    described = (one("node", "describe")["status"]["nodeInfo"] for one in (partial(agent.inside, pod), agent.outside))
    ids = [(each["machineID"], each["systemUUID"], each["bootID"]) for each in described]
    assert ids[0] == ids[1]
    assert all(ids[0])
    (found,), (expected,) = (
        [each for each in one["filesystems"] if each["name"] == "imagefs"] for one in (inside, outside)
    )
    assert {name: found[name] for name in ("path", "capacity_bytes")} == {
        name: expected[name] for name in ("path", "capacity_bytes")
    }
    assert found["available_bytes"] == pytest.approx(expected["available_bytes"], abs=MIB)


def test_daemon_in_the_pod_evicts_the_pod_that_the_checkout_previews(
    containerd_factory: ContainerdFactory, tmp_path: Path
) -> None:
    containerd = containerd_factory(imagefs=LoopFs(900, "ext4"))
    node = PressedNode(containerd, tmp_path)
    node.import_images()
    agent = AgentPod(containerd, node.pods)
    agent.import_image()
    for number in range(3):
        node.run_writer(f"quiet-{number}", 1)
    node.run_writer("writer", 160)
    limit = node.available_bytes // MIB + 60
    agent.configure(
        'role = "standalone"',
        '[image_gc]\nenabled = false\n[eviction]\nenabled = "on"\ninterval = "1s"\npressure_transition_period = "1s"\n'
        f'hard = "imagefs.available<{limit}Mi"\n',
    )
    pod = agent.start()
    outside = agent.outside("evict", "--dry-run")
    inside = agent.inside(pod, "evict", "--dry-run")
    assert inside["plan"]["victim"] == outside["plan"]["victim"] == node.created["writer"].sandbox.uid
    ranked, expected = ([(each["rank"], each["uid"]) for each in one["plan"]["ranking"]] for one in (inside, outside))
    assert ranked == expected
    daemon = pod.start(["nodeagent", "run", "--config", str(agent.config)])
    reclaim.poll("the writer is evicted", lambda: "writer" not in node.running(), timeout_s=90, interval_s=0.2)
    reclaim.poll("space is freed", lambda: node.available_bytes // MIB > limit, timeout_s=60, interval_s=0.2)
    node.pods.stop(daemon, grace_s=20)
    assert node.running() == {f"quiet-{number}" for number in range(3)}
    assert node.pods.status(daemon.id).exit_code == 0
