"""Serve a simulated node from a separate process: ``python -m tests.sim --socket /tmp/sim.sock``.

Benchmarks use this program, since client and server must not share an interpreter there. It runs until SIGTERM or
SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.sim.profiles import PROFILES
from tests.sim.scenario import Scenario, example_node, scale_node
from tests.sim.server import SimServer


def main() -> None:
    """Parse the arguments, create the simulated node and serve it until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="path of the socket")
    parser.add_argument("--images", type=int, default=0, help="number of images; 0 for the default node")
    parser.add_argument("--layers", type=int, default=10, help="layers per image")
    parser.add_argument("--containers", type=int, default=0, help="number of containers")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="1.7", help="simulated runtime version")
    parser.add_argument("--root", type=Path, help="root directory of the runtime; created, so that statvfs works")
    parser.add_argument("--logs", type=Path, help="write pod logs below this directory")
    options = parser.parse_args()
    root_path, now = str(options.root or "/var/lib/containerd"), datetime.now(UTC)
    if options.images:
        node = scale_node(options.images, options.layers, options.containers, now=now, root_path=root_path)
        scenario = Scenario(node)
    else:
        scenario = example_node(now=now, root_path=root_path)
    if options.root is not None:
        Path(scenario.node.imagefs_path).mkdir(parents=True, exist_ok=True)
    if options.logs is not None:
        scenario.write_logs(options.logs)
    asyncio.run(_serve(SimServer(scenario.node, options.socket, profile=options.profile)))


async def _serve(server: SimServer) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with server:
        sys.stdout.write(f"serving {server.profile.runtime_name} {server.profile.runtime_version} on {server.socket}\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    main()
