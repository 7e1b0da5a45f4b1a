"""Agent as a service on a test node: installation, configuration, log and inhibitor lock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import reclaim
from tests.support.vm import NodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.vm import Entry, Node, RunningPod

SYSTEMD = Path(__file__).parents[2] / "systemd"
BANDS = (0, 1000, 100_000, 2_000_000_000)
CONFIG = """\
role = "standalone"
[log]
format = "json"
[image_gc]
enabled = false
[container_gc]
enabled = false
[shutdown]
by_priority = [
    {{min_priority = 0, seconds = {0}}},
    {{min_priority = 1000, seconds = {0}}},
    {{min_priority = 100000, seconds = {0}}},
    {{min_priority = 2000000000, seconds = {0}}},
]
"""
UPGRADES = "/etc/systemd/logind.conf.d/30-unattended-upgrades.conf"
OWN = "/etc/systemd/logind.conf.d/zz-nodeagent.conf"
START_S = 900.0


def install(node: Node, phase_s: float) -> None:
    """Boot the node if it is powered off, and install the agent with shutdown phases of ``phase_s`` each."""
    if not node.running:
        node.start()
    node.put("/etc/systemd/system/nodeagent.service", SYSTEMD / "nodeagent.service")
    node.put("/etc/nodeagent/config.toml", CONFIG.format(phase_s))
    # The directory of the control socket, as created by tmpfiles.d after an installation.
    node.run("mkdir -p /run/nodeagent && systemctl daemon-reload && systemctl enable nodeagent", timeout_s=START_S)


def set_limit(node: Node, path: str, seconds: float) -> None:
    node.put(path, f"[Login]\nInhibitDelayMaxSec={seconds}\n")
    node.run("systemctl kill --signal HUP systemd-logind")


def install_with_limit(node: Node, limit_s: float) -> None:
    """Install the agent with equal phases, and set logind's ``InhibitDelayMaxSec`` to ``limit_s``.

    From 10 s on, the limit exceeds the sum of the phases by the margin that ``doctor --fix-logind`` adds; a shorter
    limit is divided equally among the phases.
    """
    install(node, (limit_s - 1) / 1.1 / len(BANDS) if limit_s >= 10 else limit_s / len(BANDS))
    set_limit(node, OWN, limit_s)


def start(node: Node) -> None:
    node.run("systemctl restart nodeagent", timeout_s=START_S)
    wait_for_lock(node)


def main_pid(node: Node) -> str:
    return node.run("systemctl show nodeagent --property MainPID --value").stdout.strip()


def lock_entry(node: Node) -> list[str]:
    """Return the agent's entry in logind's list of locks, split into words; empty if logind lists no such lock."""
    lines = node.run("systemd-inhibit --list --no-legend --no-pager", check=False).stdout.splitlines()
    return next((line.split() for line in lines if line.startswith("nodeagent ") and " delay" in line), [])


def wait_for_lock(node: Node) -> None:
    """Wait until logind lists the inhibitor lock of the running agent."""
    reclaim.poll(
        "logind lists the inhibitor lock", lambda: main_pid(node) in lock_entry(node), timeout_s=START_S, interval_s=0.5
    )


def start_with(node: Node, pods: Iterable[RunningPod]) -> None:
    """Start the agent and wait until its inhibitor lock is listed and the pods are recorded."""
    start(node)
    names = {each.pod.name for each in pods}

    def recorded() -> bool:
        return names <= {each["name"] for each in read_record(node, "boot").get("pods", ())}

    reclaim.poll("the pods are recorded", recorded, timeout_s=START_S, interval_s=1)


def read_record(node: Node, name: str = "shutdown") -> dict[str, Any]:
    """Return a record of the agent from the state directory; empty if the file cannot be read."""
    try:
        record: dict[str, Any] = json.loads(node.get(f"/var/lib/nodeagent/{name}.json"))
    except (NodeError, TimeoutError):
        return {}
    return record


def parsed(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    lines = [each.message for each in entries if each.unit == "nodeagent.service"]
    return [json.loads(line) for line in lines if line.startswith("{")]


def log_now(node: Node, pid: str = "") -> list[dict[str, Any]]:
    of_process = f" _PID={pid}" if pid else ""
    lines = node.run(f"journalctl --boot -u nodeagent{of_process} -o cat --no-pager").stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def event_names(log: list[dict[str, Any]]) -> list[str]:
    return [each["event"] for each in log]


def count(node: Node, event: str) -> int:
    return event_names(log_now(node)).count(event)


def await_count(node: Node, event: str, times: int, *, within_s: float = START_S) -> None:
    reclaim.poll(f"{event} is logged", lambda: count(node, event) >= times, timeout_s=within_s, interval_s=0.5)
