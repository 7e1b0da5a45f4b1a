"""Tests of the integration with systemd and journald: readiness, reloads, watchdog and journal fields."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import images, reclaim
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
    reclaim.poll(
        f"the journal has {matches}", lambda: bool(entries(node, *matches)), timeout_s=timeout_s, interval_s=0.5
    )
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
        interval_s=0.5,
    )
    served.run("rm /run/stuck")
    reclaim.poll(
        "the daemon is active",
        lambda: served.run("systemctl is-active nodeagent", check=False).stdout.strip() == "active",
        timeout_s=60,
        interval_s=0.5,
    )
    assert served.run("systemctl show nodeagent -p MainPID --value").stdout != pid
    assert "Watchdog timeout" in served.run("journalctl -u nodeagent --no-pager").stdout
    served.run("rm /run/systemd/system/nodeagent.service.d/stuck.conf && systemctl daemon-reload")
    served.run("systemctl restart nodeagent", timeout_s=120)


def test_unit_has_the_documented_hardening(served: Node) -> None:
    shown = served.run("systemd-analyze security nodeagent --no-pager", timeout_s=120).stdout
    score = float(shown.rpartition("exposure level for nodeagent.service:")[2].split()[0])
    print(f"exposure {score}")
    assert score <= 1.8, shown
