"""Filesystems besides imagefs on a real node: a full one is reported by status, doctor and metrics."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.command import nodeagent
from tests.support.containerd import LoopFs
from tests.support.pressed import MIB, PressedNode

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real


def metrics(node: PressedNode) -> dict[str, float]:
    """Return the values of the filesystem metrics of the daemon, by name and roles."""
    series = r'^nodeagent_filesystem_(\w+){path="[^"]*",roles="([^"]*)"} (\S+)$'
    found = re.findall(series, node.metrics(), re.MULTILINE)
    return {f"{name} {roles}": float(value) for name, roles, value in found}


def mount(filesystem: LoopFs, node: PressedNode, point: Path) -> Path:
    filesystem.mount(node.containerd.base / f"{point.name}.img", point)
    return point


@pytest.mark.parametrize(
    ("role", "effect"), [("runtime-state", "no pod starts"), ("pod-logs", "container logs are lost")]
)
def test_full_filesystem_is_reported_with_its_role(
    containerd_factory: ContainerdFactory, tmp_path: Path, role: str, effect: str
) -> None:
    node = PressedNode(containerd_factory(imagefs=LoopFs(300)), tmp_path)
    point = node.containerd.state if role == "runtime-state" else node.containerd.log_root
    if role == "runtime-state":  # as at the boot of a node
        node.containerd.stop()
        mount(LoopFs(48, reserved_percent=0), node, point)
        node.containerd.start()
    else:
        mount(LoopFs(48, reserved_percent=0), node, point)
    config = node.configure('hard = "memory.available<1Mi"')

    def status() -> tuple[dict[str, Any], str]:
        shown = nodeagent("status", "-c", str(config)).stdout
        found = json.loads(nodeagent("status", "-c", str(config), "-o", "json").stdout)
        (own,) = [each for each in found["filesystems"] if role in each["roles"]]
        return own, shown

    def finding() -> dict[str, str]:
        findings = json.loads(nodeagent("doctor", "-c", str(config), "-o", "json").stdout)["findings"]
        return next(each for each in findings if each["check"] == "filesystems")

    own, shown = status()
    assert (role in own["roles"], own["path"], own["nearly_full"]) == (True, str(point), "")
    roles = ",".join(own["roles"])  # a machine without a kubelet has nodefs on the filesystem of the pod logs
    assert "no pressure" in shown
    assert finding()["verdict"] == "ok"
    with (point / "ballast").open("wb") as ballast:
        free = os.statvfs(point)
        os.posix_fallocate(ballast.fileno(), 0, free.f_bavail * free.f_frsize - MIB)
    own, shown = status()
    sentence = rf"{point} \({', '.join(own['roles'])}\): [0-4]\.\d% of bytes available; if it is full: .*{effect}"
    assert re.match(sentence, own["nearly_full"])
    assert own["available_bytes"] <= MIB
    assert own["inodes"] > own["inodes_free"] > 0
    assert own["nearly_full"] in shown.splitlines()
    assert "no pressure" not in shown
    assert (finding()["verdict"], own["nearly_full"] in finding()["evidence"]) == ("warning", True)
    with node.daemon('hard = "memory.available<1Mi"'):
        found = metrics(node)
    assert found[f"available_bytes {roles}"] <= MIB
    assert found[f"capacity_bytes {roles}"] > 30 * MIB
    assert found[f"capacity_inodes {roles}"] > found[f"available_inodes {roles}"] > 0


@pytest.fixture
def node(containerd_factory: ContainerdFactory, containerd_version: str, tmp_path: Path) -> PressedNode:
    """Return a node whose pod logs are on a filesystem of their own; nodefs is the machine's disk."""
    if containerd_version != "host":
        pytest.skip("mounts are not shared with a containerd in its own mount namespace")
    made = PressedNode(containerd_factory(imagefs=LoopFs(700)), tmp_path)
    made.import_images()
    made.container_gc = 'sandbox_minimum_age = "0s"'
    mount(LoopFs(400), made, made.containerd.log_root)
    made.nodefs = tmp_path / "kubelet"
    made.nodefs.mkdir()
    return made


def available_mib(path: Path) -> int:
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize // MIB


@pytest.mark.difference("log-filesystem")
def test_only_the_log_writer_is_evicted_for_the_filesystem_of_the_logs(node: PressedNode) -> None:
    logs = node.containerd.log_root
    node.run_writer("writer", 150)
    node.run_pod("quiet", "echo started")
    chatty = node.run_pod("chatty", "yes $(seq 60) | head -c 120000000")
    assert chatty.sandbox.log_directory is not None
    with (logs / "host").open("wb") as host:
        os.posix_fallocate(host.fileno(), 0, 150 * MIB)
    with node.daemon(f'hard = "nodefs.available<{available_mib(logs) + 60}Mi"'):
        node.wait_for("threshold_cleared", timeout_s=90)
        node.wait_passes(4)
    (evicted,) = node.events("evicted")
    assert (evicted["pod_name"], evicted["threshold"].endswith(f" on {logs}")) == ("chatty", True)
    assert not chatty.sandbox.log_directory.exists()
    assert node.running() == {"writer", "quiet"}
    assert not node.events("eviction_ineffective")


@pytest.mark.difference("log-filesystem")
def test_no_pod_is_evicted_if_files_of_the_host_fill_the_filesystem_of_the_logs(node: PressedNode) -> None:
    logs = node.containerd.log_root
    node.run_writer("writer", 150)
    node.run_pod("chatty", "yes | head -c 20000")  # 0.5 MiB with the times of the lines
    with (logs / "host").open("wb") as host:
        os.posix_fallocate(host.fileno(), 0, (available_mib(logs) - 20) * MIB)
    with node.daemon('hard = "nodefs.available<60Mi"'):
        node.wait_for("no_evictable_pod", timeout_s=60)
        node.wait_passes(5)
    assert {each["threshold"] for each in node.events("threshold_met")} == {f"nodefs.available<60Mi on {logs}"}
    assert not node.events("evicted")
    assert node.running() == {"writer", "chatty"}
