"""Latency of a shutdown: from logind's signal to the stop requests, and from the last pod's end to the lock release.

This process simulates logind on a private bus. The daemon, the bus, and a simulated runtime with 110 pods of one
shutdown phase are separate processes. All processes use the monotonic clock of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.support.login1 import Login1, PrivateBus, unavailable
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Sequence

PODS = 110
_IMAGE = "bench.test/app:v1"
_BUDGETS_MS = {"first": 50.0, "all": 250.0, "release": 50.0}


class Latencies(NamedTuple):
    """Latencies of one shutdown, in milliseconds."""

    first: float
    all: float
    release: float


async def serve(socket: Path, times: Path) -> None:
    """Serve the pods; after all have stopped, write the time of each stop request and of the last response."""
    node = SimNode()
    node.add_image(_IMAGE, layers=[Layer("base", 1000)])
    for number in range(PODS):
        node.add_container(node.add_pod(f"pod-{number}", namespace="bench"), "main", _IMAGE)
    async with SimServer(node, socket) as server:
        requested: list[float] = []
        ended: list[float] = []
        done = asyncio.Event()

        def end() -> None:
            ended.append(time.monotonic())
            if len(ended) == PODS:
                done.set()

        server.faults.before("StopContainer", lambda: requested.append(time.monotonic()), times=None)
        server.faults.after("StopContainer", end, times=None)
        await done.wait()
        await asyncio.to_thread(times.write_text, json.dumps([requested, max(ended)]))
        await asyncio.Event().wait()


async def shut_down(directory: Path) -> Latencies:
    """Announce one shutdown to an idle daemon and return its latencies."""
    socket, times, config = directory / "cri.sock", directory / "times.json", directory / "config.toml"
    config.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{socket}"\n[state]\ndirectory = "{directory}/state"\n'
        "[image_gc]\nenabled = false\n[container_gc]\nenabled = false\n[shutdown]\nenabled = 'on'\n"
    )
    bus = PrivateBus(directory)
    bus.start()
    login1 = Login1(bus.address, directory, limit_us=60_000_000)
    await login1.start()
    environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": bus.address}
    with ExitStack() as stack:
        stack.callback(bus.stop)
        runtime = [sys.executable, "-m", "tests.bench.bench_shutdown", "--serve", str(socket), str(times)]
        served = stack.enter_context(subprocess.Popen(runtime))  # noqa: ASYNC220 - blocks only for milliseconds
        stack.callback(served.terminate)
        await asyncio.to_thread(poll, "the runtime serves", socket.exists, timeout_s=30)
        with (directory / "log").open("w") as log:
            command = [sys.executable, "-m", "nodeagent", "run", "--config", str(config)]
            daemon = stack.enter_context(subprocess.Popen(command, stderr=log, env=environment))  # noqa: ASYNC220
        stack.callback(daemon.terminate)
        ready = (directory / "log").read_text
        await asyncio.to_thread(poll, "the daemon is ready", lambda: "shutdown_ready" in ready(), timeout_s=30)
        await asyncio.sleep(0.5)  # a real sleep, until the daemon is idle
        announced = time.monotonic()
        login1.request_shutdown()
        await login1.until(lambda: login1.executed == 1)
        released = time.monotonic()
        await asyncio.to_thread(poll, "the times are written", times.exists, timeout_s=5)
        await login1.stop()
    requested, ended = json.loads(times.read_text())
    return Latencies(
        1000 * (min(requested) - announced), 1000 * (max(requested) - announced), 1000 * (released - ended)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the latencies of all runs; exit with 1 if a median exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--serve", nargs=2, type=Path, metavar=("SOCKET", "TIMES"))
    options = parser.parse_args(arguments)
    if options.serve:
        asyncio.run(serve(*options.serve))
        return
    if reason := unavailable():
        print(f"skipped: {reason}")
        return
    measured = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as name:
            measured.append(asyncio.run(shut_down(Path(name))))
    print(f"{'latency in ms':58} {'min':>9} {'median':>9} {'max':>9} {'budget':>9}")
    over = False
    for part, label in (
        ("first", f"signal to the first of {PODS} StopContainer calls"),
        ("all", f"signal to the last of {PODS} StopContainer calls"),
        ("release", "last pod's end to the lock's release"),
    ):
        each = [getattr(one, part) for one in measured]
        median = statistics.median(each)
        over |= median > _BUDGETS_MS[part]
        print(f"{label:58} {min(each):9.1f} {median:9.1f} {max(each):9.1f} {_BUDGETS_MS[part]:9.0f}")
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
