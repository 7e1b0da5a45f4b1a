"""Fixtures of the observation tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.cri import CriClient
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.support.kernel_tree import GIB, make_tree
from tests.unit.pods.pod_node import IMAGE, MIB, Clock, Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(params=["1.7"])
async def node(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: Any) -> AsyncIterator[Node]:
    make_tree(tmp_path, memory_bytes=16 * GIB)
    sim = SimNode(memory_bytes=16 * GIB)
    sim.root_path = str(tmp_path)
    sim.add_image(IMAGE, layers=[Layer("base", MIB)])
    calls: Counter[str] = Counter()
    socket = tmp_path_factory.mktemp("s") / "s"

    def observe(method: str, _seconds: float, _status: str) -> None:
        calls[method] += 1

    async with (
        SimServer(sim, socket, profile=request.param) as server,
        RuntimeConnection(server.endpoint, observer=observe) as connection,
    ):
        yield Node(sim, server, CriClient(connection), tmp_path, Clock(sim), calls)
