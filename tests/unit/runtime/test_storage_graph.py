from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent.errors import RuntimeRequestError
from nodeagent.model import Image, ReferenceKind, StorageGraph
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.containerd_records import SnapshotUsage, Stamp
from nodeagent.runtime.disk_format import DiskFormat, disk_format
from nodeagent.runtime.metadata_graph import CONTENT, SNAPSHOTS, Node, references
from nodeagent.runtime.storage_graph import LayerCache
from tests.unit.runtime.conftest import REF, FakeContainerd, Store, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping
    from pathlib import Path

    from nodeagent.runtime.connection import RuntimeConnection

A = Image("sha256:a", ("a:1",))
B = Image("sha256:b", ("b:1",))


@pytest.fixture
def store() -> Store:
    """Two images on one base: blobs of 1000, 500 and 300 bytes, snapshots of 8192 bytes and 3 inodes."""
    store = Store()
    store.image("a", "base", "a1")
    store.image("b", "base", "b1")
    return store


@pytest.fixture
async def client(socket: Path, store: Store, connection: RuntimeConnection) -> AsyncIterator[ContainerdClient]:
    async with serving(socket, *FakeContainerd(store).handlers()):
        yield ContainerdClient(connection)


def keys(graph: StorageGraph, image: Image) -> set[str]:
    return {graph.pieces[index].key for index in graph.by_image[image.id]}


def records_with_references(graph: StorageGraph) -> dict[str, tuple[ReferenceKind, ...]]:
    return {piece.key: piece.references for piece in graph.pieces if piece.references}


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


def _container(store: Store) -> None:
    store.snapshots["overlayfs"]["running"] = ("base/a1", {})
    store.containers["c"] = "running"


def _lease(store: Store) -> None:
    store.leases["l"] = ({}, [("content", "sha256:a")])


def _flat_lease(store: Store) -> None:
    store.leases["l"] = ({"containerd.io/gc.flat": "t"}, [("content", "m-a")])


def _snapshot_lease(store: Store) -> None:
    store.leases["l"] = ({}, [("snapshots/overlayfs", "base/a1"), ("ingests", "x")])


def _expired_lease(store: Store) -> None:
    store.leases["l"] = ({"containerd.io/gc.expire": "2020-01-01T00:00:00Z"}, [("content", "m-a")])


def _invalid_lease(store: Store) -> None:
    store.leases["l"] = ({"containerd.io/gc.expire": "soon"}, [("content", "l-a1")])


def _other_namespace(store: Store) -> None:
    store.others = {"moby": ["l-base", "elsewhere"], "empty": []}


def _ingest(store: Store) -> None:
    store.expected = ["l-a1", "not-yet-there"]


def _rooted_child(store: Store) -> None:
    store.snapshots["overlayfs"]["kept"] = ("base", {"containerd.io/gc.root": "2024"})


def _rooted(store: Store) -> None:
    store.snapshots["overlayfs"]["base/a1"] = ("base", {"containerd.io/gc.root": "2024"})


def _orphan_child(store: Store) -> None:
    store.snapshots["overlayfs"]["orphan"] = ("base/a1", {})
    store.kinds["orphan"] = snapshots_pb2.ACTIVE


def _unlisted(store: Store) -> None:
    store.image("chart", "base")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_container, {"base/a1": (ReferenceKind.CONTAINER,), "base": (ReferenceKind.CONTAINER,)}),
        (_lease, dict.fromkeys(("sha256:a", "base/a1", "base"), (ReferenceKind.LEASE,))),
        (_flat_lease, {"m-a": (ReferenceKind.LEASE,)}),
        (_snapshot_lease, dict.fromkeys(("base/a1", "base"), (ReferenceKind.LEASE,))),
        (_expired_lease, {}),
        (_invalid_lease, {"l-a1": (ReferenceKind.LEASE,)}),
        (_other_namespace, {"l-base": (ReferenceKind.OTHER_NAMESPACE,)}),
        (_ingest, {"l-a1": (ReferenceKind.INGEST,)}),
        (_rooted_child, {"base": (ReferenceKind.SNAPSHOT_CHILD,)}),
        (_rooted, {"base/a1": (ReferenceKind.LEASE,), "base": (ReferenceKind.SNAPSHOT_CHILD,)}),
        (_orphan_child, {}),
        (_unlisted, dict.fromkeys(("l-base", "base"), (ReferenceKind.UNLISTED_IMAGE,))),
    ],
)
async def test_reference_of_a_non_image_is_recorded_by_kind(
    client: ContainerdClient,
    store: Store,
    change: Callable[[Store], None],
    expected: dict[str, tuple[ReferenceKind, ...]],
) -> None:
    change(store)
    cache = LayerCache()
    assert records_with_references(await cache.build(client, [A, B])) == expected
    assert records_with_references(await cache.build(client, [A, B])) == expected


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
        self.records: dict[Node, tuple[Stamp, SnapshotUsage]] = {}

    def read(self) -> dict[Node, tuple[Stamp, SnapshotUsage]]:
        return dict(self.records)

    def write(self, read: Mapping[Node, tuple[Stamp, SnapshotUsage]], removed: Collection[Node]) -> None:
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
    node = Node(SNAPSHOTS + "overlayfs", "base/a1")
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


