"""gRPC caller with generated messages, so that simulation tests do not depend on the agent's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from nodeagent.model.runtime import ContainerState
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.cri import CriClient
from tests.sim.content import Layer
from tests.sim.node import PAUSE, SimNode
from tests.sim.server import SimServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MIB = 1024 * 1024
Response = TypeVar("Response", bound=Message)


class Caller(Protocol):
    """A function that calls a gRPC method and returns all response messages, one for a unary method."""

    async def __call__(
        self, server: SimServer, method: str, request: Message, answer: type[Response], *, namespace: str = "k8s.io"
    ) -> list[Response]: ...


@pytest.fixture
async def call() -> AsyncIterator[Caller]:
    channels: dict[str, grpc.aio.Channel] = {}

    async def make(
        server: SimServer, method: str, request: Message, answer: type[Response], *, namespace: str = "k8s.io"
    ) -> list[Response]:
        if server.endpoint not in channels:
            options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 << 20)]
            channels[server.endpoint] = grpc.aio.insecure_channel(server.endpoint, options=options)
        channel = channels[server.endpoint]
        metadata = [("containerd-namespace", namespace)] if namespace else []
        if answer.__name__ in {"ListContentResponse", "ListSnapshotsResponse", "ReadContentResponse"}:
            stream = channel.unary_stream(method, type(request).SerializeToString, answer.FromString)
            return [item async for item in stream(request, timeout=30, metadata=metadata)]
        rpc = channel.unary_unary(method, type(request).SerializeToString, answer.FromString)
        return [await rpc(request, timeout=30, metadata=metadata)]

    yield make
    for channel in channels.values():
        await channel.close(None)


@pytest.fixture
def node() -> SimNode:
    node = SimNode()
    node.add_image(PAUSE, layers=[Layer("pause", MIB)], pinned=True)
    base = Layer("base", 40 * MIB)
    node.add_image("registry.test/a:v1", "registry.test/a:latest", layers=[base, Layer("a", 5 * MIB)])
    node.add_image("registry.test/b:v1", layers=[base, Layer("b", 7 * MIB)])
    pod = node.add_pod("web", namespace="shop", uid="u-1", age_s=600)
    node.add_container(pod, "serve", "registry.test/a:v1", age_s=500, volume_images=["registry.test/b:v1"])
    node.add_container(
        pod, "once", "registry.test/b:v1", state=ContainerState.EXITED, attempt=2, age_s=500, ended_s=60, exit_code=3
    )
    return node


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
async def server(node: SimNode, socket: Path) -> AsyncIterator[SimServer]:
    async with SimServer(node, socket, gc_delay_s=None) as started:
        yield started


@pytest.fixture
async def cri(server: SimServer) -> AsyncIterator[CriClient]:
    async with RuntimeConnection(server.endpoint, deadlines={"ListImages": 0.2, "RemoveImage": 0.2}) as connection:
        yield CriClient(connection)
