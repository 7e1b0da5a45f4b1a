"""Tests of the systemd unit in a virtual machine: journal fields, reloads, watchdog, hardening, collection and stop.

The first tests run the unit with reload notifications and a short watchdog interval, the others the unit as installed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.node.conftest import APP
from tests.support import images, reclaim, vm
from tests.support.vm import HARNESS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vm import Node

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[2]
CONFIG = """\
role = "standalone"
reload_grace = "5s"
[image_gc]
interval = "2s"
minimum_age = "0s"
maximum_unused_age = "10s"
irreplaceable = "ignore"
[container_gc]
enabled = false
[shutdown]
enabled = "off"
"""


@pytest.fixture(scope="module")
def served(node: Node) -> Iterator[Node]:
    """Return the node with the unit running and the journal catalog installed."""
    unit = (ROOT / "systemd/nodeagent.service").read_text()
    unit = unit.replace("Type=notify\n", "Type=notify-reload\n").replace("WatchdogSec=60s", "WatchdogSec=6s")
    unit = re.sub(r"^ExecReload=/bin/kill .*\n", "", unit, flags=re.MULTILINE)
    node.put("/etc/systemd/system/nodeagent.service", unit)
    node.put("/usr/lib/systemd/catalog/nodeagent.catalog", ROOT / "systemd/nodeagent.catalog")
    node.run("mkdir -p /etc/nodeagent && systemctl daemon-reload && journalctl --update-catalog", timeout_s=120)
    node.put("/etc/nodeagent/config.toml", f"dry_run = true\n{CONFIG}")
    node.import_images(images.image("node.test/unused:v1", layers=[images.blob("unused", 1 << 20)]))
    node.run("systemctl start nodeagent", timeout_s=120)
    yield node
    node.run("systemctl stop nodeagent", check=False)


def entries(node: Node, *matches: str) -> list[dict[str, str]]:
    lines = node.run(["journalctl", "-o", "json", "--no-pager", *matches]).stdout.splitlines()
    return [json.loads(line) for line in lines]


def wait_for(node: Node, *matches: str, timeout_s: float = 60) -> list[dict[str, str]]:
    reclaim.poll(f"the journal has {matches}", lambda: bool(entries(node, *matches)), timeout_s=timeout_s, interval_s=1)
    return entries(node, *matches)


def test_service_is_ready_after_its_start(served: Node) -> None:
    shown = served.run("systemctl show nodeagent -p ActiveState,Type,WatchdogUSec --value").stdout.split()
    assert shown == ["notify-reload", "6s", "active"]
    assert entries(served, "NODEAGENT_EVENT=agent_started")


def test_dry_run_is_logged_with_journal_fields(served: Node) -> None:
    (entry, *_) = wait_for(served, "NODEAGENT_EVENT=would_remove", "IMAGE_REF=node.test/unused:v1")
    assert entry["_SYSTEMD_UNIT"] == "nodeagent.service"
    assert entry["PRIORITY"] == "6"
    assert entry["REASON"] == "unused-too-long"
    assert entry["IMAGE_ID"].startswith("sha256:")
    assert entry["MESSAGE"].startswith("image node.test/unused:v1 would be removed: no use observed for")
    explained = served.run("journalctl NODEAGENT_EVENT=would_remove -x --no-pager -n 1").stdout
    assert "Subject: Item would be removed" in explained


def test_invalid_configuration_is_rejected_and_a_valid_one_applied(served: Node) -> None:
    pid = served.run("systemctl show nodeagent -p MainPID --value").stdout
    served.put("/etc/nodeagent/config.toml", f"dry_run = 1\n{CONFIG}")
    assert served.run("systemctl reload nodeagent", check=False, timeout_s=60).code != 0
    status = served.run("systemctl show nodeagent -p ActiveState,StatusText --value").stdout
    assert "active\n" in status
    assert "configuration file not in force: /etc/nodeagent/config.toml: dry_run = 1: must be true or false" in status
    (refused,) = wait_for(served, "NODEAGENT_EVENT=config_rejected")
    assert "config.toml: dry_run = 1: must be true or false" in refused["MESSAGE"]
    assert "node.test/unused:v1" in served.run("ctr -n k8s.io images ls -q").stdout
    served.put("/etc/nodeagent/config.toml", f"dry_run = false\n{CONFIG}")
    served.run("systemctl reload nodeagent", timeout_s=60)
    (reloaded,) = wait_for(served, "NODEAGENT_EVENT=config_reloaded")
    assert reloaded["NODEAGENT_CHANGES"] == "dry_run: true -> false"
    (waits,) = wait_for(served, "NODEAGENT_EVENT=reload_grace_started")
    assert (waits["NODEAGENT_SECONDS"], waits["NODEAGENT_ITEMS"] != "0") == ("5.0", True)
    wait_for(served, "NODEAGENT_EVENT=removal", "OUTCOME=done")
    assert "node.test/unused:v1" not in served.run("ctr -n k8s.io images ls -q").stdout
    assert served.run("systemctl show nodeagent -p MainPID --value").stdout == pid


def test_journal_queries_of_the_documents_return_entries(served: Node) -> None:
    document = (ROOT / "nodeagent/docs/operations.md").read_text()
    queries = re.findall(r"^# (journalctl [^#\n]+?) +#", document, re.MULTILINE)
    assert len(queries) == 3
    deleted, evicted, warnings = (served.run(f"{query} --no-pager", check=False) for query in queries)
    assert evicted.stdout.strip() == "-- No entries --"
    assert warnings.code == 0
    assert "image node.test/unused:v1: done; no use observed for" in deleted.stdout


def test_slow_runtime_does_not_trigger_the_watchdog(served: Node) -> None:
    pid = served.run("systemctl show nodeagent -p MainPID --value").stdout
    served.run("systemctl kill --signal=STOP containerd && sleep 14 && systemctl kill --signal=CONT containerd")
    assert served.run("systemctl show nodeagent -p MainPID --value").stdout == pid


def test_daemon_with_a_blocked_event_loop_is_restarted_by_the_watchdog(served: Node) -> None:
    command = f"/opt/nodeagent/bin/python {HARNESS}/tests/support/stuck_daemon.py /etc/nodeagent/config.toml /run/stuck"
    served.put("/run/systemd/system/nodeagent.service.d/stuck.conf", f"[Service]\nExecStart=\nExecStart={command}\n")
    served.run("systemctl daemon-reload && systemctl restart nodeagent", timeout_s=120)
    pid = served.run("systemctl show nodeagent -p MainPID --value").stdout
    served.run("touch /run/stuck; sleep 1")
    reclaim.poll(
        "systemd has restarted the daemon",
        lambda: served.run("systemctl show nodeagent -p NRestarts --value").stdout.strip() != "0",
        timeout_s=60,
        interval_s=1,
    )
    served.run("rm /run/stuck")
    reclaim.poll(
        "the daemon is active",
        lambda: served.run("systemctl is-active nodeagent", check=False).stdout.strip() == "active",
        timeout_s=60,
        interval_s=1,
    )
    assert served.run("systemctl show nodeagent -p MainPID --value").stdout != pid
    assert "Watchdog timeout" in served.run("journalctl -u nodeagent --no-pager").stdout
    served.run("rm /run/systemd/system/nodeagent.service.d/stuck.conf && systemctl daemon-reload")
    served.run("systemctl restart nodeagent", timeout_s=120)


HARDENED_CONFIG = """\
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
def hardened(node: Node) -> Iterator[Node]:
    """Return the node with the unit installed as it is, and not started."""
    node.run("systemctl stop nodeagent", check=False, timeout_s=60)
    node.put("/etc/systemd/system/nodeagent.service", ROOT / "systemd/nodeagent.service")
    node.run("rm -rf /run/systemd/system/nodeagent.service.d && systemctl daemon-reload")
    node.import_images(images.image(APP))  # removed as unused by the first tests
    yield node
    node.run("systemctl stop nodeagent", check=False)