async def test_unreferenced_pieces_have_no_other_reference(client: ContainerdClient, store: Store) -> None:
    _container(store)
    _rooted_child(store)
    _other_namespace(store)
    store.blobs.update({"loose": (10, {}), "elsewhere": (10, {}), "coming": (10, {})})
    store.expected = ["coming"]
    store.snapshots["overlayfs"]["orphan"] = ("base", {})
    found = await LayerCache().find_unreferenced(client)
    assert {each.piece.key: (each.piece.references, each.rooted) for each in found} == {
        "loose": ((), False),
        "orphan": ((), False),
        "elsewhere": ((ReferenceKind.OTHER_NAMESPACE,), False),
        "kept": ((), True),
    }
    assert {each.snapshotter for each in found if each.piece.key in ("orphan", "kept")} == {"overlayfs"}


async def test_unreferenced_bytes_are_pending_until_collected(client: ContainerdClient, store: Store) -> None:
    cache = LayerCache()
    assert (await cache.build(client, [A, B])).pending_bytes == 0
    _rooted_child(store)
    store.snapshots["overlayfs"]["orphan"] = ("base", {})
    store.blobs["loose"] = (10, {})
    graph = await cache.build(client, [A, B])
    assert graph.pending_bytes == 8192 + 2 * 4096 + 4096


async def test_deleting_an_absent_name_is_not_an_error(client: ContainerdClient) -> None:
    assert await client.delete_image("a:1", sync=False)
    assert not await client.delete_image("a:1", sync=True)


@pytest.mark.parametrize(
    ("label", "node"),
    [
        (f"{REF}content", Node(CONTENT, "v")),
        (f"{REF}content.0", Node(CONTENT, "v")),
        (f"{REF}content/x", Node(CONTENT, "v")),
        (f"{REF}content.config", Node(CONTENT, "v")),
        (f"{REF}snapshot.overlayfs", Node(SNAPSHOTS + "overlayfs", "v")),
        (f"{REF}snapshot.overlayfs/linux", Node(SNAPSHOTS + "overlayfs", "v")),
        (f"{REF}image.x", Node("images", "v")),
        (f"{REF}contents", None),
        (f"{REF}mount.x", None),
        ("containerd.io/distribution.source.docker.io", None),
    ],
)
def test_reference_label_is_decoded(label: str, node: Node | None) -> None:
    assert references({label: "v"}).to == ((node,) if node else ())


def test_back_reference_label_is_decoded(store: Store) -> None:
    del store
    found = references({"containerd.io/gc.bref.content.x": "m-a", "containerd.io/gc.bref.unknown": "y"})
    assert found.back == (Node(CONTENT, "m-a"),)


async def test_blob_with_a_back_reference_belongs_to_the_image(client: ContainerdClient, store: Store) -> None:
    store.blobs["signature"] = (10, {"containerd.io/gc.bref.content": "m-a"})
    assert "signature" in keys(await LayerCache().build(client, [A]), A)


GC = "containerd.io/gc."


