"""Simulated node with the names of a production cluster: ``python -m tests.support.crowded DIR``.

The node has long registry references, an image with twenty tags, restarted containers and finished pods. DIR contains
the runtime's socket ``s``, the log roots and a configuration; the runtime is served until SIGTERM. Ids and ages are
equal in every run.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from nodeagent.model.runtime import ContainerState
from tests.sim.clock import SimClock
from tests.sim.content import Layer
from tests.sim.node import PAUSE, SimNode
from tests.support.serving import serve

REGISTRY: Final = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"
TAGGED: Final = f"{REGISTRY}/platform/payments/payments-api"
WORKER: Final = f"{REGISTRY}/platform/payments/settlement-worker:2026.02.27-1839-9f1c3ab2"
REPORT: Final = f"{REGISTRY}/batch/monthly-report:2025.11.30-0400-0c9d1e7f"
PROXY: Final = "registry.k8s.io/kube-proxy:v1.31.4"
TOOLS: Final = "docker.io/library/busybox:1.36"
_MIB: Final = 1 << 20
_HOUR_S: Final = 3600.0
_DAY_S: Final = 24 * _HOUR_S
_HALF_S: Final = 1800.0
"""Seconds added to every age, so that the displayed age does not change for half an hour."""


def crowded_node(root: Path, now: datetime) -> SimNode:
    """Return the simulated node at the time ``now``."""
    node = SimNode(clock=SimClock(now), root_path=str(root))
    old_s = 40 * _DAY_S + _HALF_S
    node.add_image(PAUSE, layers=[Layer("pause", 4096)], pinned=True, age_s=old_s)
    tags = [f"{TAGGED}:2026.02.{day:02}-1200-{day:02}ab34cd" for day in range(1, 21)]
    node.add_image(*tags, layers=[Layer("base", 700 * _MIB), Layer("payments", 801 * _MIB)], age_s=old_s)
    node.add_image(WORKER, layers=[Layer("base", 700 * _MIB), Layer("worker", 96 * _MIB)], age_s=old_s)
    node.add_image(REPORT, layers=[Layer("base", 700 * _MIB), Layer("report", 12_345 * _MIB)], age_s=old_s)
    node.add_image(PROXY, layers=[Layer("proxy", 90 * _MIB)], age_s=old_s)
    node.add_image(TOOLS, layers=[Layer("tools", 4 * _MIB)], age_s=old_s, digest_only=True)
    proxy = node.add_pod("kube-proxy-7xk2p", namespace="kube-system", age_s=9 * _DAY_S + _HALF_S)
    node.add_container(proxy, "kube-proxy", PROXY, age_s=9 * _DAY_S + _HALF_S)
    api = node.add_pod("payments-api-7d9f8b6c5d-x2x9z", namespace="payments-production", age_s=2 * _DAY_S + _HALF_S)
    node.add_container(api, "payments-api", tags[-1], age_s=5 * _HOUR_S + _HALF_S, attempt=3)
    for attempt in range(3):
        node.add_container(
            api,
            "payments-api",
            tags[-1],
            state=ContainerState.EXITED,
            attempt=attempt,
            age_s=(20 - attempt) * _HOUR_S + _HALF_S,
            ended_s=(19 - attempt) * _HOUR_S,
            exit_code=137,
        )
    node.add_container(api, "vault-agent-sidecar", WORKER, age_s=2 * _DAY_S + _HALF_S)
    report = node.add_pod(
        "monthly-report-aggregation-28934400-qw7tz", namespace="batch", age_s=3 * _DAY_S + _HALF_S, ready=False
    )
    node.add_container(
        report,
        "report",
        REPORT,
        state=ContainerState.EXITED,
        age_s=3 * _DAY_S + _HALF_S,
        ended_s=2 * _DAY_S + _HALF_S,
    )
    node.pod_log_root = str(root / "pods")
    node.fill_to(91)
    return node


def write_config(directory: Path) -> Path:
    """Write a configuration with image GC thresholds that the node exceeds."""
    path = directory / "config.toml"
    path.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{directory}/s"\n[state]\ndirectory = "{directory}/state"\n'
        f'[container_gc]\npod_log_root = "{directory}/pods"\ncontainer_log_root = "{directory}/containers"\n'
        "[image_gc]\nhigh_threshold_percent = 85\nlow_threshold_percent = 60\n"
        f'[control]\nsocket = "{directory}/control.sock"\n[metrics]\nlisten = "off"\n[shutdown]\nenabled = "off"\n'
    )
    return path


def main(directory: Path) -> None:
    node = crowded_node(directory, datetime.now(UTC))
    for name in ("pods", "containers"):
        (directory / name).mkdir(exist_ok=True)
    Path(node.imagefs_path).mkdir(parents=True, exist_ok=True)
    write_config(directory)
    asyncio.run(serve(node, directory / "s"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
