"""Time from the start of the unit to READY=1, and duration of ``status``, in a virtual machine with the shipped unit.

The virtual machine is emulated, so the slowdown of its CPU is also measured, by a Python loop on the host and on the
node.

    python -m tests.bench.node_start [RUNS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from tests.support import vm

RUNS = 10
_LOOP = "import time; t = time.perf_counter(); n = sum(range(5_000_000)); print(time.perf_counter() - t)"
_STATUS = (
    "import subprocess, time; t = time.perf_counter(); "
    "subprocess.run(['nodeagent', 'status'], stdout=subprocess.DEVNULL); print(time.perf_counter() - t)"
)
_STAMPS = "systemctl show nodeagent -p ExecMainStartTimestampMonotonic,ActiveEnterTimestampMonotonic --value"


def slowdown(node: vm.Node) -> float:
    """Return the factor by which the node's CPU is slower than the host's."""
    here = [
        float(subprocess.run([sys.executable, "-c", _LOOP], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    there = [float(node.run(["/opt/nodeagent/bin/python", "-c", _LOOP], timeout_s=120).stdout) for _ in range(5)]
    return statistics.median(there) / statistics.median(here)


def main() -> None:
    """Print the start time and the memory of the daemon and the duration of ``status``."""
    runs = int(sys.argv[1]) if sys.argv[1:] else RUNS
    with vm.Node.boot(vm.ensure_disk()) as node:
        node.run("rm /usr/local/bin/nodeagent && /opt/nodeagent/bin/nodeagent install --enable", timeout_s=300)
        started_s = []
        for _ in range(runs):
            node.run("systemctl restart nodeagent", timeout_s=120)
            began, ready = map(int, sorted(node.run(_STAMPS).stdout.split(), key=int))
            started_s.append((ready - began) / 1e6)
        status_s = [float(node.run(["python3", "-c", _STATUS], timeout_s=120).stdout) for _ in range(runs)]
        time.sleep(30)  # a real sleep, until the daemon is idle
        pid = node.run("systemctl show nodeagent -p MainPID --value").stdout.strip()
        resident = node.run(f"grep VmRSS /proc/{pid}/status").stdout.split()[1]
        factor = slowdown(node)
    print(f"slowdown of the node's CPU relative to the host: {factor:.1f}")
    for what, taken in (("start to READY=1", started_s), ("status", status_s)):
        shown = ", ".join(f"{each:.2f}" for each in (min(taken), statistics.median(taken), max(taken)))
        print(f"{what} [s]: min, median, max {shown}; median over slowdown {statistics.median(taken) / factor:.2f}")
    print(f"resident with everything on: {int(resident) / 1024:.1f} MiB")


if __name__ == "__main__":
    main()