@pytest.mark.parametrize(
    ("labels", "unknown", "named"),
    [
        pytest.param({f"{GC}root": "2024"}, False, (), id="root"),
        pytest.param({f"{GC}ref.content.l.0": "x", f"{GC}bref.content": "y"}, False, (), id="known"),
        pytest.param({f"{GC}ref.mount.0": "x"}, True, ("x",), id="unknown kind of object"),
        pytest.param({f"{GC}bref.image2": "x"}, True, (), id="unknown kind of referencing object"),
        pytest.param({f"{GC}expire": "2020-01-01T00:00:00Z"}, True, (), id="expiry, which leases only have"),
        pytest.param({f"{GC}cond.x": "y"}, True, (), id="condition"),
        pytest.param({f"{GC}flat": "t"}, True, (), id="flat, which leases only have"),
        pytest.param({"containerd.io/snapshot/remote": "x", "containerd.io/snapshot.ref": "y"}, False, (), id="stargz"),
        pytest.param({"containerd.io/snapshot/nydus-blob": "true"}, False, (), id="nydus"),
        pytest.param({f"{GC}ref.content.soci-index": "x", f"{GC}ref.content.ztoc.0": "y"}, False, (), id="soci"),
        pytest.param({f"{GC}ref.snapshot.stargz/linux-amd64": "x"}, False, (), id="snapshot of stargz"),
    ],
)
def test_label_of_unknown_meaning_is_recognised(
    labels: dict[str, str], *, unknown: bool, named: tuple[str, ...]
) -> None:
    found = references(labels)
    assert (found.unknown, found.named) == (unknown, named)


@pytest.mark.parametrize("label", ["ref.mount.x", "bref.lease", "expire", "cond.unless", "flat", "anything"])
@pytest.mark.parametrize("kind", ["blob", "snapshot"])
async def test_piece_with_a_label_of_unknown_meaning_counts_as_referenced(
    client: ContainerdClient, store: Store, kind: str, label: str
) -> None:
    labels = {GC + label: "l-loose"}
    store.blobs["l-loose"] = (10, {})
    if kind == "blob":
        store.blobs["held"] = (10, {**labels, f"{GC}ref.content.l.0": "below"})
        store.blobs["below"] = (10, {})
    else:
        store.snapshots["overlayfs"]["below"] = ("", {})
        store.snapshots["overlayfs"]["held"] = ("below", labels)
    found = {each.piece.key for each in await LayerCache().find_unreferenced(client)}
    assert found == (set() if label.startswith("ref") else {"l-loose"})


async def test_image_with_a_label_of_unknown_meaning_frees_nothing(client: ContainerdClient, store: Store) -> None:
    store.blobs["m-a"][1][f"{GC}cond.x"] = "y"
    graph = await LayerCache().build(client, [A, B])
    kinds = {piece.key: piece.references for piece in graph.pieces if piece.key in ("m-a", "base/a1", "base/b1")}
    assert kinds == {
        "m-a": (ReferenceKind.GC_LABEL,),
        "base/a1": (ReferenceKind.GC_LABEL,),
        "base/b1": (),
    }


async def test_object_named_by_an_unknown_label_of_an_image_belongs_to_the_image(
    client: ContainerdClient, store: Store
) -> None:
    store.blobs["estargz-toc"] = (10, {})
    store.snapshots["overlayfs"]["erofs"] = ("", {})
    store.image_labels["a:1"] = {f"{GC}ref.toc.0": "estargz-toc", f"{GC}ref.mount": "erofs"}
    assert {"estargz-toc", "erofs"} <= keys(await LayerCache().build(client, [A]), A)
    assert await LayerCache().find_unreferenced(client) == ()


@pytest.mark.parametrize(
    ("labels", "valid"),
    [
        ({f"{GC}expire": "2020-01-01T00:00:00Z"}, False),
        ({f"{GC}expire": "2020-01-01T00:00:00Z", f"{GC}flat": "t"}, False),
        ({f"{GC}expire": "2020-01-01T00:00:00Z", f"{GC}cond.x": "y"}, True),
    ],
)
async def test_expired_lease_with_a_label_of_unknown_meaning_is_valid(
    client: ContainerdClient, store: Store, labels: dict[str, str], *, valid: bool
) -> None:
    store.blobs["leased"] = (10, {})
    store.leases["l"] = (labels, [("content", "leased")])
    found = {each.piece.key for each in await LayerCache().find_unreferenced(client)}
    assert found == (set() if valid else {"leased"})


async def test_lazily_pulled_image_has_the_snapshots_of_its_remote_snapshotter(
    client: ContainerdClient, store: Store
) -> None:
    store.snapshots["stargz"] = {"chain": ("", {"containerd.io/snapshot/remote": "x"})}
    store.blobs["sha256:a"][1][f"{REF}snapshot.stargz"] = "chain"
    store.blobs["m-a"][1][f"{REF}content.soci-index"] = "index"
    store.blobs["index"] = (10, {f"{REF}content.ztoc.0": "ztoc"})
    store.blobs["ztoc"] = (10, {})
    assert {"stargz/chain", "index", "ztoc"} <= keys(await LayerCache().build(client, [A]), A)
    assert await LayerCache().find_unreferenced(client) == ()
