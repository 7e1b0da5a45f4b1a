"""Build time of the layer graph: 1,000 images with ten layers each on a simulated containerd in a separate process.

A cold build is the first build without stored usage, with a usage call per snapshot. A remembered build is the first
build of a process with stored usage. A warm build is a second build without changes. The exit code is 1 if the shortest
time exceeds its budget; on a slower machine the budgets are multiplied, see :mod:`tests.bench.machine`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path

from nodeagent.cli.reading import load_settings
from nodeagent.gc.snapshot.node import StoredSnapshotUsage
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.cri import CriClient
from nodeagent.runtime.storage_graph import LayerCache
from nodeagent.store.clock_record import ClockReading
from nodeagent.store.database import Store
from nodeagent.units import SystemClock
from tests.bench.bench_agent import runtime
from tests.bench.machine import slowdown

BUDGETS_MS = {"cold": 3000.0, "remembered": 3000.0, "warm": 150.0}


async def measure(config: Path, runs: int) -> dict[str, list[float]]:
    """Return the build time in milliseconds, by kind of build."""
    taken: dict[str, list[float]] = {"cold": [], "remembered": [], "warm": []}
    settings = load_settings(config, {})
    async with RuntimeConnection(settings.endpoint) as connection:
        client = ContainerdClient(connection)
        images = await CriClient(connection).list_images()
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as state:
                store = Store(Path(state))
                store.observe({}, (), ClockReading("", SystemClock().monotonic_s(), SystemClock().now()))
                cache = LayerCache(usage_store=StoredSnapshotUsage(store))
                for kind, built in (("cold", cache), ("warm", cache), ("remembered", None)):
                    if built is None:
                        # a new cache and store, as in a new process
                        built = LayerCache(usage_store=StoredSnapshotUsage(Store(Path(state))))  # noqa: PLW2901
                    gc.collect()
                    began = time.perf_counter()
                    graph = await built.build(client, images)
                    taken[kind].append(1000 * (time.perf_counter() - began))
                    assert len(graph.by_image) == len(images)
    return taken


def main() -> int:
    """Print the build times with their budgets; return 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    slower = slowdown()
    gc.set_threshold(50_000, 20, 20)  # the thresholds of Python's garbage collector in the agent
    with tempfile.TemporaryDirectory() as name, runtime(Path(name), images=options.images) as config:
        taken = asyncio.run(measure(config, options.runs))
    print(
        f"{'layer graph of ' + str(options.images) + ' images':34} {'min ms':>8} {'median':>8} {'max':>8} {'budget':>8}"
    )
    exceeded = False
    for kind, times in taken.items():
        shortest_ms, budget_ms = min(times), BUDGETS_MS[kind] * slower
        exceeded |= shortest_ms > budget_ms
        figures = f"{shortest_ms:8.0f} {statistics.median(times):8.0f} {max(times):8.0f} {budget_ms:8.0f}"
        print(f"{kind:34} {figures}{'  exceeded' if shortest_ms > budget_ms else ''}")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
