"""Tests of the systemd unit in a virtual machine: hardening, garbage collection and stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.node.conftest import APP
from tests.support import images, reclaim, vm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vm import Node

pytestmark = pytest.mark.node

UNIT = Path(__file__).parents[2] / "systemd" / "nodeagent.service"
CONFIG = """\
role = "standalone"
reload_grace = "5s"
[log]
format = "json"
[image_gc]
interval = "2s"
minimum_age = "0s"
maximum_unused_age = "1s"
irreplaceable = "ignore"
[container_gc]
interval = "2s"
deleted_pod_grace = "1s"
sandbox_minimum_age = "0s"
log_minimum_age = "0s"
"""


@pytest.fixture(scope="module")
def served(node: Node) -> Iterator[Node]:
    """Return the node with the unit installed but not started."""
    node.put("/etc/systemd/system/nodeagent.service", UNIT)
    node.run("mkdir -p /etc/nodeagent && systemctl daemon-reload")
    yield node
    node.run("systemctl stop nodeagent", check=False)


def log(node: Node) -> list[dict[str, object]]:
    lines = node.run("journalctl -u nodeagent -o cat --no-pager").stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_unit_is_valid_and_has_a_low_exposure(served: Node) -> None:
    checked = served.run("systemd-analyze verify /etc/systemd/system/nodeagent.service", check=False)
    assert "nodeagent.service" not in checked.stderr, checked.stderr
    served.put("/etc/nodeagent/config.toml", "dry_run = true\n")
    shown = served.run("systemd-analyze security nodeagent --no-pager", timeout_s=120).stdout
    score = float(shown.rpartition("exposure level for nodeagent.service:")[2].split()[0])
    print(f"exposure {score}")
    assert score <= 1.8, shown


def test_new_installation_is_a_dry_run_and_removes_nothing(served: Node) -> None:
    served.put("/etc/nodeagent/config.toml", f"dry_run = true\n{CONFIG}")
    served.import_images(images.image("node.test/unused:v1"))
    served.run("systemctl start nodeagent", timeout_s=120)
    reclaim.poll(
        "the removal is announced in the log",
        lambda: any(each["event"] == "would_remove" for each in log(served)),
        timeout_s=120,
    )
    assert "node.test/unused:v1" in served.run("ctr -n k8s.io images ls -q").stdout
    assert not any(each["event"] == "removal" for each in log(served))


METRICS = """\
import socket
with socket.create_connection(("127.0.0.1", 20310)) as client:
    client.sendall(b"GET /metrics HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    print(b"".join(iter(lambda: client.recv(65536), b"")).decode())
"""


def calls(node: Node, *operations: str) -> list[float]:
    """Return the number of the daemon's calls of containerd's API, for each operation in ``operations``."""
    lines = [line.rpartition(" ") for line in node.python(METRICS).splitlines()]
    values = {name: float(value) for name, _, value in lines if name.startswith("nodeagent_containerd_calls_total")}
    return [values[f'nodeagent_containerd_calls_total{{operation_type="{each}"}}'] for each in operations]


def test_unchanged_records_of_containerd_are_not_listed_again_under_hardening(served: Node) -> None:
    """Wait for passes that list no blobs: without access to containerd's database, each pass lists the blobs."""
    seen = [calls(served, "content_list", "content_list_statuses")]

    def three_passes_without_lists() -> bool:
        seen.append(calls(served, "content_list", "content_list_statuses"))
        (lists, ingests), (last_lists, last_ingests) = next(each for each in seen if each[0] == seen[-1][0]), seen[-1]
        return last_lists == lists and last_ingests >= ingests + 3

    reclaim.poll("three passes list no blobs", three_passes_without_lists, timeout_s=120)


def test_garbage_is_collected_under_hardening(served: Node) -> None:
    served.run("systemctl stop nodeagent", timeout_s=60)
    (former,) = served.run_pods(vm.Pod("former", APP, ("sh", "-c", "echo last words"), namespace="shop"))
    reclaim.poll("the pod has written its log", lambda: b"last words" in served.get(former.log_file))
    served.python(
        "from pathlib import Path\n"
        "from tests.support.pods import Pods\n"
        "with Pods(Path('/run/containerd/containerd.sock'), log_root=Path('/var/log/pods')) as pods:\n"
        f"    pods.call('StopPodSandbox', {{'pod_sandbox_id': '{former.sandbox_id}'}})\n"
    )
    served.put("/etc/nodeagent/config.toml", CONFIG)
    served.run("systemctl start nodeagent", timeout_s=120)
    reclaim.poll(
        "container, sandbox, log and image are removed",
        lambda: (
            {"container", "sandbox", "pod-log-directory", "image"}
            <= {each["kind"] for each in log(served) if each["event"] == "removal" and each["outcome"] == "done"}
        ),
        timeout_s=180,
    )
    assert served.run(f"test -e {former.log_file}", check=False).code != 0
    assert "node.test/unused:v1" not in served.run("ctr -n k8s.io images ls -q").stdout
    failed = [each for each in log(served) if each["event"] in ("pass_failed", "pass_crashed", "store_degraded")]
    assert failed == []
    assert {"would_remove", "reload_grace_started"} <= {each["event"] for each in log(served)}


def test_running_kubelet_is_detected_under_hardening(served: Node) -> None:
    served.put("/usr/local/bin/kubelet", "#!/bin/sh\nsleep 600\n:\n")
    served.run(
        "chmod +x /usr/local/bin/kubelet && systemd-run --unit=fake-kubelet /usr/local/bin/kubelet --root-dir=/run/k"
    )
    try:
        reclaim.poll(
            "the kubelet is detected",
            lambda: any(
                each["event"] == "role_changed" and each["role"] == "beside-kubelet" and each["basis"] == "live-kubelet"
                for each in log(served)
            ),
            timeout_s=120,
        )
    finally:
        served.run("systemctl stop fake-kubelet; rm /usr/local/bin/kubelet; systemctl restart nodeagent", timeout_s=120)


def test_service_stops_within_seconds_and_keeps_its_state(served: Node) -> None:
    served.run("systemctl stop nodeagent", timeout_s=60)
    assert served.run("systemctl show nodeagent -p Result --value").stdout.strip() == "success"
    assert log(served)[-1]["event"] == "agent_stopped"
    history = json.loads(served.run("nodeagent history --output json").stdout)
    assert any(action["kind"] == "image" for past in history["passes"] for action in past["actions"])
