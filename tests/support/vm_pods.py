"""Run pods in the node: read their descriptions as JSON, create the pods by ``pods``, and write the results as JSON."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import reclaim
from tests.support.pods import Pods

SOCKET = Path("/run/containerd/containerd.sock")
LOG_ROOT = Path("/var/log/pods")
_IMAGE_S = 30.0
_CALL_S = 120.0
_AT_ONCE = 3  # concurrent creations: the node has two processors, and each creation waits for systemd and for the disk


def run(pods: Pods, described: dict[str, Any]) -> dict[str, str]:
    """Run one pod with one container; return the sandbox and container ids and the log path."""
    reclaim.poll(
        f"CRI lists {described['image']}",
        lambda: any(described["image"] in image.tags for image in pods.list_images()),
        timeout_s=_IMAGE_S,
        interval_s=0.2,
    )
    sandbox = pods.run_sandbox(described["name"], **described["sandbox"])
    container = pods.create_container(
        sandbox,
        described["container"],
        described["image"],
        described["command"],
        resources=described["resources"],
        mounts={Path(host): inside for host, inside in described["mounts"].items()},
    )
    pods.start(container)
    return {"sandbox_id": sandbox.id, "container_id": container.id, "log_file": str(container.log_file)}


def main() -> None:
    with Pods(SOCKET, log_root=LOG_ROOT, timeout_s=_CALL_S) as pods, ThreadPoolExecutor(_AT_ONCE) as threads:
        json.dump(list(threads.map(partial(run, pods), json.load(sys.stdin))), sys.stdout)


if __name__ == "__main__":
    main()
