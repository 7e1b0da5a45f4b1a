"""Node with the names of a production cluster on a real containerd, and its agent configuration.

The node has long registry references, an image with many names, restarted containers, a finished pod, a leaked
snapshot, and images that are pinned, protected or without a name. Names, sizes and the lengths of paths are equal in
every run.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.support import images
from tests.support.containerd import LoopFs
from tests.support.pods import link_log

if TYPE_CHECKING:
    import grp
    from pathlib import Path

    from tests.support.containerd import Containerd
    from tests.support.pods import Container, Pods, Sandbox

REGISTRY: Final = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"
TAGGED: Final = f"{REGISTRY}/platform/payments/payments-api"
TAGS: Final = tuple(f"{TAGGED}:2026.02.{day:02}-1200-{day:02}ab34cd" for day in range(1, 6))
WORKER: Final = f"{REGISTRY}/platform/payments/settlement-worker:2026.02.27-1839-9f1c3ab2"
REPORTS: Final = tuple(f"{REGISTRY}/batch/monthly-report:2025.{month:02}.30-0400-0c9d1e7f" for month in (9, 10, 11))
PROXY: Final = "registry.k8s.io/kube-proxy:v1.31.4"
PINNED: Final = "registry.k8s.io/node-tools/pinned:v3"
PROTECTED: Final = f"{REGISTRY}/tools/debug:v1"
UNTAGGED: Final = "docker.io/library/alpine:3.20"
IMAGEFS: Final = LoopFs(320, "ext4", reserved_percent=0)
USED_PERCENT: Final = 91
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ProductionNode:
    """Containerd of the node, and directories and configuration of the agent."""

    containerd: Containerd
    pods: Pods
    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "config.toml"

    @property
    def control_socket(self) -> Path:
        return self.directory / "run" / "control.sock"


def fill(containerd: Containerd, directory: Path) -> ProductionNode:
    """Fill a newly started containerd on the image filesystem ``IMAGEFS``; ``directory`` is for files of the agent."""
    for name in ("links", "pods", "run"):
        (directory / name).mkdir()
    (directory / "cri.sock").symlink_to(containerd.socket)
    (directory / "imagefs").symlink_to(containerd.root)
    measure_often(containerd)
    node = ProductionNode(containerd, containerd.pods(), directory)
    containerd.import_images(images.write_oci(containerd.base / "images.tar", *_images()), pulled=True)
    for tag in TAGS[1:]:
        containerd.ctr("images", "tag", TAGS[0], tag)
    containerd.ctr("images", "label", PINNED, "io.cri-containerd.pinned=pinned")
    containerd.ctr("images", "rm", UNTAGGED)
    _run_pods(node)
    containerd.ctr("snapshots", "prepare", "orphan", "")
    containerd.fill(IMAGEFS.size_mib * _MIB * (100 - USED_PERCENT) // 100)
    return node


def measure_often(containerd: Containerd) -> None:
    """Restart containerd with writable layers measured every second instead of every ten seconds."""
    config = containerd.base / "config.toml"
    before = "  restrict_oom_score_adj = true\n"
    config.write_text(config.read_text().replace(before, f"{before}  stats_collect_period = 1\n"))
    containerd.restart()


def _images() -> list[images.Image]:
    base = images.blob("base", 20 * _MIB)
    sizes = {TAGS[0]: 24, WORKER: 6, **dict(zip(REPORTS, (11, 12, 13), strict=True))}
    return [
        *(images.image(tag, layers=[base, images.blob(tag, mib * _MIB)]) for tag, mib in sizes.items()),
        *(
            images.image(tag, layers=[images.blob(tag, mib * _MIB)])
            for tag, mib in {PROXY: 9, PINNED: 4, PROTECTED: 3, UNTAGGED: 5}.items()
        ),
    ]


def _run_pods(node: ProductionNode) -> None:
    pods = node.pods
    proxy = _run_sandbox(node, "kube-proxy-7xk2p", "kube-system")
    pods.run_container(proxy, "kube-proxy", PROXY)
    api = _run_sandbox(node, "payments-api-7d9f8b6c5d-x2x9z", "payments-production")
    for attempt in range(3):
        ended = pods.run_container(api, "payments-api", TAGS[-1], ["sh", "-c", "exit 137"], attempt=attempt)
        _wait_for_end(node, ended)
    pods.run_container(api, "payments-api", TAGS[-1], attempt=3)
    pods.run_container(api, "vault-agent-sidecar", WORKER)
    report = _run_sandbox(node, "monthly-report-aggregation-28934400-qw7tz", "batch")
    write = ["dd", "if=/dev/zero", "of=/tmp/out", "bs=1M", "count=2"]
    _wait_for_end(node, pods.run_container(report, "report", REPORTS[-1], write))
    pods.stop_sandbox(report)


def _run_sandbox(node: ProductionNode, name: str, namespace: str) -> Sandbox:
    uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    logs = node.directory / "pods" / f"{namespace}_{name}_{uid}"
    return node.pods.run_sandbox(name, namespace=namespace, uid=uid, log_directory=logs)


def _wait_for_end(node: ProductionNode, made: Container) -> None:
    node.pods.wait_exited(made)
    link_log(node.directory / "links", made)


def write_config(node: ProductionNode, group: grp.struct_group) -> None:
    """Write a dry-run configuration with thresholds that the node exceeds and with access for members of a group."""
    directory = node.directory
    os.chown(node.control_socket.parent, 0, group.gr_gid)
    node.control_socket.parent.chmod(0o750)
    node.config.write_text(f"""role = "standalone"
dry_run = true

[runtime]
endpoint = "unix://{directory}/cri.sock"
imagefs_path = "{directory}/imagefs"

[image_gc]
high_threshold_percent = 85
low_threshold_percent = 75

[container_gc]
pod_log_root = "{directory}/pods"
container_log_root = "{directory}/links"

[protect]
images = ["*/tools/*"]

[eviction]
hard = "memory.available<1Mi,nodefs.available<1Mi,imagefs.available<5%"

[shutdown]
enabled = "off"

[state]
directory = "{directory}/state"

[control]
socket = "{node.control_socket}"
group = "{group.gr_name}"

[metrics]
listen = "off"
""")
