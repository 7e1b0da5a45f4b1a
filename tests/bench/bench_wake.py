"""Latency from a wake-up to the decision on a machine with busy CPUs: signals are read and thresholds evaluated.

A thread simulates the kernel and wakes the event loop like a PSI trigger, through a registered file descriptor. A busy
process occupies each CPU; this process has a higher priority, as the systemd unit has by CPUWeight.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.eviction.signals import EvictionSignalReader
from nodeagent.units import SystemClock

RUNS = 300
BUDGET_MS = 100.0
_BETWEEN_S = 0.05
_SPIN = "while True: pass"


async def measure(runs: int) -> list[float]:
    """Return the latency from each wake-up to its decision, in milliseconds."""
    settings, clock = EvictionSettings(), SystemClock()
    reader = EvictionSignalReader(settings, clock, pod_log_root=Path("/var/log/pods"))
    layout = reader.resolve_layout(SignalPaths("/", "/", "/"))
    reading, writing = os.pipe()
    woken = asyncio.Event()
    sent_s = 0.0

    def count_event() -> None:
        os.read(reading, 1)
        woken.set()

    asyncio.get_running_loop().add_reader(reading, count_event)

    def wake() -> None:
        nonlocal sent_s
        sent_s = time.perf_counter()
        os.write(writing, b"x")

    taken_ms = []
    for _ in range(runs):
        woken.clear()
        threading.Timer(_BETWEEN_S, wake).start()
        await woken.wait()
        await reader.evaluate(layout, EvictionState())
        taken_ms.append((time.perf_counter() - sent_s) * 1000)
    return sorted(taken_ms)


def main() -> None:
    """Print the latencies on busy CPUs; exit with 1 if the budget is exceeded."""
    if os.geteuid() == 0:
        os.nice(-4)  # nice value with about twice the CPU weight of the busy processes
    spinning = [
        subprocess.Popen(["nice", "-n", "4" if os.geteuid() == 0 else "0", sys.executable, "-c", _SPIN])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        taken_ms = asyncio.run(measure(RUNS))
    finally:
        for each in spinning:
            each.kill()
            each.wait()
    p99_ms = taken_ms[int(len(taken_ms) * 0.99) - 1]
    print(f"wake to decision on busy CPUs: median {statistics.median(taken_ms):.1f} ms, p99 {p99_ms:.1f} ms")
    sys.exit(p99_ms > BUDGET_MS)


if __name__ == "__main__":
    main()
