"""Simulated runtime served by a separate process."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from tests.sim.server import SimServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sim.node import SimNode


async def serve(node: SimNode, socket: Path) -> None:
    """Serve a simulated node on a socket until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with SimServer(node, socket):
        await stop.wait()
