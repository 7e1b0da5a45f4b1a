"""containerd services of the simulation, called through the client of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeRequestError
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.storage_backend import ContainerdStorage
from nodeagent.runtime.storage_graph import LayerCache
from nodeagent.units import SystemClock
from tests.sim.content import Layer
from tests.sim.filters import parse_filters
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.sim.store import GC_ROOT_LABEL, Blob, Ingest, RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MIB = 1024 * 1024
LAYERS = (Layer("base", 3 * MIB), Layer("own", MIB))


@pytest.fixture
def node() -> SimNode:
    node = SimNode()
    node.add_image("registry.test/a:v1", layers=LAYERS)
    return node


@pytest.fixture
async def client(node: SimNode, tmp_path: Path) -> AsyncIterator[ContainerdClient]:
    server = SimServer(node, tmp_path / "s", profile="2.1", gc_delay_s=None)
    async with server, RuntimeConnection(server.endpoint) as connection:
        yield ContainerdClient(connection)


async def test_unknown_names_and_blobs_are_none(node: SimNode, client: ContainerdClient) -> None:
    (image,) = node.images.values()
    found = await client.get_image("registry.test/a:v1")
    assert found is not None
    assert found.target == image.target_digest
    assert await client.get_image("registry.test/b:v1") is None
    blob = await client.get_blob(image.id)
    assert blob is not None
    assert blob.size_bytes == node.store.blobs[image.id].size_bytes
    assert await client.get_blob("sha256:" + "0" * 64) is None


async def test_removal_of_orphaned_directories_collects_garbage_and_leaves_no_snapshot(
    node: SimNode, client: ContainerdClient
) -> None:
    before, collections = dict(node.store.snapshots), node.store.collections
    storage = ContainerdStorage(client, SystemClock(), lambda _path: LayerCache())
    await storage.remove_orphaned_directories("overlayfs")
    assert node.store.snapshots == before
    assert node.store.collections > collections


async def test_moved_name_is_not_deleted(node: SimNode, client: ContainerdClient) -> None:
    with pytest.raises(RuntimeRequestError, match="FAILED_PRECONDITION"):
        await client.delete_image("registry.test/a:v1", sync=False, target="sha256:" + "0" * 64)
    target = next(iter(node.images.values())).target_digest
    assert await client.delete_image("registry.test/a:v1", sync=False, target=target)
    assert not await client.delete_image("registry.test/a:v1", sync=False)


async def test_bytes_of_removed_records_are_freed_by_the_next_collection(
    node: SimNode, client: ContainerdClient
) -> None:
    before = node.used_bytes
    assert await client.delete_content(LAYERS[0].blob_digest)
    assert not await client.delete_content(LAYERS[0].blob_digest)
    (image,) = node.images.values()
    assert await client.remove_snapshot("overlayfs", image.chain_id)
    assert node.used_bytes == before
    node.collect_garbage()
    assert before - node.used_bytes > MIB


async def test_ingests_are_listed_and_rooted_blobs_kept(node: SimNode, client: ContainerdClient) -> None:
    node.store.ingests["layer-1"] = Ingest("layer-1", 4096, 9000, "sha256:" + "1" * 64, node.now, node.now)
    assert len(await client.list_ingests()) == 1
    node.store.put_blob(Blob("sha256:" + "2" * 64, 10, node.now, {GC_ROOT_LABEL: "now"}))
    node.store.put_blob(Blob("sha256:" + "3" * 64, 10, node.now))
    node.collect_garbage()
    assert "sha256:" + "2" * 64 in await client.list_content()
    assert "sha256:" + "3" * 64 not in await client.list_content()


async def test_each_sandbox_has_a_lease_on_containerd_2(node: SimNode, client: ContainerdClient) -> None:
    node.sandbox_image = "registry.test/a:v1"
    pod = node.add_pod("web")
    assert [lease.id for lease in await client.list_leases()] == [pod.id]
    assert await client.list_lease_resources(pod.id) == ()
    await client.create_lease("keep", {"who": "test"})
    assert {lease.id for lease in await client.list_leases()} == {pod.id, "keep"}
    with pytest.raises(RuntimeRequestError, match="ALREADY_EXISTS"):
        await client.create_lease("keep", {})
    assert await client.delete_lease("keep", sync=True)
    assert not await client.delete_lease("keep", sync=True)


async def test_other_namespace_contains_shared_blobs_only(node: SimNode, client: ContainerdClient) -> None:
    node.store.share("moby", LAYERS[0].blob_digest)
    assert await client.list_namespaces() == ("k8s.io", "moby")
    assert await client.list_digests("moby") == {LAYERS[0].blob_digest}
    assert await client.list_images("moby") == ()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], True),
        (["name==a"], True),
        (['name=="a"'], True),
        (["name!=a"], False),
        (["name~=^[ab]$"], True),
        (["name==a,kind==active"], False),
        (["name==b", "kind==committed"], True),
        (['labels."x/y"==1'], True),
        (['labels."x/y"'], True),
        (['labels."other"'], False),
    ],
)
def test_filter_matches_fields_and_labels(filters: list[str], expected: bool) -> None:
    assert parse_filters(filters)({"name": "a", "kind": "committed"}, {"x/y": "1"}) == expected


def test_malformed_filter_is_rejected() -> None:
    with pytest.raises(RefusedError, match="parse error"):
        parse_filters(["=="])
