"""Injected failures, delays and restarts of the simulated runtime."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeRequestError, RuntimeTimeoutError, RuntimeUnavailableError
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.cri import CriClient

if TYPE_CHECKING:
    from tests.sim.node import SimNode
    from tests.sim.server import SimServer


async def test_injected_failure_applies_to_its_target_and_count(cri: CriClient, server: SimServer) -> None:
    server.faults.fail("RemoveImage", "registry.test/b:v1", status="INTERNAL", detail="device busy")
    server.faults.fail("RemoveImage", "registry.test/b:v1", status="ABORTED", detail="again")
    await cri.remove_image("registry.test/a:latest")
    with pytest.raises(RuntimeRequestError, match="INTERNAL: device busy"):
        await cri.remove_image("registry.test/b:v1")
    with pytest.raises(RuntimeRequestError, match="ABORTED: again"):
        await cri.remove_image("registry.test/b:v1")
    await cri.remove_image("registry.test/b:v1")
    assert server.faults.targets("RemoveImage") == ("registry.test/a:latest", *["registry.test/b:v1"] * 3)
    assert server.calls[0] == ("RemoveImage", "registry.test/a:latest")


async def test_rule_for_an_unknown_method_is_rejected(server: SimServer) -> None:
    with pytest.raises(ValueError, match="unknown method 'RemoveImages'"):
        server.faults.fail("RemoveImages")


async def test_delayed_call_times_out(cri: CriClient, server: SimServer) -> None:
    server.faults.delay("ListImages")
    with pytest.raises(RuntimeTimeoutError):
        await cri.list_images()
    assert len(await cri.list_images()) == 3


async def test_delayed_call_continues_after_the_event(cri: CriClient, server: SimServer) -> None:
    released = asyncio.Event()
    server.faults.delay("Version", released)
    arrival = asyncio.create_task(server.faults.arrival("Version"))
    pending = asyncio.create_task(cri.version())
    await arrival
    assert not pending.done()
    released.set()
    assert (await pending).name == "containerd"


async def test_delayed_response_hides_the_effect(node: SimNode, cri: CriClient, server: SimServer) -> None:
    server.faults.delay("RemoveImage", effect_first=True)
    with pytest.raises(RuntimeTimeoutError):
        await cri.remove_image("registry.test/b:v1")
    assert node.resolve_image("registry.test/b:v1") is None


async def test_container_can_start_just_before_a_removal(node: SimNode, cri: CriClient, server: SimServer) -> None:
    server.faults.before("RemoveImage", lambda: node.start_container("registry.test/b:v1"))
    server.faults.after("ListContainers", lambda: node.advance(5))
    await cri.remove_image("registry.test/b:v1")
    before = node.now
    assert "late" in {container.name for container in await cri.list_containers()}
    assert (node.now - before).total_seconds() == 5


async def test_restart_aborts_calls_and_keeps_the_node(node: SimNode, cri: CriClient, server: SimServer) -> None:
    server.faults.delay("Version")
    arrival = asyncio.create_task(server.faults.arrival("Version"))
    pending = asyncio.create_task(cri.version())
    await arrival
    await server.stop()
    with pytest.raises((RuntimeUnavailableError, RuntimeRequestError)):
        await pending
    assert not server.socket.exists()
    await server.start()
    async with RuntimeConnection(server.endpoint) as connection:
        assert len(await CriClient(connection).list_images()) == len(node.images)
