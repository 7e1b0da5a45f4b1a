"""Storage graph of images on a simulated containerd: sizes, snapshots, completeness, repeated builds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeRequestError
from nodeagent.model.runtime import Image, ReferenceKind, Space
from nodeagent.runtime.containerd import Stamp
from nodeagent.runtime.namespace_lists import SNAPSHOTS, DiskFormat, GraphNode, disk_format
from nodeagent.runtime.storage_graph import LayerCache
from tests.unit.runtime.conftest import REF, Store
from tests.unit.runtime.graph_cases import A, B, keys, records_with_references

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nodeagent.runtime.containerd import ContainerdClient


async def test_each_image_has_its_blobs_and_its_chain_of_snapshots(client: ContainerdClient) -> None:
    graph = await LayerCache().build(client, [A, B])
    assert keys(graph, A) == {"m-a", "sha256:a", "l-base", "l-a1", "base", "base/a1"}
    assert keys(graph, B) == {"m-b", "sha256:b", "l-base", "l-b1", "base", "base/b1"}
    assert len(graph.pieces) == len({piece.key for piece in graph.pieces}) == 10
    assert records_with_references(graph) == {}
    assert graph.records[A.id].names == ("a:1", "sha256:a")
    assert graph.records[A.id].complete
    assert graph.records[A.id].pulled_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("disk", "blob", "snapshot"),
    [
        (None, 4096, 8192 + 8192),
        (disk_format("xfs"), 4096, 8192),
        (disk_format("btrfs"), 4096, 8192),
        (DiskFormat(512, 0), 1024, 8192),
    ],
    ids=["ext4", "xfs", "btrfs", "small-blocks"],
)
async def test_sizes_are_the_bytes_freed_on_the_filesystem(
    client: ContainerdClient, disk: DiskFormat | None, blob: int, snapshot: int
) -> None:
    graph = await LayerCache(disk).build(client, [A])
    sizes = {piece.key: (piece.size_bytes, piece.inodes) for piece in graph.pieces}
    assert sizes["l-base"] == (blob, 1)
    assert sizes["base"] == (snapshot, 5)


@pytest.mark.parametrize(
    ("filesystem", "inodes", "size"),
    [
        ("xfs", 61, 8192),
        ("xfs", 62, 8192 + 64 * 512),
        ("xfs", 190, 8192 + 3 * 64 * 512),
        ("btrfs", 190, 8192),
        ("ext4", 190, 8192 + 8192),
    ],
)
async def test_only_xfs_frees_whole_chunks_of_inodes(
    client: ContainerdClient, store: Store, filesystem: str, inodes: int, size: int
) -> None:
    store.inodes["base"] = inodes
    graph = await LayerCache(disk_format(filesystem)).build(client, [A])
    (base,) = (piece for piece in graph.pieces if piece.key == "base")
    assert (base.size_bytes, base.inodes) == (size, inodes + 2)


async def test_image_with_several_tags_and_digests_is_one_record(client: ContainerdClient, store: Store) -> None:
    store.images.update({"a:2": "m-a", "a@m-a": "m-a", "unparsable NAME": "m-a"})
    listed = Image("sha256:a", ("a:1", "a:2"), ("a@m-a",))
    graph = await LayerCache().build(client, [listed])
    assert graph.records[A.id].names == ("a:1", "a:2", "a@m-a", "sha256:a", "unparsable NAME")


SOURCE = "containerd.io/distribution.source."


@pytest.mark.parametrize(
    ("labels", "sources"),
    [
        pytest.param({}, frozenset(), id="imported"),
        pytest.param({f"{SOURCE}r.io": "app"}, {"r.io/app"}, id="pulled"),
        pytest.param(
            {f"{SOURCE}r.io": "app,x/y", f"{SOURCE}q.io": "app"}, {"r.io/app", "r.io/x/y", "q.io/app"}, id="more"
        ),
        pytest.param({f"{SOURCE}r.io": ""}, frozenset(), id="empty"),
        pytest.param(None, None, id="manifest missing"),
    ],
)
async def test_sources_of_an_image_are_those_of_its_manifest(
    client: ContainerdClient, store: Store, labels: dict[str, str] | None, sources: set[str] | None
) -> None:
    if labels is None:
        del store.blobs["m-a"]
    else:
        store.blobs["m-a"][1].update(labels)
    assert (await LayerCache().build(client, [A])).records[A.id].sources == sources


async def test_image_with_a_pulled_and_an_imported_name_has_no_source(client: ContainerdClient, store: Store) -> None:
    store.blobs["m-a"][1][f"{SOURCE}r.io"] = "app"
    store.blobs["other"] = (500, {})
    store.images["local:1"] = "other"
    images = [Image(A.id, ("a:1", "local:1"))]
    assert (await LayerCache().build(client, images)).records[A.id].sources == frozenset()


async def test_source_added_by_a_later_pull_is_read(client: ContainerdClient, store: Store) -> None:
    cache = LayerCache()
    await cache.build(client, [A])
    store.blobs["m-a"][1][f"{SOURCE}r.io"] = "app"
    assert (await cache.build(client, [A])).records[A.id].sources == frozenset({"r.io/app"})


async def test_index_without_the_other_platforms_is_complete(client: ContainerdClient, store: Store) -> None:
    labels = {f"{REF}content.m.0": "m-a", f"{REF}content.m.1": "m-arm64"}
    store.blobs["i"] = (200, labels)
    store.images["a:1"] = store.images["sha256:a"] = "i"
    graph = await LayerCache().build(client, [A])
    assert "i" in keys(graph, A)
    assert graph.records[A.id].complete


@pytest.mark.parametrize("gone", ["l-a1", "m-a", "sha256:a"])
async def test_image_with_a_missing_blob_is_incomplete(client: ContainerdClient, store: Store, gone: str) -> None:
    del store.blobs[gone]
    graph = await LayerCache().build(client, [A, B])
    assert not graph.records[A.id].complete
    assert graph.records[B.id].complete
    assert gone not in keys(graph, A)


async def test_image_that_was_never_unpacked_is_incomplete(client: ContainerdClient, store: Store) -> None:
    store.image("c", "base", "c1", unpacked=False)
    graph = await LayerCache().build(client, [Image("sha256:c", ("c:1",))])
    assert {piece.key for piece in graph.pieces} == {"m-c", "sha256:c", "l-base", "l-c1"}
    assert not graph.records["sha256:c"].complete


async def test_discarded_layer_blobs_do_not_make_an_image_incomplete(client: ContainerdClient, store: Store) -> None:
    store.blobs["m-a"] = (500, {f"{REF}content.config": "sha256:a"})
    del store.blobs["l-a1"]
    graph = await LayerCache().build(client, [A])
    assert graph.records[A.id].complete
    assert keys(graph, A) == {"m-a", "sha256:a", "base", "base/a1"}


async def test_artifact_has_blobs_only(client: ContainerdClient, store: Store) -> None:
    store.blobs.update({"m-t": (100, {f"{REF}content.config": "empty", f"{REF}content.0": "t"})})
    store.blobs.update({"empty": (2, {}), "t": (9, {})})
    store.images["t:1"] = "m-t"
    graph = await LayerCache().build(client, [Image("empty", ("t:1",))])
    assert graph.records["empty"].complete
    assert {piece.key for piece in graph.pieces} == {"m-t", "empty", "t"}


async def test_unknown_image_has_no_entry(client: ContainerdClient) -> None:
    graph = await LayerCache().build(client, [A, Image("sha256:new", ("new:1",))])
    assert set(graph.by_image) == set(graph.records) == {A.id}


async def test_snapshots_of_a_second_snapshotter_count_and_an_absent_one_is_ignored(
    client: ContainerdClient, store: Store
) -> None:
    store.snapshots["stargz"] = {"base": ("", {})}
    store.blobs["sha256:a"] = (
        300,
        {
            f"{REF}snapshot.overlayfs": "base/a1",
            f"{REF}snapshot.stargz/x": "base",
            f"{REF}snapshot.absent": "base",
        },
    )
    graph = await LayerCache().build(client, [A])
    assert {"base", "stargz/base"} <= keys(graph, A)


async def test_unavailable_configured_snapshotter_is_an_error(client: ContainerdClient) -> None:
    with pytest.raises(RuntimeRequestError, match="snapshotter not loaded"):
        await LayerCache().build(client, [A], snapshotter="nydus")


async def test_image_with_unreadable_usage_has_no_entry_and_its_shared_pieces_remain_referenced(
    client: ContainerdClient, store: Store
) -> None:
    store.broken = {"base/a1"}
    cache = LayerCache()
    graph = await cache.build(client, [A, B])
    assert set(graph.by_image) == {B.id}
    assert graph.records[A.id].names
    assert records_with_references(graph) == dict.fromkeys(("l-base", "base"), (ReferenceKind.UNLISTED_IMAGE,))
    store.broken = set()
    assert set((await cache.build(client, [A, B])).by_image) == {A.id, B.id}


@pytest.mark.parametrize("impossible", [-1, 2**60, 2**63 - 1])
@pytest.mark.parametrize("field", ["sizes", "inodes"])
async def test_image_with_impossible_usage_of_a_snapshot_has_no_entry(
    client: ContainerdClient, store: Store, field: str, impossible: int
) -> None:
    getattr(store, field)["base/a1"] = impossible
    graph = await LayerCache().build(client, [A, B])
    assert set(graph.by_image) == {B.id}
    assert all(0 <= piece.size_bytes < 2**60 for piece in graph.pieces)


async def test_snapshot_removed_since_the_listing_has_size_zero(client: ContainerdClient, store: Store) -> None:
    store.gone = {"base/a1"}
    graph = await LayerCache().build(client, [A])
    assert [piece.size_bytes for piece in graph.pieces if piece.key == "base/a1"] == [0]


async def test_second_build_reads_only_new_records(client: ContainerdClient, store: Store) -> None:
    cache = LayerCache()
    first = await cache.build(client, [A])
    assert sorted(store.usage_calls) == ["base", "base/a1"]
    store.usage_calls.clear()
    assert await cache.build(client, [A]) == first
    assert store.usage_calls == []
    await cache.build(client, [A, B])
    assert store.usage_calls == ["base/b1"]


async def test_unchanged_images_in_another_order_have_the_same_graph_without_another_layout(
    client: ContainerdClient,
) -> None:
    cache = LayerCache()
    first = await cache.build(client, [A, B])
    second = await cache.build(client, [B, A])
    assert second == first
    assert second.by_image is first.by_image


class SavedUsage:
    def __init__(self) -> None:
        self.records: dict[GraphNode, tuple[Stamp, Space]] = {}

    def read(self) -> dict[GraphNode, tuple[Stamp, Space]]:
        return dict(self.records)

    def write(self, read: Mapping[GraphNode, tuple[Stamp, Space]], removed: Collection[GraphNode]) -> None:
        self.records.update(read)
        for node in removed:
            del self.records[node]


async def test_stored_usage_is_not_read_again_unless_of_an_earlier_snapshot(
    client: ContainerdClient, store: Store
) -> None:
    saved = SavedUsage()
    first = await LayerCache(usage_store=saved).build(client, [A])
    assert {node.id for node in saved.records} == {"base", "base/a1"}
    store.usage_calls.clear()
    assert await LayerCache(usage_store=saved).build(client, [A]) == first
    assert store.usage_calls == []
    node = GraphNode(SNAPSHOTS + "overlayfs", "base/a1")
    saved.records[node] = (Stamp(1, 1), saved.records[node][1])
    assert await LayerCache(usage_store=saved).build(client, [A]) == first
    assert store.usage_calls == ["base/a1"]
    del store.images["a:1"], store.images["sha256:a"], store.snapshots["overlayfs"]["base/a1"]
    await LayerCache(usage_store=saved).build(client, [B])
    assert {node.id for node in saved.records} == {"base", "base/b1"}


async def test_changes_between_builds_are_detected(client: ContainerdClient, store: Store) -> None:
    cache = LayerCache()
    await cache.build(client, [A, B])
    del store.images["b:1"], store.images["sha256:b"]
    del store.blobs["l-b1"], store.snapshots["overlayfs"]["base/b1"]
    graph = await cache.build(client, [A, B])
    assert set(graph.by_image) == {A.id}
    store.image("a", "base", "a1", "a2")
    assert {"base/a1/a2", "l-a2"} <= keys(await cache.build(client, [A]), A)


async def test_deleting_an_absent_name_is_not_an_error(client: ContainerdClient) -> None:
    assert await client.delete_image("a:1", sync=False)
    assert not await client.delete_image("a:1", sync=True)


async def test_lazily_pulled_image_has_the_snapshots_of_its_remote_snapshotter(
    client: ContainerdClient, store: Store
) -> None:
    store.snapshots["stargz"] = {"chain": ("", {"containerd.io/snapshot/remote": "x"})}
    store.blobs["sha256:a"][1][f"{REF}snapshot.stargz"] = "chain"
    store.blobs["m-a"][1][f"{REF}content.soci-index"] = "index"
    store.blobs["index"] = (10, {f"{REF}content.ztoc.0": "ztoc"})
    store.blobs["ztoc"] = (10, {})
    assert {"stargz/chain", "index", "ztoc"} <= keys(await LayerCache().build(client, [A]), A)
    assert (await LayerCache().find_unlisted(client, [A, B])).unreferenced == ()
