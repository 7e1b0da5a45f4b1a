"""Evictions for memory in a virtual machine: latency from a met threshold to the end of the pod, and OOM kills.

A pod above its memory request grows while a known amount of memory is available; the threshold is
``memory.available<100Mi``. A program in the node, independent of the agent, records the time at which memory.available
falls below the threshold, and the end of the last process in the pod's cgroup. The node's clock counts instructions, so
that the load of this machine changes no result. Each series has ten runs by default:

- ``woken``, ``polling``, ``busy``, ``starved``: 50 MiB/s with 200 MiB available; with PSI triggers, without PSI
  triggers, and with 2 and 16 services that use every free CPU;
- ``default``, ``three``: Debian's ``vm.min_free_kbytes``; one pod at 20 MiB/s, and three at 60 MiB/s each;
- ``ending``: a pod that ignores its termination, with a remaining grace period of an hour, beside a pod that uses less;
- ``swap``: a pod at 60 MiB/s, of which 100 MiB are swapped out while it grows, beside a pod of 180 MiB that uses more
  memory without swap.

    python -m tests.bench.node_eviction [RUNS [SERIES ...]]
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from tests.support import hogs, reclaim, vm

if TYPE_CHECKING:
    from tests.support.vm import Node, RunningPod

RUNS = 10
THRESHOLD_MIB = 100
SWAP_MIB = 512
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
_AVAILABLE = (
    "awk '/^MemTotal/ {t = $2 * 1024} /^MemAvailable/ {m = $2 * 1024}"
    ' $1 == "anon" || $1 == "file" {u += $2} $1 == "inactive_file" {u -= $2}'
    " END {print int((m < t - u ? m : t - u) / 1048576)}' /proc/meminfo /sys/fs/cgroup/memory.stat"
)
_START_BUSY = "for n in $(seq {count}); do systemd-run --quiet --unit busy-$n sh -c 'while :; do :; done'; done"
_STOP_BUSY = "systemctl stop 'busy-*'"
_BURSTABLE = {"oom_score_adj": 990}
_DEAF = "trap '' TERM; /bin/hog memory 200 200 200 & while :; do sleep 1; done"
_MANY = {"memory_limit_in_bytes": 4 << 30}


class Series(NamedTuple):
    """Series of runs with equal parameters.

    Attributes:
        paces_mib: growth of each pod, in MiB per second.
        room_mib: available memory at the start of a run, in MiB.
        beside_mib: memory of an additional pod that must not be evicted, in MiB; 0 for no pod.
        swapped_mib: memory of the first pod that is swapped out once the pod has it, in MiB.
        min_free_kib: ``vm.min_free_kbytes``; a machine of this size has 45056 by default.
    """

    text: str
    paces_mib: tuple[int, ...] = (50,)
    room_mib: int = 200
    beside_mib: int = 0
    swapped_mib: int = 0
    min_free_kib: int = 8192
    config: str = ""
    prepare: str = "true"
    end: str = "true"


SERIES = {
    "woken": Series("woken by PSI"),
    "polling": Series("polling", config='memory_stall = "0s"\n'),
    "default": Series("default min_free_kbytes, 20 MiB/s", paces_mib=(20,), room_mib=250, min_free_kib=45056),
    "three": Series("default min_free_kbytes, 3 x 60 MiB/s", paces_mib=(60,) * 3, room_mib=350, min_free_kib=45056),
    "ending": Series("terminating pod"),
    "swap": Series(
        "swap",
        paces_mib=(60,),
        room_mib=250,
        beside_mib=180,
        swapped_mib=100,
        prepare=f"dd if=/dev/zero of=/swap bs=1M count={SWAP_MIB} conv=fsync status=none; chmod 600 /swap; "
        "mkswap -q /swap; swapon /swap",
        end="swapoff /swap; rm /swap",
    ),
    "busy": Series("busy node", prepare=_START_BUSY.format(count=2), end=_STOP_BUSY),
    "starved": Series("16 busy services", prepare=_START_BUSY.format(count=16), end=_STOP_BUSY),
}


class Outcome(NamedTuple):
    """Result of a run: evicted pods, OOM kills, and the latencies after the threshold was met."""

    evicted: list[str]
    kills: int
    detected_ms: int
    ended_ms: int


def available_mib(node: Node) -> int:
    """Return the node's ``memory.available`` as the agent calculates it for hard thresholds, in MiB."""
    return int(node.run(_AVAILABLE).stdout)


def kills(node: Node) -> int:
    """Return the number of OOM kills on the node since its boot."""
    return int(node.get("/proc/vmstat").decode().partition("oom_kill ")[2].split()[0])


