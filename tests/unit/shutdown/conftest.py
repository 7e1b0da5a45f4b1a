"""Fixtures of the shutdown tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.support.login1 import Login1
from tests.unit.shutdown.inhibitor_node import (
    IMAGE,
    Place,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.login1 import PrivateBus


@pytest_asyncio.fixture
async def place(private_bus: PrivateBus, tmp_path: Path) -> AsyncIterator[Place]:
    login1 = Login1(private_bus.address, tmp_path)
    await login1.start()
    node = SimNode()
    node.add_image(IMAGE, layers=[Layer("base", 1000)])
    async with SimServer(node, tmp_path / "cri.sock") as server:
        yield Place(tmp_path, private_bus, login1, server)
    await login1.stop()
