"""Stored content that no listed image references, by the object that keeps it, on a simulated containerd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent.model.runtime import ReferenceKind
from nodeagent.runtime.storage_graph import LayerCache
from tests.unit.runtime.conftest import REF
from tests.unit.runtime.graph_cases import A, B

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nodeagent.runtime.containerd import ContainerdClient
    from tests.unit.runtime.conftest import Store

Held = dict[tuple[ReferenceKind | None, str], str]


async def held(client: ContainerdClient, *, content_path: str = "") -> Held:
    """Return the detail of each holder of content by kind and name."""
    found = (await LayerCache().find_unlisted(client, [A, B], content_path=content_path)).held
    assert all(each.size_bytes > 0 or each.is_stuck for each in found)
    return {(each.kind, each.name): each.detail for each in found}


def _lease(store: Store) -> None:
    store.blobs["old"] = (1000, {})
    store.leases["pull"] = ({}, [("content", "old")])


def _expiring_lease(store: Store) -> None:
    store.blobs["new"] = (1000, {})
    store.leases["pull"] = ({"containerd.io/gc.expire": "2100-01-01T00:00:00Z"}, [("content", "new")])


def _undo(store: Store) -> None:
    store.blobs["removed"] = (1000, {})
    store.leases["undo"] = ({"nodeagent/image-removal": "removed"}, [("content", "removed")])


def _unlisted(store: Store) -> None:
    store.image("c", "base", "c1")


def _broken(store: Store) -> None:
    store.image("c", "base", "c1")
    del store.blobs["l-c1"]


def _container(store: Store) -> None:
    store.snapshots["overlayfs"] |= {"gone": ("", {}), "writable": ("gone", {})}
    store.kinds["writable"] = snapshots_pb2.ACTIVE
    store.containers["c"] = "writable"


def _root(store: Store) -> None:
    store.snapshots["overlayfs"]["kept"] = ("base", {"containerd.io/gc.root": "2024"})


def _unreferenced(store: Store) -> None:
    store.blobs["lost"] = (1000, {})


def _namespaces(store: Store) -> None:
    store.others = {"moby": ["own", "shared"], "buildkit": ["shared"], "empty": []}
    store.snapshots["overlayfs"].clear()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda _: None, {}),
        (_lease, {(ReferenceKind.LEASE, "pull"): "no expiry"}),
        (_expiring_lease, {(ReferenceKind.LEASE, "pull"): "until 2100-01-01T00:00:00.000Z"}),
        (_undo, {(ReferenceKind.LEASE, "undo"): "undo window of removed images"}),
        (_unlisted, {(ReferenceKind.UNLISTED_IMAGE, "c:1"): "not listed by CRI"}),
        (_broken, {(ReferenceKind.UNLISTED_IMAGE, "c:1"): "1 of 4 blobs missing"}),
        (_container, {(ReferenceKind.CONTAINER, "c"): "image removed"}),
        (_root, {(ReferenceKind.GC_LABEL, "kept"): "label containerd.io/gc"}),
        (_unreferenced, {(None, "lost"): ""}),
        (_namespaces, {(ReferenceKind.OTHER_NAMESPACE, "moby"): ""}),
    ],
)
async def test_content_belongs_to_its_first_holder(
    client: ContainerdClient, store: Store, change: Callable[[Store], None], expected: Held
) -> None:
    change(store)
    assert await held(client) == expected


async def test_each_byte_is_counted_once_however_many_objects_keep_it(client: ContainerdClient, store: Store) -> None:
    for change in (_unlisted, _lease, _root, _unreferenced):
        change(store)
    before = (await LayerCache().find_unlisted(client, [A, B])).held
    store.leases["twice"] = ({}, [("content", "old"), ("content", "lost"), ("snapshots/overlayfs", "kept")])
    store.image("d", "base", "c1")
    after = (await LayerCache().find_unlisted(client, [A, B])).held
    own_bytes = sum(each.size_bytes for each in after if each.name in ("d:1", "sha256:d"))
    assert sum(each.size_bytes for each in after) == sum(each.size_bytes for each in before) + own_bytes


async def test_missing_file_of_an_unlisted_image_is_a_missing_blob_only_if_the_directory_is_readable(
    client: ContainerdClient, store: Store, tmp_path: Path
) -> None:
    store.images["broken:1"] = store.images["sha256:broken"] = "sha256:manifest"
    store.blobs["sha256:manifest"] = (500, {})
    name = ReferenceKind.UNLISTED_IMAGE, "broken:1"
    assert (await held(client, content_path=str(tmp_path)))[name] == "not listed by CRI"
    directory = tmp_path / "blobs/sha256"
    directory.mkdir(parents=True)
    assert (await held(client, content_path=str(tmp_path)))[name] == "1 of 1 blobs missing"
    (directory / "manifest").touch()
    assert (await held(client, content_path=str(tmp_path)))[name] == "not listed by CRI"


async def test_blob_without_a_file_has_no_size(client: ContainerdClient, store: Store, tmp_path: Path) -> None:
    store.blobs |= {"sha256:manifest": (500, {}), "sha256:lost": (1 << 20, {}), "sha256:other": (1 << 20, {})}
    store.images["broken:1"] = "sha256:manifest"
    store.leases["pull"] = ({}, [("content", "sha256:lost"), ("content", "sha256:other")])
    (tmp_path / "blobs/sha256").mkdir(parents=True)
    (tmp_path / "blobs/sha256/other").touch()
    found = (await LayerCache().find_unlisted(client, [A, B], content_path=str(tmp_path))).held
    assert {each.name: each.size_bytes for each in found} == {"broken:1": 0, "pull": 1 << 20}


async def test_lost_manifest_of_an_image_is_a_missing_blob_also_if_an_index_references_it(
    client: ContainerdClient, store: Store, tmp_path: Path
) -> None:
    store.images["broken:1"] = "sha256:manifest"
    store.blobs["sha256:manifest"] = (500, {})
    store.blobs["index"] = (500, {"containerd.io/gc.ref.content.m.0": "sha256:manifest"})
    (tmp_path / "blobs/sha256").mkdir(parents=True)
    found = await held(client, content_path=str(tmp_path))
    assert found[ReferenceKind.UNLISTED_IMAGE, "broken:1"] == "1 of 1 blobs missing"


def _without_config(store: Store) -> None:
    store.image("c", "base", "c1")
    del store.blobs["sha256:c"]


def _without_file(store: Store) -> None:
    store.image("c", "base", "c1")
    store.blobs["m-c"][1][f"{REF}content.config"] = "sha256:lost"


def _moved_tag(store: Store) -> None:
    _without_file(store)
    store.blobs["m-c"][1][f"{REF}snapshot.overlayfs"] = "base/c1"
    store.snapshots["overlayfs"]["writable"] = ("base/c1", {})
    store.containers["web"] = "writable"


def _pinned(store: Store) -> None:
    _without_config(store)
    store.image_labels["c:1"] = {"io.cri-containerd.pinned": "pinned"}


def _leased_broken(store: Store) -> None:
    _without_config(store)
    store.leases["again"] = ({"containerd.io/gc.expire": "2100-01-01T00:00:00Z"}, [("content", "m-c")])


def _used_broken(store: Store) -> None:
    _without_config(store)
    store.containers["c"] = ""
    store.container_images["c"] = "sha256:c"


@pytest.mark.parametrize(
    ("change", "stuck"),
    [
        pytest.param(_without_config, {("c:1", "sha256:c")}, id="image without config, all names"),
        pytest.param(_without_file, {("c:1", "sha256:c")}, id="image with an unknown config"),
        pytest.param(_broken, set(), id="image without a layer blob, which may be unpacked or loaded later"),
        pytest.param(_moved_tag, set(), id="image whose layers a container uses, under another name"),
        pytest.param(_pinned, set(), id="pinned image"),
        pytest.param(_leased_broken, set(), id="image that is pulled again"),
        pytest.param(_used_broken, set(), id="image of a container"),
        pytest.param(_unlisted, set(), id="image that is only not listed"),
        pytest.param(_lease, {()}, id="lease without expiry"),
        pytest.param(_expiring_lease, set(), id="lease with expiry"),
        pytest.param(_undo, set(), id="lease of the agent"),
        pytest.param(_unreferenced, set(), id="unreferenced blob"),
    ],
)
async def test_only_broken_images_and_foreign_leases_without_expiry_are_stuck(
    client: ContainerdClient, store: Store, change: Callable[[Store], None], stuck: set[tuple[str, ...]]
) -> None:
    change(store)
    found = (await LayerCache().find_unlisted(client, [A, B])).held
    assert {each.names for each in found if each.is_stuck} == stuck
