"""Latency from a met memory threshold to the end of the pod, in a real node: with PSI triggers, and by polling.

A pod above its request grows by 50 MiB/s with 200 MiB left on the node; the threshold is ``memory.available<100Mi``.
A program in the node, independent of the agent, records the time at which memory.available falls below the threshold,
and the end of the last process in the pod's cgroup. Ten runs of each; no run may have an OOM kill.

    python -m tests.bench.node_eviction [RUNS [woken|polling|busy ...]]
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from datetime import datetime
from typing import TYPE_CHECKING

from tests.support import hogs, reclaim, vm

if TYPE_CHECKING:
    from tests.support.vm import Node, RunningPod

RUNS = 10
ROOM_MIB = 200
PACE_MIB = 50
THRESHOLD_MIB = 100
CONFIG = f"""\
role = "standalone"
[log]
format = "json"
level = "debug"
[shutdown]
enabled = "off"
[image_gc]
enabled = false
[container_gc]
enabled = false
[eviction]
enabled = "on"
hard = "memory.available<{THRESHOLD_MIB}Mi"
pressure_transition_period = "5s"
max_evictions_per_window = 0
"""
POLLING = 'memory_stall = "0s"\n'
_AVAILABLE = (
    "awk '/^MemTotal/ {t = $2 * 1024} /^MemAvailable/ {m = $2 * 1024}"
    ' $1 == "anon" || $1 == "file" {u += $2} $1 == "inactive_file" {u -= $2}'
    " END {print int((m < t - u ? m : t - u) / 1048576)}' /proc/meminfo /sys/fs/cgroup/memory.stat"
)


def available_mib(node: Node) -> int:
    """Return the node's available memory as hard thresholds count it."""
    return int(node.run(_AVAILABLE).stdout)


def kills(node: Node) -> int:
    """Return the number of OOM kills in pods."""
    return int(node.get("/proc/vmstat").decode().partition("oom_kill ")[2].split()[0])


def eviction_log(node: Node, unit: str) -> str:
    """Return the logs of the agent, the measuring program and the kernel."""
    return node.run(
        f"journalctl -o short-monotonic --no-pager -u nodeagent -u {unit} | cut -c-600; dmesg | grep -iE 'oom|killed'"
    ).stdout


def remove(node: Node, pod: RunningPod) -> None:
    """Remove the leftovers of an evicted pod."""
    node.python(
        "from pathlib import Path\n"
        "from tests.support.pods import Pods\n"
        "with Pods(Path('/run/containerd/containerd.sock'), log_root=Path('/var/log/pods')) as pods:\n"
        f"    pods.call('StopPodSandbox', {{'pod_sandbox_id': '{pod.sandbox_id}'}})\n"
        f"    pods.call('RemovePodSandbox', {{'pod_sandbox_id': '{pod.sandbox_id}'}})\n"
    )


def last_detection_s(node: Node) -> float:
    """Return the time of the last threshold_met event, in seconds since boot."""
    lines = node.run("journalctl -u nodeagent -o cat --no-pager | grep threshold_met").stdout.splitlines()
    since_boot = "import time; print(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))"
    return datetime.fromisoformat(json.loads(lines[-1])["timestamp"]).timestamp() - float(node.python(since_boot))


def grow_once(node: Node, number: str) -> tuple[int, int]:
    """Grow one pod over the threshold; return the milliseconds until the detection, and until the end of the pod."""
    (growing,) = node.run_pods(
        vm.Pod(f"growing-{number}", hogs.HOG, ("/bin/hog", "delayed", "memory", "16", str(PACE_MIB), "4000"))
    )
    node.run("sync; echo 3 > /proc/sys/vm/drop_caches")
    surplus = available_mib(node) - ROOM_MIB
    steady = None
    if surplus > 0:
        (steady,) = node.run_pods(
            vm.Pod(
                f"steady-{number}",
                hogs.HOG,
                ("/bin/hog", "memory", str(surplus), "1", str(surplus)),
                qos="guaranteed",
                resources={"memory_limit_in_bytes": 4 << 30},
            )
        )
        reclaim.poll(
            "the steady pod has allocated its memory",
            lambda: available_mib(node) < ROOM_MIB + 20,
            timeout_s=60,
            interval_s=0.2,
        )
    killed = kills(node)
    unit = f"watch-{number}"
    node.run(f"systemd-run --quiet --unit {unit} {hogs.PATH_IN_NODE} watch {THRESHOLD_MIB} {growing.cgroup}")
    node.run(f"kill -USR1 $(cat {growing.cgroup}/cgroup.procs)")
    try:
        reclaim.poll(
            "the pod has ended",
            lambda: "gone" in node.run(f"journalctl -u {unit} -o cat").stdout,
            timeout_s=60,
            interval_s=0.5,
        )
    except TimeoutError:
        print(eviction_log(node, unit))
        raise
    output = node.run(f"journalctl -u {unit} -o cat").stdout
    crossed, ended = (int(found) for found in re.findall(r"(?:crossed|gone) (\d+)", output))
    if kills(node) != killed:
        sys.exit(f"run {number}: OOM kill by the kernel\n{eviction_log(node, unit)}")
    if steady is not None:
        if b"populated 1" not in node.get(f"{steady.pod.cgroup}/cgroup.events"):
            sys.exit(f"run {number}: the steady pod was evicted too")
        remove(node, steady)
    remove(node, growing)
    return round(last_detection_s(node) * 1000) - crossed, ended - crossed


def series(node: Node, name: str, config: str, runs: int) -> None:
    """Run and print one series."""
    node.put("/etc/nodeagent/config.toml", config)
    node.run("systemctl restart nodeagent", timeout_s=120)
    took_ms = []
    for number in range(runs):
        took_ms.append(grow_once(node, f"{name.partition(' ')[0]}-{number}"))
        print(
            f"{name} {number + 1}: threshold detected after {took_ms[-1][0]} ms, pod ended after {took_ms[-1][1]} ms",
            flush=True,
        )
        reclaim.poll("the memory of the pods is free again", lambda: available_mib(node) > ROOM_MIB, timeout_s=60)
    for interval, each_ms in (
        ("threshold detected", [each[0] for each in took_ms]),
        ("pod ended", [each[1] for each in took_ms]),
    ):
        print(f"{name}, {interval}: median {statistics.median(each_ms):.0f} ms, worst {max(each_ms)} ms, {runs} runs")


def main() -> None:
    """Boot a node and run the series."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    wanted = sys.argv[2:] or ["woken", "polling", "busy"]
    with vm.Node.boot(vm.ensure_disk(), memory_mib=1024) as node:
        node.import_images(vm.pause_image(), hogs.image())
        node.put(hogs.PATH_IN_NODE, hogs.program(), mode=0o755)
        node.run(
            "sysctl -w vm.min_free_kbytes=8192"
        )  # a machine of this size reserves a tenth of its memory by default
        node.put("/etc/systemd/system/nodeagent.service", vm.CHECKOUT / "systemd" / "nodeagent.service")
        node.run("mkdir -p /etc/nodeagent; systemctl daemon-reload")
        if "woken" in wanted:
            series(node, "woken by PSI", CONFIG, runs)
        if "polling" in wanted:
            series(node, "polling", CONFIG + POLLING, runs)
        if "busy" in wanted:
            node.run("for n in 1 2; do systemd-run --quiet --unit busy-$n sh -c 'while :; do :; done'; done")
            series(node, "busy node", CONFIG, runs)


if __name__ == "__main__":
    main()
