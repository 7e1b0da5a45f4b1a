"""gRPC caller on the generated messages, so that the simulation is tested independently of the agent's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.sim.server import SimServer

Response = TypeVar("Response", bound=Message)


class Caller(Protocol):
    """Calls one method; returns the messages of a stream as a list."""

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
            return [item async for item in stream(request, timeout=5, metadata=metadata)]
        rpc = channel.unary_unary(method, type(request).SerializeToString, answer.FromString)
        return [await rpc(request, timeout=5, metadata=metadata)]

    yield make
    for channel in channels.values():
        await channel.close(None)
