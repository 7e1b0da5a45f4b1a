"""Serves a simulated node from a process of its own: ``python -m nodeagent.sim --socket /tmp/sim.sock``.

For benchmarks, where client and server must not share an interpreter. Runs until it is told to end.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from nodeagent.sim.profiles import PROFILES
from nodeagent.sim.scenario import Scenario, believable_node, scale_node
from nodeagent.sim.server import SimServer


def main() -> None:
    """Parse, build the node, serve it."""
    parser = argparse.ArgumentParser(prog="python -m nodeagent.sim", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="where to listen")
    parser.add_argument("--images", type=int, default=0, help="so many images; 0 for the believable node")
    parser.add_argument("--layers", type=int, default=10, help="layers of each image")
    parser.add_argument("--containers", type=int, default=0, help="so many containers")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="1.7", help="the runtime to act as")
    parser.add_argument("--root", type=Path, help="the runtime's root directory; it is made, so that statvfs works")
    parser.add_argument("--logs", type=Path, help="write pod logs below this directory")
    chosen = parser.parse_args()
    root_path, now = str(chosen.root or "/var/lib/containerd"), datetime.now(UTC)
    if chosen.images:
        node = scale_node(chosen.images, chosen.layers, chosen.containers, now=now, root_path=root_path)
        scenario = Scenario(node)
    else:
        scenario = believable_node(now=now, root_path=root_path)
    if chosen.root is not None:
        Path(scenario.node.imagefs_path).mkdir(parents=True, exist_ok=True)
    if chosen.logs is not None:
        scenario.write_logs(chosen.logs)
    asyncio.run(_serve(SimServer(scenario.node, chosen.socket, profile=chosen.profile)))


async def _serve(server: SimServer) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with server:
        sys.stdout.write(f"serving {server.profile.runtime_name} {server.profile.runtime_version} on {server.socket}\n")
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    main()
