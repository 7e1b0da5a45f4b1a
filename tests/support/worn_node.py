"""Node after long use, on a real containerd: a small, nearly full image filesystem, shared layers, dead pods.

The integration tests and the demo share this module.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.support import images, reclaim
from tests.support.containerd import LoopFs
from tests.support.pods import link_log

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.containerd import Containerd
    from tests.support.pods import Container, Pods, Sandbox

MIB = 1 << 20
REGISTRY = "registry.example.com"
KEPT = f"{REGISTRY}/tools/debug:v1"
FRESH = f"{REGISTRY}/shop/frontend:v9"
PINNED = f"{REGISTRY}/shop/pinned:v1"
USED_RUNNING = f"{REGISTRY}/shop/web:v6"
USED_DEAD = f"{REGISTRY}/shop/worker:v3"
USED_GONE = f"{REGISTRY}/batch/report:v2"
IMAGEFS = LoopFs(420)
SEPARATION_S = 8.0


@dataclass
class WornNode:
    """Images and pods of the node, by role.

    Attributes:
        aged_at: monotonic time after the import of all images except the fresh image.
        fresh_at: monotonic time before the import of the fresh image.
    """

    containerd: Containerd
    config: Path
    pods: Pods
    aged_at: float = 0.0
    fresh_at: float = 0.0
    crashed: list[Container] = field(default_factory=list)
    crash_sandbox: Sandbox | None = None
    deleted: list[Container] = field(default_factory=list)
    deleted_sandbox: Sandbox | None = None
    running: Container | None = None

    @property
    def minimum_age(self) -> str:
        """Minimum image age setting that is currently above the age of the fresh image and below all other ages."""
        return f"{time.monotonic() - (self.aged_at + self.fresh_at) / 2:.2f}s"

    @property
    def used_percent(self) -> int:
        """Usage of the image filesystem in percent, computed as by the kubelet."""
        usage = os.statvfs(self.containerd.root)
        return 100 - usage.f_bavail * 100 // usage.f_blocks


@dataclass(frozen=True, slots=True)
class AgedImages:
    """Imported old images of a node.

    Attributes:
        imagefs: image filesystem with the images, for other nodes with a copy of it.
        at: monotonic time after the import.
    """

    imagefs: LoopFs
    at: float


def age_images(containerd: Containerd) -> AgedImages:
    """Import the old images into a newly started containerd with ``IMAGEFS``, and save a copy of the filesystem."""
    _import_old_images(containerd)
    imported_at = time.monotonic()
    return AgedImages(replace(IMAGEFS, copy_of=containerd.checkpoint()), imported_at)


def wear(containerd: Containerd, *, used_percent: float = 91, aged: AgedImages | None = None) -> WornNode:
    """Fill a newly started containerd with a dedicated image filesystem with the images and pods of a node in use.

    Without ``aged``, whose filesystem the containerd then has, the old images are imported.
    """
    link_root = containerd.base / "containers"
    link_root.mkdir(exist_ok=True)
    config = containerd.base / "nodeagent.toml"
    config.write_text(_config(containerd, link_root))
    node = WornNode(containerd, config, containerd.pods())
    if aged is None:
        _import_old_images(containerd)
    node.aged_at = aged.at if aged else time.monotonic()
    _run_pods(node, link_root)
    reclaim.poll(
        "the images have aged",
        lambda: time.monotonic() - node.aged_at > SEPARATION_S,
        timeout_s=2 * SEPARATION_S,
        interval_s=0.2,
    )
    node.fresh_at = time.monotonic()
    fresh = images.image(FRESH, layers=[images.blob("frontend base", 6 * MIB), images.blob("frontend v9", 9 * MIB)])
    containerd.import_images(images.write_oci(containerd.base / "fresh.tar", fresh), pulled=True)
    usage = os.statvfs(containerd.root)
    containerd.fill(int(usage.f_blocks * usage.f_frsize * (100 - used_percent) / 100))
    return node


def _import_old_images(containerd: Containerd) -> None:
    containerd.import_images(images.write_oci(containerd.base / "old.tar", *_old_images()), pulled=True)
    containerd.ctr("images", "label", PINNED, "io.cri-containerd.pinned=pinned")


def _old_images() -> list[images.Image]:
    """Return the images: three families of versions on shared layers, a pinned image and a debug image."""
    made = []
    for name, base_mib, own_mib in (("web", 14, 3), ("worker", 10, 4)):
        base = images.blob(f"{name} base", base_mib * MIB)
        for version in range(1, 7):
            own = images.blob(f"{name} v{version}", own_mib * MIB)
            tags = [f"{REGISTRY}/shop/{name}:v{version}"] + ([f"{REGISTRY}/shop/{name}:latest"] if version == 6 else [])
            made.append(images.image(*tags, layers=[base, own]))
    shared = images.blob("report base", 8 * MIB)
    made += [
        images.image(f"{REGISTRY}/batch/report:v{version}", layers=[shared, images.blob(f"report v{version}", 5 * MIB)])
        for version in (1, 2, 3)
    ]
    made.append(images.image(PINNED, layers=[images.blob("pinned", 4 * MIB)]))
    made.append(images.image(KEPT, layers=[images.blob("debug", 4 * MIB)]))
    return made


def _run_pods(node: WornNode, link_root: Path) -> None:
    """Run a healthy pod, a pod with four crashed attempts and a deleted pod, and create a container by ``ctr``."""
    pods = node.pods
    healthy = pods.run_sandbox("web", namespace="shop")
    node.running = pods.run_container(healthy, "web", USED_RUNNING)
    link_log(link_root, node.running)
    node.crash_sandbox = pods.run_sandbox("worker", namespace="shop")
    for attempt in range(4):
        crashed = pods.run_container(
            node.crash_sandbox, "worker", USED_DEAD, ["sh", "-c", f"echo attempt {attempt}; exit 1"], attempt=attempt
        )
        pods.wait_exited(crashed)
        link_log(link_root, crashed)
        node.crashed.append(crashed)
    node.deleted_sandbox = pods.run_sandbox("report", namespace="batch")
    done = pods.run_container(node.deleted_sandbox, "report", USED_GONE, ["sh", "-c", "echo done"])
    pods.wait_exited(done)
    link_log(link_root, done)
    node.deleted.append(done)
    pods.stop_sandbox(node.deleted_sandbox)
    node.containerd.ctr("containers", "create", USED_RUNNING, "made-by-hand")


def _config(containerd: Containerd, link_root: Path) -> str:
    quoted = {
        name: json.dumps(str(path))
        for name, path in {
            "endpoint": f"unix://{containerd.socket}",
            "state": containerd.base / "agent-state",
            "pods": containerd.log_root,
            "links": link_root,
        }.items()
    }
    return f"""role = "standalone"

[runtime]
endpoint = {quoted["endpoint"]}

[container_gc]
deleted_pod_grace = "0s"
sandbox_minimum_age = "0s"
log_minimum_age = "0s"
pod_log_root = {quoted["pods"]}
container_log_root = {quoted["links"]}

[protect]
images = ["*/tools/*"]

[state]
directory = {quoted["state"]}
[eviction]
enabled = "off"
[shutdown]
enabled = "off"
"""
