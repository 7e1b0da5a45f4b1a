"""CPU time of one eviction pass on 110 simulated pods, from reading the signals to selecting the victim.

The cgroups are regular files in a temporary directory.

The simulated runtime is a separate process, so that its CPU time and the time spent waiting for it are excluded. The
first reading, with a call per sandbox and container, is reported separately. The exit code is 1 if the budget is
exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nodeagent.record import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nodeagent.eviction.kernel_signals import SignalPaths, read_signals
from nodeagent.eviction.plan.planner import plan_eviction
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.state import EvictionState, evaluate
from nodeagent.eviction.plan.thresholds import parse_thresholds
from nodeagent.model.node import Role
from nodeagent.model.pressure import FilesystemLayout, Moment, Signal
from nodeagent.pods.reader import PodReader, PodSettings
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.cri import CriClient
from nodeagent.units import SystemClock
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.sim.workload import QosClass
from tests.support.kernel_tree import add_cgroup, make_tree
from tests.support.reclaim import poll

PODS, CONTAINERS = 110, 300
BUDGET_MS = 50.0
MIB = 1 << 20
IMAGE = "registry.example/app:v1"
CLASSES = (QosClass.BURSTABLE, QosClass.BEST_EFFORT, QosClass.GUARANTEED)


def make_node() -> SimNode:
    """Return the simulated node, equal in every process, since ids are derived from a seed."""
    node = SimNode()
    node.add_image(IMAGE, layers=[Layer("base", 50 * MIB)])
    sandboxes = [node.add_pod(f"pod-{number}", qos=CLASSES[number % 3]) for number in range(PODS)]
    for number in range(CONTAINERS):
        sandbox = sandboxes[number % PODS]
        node.add_container(sandbox, f"c{number // PODS}", IMAGE, memory_limit_bytes=256 * MIB)
    return node


def write_cgroups(node: SimNode, root: Path) -> None:
    """Write the cgroup files of the node's pods and containers."""
    make_tree(root)
    for sandbox in node.sandboxes.values():
        add_cgroup(root, sandbox.cgroup_parent, memory_bytes=300 * MIB, inactive_bytes=50 * MIB, pids=12)
        for container in node.containers_of(sandbox.id):
            add_cgroup(root, f"{sandbox.cgroup_parent}/{container.id}", memory_bytes=100 * MIB, pids=4)


async def serve(socket: Path) -> None:
    """Serve the simulated node until the process is killed."""
    async with SimServer(make_node(), socket):
        await asyncio.Event().wait()


async def measure(socket: Path, root: Path, runs: int) -> tuple[float, list[float], list[float]]:
    """Return the CPU time of the first reading and the CPU and wall times of the passes, in milliseconds."""
    async with RuntimeConnection(str(socket)) as connection:
        settings = PodSettings(pod_log_root=root / "pods", kubelet_root=root / "kubelet")
        watcher = PodReader(
            CriClient(connection), settings=settings, clock=SystemClock(), role=lambda: Role.STANDALONE, root=root
        )
        began = time.process_time()
        inventory = await watcher.read()
        first_ms = (time.process_time() - began) * 1000
        assert len(inventory.facts) == PODS
        assert not inventory.warnings
        assert all(each.usage is not None and each.usage.memory_bytes == 250 * MIB for each in inventory.facts)
        cpu_ms, wall_ms = [], []
        for _ in range(runs):
            gc.collect()
            began, began_wall = time.process_time(), time.perf_counter()
            await decide(watcher)
            cpu_ms.append((time.process_time() - began) * 1000)
            wall_ms.append((time.perf_counter() - began_wall) * 1000)
        return first_ms, cpu_ms, wall_ms


async def decide(watcher: PodReader) -> None:
    """Run one eviction pass under memory pressure, up to the selection of the victim."""
    clock, policy = SystemClock(), EvictionPolicy()
    observations, _ = read_signals(SignalPaths("/"), clock)
    observations = tuple(
        replace(each, available=MIB) if each.signal is Signal.MEMORY_AVAILABLE else each for each in observations
    )
    now = Moment(clock.now(), clock.monotonic_s())
    evaluation = evaluate(EvictionState(), observations, parse_thresholds(), policy, now=now)
    inventory = await watcher.read()
    plan = plan_eviction(
        evaluation, inventory.facts, policy, layout=FilesystemLayout.SINGLE, now=now, observations=observations
    )
    assert plan.victim is not None


def main() -> None:
    """Print the times of the first reading and of the passes; exit with 1 if the budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(serve(options.serve))
        return
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        socket = root / "runtime.sock"
        write_cgroups(make_node(), root)
        with subprocess.Popen([sys.executable, __file__, "--serve", str(socket)]) as process:
            try:
                poll("the simulated runtime serves", socket.exists, timeout_s=30)
                first_ms, cpu_ms, wall_ms = asyncio.run(measure(socket, root, options.runs))
            finally:
                process.terminate()
    print(f"{f'{PODS} pods, {CONTAINERS} containers':58} {'min':>9} {'median':>9} {'max':>9}")
    for what, taken in (
        ("one pass, CPU [ms]", cpu_ms),
        ("one pass, wall, the runtime's answers included [ms]", wall_ms),
    ):
        print(f"{what:58} {min(taken):9.1f} {statistics.median(taken):9.1f} {max(taken):9.1f}")
    print(f"first reading of the pods, CPU: {first_ms:.0f} ms")
    sys.exit(min(cpu_ms) > BUDGET_MS)


if __name__ == "__main__":
    main()
