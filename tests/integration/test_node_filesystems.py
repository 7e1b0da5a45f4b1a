"""Filesystems besides imagefs on a real node: a full one is reported by status, doctor and metrics."""

from __future__ import annotations

import json
import os
import re
import socket
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
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(node.metrics_socket))
        connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
    found = re.findall(r'^nodeagent_filesystem_(\w+){path="[^"]*",roles="([^"]*)"} (\S+)$', answer, re.MULTILINE)
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