def log(node: Node) -> list[dict[str, object]]:
    lines = node.run("journalctl -u nodeagent -o cat --no-pager").stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_unit_is_valid_and_has_a_low_exposure(hardened: Node) -> None:
    checked = hardened.run("systemd-analyze verify /etc/systemd/system/nodeagent.service", check=False)
    assert "nodeagent.service" not in checked.stderr, checked.stderr
    hardened.put("/etc/nodeagent/config.toml", "dry_run = true\n")
    shown = hardened.run("systemd-analyze security nodeagent --no-pager", timeout_s=120).stdout
    score = float(shown.rpartition("exposure level for nodeagent.service:")[2].split()[0])
    print(f"exposure {score}")
    assert score <= 1.8, shown


def test_new_installation_is_a_dry_run_and_removes_nothing(hardened: Node) -> None:
    hardened.put("/etc/nodeagent/config.toml", f"dry_run = true\n{HARDENED_CONFIG}")
    hardened.import_images(images.image("node.test/unused:v1"))
    hardened.run("systemctl start nodeagent", timeout_s=120)
    reclaim.poll(
        "the removal is announced in the log",
        lambda: any(each["event"] == "would_remove" for each in log(hardened)),
        timeout_s=120,
        interval_s=1,
    )
    assert "node.test/unused:v1" in hardened.run("ctr -n k8s.io images ls -q").stdout
    assert not any(each["event"] == "removal" for each in log(hardened))


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


