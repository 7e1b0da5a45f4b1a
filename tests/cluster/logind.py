"""Simulated logind on the system bus of a cluster's node."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support import login1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
