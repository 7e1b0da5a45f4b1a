"""References that keep pieces of the storage graph: containers, leases, labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent.model.runtime import ReferenceKind, total_space
from nodeagent.runtime.namespace_lists import CONTENT, SNAPSHOTS, GraphNode, StorageLists, references
from nodeagent.runtime.storage_graph import LayerCache
from tests.unit.runtime.conftest import REF, Store
from tests.unit.runtime.graph_cases import A, B, keys, records_with_references

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.model.runtime import StorageGraph
    from nodeagent.runtime.containerd import ContainerdClient


def _pending_bytes(graph: StorageGraph) -> int:
    return total_space(graph.pending.values()).size_bytes


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


async def test_graph_of_unchanged_lists_is_not_built_again(client: ContainerdClient, store: Store) -> None:
    _container(store)
    _lease(store)
    cache = LayerCache()
    graphs = [await _build_from_lists(cache, client) for _ in range(4)]
    assert graphs[3] is graphs[2]
    assert graphs[3] == graphs[0]


@pytest.mark.parametrize(
    "change",
    [
        _container,
        _lease,
        _flat_lease,
        _snapshot_lease,
        _other_namespace,
        _ingest,
        _rooted_child,
        _rooted,
        _orphan_child,
        _unlisted,
    ],
)
async def test_graph_after_a_change_equals_the_first_graph_of_a_new_process(
    client: ContainerdClient, store: Store, change: Callable[[Store], None]
) -> None:
    cache = LayerCache()
    before = [await _build_from_lists(cache, client) for _ in range(3)][2]
    change(store)
    after = await _build_from_lists(cache, client)
    assert after != before
    assert after == await _build_from_lists(LayerCache(), client)


async def test_growth_of_an_unreferenced_active_snapshot_is_measured_by_each_build(
    client: ContainerdClient, store: Store
) -> None:
    _orphan_child(store)
    cache = LayerCache()
    before = [await _build_from_lists(cache, client) for _ in range(3)][2]
    store.sizes["orphan"] = 1 << 20
    assert _pending_bytes(await _build_from_lists(cache, client)) > _pending_bytes(before)


async def _build_from_lists(cache: LayerCache, client: ContainerdClient) -> StorageGraph:
    containers = await client.list_containers()
    lists = StorageLists(await cache.list_namespace(client))
    return await cache.build(client, [A, B], containers=containers, lists=lists)


async def test_pieces_are_listed_by_the_containers_that_reference_them(client: ContainerdClient, store: Store) -> None:
    for name, parent in (("first", "base/a1"), ("second", "base/a1"), ("third", "base"), ("own", "")):
        store.snapshots["overlayfs"][f"layer of {name}"] = (parent, {})
        store.containers[name] = f"layer of {name}"
    store.containers["on an image layer"] = "base/a1"
    graph = await LayerCache().build(client, [A, B])
    found = {
        container: {graph.pieces[index].key for index in indexes} for container, indexes in graph.by_container.items()
    }
    assert found == {
        "first": {"base/a1", "base"},
        "second": {"base/a1", "base"},
        "third": {"base"},
        "own": set(),
        "on an image layer": {"base/a1", "base"},
    }
    assert graph.by_container["first"] is graph.by_container["second"]


async def test_unreferenced_pieces_have_no_other_reference(client: ContainerdClient, store: Store) -> None:
    _container(store)
    _rooted_child(store)
    _other_namespace(store)
    store.blobs.update({"loose": (10, {}), "elsewhere": (10, {}), "coming": (10, {})})
    store.expected = ["coming"]
    store.snapshots["overlayfs"]["orphan"] = ("base", {})
    found = (await LayerCache().find_unlisted(client, [A, B])).unreferenced
    assert {each.piece.key: (each.piece.references, each.rooted) for each in found} == {
        "loose": ((), False),
        "orphan": ((), False),
        "elsewhere": ((ReferenceKind.OTHER_NAMESPACE,), False),
        "kept": ((), True),
    }
    assert {each.snapshotter for each in found if each.piece.key in ("orphan", "kept")} == {"overlayfs"}


async def test_unreferenced_bytes_are_pending_until_collected(client: ContainerdClient, store: Store) -> None:
    cache = LayerCache()
    assert (await cache.build(client, [A, B])).pending == {}
    _rooted_child(store)
    store.snapshots["overlayfs"]["orphan"] = ("base", {})
    store.blobs["loose"] = (10, {})
    graph = await cache.build(client, [A, B])
    assert _pending_bytes(graph) == 8192 + 2 * 4096 + 4096


@pytest.mark.parametrize(
    ("label", "node"),
    [
        (f"{REF}content", GraphNode(CONTENT, "v")),
        (f"{REF}content.0", GraphNode(CONTENT, "v")),
        (f"{REF}content/x", GraphNode(CONTENT, "v")),
        (f"{REF}content.config", GraphNode(CONTENT, "v")),
        (f"{REF}snapshot.overlayfs", GraphNode(SNAPSHOTS + "overlayfs", "v")),
        (f"{REF}snapshot.overlayfs/linux", GraphNode(SNAPSHOTS + "overlayfs", "v")),
        (f"{REF}image.x", GraphNode("images", "v")),
        (f"{REF}contents", None),
        (f"{REF}mount.x", None),
        ("containerd.io/distribution.source.docker.io", None),
    ],
)
def test_reference_label_is_decoded(label: str, node: GraphNode | None) -> None:
    assert references({label: "v"}).to == ((node,) if node else ())


def test_back_reference_label_is_decoded(store: Store) -> None:
    del store
    found = references({"containerd.io/gc.bref.content.x": "m-a", "containerd.io/gc.bref.unknown": "y"})
    assert found.back == (GraphNode(CONTENT, "m-a"),)


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
    found = {each.piece.key for each in (await LayerCache().find_unlisted(client, [A, B])).unreferenced}
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
    assert (await LayerCache().find_unlisted(client, [A, B])).unreferenced == ()


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
    found = {each.piece.key for each in (await LayerCache().find_unlisted(client, [A, B])).unreferenced}
    assert found == (set() if valid else {"leased"})