def remove_all(node: Node) -> None:
    """Stop the agent and remove all pods of the node."""
    node.run("systemctl stop nodeagent", check=False, timeout_s=120)
    node.python(
        "from pathlib import Path\n"
        "from tests.support.pods import Pods\n"
        "with Pods(Path('/run/containerd/containerd.sock'), log_root=Path('/var/log/pods')) as pods:\n"
        "    for sandbox in pods.list_sandboxes():\n"
        "        pods.call('StopPodSandbox', {'pod_sandbox_id': sandbox.id})\n"
        "        pods.call('RemovePodSandbox', {'pod_sandbox_id': sandbox.id})\n",
        timeout_s=300,
    )


def events(node: Node, name: str, since: str) -> list[dict[str, object]]:
    """Return the log events of the agent with a name since a time, given in the format of ``journalctl --since``."""
    lines = node.run(f"journalctl -u nodeagent -o cat --no-pager --since '{since}' | grep '\"{name}\"' || true").stdout
    found = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return [each for each in found if each["event"] == name]


def ended(node: Node, pod: RunningPod) -> bool:
    """Return whether all processes of a pod have ended."""
    return node.run(f"grep -q 'populated 1' {pod.cgroup}/cgroup.events", check=False).code != 0


class Runs:
    """Runs of one series on one node."""

    def __init__(self, node: Node, series: Series, runs: int) -> None:
        """Create the growing pods of all runs; each waits for SIGUSR1 before it grows."""
        self._node = node
        self._series = series
        self._steady: list[RunningPod] = []
        self._boot_ms = self._read_boot_ms()
        words = [("/bin/hog", "delayed", "memory", "8", str(pace), "4000") for pace in series.paces_mib]
        self._waiting = node.run_pods(
            *(
                vm.Pod(f"growing-{number}-{each}", hogs.HOG, command, resources=_BURSTABLE)
                for number in range(runs)
                for each, command in enumerate(words)
            )
        )

    def grow(self, number: int) -> Outcome:
        """Grow the pods of a run until the threshold is met and all pods have ended; return the outcome."""
        node, count = self._node, len(self._series.paces_mib)
        pods, self._waiting = self._waiting[:count], self._waiting[count:]
        self._fill(number)
        killed, since = kills(node), node.run("date '+%F %T'").stdout.strip()
        watch = f"watch-{pods[0].container_id[:12]}"  # not by number, which the series of one boot share
        cgroups = " ".join(pod.cgroup for pod in pods)
        node.run(f"systemd-run --quiet --unit {watch} {hogs.PATH_IN_NODE} watch {THRESHOLD_MIB} {cgroups}")
        if size_mib := self._series.swapped_mib:
            node.run(
                f"systemd-run --quiet --unit swap-{watch} sh -c 'until [ $(cat {pods[0].cgroup}/memory.current) -gt "
                f"{size_mib << 20} ]; do sleep 0.05; done; echo {size_mib}M > {pods[0].cgroup}/memory.reclaim; "
                f"cat {pods[0].cgroup}/memory.swap.current'"
            )
        node.run("; ".join(f"kill -USR1 $(cat {pod.cgroup}/cgroup.procs)" for pod in pods))

        def times(word: str) -> list[int]:
            return [
                int(found) for found in re.findall(word + r" (\d+)", node.run(f"journalctl -u {watch} -o cat").stdout)
            ]

        try:
            reclaim.poll("the pods have ended", lambda: len(times("gone")) == len(pods), timeout_s=600, interval_s=0.5)
        except TimeoutError:
            print(self._log(since))
            raise
        met = [str(each["timestamp"]) for each in events(node, "threshold_met", since)]
        evicted = [str(each["pod_name"]) for each in events(node, "evicted", since)]
        crossed = min(times("crossed"))
        detected = round(datetime.fromisoformat(met[0]).timestamp() * 1000) - self._boot_ms if met else 0
        outcome = Outcome(evicted, kills(node) - killed, detected - crossed, min(times("gone")) - crossed)
        if outcome.kills or len(evicted) != len(pods) or not all(each.startswith("growing") for each in evicted):
            print(self._log(since))
        if self._series.swapped_mib:
            print(
                "swapped out:", node.run(f"journalctl -u swap-{watch} -o cat --no-pager | grep '^[0-9]'").stdout.strip()
            )
        return outcome

    def end_slowly(self, number: int) -> Outcome:
        """Run two pods, the larger of which is terminating, until the agent evicts a pod; return the outcome."""
        node = self._node
        ending, other = node.run_pods(
            vm.Pod(f"ending-{number}", hogs.HOG, ("/bin/sh", "-c", _DEAF), resources=_BURSTABLE),
            vm.Pod(f"other-{number}", hogs.HOG, ("/bin/hog", "memory", "100", "100", "100"), resources=_BURSTABLE),
        )
        reclaim.poll(
            "the pod has its memory",
            lambda: int(node.get(f"{ending.cgroup}/memory.current")) > 190 << 20,
            timeout_s=300,
            interval_s=0.5,
        )
        stop = (
            "from pathlib import Path\nfrom tests.support.pods import Pods\n"
            "with Pods(Path('/run/containerd/containerd.sock'), log_root=Path('/'), timeout_s=600) as pods:\n"
            f"    pods.call('StopContainer', {{'container_id': '{ending.container_id}', 'timeout': 3600}})\n"
        )
        node.put("/tmp/stop.py", stop)
        node.run(
            f"systemd-run --quiet --unit stop-{number}-{os.getpid()} -E PYTHONPATH={vm.HARNESS}"
            " /opt/nodeagent/bin/python /tmp/stop.py; sleep 3"
        )
        killed, since = kills(node), node.run("date '+%F %T'").stdout.strip()
        threshold = available_mib(node) + 50
        text = CONFIG.replace(f"available<{THRESHOLD_MIB}Mi", f"available<{threshold}Mi")
        node.put("/etc/nodeagent/config.toml", text)
        node.run("systemctl restart nodeagent", timeout_s=120)
        try:
            reclaim.poll(
                "a pod is evicted", lambda: bool(events(node, "evicted", since)), timeout_s=300, interval_s=0.5
            )
        except TimeoutError:
            print(self._log(since))
        evicted = [str(each["pod_name"]) for each in events(node, "evicted", since)]
        if not ended(node, ending) or ended(node, other) or len(evicted) != 1:
            print(self._log(since))
        remove_all(node)
        return Outcome(evicted, kills(node) - killed, 0, 0)

    def close(self) -> None:
        """Remove all pods; report evicted pods other than the growing pods."""
        for pod in self._steady:
            if ended(self._node, pod):
                print(f"{pod.pod.name} was evicted too")
        remove_all(self._node)

    def _fill(self, number: int) -> None:
        """Reduce the available memory to ``room_mib`` by pods that are kept for later runs."""
        node, wanted = self._node, self._series.room_mib
        node.run("sync; echo 3 > /proc/sys/vm/drop_caches")
        pods = []
        if not self._steady and (size := self._series.beside_mib):
            words = ("/bin/hog", "memory", str(size), "1", str(size))
            pods.append(vm.Pod("beside", hogs.HOG, words, resources=_BURSTABLE))
            wanted += size
        if (surplus := available_mib(node) - wanted) > 10:
            words = ("/bin/hog", "memory", str(surplus), "1", str(surplus))
            pods.append(vm.Pod(f"steady-{number}", hogs.HOG, words, qos="guaranteed", resources=_MANY))
        self._steady += node.run_pods(*pods)
        wanted = self._series.room_mib
        reclaim.poll(
            "the pods have their memory", lambda: available_mib(node) < wanted + 25, timeout_s=300, interval_s=0.3
        )

    def _read_boot_ms(self) -> int:
        code = "import time; print(round((time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)) * 1000))"
        return int(self._node.python(code))

    def _log(self, since: str) -> str:
        names = "threshold_met|evict|oom|pods_not_listed|warning"
        return self._node.run(
            f"journalctl -o cat --no-pager -u nodeagent --since '{since}' | grep -E '{names}' | cut -c-700 | tail -40; "
            "dmesg | grep -iE 'oom|killed' | tail; grep -E 'MemA|Swap' /proc/meminfo"
        ).stdout


