"""Reuse of containerd records by the storage backend while the revision of containerd's database is unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent._proto.containerd.services.introspection.v1 import introspection_pb2
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.storage_backend import ContainerdStorage
from nodeagent.runtime.storage_graph import LayerCache
from tests.sim.clock import SimClock
from tests.sim.serving import service_handler
from tests.unit.runtime.conftest import FakeContainerd, serving
from tests.unit.runtime.graph_cases import A, B

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from google.protobuf.message import Message

    from nodeagent.runtime.connection import RuntimeConnection
    from tests.unit.runtime.conftest import Context, Store

DATABASE = "/var/lib/containerd/meta.db"


class Introspection:
    """A fake introspection service that reports the path of the metadata database."""

    def __init__(self) -> None:
        self.path = DATABASE

    async def Plugins(  # noqa: N802 - gRPC method name
        self, request: introspection_pb2.PluginsRequest, _context: Context
    ) -> Message:
        answer = introspection_pb2.PluginsResponse()
        if list(request.filters) == ["type==io.containerd.metadata.v1"] and self.path:
            answer.plugins.add(type="io.containerd.metadata.v1", id="bolt", exports={"path": self.path})
        return answer


class Node:
    """A storage backend with settable database revisions, by path."""

    def __init__(self, connection: RuntimeConnection, introspection: Introspection) -> None:
        self.introspection = introspection
        self.revisions = {DATABASE: 1}
        client, clock = ContainerdClient(connection), SimClock()
        self._storage = ContainerdStorage(
            client, clock, lambda _: LayerCache(clock=clock), read_revision=self.revisions.get
        )

    async def names(self) -> set[str]:
        """Build the storage graph; return the image names in the listed records."""
        lists = await self._storage.list_records()
        await self._storage.build_graph([A, B], snapshotter=None, path="/", containers=(), lists=lists)
        return {each.name for each in lists.namespace.images}


@pytest.fixture
async def node(socket: Path, store: Store, connection: RuntimeConnection) -> AsyncIterator[Node]:
    introspection = Introspection()
    service = service_handler(introspection_pb2.DESCRIPTOR.services_by_name["Introspection"], introspection)
    async with serving(socket, *FakeContainerd(store).handlers(), service):
        made = Node(connection, introspection)
        for _ in range(2):  # snapshotters are known only after the first graph
            await made.names()
        yield made


async def test_records_are_listed_again_only_after_a_transaction(node: Node, store: Store) -> None:
    store.image("c", "base", "c1")
    assert "c:1" not in await node.names()
    node.revisions[DATABASE] = 2
    assert "c:1" in await node.names()


async def test_records_are_listed_again_if_the_revision_is_unknown(node: Node, store: Store) -> None:
    store.image("c", "base", "c1")
    del node.revisions[DATABASE]
    assert "c:1" in await node.names()


async def test_records_are_listed_again_without_a_reported_database(node: Node, store: Store) -> None:
    store.image("c", "base", "c1")
    del node.revisions[DATABASE]
    node.introspection.path = ""
    assert "c:1" in await node.names()
    store.image("d", "base", "d1")
    assert "d:1" in await node.names()


async def test_database_at_another_path_after_a_restart_is_found(node: Node, store: Store) -> None:
    node.introspection.path = "/data/meta.db"
    del node.revisions[DATABASE]
    node.revisions["/data/meta.db"] = 2
    store.image("c", "base", "c1")
    assert "c:1" in await node.names()
    store.image("d", "base", "d1")
    assert "d:1" not in await node.names()
