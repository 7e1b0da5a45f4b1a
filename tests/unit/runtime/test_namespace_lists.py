"""Lists of a containerd namespace read with CRI's lists: reuse, and changes between both lists."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeRequestError
from nodeagent.model.runtime import Image, ReferenceKind
from nodeagent.runtime.containerd import PINNED_LABEL, StoredContainer
from nodeagent.runtime.namespace_lists import StorageLists
from nodeagent.runtime.storage_graph import LayerCache
from tests.sim.clock import SimClock
from tests.unit.runtime.graph_cases import A, B, keys, records_with_references

if TYPE_CHECKING:
    from nodeagent.runtime.containerd import ContainerdClient
    from tests.unit.runtime.conftest import Store

C = Image("sha256:c", ("c:1",))


async def read_lists(cache: LayerCache, client: ContainerdClient) -> StorageLists:
    return StorageLists(await cache.list_namespace(client))


def stored_container(key: str) -> StoredContainer:
    return StoredContainer("container-a", "a:1", "overlayfs", key, {})


async def test_graph_of_lists_that_have_every_image_is_the_same_without_another_listing(
    client: ContainerdClient, store: Store
) -> None:
    cache = LayerCache()
    first = await cache.build(client, [A, B])
    lists = await read_lists(cache, client)
    store.image("c", "base", "c1")  # not in the CRI list; only a second listing contains the image
    second = await cache.build(client, [A, B], lists=lists)
    assert second == first
    assert second.by_image is first.by_image


async def test_image_pulled_between_the_lists_has_its_pieces(client: ContainerdClient, store: Store) -> None:
    cache = LayerCache()
    await cache.build(client, [A, B])
    lists = await read_lists(cache, client)
    store.image("c", "base", "c1")
    graph = await cache.build(client, [A, B, C], lists=lists)
    assert keys(graph, C) == {"m-c", "sha256:c", "l-base", "l-c1", "base", "base/c1"}
    assert graph.records[C.id].complete


async def test_tag_moved_to_another_image_between_the_lists_belongs_to_that_image(
    client: ContainerdClient, store: Store
) -> None:
    cache = LayerCache()
    await cache.build(client, [A, B])
    lists = await read_lists(cache, client)
    store.image("c", "base", "c1", tags=("a:1",))
    graph = await cache.build(client, [Image(A.id), B, Image(C.id, ("a:1",))], lists=lists)
    assert set(graph.records[C.id].names) == {"a:1", "sha256:c"}
    assert graph.records[A.id].names == ("sha256:a",)


async def test_container_created_between_the_lists_references_the_layers_of_its_image(
    client: ContainerdClient, store: Store
) -> None:
    cache = LayerCache()
    await cache.build(client, [A, B], containers=())
    lists = await read_lists(cache, client)
    store.snapshots["overlayfs"]["writable"] = ("base/a1", {})
    graph = await cache.build(client, [A, B], containers=(stored_container("writable"),), lists=lists)
    assert records_with_references(graph) == dict.fromkeys(("base", "base/a1"), (ReferenceKind.CONTAINER,))


async def test_permanently_missing_objects_are_listed_again_only_once(client: ContainerdClient, store: Store) -> None:
    cache = LayerCache()
    images, containers = [A, Image("sha256:x", ("x:1",))], (stored_container("removed"),)
    for _ in range(2):  # snapshotters are known only after the first graph
        await cache.build(client, images, containers=containers, lists=await read_lists(cache, client))
    lists = await read_lists(cache, client)
    store.image_labels["a:1"] = {PINNED_LABEL: "pinned"}  # visible only in a second listing
    graph = await cache.build(client, images, containers=containers, lists=lists)
    assert not graph.records[A.id].pinned


async def test_failed_list_of_the_configured_snapshotter_fails_the_graph(
    client: ContainerdClient, store: Store
) -> None:
    cache = LayerCache()
    await cache.build(client, [A], snapshotter="overlayfs")
    snapshots = store.snapshots.pop("overlayfs")
    lists = await read_lists(cache, client)
    store.snapshots["overlayfs"] = snapshots
    with pytest.raises(RuntimeRequestError):
        await cache.build(client, [A], snapshotter="overlayfs", lists=lists)


async def test_changed_label_of_an_image_name_is_listed(client: ContainerdClient, store: Store) -> None:
    before = await client.list_images()
    assert await client.list_images() == before
    store.image_labels["a:1"] = {PINNED_LABEL: "pinned"}
    store.images["b:1"] = "m-a"
    del store.images["sha256:b"]
    after = {each.name: each for each in await client.list_images()}
    assert after["a:1"].labels == {PINNED_LABEL: "pinned"}
    assert after["b:1"].target == "m-a"
    assert set(after) == {"a:1", "b:1", "sha256:a"}


async def test_names_of_another_namespace_are_not_mixed_up(client: ContainerdClient, store: Store) -> None:
    own = await client.list_images()
    store.image_labels["a:1"] = {"other": "namespace"}
    other = {each.name: each for each in await client.list_images("other")}
    assert other["a:1"].labels == {"other": "namespace"}
    store.image_labels.clear()
    assert await client.list_images() == own


async def test_records_of_an_equal_revision_are_not_listed_again(client: ContainerdClient, store: Store) -> None:
    cache = LayerCache()
    await cache.build(client, [A, B])
    first = await cache.build(client, [A, B], lists=StorageLists(await cache.list_namespace(client, 1)))
    store.image("c", "base", "c1")
    lists = await cache.list_namespace(client, 1)
    assert "c:1" not in {each.name for each in lists.images}
    assert (await cache.build(client, [A, B], lists=StorageLists(lists))).by_image is first.by_image


@pytest.mark.parametrize("revision", [2, None], ids=["another", "unknown"])
async def test_records_of_a_revision_that_is_not_equal_are_listed_again(
    client: ContainerdClient, store: Store, revision: int | None
) -> None:
    cache = LayerCache()
    await cache.list_namespace(client, None if revision is None else 1)
    store.image("c", "base", "c1")
    assert "c:1" in {each.name for each in (await cache.list_namespace(client, revision)).images}


async def test_image_missing_in_the_records_of_an_equal_revision_has_its_pieces(
    client: ContainerdClient, store: Store
) -> None:
    cache = LayerCache()
    await cache.build(client, [A, B], lists=StorageLists(await cache.list_namespace(client, 1)))
    store.image("c", "base", "c1")
    graph = await cache.build(client, [A, B, C], lists=StorageLists(await cache.list_namespace(client, 1)))
    assert keys(graph, C) == {"m-c", "sha256:c", "l-base", "l-c1", "base", "base/c1"}


async def test_ingests_are_read_again_with_an_equal_revision(client: ContainerdClient, store: Store) -> None:
    cache = LayerCache()
    assert (await cache.list_namespace(client, 1)).expected == frozenset()
    store.expected.append("l-new")
    assert (await cache.list_namespace(client, 1)).expected == {"l-new"}


async def test_lease_that_expired_since_the_records_were_listed_is_omitted(
    client: ContainerdClient, store: Store
) -> None:
    clock = SimClock()
    expiry = clock.now() + timedelta(minutes=1)
    store.leases["l"] = ({"containerd.io/gc.expire": expiry.isoformat()}, [("content", "l-base")])
    cache = LayerCache(clock=clock)
    assert [lease.id for lease, _ in (await cache.list_namespace(client, 1)).leases] == ["l"]
    clock.advance(61)
    assert (await cache.list_namespace(client, 1)).leases == ()


async def test_records_are_listed_again_after_the_clock_was_set_back(client: ContainerdClient, store: Store) -> None:
    clock = SimClock()
    cache = LayerCache(clock=clock)
    await cache.list_namespace(client, 1)
    store.image("c", "base", "c1")
    clock.set_wall_time(clock.now() - timedelta(hours=1))
    assert "c:1" in {each.name for each in (await cache.list_namespace(client, 1)).images}