def run_series(node: Node, name: str, runs: int) -> None:
    """Run one series and print its results."""
    series = SERIES[name]
    node.run(f"sysctl -qw vm.min_free_kbytes={series.min_free_kib}; {series.prepare}", timeout_s=120)
    node.put("/etc/nodeagent/config.toml", CONFIG + series.config)
    node.run("systemctl restart nodeagent", timeout_s=120)
    of_series = Runs(node, series, 0 if name == "ending" else runs)
    found = []
    try:
        for number in range(runs):
            found.append(of_series.end_slowly(number) if name == "ending" else of_series.grow(number))
            print(f"{series.text} {number + 1}: {found[-1]}, load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        of_series.close()
        node.run(series.end, check=False, timeout_s=120)
    print(f"{series.text}: {runs} runs, {sum(each.kills for each in found)} OOM kills")
    for interval, each_ms in (
        ("threshold detected", [each.detected_ms for each in found]),
        ("first pod ended", [each.ended_ms for each in found]),
    ):
        print(f"{series.text}, {interval}: median {statistics.median(each_ms):.0f} ms, worst {max(each_ms)} ms")


def main() -> None:
    """Boot a node and run the series given on the command line."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with vm.Node.boot(vm.ensure_disk(), memory_mib=1024, counted=True, timeout_s=600) as node:
        node.import_images(vm.pause_image(), hogs.image())
        node.put(hogs.PATH_IN_NODE, hogs.program(), mode=0o755)
        node.put("/etc/systemd/system/nodeagent.service", vm.CHECKOUT / "systemd" / "nodeagent.service")
        node.run("mkdir -p /etc/nodeagent; systemctl daemon-reload")
        for name in sys.argv[2:] or SERIES:
            run_series(node, name, runs)


if __name__ == "__main__":
    main()
