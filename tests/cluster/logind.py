"""Simulated logind on the system bus of a cluster's node."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support import login1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.cluster.agent import ClusterAgent
    from tests.support.cluster_node import ClusterNode


@asynccontextmanager
async def logind(node: ClusterNode) -> AsyncIterator[login1.Login1]:
    """Serve a simulated logind on the node's system bus, in the daemon's mount namespace."""
    if reason := login1.unavailable():
        pytest.skip(reason)
    directory = node.path("/run/dbus")
    directory.mkdir()
    (directory / "system_bus_socket").symlink_to("bus")
    bus = login1.PrivateBus(directory)
    bus.start()
    manager = login1.Login1(bus.address, directory)
    await manager.start()
    try:
        yield manager
    finally:
        await manager.stop()
        bus.stop()
        shutil.rmtree(directory)


async def wait(agent: ClusterAgent, state: str, ready: Callable[[], bool], timeout_s: float = 120) -> None:
    """Wait for a condition while the event loop serves logind."""
    await asyncio.to_thread(agent.wait, state, ready, timeout_s)