def test_unchanged_records_of_containerd_are_not_listed_again_under_hardening(hardened: Node) -> None:
    """Wait for passes that list no blobs: without access to containerd's database, each pass lists the blobs."""
    seen = [calls(hardened, "content_list", "content_list_statuses")]

    def three_passes_without_lists() -> bool:
        seen.append(calls(hardened, "content_list", "content_list_statuses"))
        (lists, ingests), (last_lists, last_ingests) = next(each for each in seen if each[0] == seen[-1][0]), seen[-1]
        return last_lists == lists and last_ingests >= ingests + 3

    reclaim.poll("three passes list no blobs", three_passes_without_lists, timeout_s=120, interval_s=1)


def test_garbage_is_collected_under_hardening(hardened: Node) -> None:
    hardened.run("systemctl stop nodeagent", timeout_s=60)
    (former,) = hardened.run_pods(vm.Pod("former", APP, ("sh", "-c", "echo last words"), namespace="shop"))
    reclaim.poll("the pod has written its log", lambda: b"last words" in hardened.get(former.log_file), interval_s=0.5)
    hardened.python(
        "from pathlib import Path\n"
        "from tests.support.pods import Pods\n"
        "with Pods(Path('/run/containerd/containerd.sock'), log_root=Path('/var/log/pods')) as pods:\n"
        f"    pods.call('StopPodSandbox', {{'pod_sandbox_id': '{former.sandbox_id}'}})\n"
    )
    hardened.put("/etc/nodeagent/config.toml", HARDENED_CONFIG)
    hardened.run("systemctl start nodeagent", timeout_s=120)
    reclaim.poll(
        "container, sandbox, log and image are removed",
        lambda: (
            {"container", "sandbox", "pod-log-directory", "image"}
            <= {each["kind"] for each in log(hardened) if each["event"] == "removal" and each["outcome"] == "done"}
        ),
        timeout_s=180,
        interval_s=1,
    )
    assert hardened.run(f"test -e {former.log_file}", check=False).code != 0
    assert "node.test/unused:v1" not in hardened.run("ctr -n k8s.io images ls -q").stdout
    failed = [each for each in log(hardened) if each["event"] in ("pass_failed", "pass_crashed", "store_degraded")]
    assert failed == []
    assert {"would_remove", "reload_grace_started"} <= {each["event"] for each in log(hardened)}


def test_running_kubelet_is_detected_under_hardening(hardened: Node) -> None:
    hardened.put("/usr/local/bin/kubelet", "#!/bin/sh\nsleep 600\n:\n")
    hardened.run(
        "chmod +x /usr/local/bin/kubelet && systemd-run --unit=fake-kubelet /usr/local/bin/kubelet --root-dir=/run/k"
    )
    try:
        reclaim.poll(
            "the kubelet is detected",
            lambda: any(
                each["event"] == "role_changed" and each["role"] == "beside-kubelet" and each["basis"] == "live-kubelet"
                for each in log(hardened)
            ),
            timeout_s=120,
            interval_s=1,
        )
    finally:
        hardened.run(
            "systemctl stop fake-kubelet; rm /usr/local/bin/kubelet; systemctl restart nodeagent", timeout_s=120
        )


def test_service_stops_within_seconds_and_keeps_its_state(hardened: Node) -> None:
    hardened.run("systemctl stop nodeagent", timeout_s=60)
    assert hardened.run("systemctl show nodeagent -p Result --value").stdout.strip() == "success"
    assert log(hardened)[-1]["event"] == "agent_stopped"
    history = json.loads(hardened.run("nodeagent history --output json").stdout)
    assert any(action["kind"] == "image" for past in history["passes"] for action in past["actions"])
