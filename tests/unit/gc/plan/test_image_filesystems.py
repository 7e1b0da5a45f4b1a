"""Image GC on nodes with several image filesystems, each with a separate plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.planner import plan_all
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy
from nodeagent.model.decision import FilesystemTarget, ReasonCode
from nodeagent.model.pods import PodList, PodListSource
from nodeagent.model.runtime import ImageFilesystem, ReferenceKind, Space, StorageGraph
from nodeagent.record import replace
from tests.unit.builders import (
    DAY_S,
    MIB,
    ago,
    codes,
    container,
    decided,
    graph,
    image,
    image_filesystem,
    piece,
    removed,
    snapshot,
    used,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import StoredPiece

POLICY = ImageGCPolicy()
OVERLAY, KATA = "/containerd/overlayfs", "/kata/native"
NAMES = ("o1", "o2", "k1", "k2")


def layers(name: str) -> list[StoredPiece]:
    store = "native" if name.startswith("k") else "overlayfs"
    return [piece(f"s-{name}", 100, snapshotter=store), piece(f"b-{name}", 30, snapshotter="")]


def node(
    overlay_percent: int,
    kata_percent: int,
    *,
    names: Iterable[str] = NAMES,
    storage: StorageGraph | None = None,
    content: bool = True,
    **fields: Any,
) -> NodeSnapshot:
    """Return a node with the images ``names``, least recently used first, with 100 MiB of snapshots each.

    Snapshots of images named ``k...`` are in Kata's snapshotter ``native``, the others in ``overlayfs``. The content
    store, with 30 MiB of each image, is on the filesystem of overlayfs unless ``content`` is false.
    """
    names = tuple(names)
    if storage is None:
        storage = graph(
            [each for name in names for each in layers(name)], {name: [f"s-{name}", f"b-{name}"] for name in names}
        )
    filesystems = (
        image_filesystem(OVERLAY, overlay_percent, "overlayfs", *([""] if content else [])),
        image_filesystem(KATA, kata_percent, "native"),
    )
    return snapshot(
        *((image(name), used(10_000 - index)) for index, name in enumerate(names)),
        image_filesystem=filesystems[0].observed,
        image_filesystems=filesystems,
        storage=storage,
        **fields,
    )


def test_full_store_of_another_handler_removes_only_its_own_images() -> None:
    plan = plan_image_gc(node(40, 95), POLICY)
    assert removed(plan) == ["k1", "k2"]
    assert plan.targets == (FilesystemTarget(KATA, 150 * MIB, 0),)
    assert plan.wanted_bytes == 150 * MIB
    assert plan.shortfall_bytes == 0
    assert decided(plan, "k1").frees_on == ((OVERLAY, 30 * MIB), (KATA, 100 * MIB))
    assert decided(plan, "k1").reason.sentence == f"least recently used; imagefs {KATA} is 95% full, target 80%"
    assert decided(plan, "o1").reason.sentence == f"imagefs {OVERLAY} is 40% full, below the high threshold 85%"


@pytest.mark.difference("image-filesystems-gc")
def test_each_full_filesystem_falls_to_its_own_target() -> None:
    plan = plan_image_gc(node(90, 85, names=("o1", "k1", "o2", "k2", "o3")), POLICY)
    assert removed(plan) == ["o1", "k1"]
    assert plan.targets == (FilesystemTarget(OVERLAY, 100 * MIB, 0), FilesystemTarget(KATA, 50 * MIB, 0))
    assert {codes(plan)[name] for name in ("o2", "o3", "k2")} == {"enough-freed"}


def test_bytes_freed_by_removals_for_one_filesystem_count_on_the_other() -> None:
    both = graph(
        [piece("s-o", 100), piece("s-k", 100, snapshotter="native"), piece("s-k1", 100, snapshotter="native")],
        {"both": ["s-o", "s-k"], "k1": ["s-k1"]},
    )
    plan = plan_image_gc(node(90, 90, names=("both", "k1"), storage=both), POLICY)
    assert removed(plan) == ["both"]
    assert plan.shortfall_bytes == 0


def test_blobs_count_for_the_filesystem_of_the_content_store() -> None:
    """Count blobs on the filesystem of the content store, here overlayfs, also for images with snapshots in Kata."""
    plan = plan_image_gc(node(85, 10, names=("k1", "k2", "o1")), POLICY)
    assert removed(plan) == ["k1", "k2"]
    plan = plan_image_gc(node(85, 10, names=("k1", "k2", "o1"), content=False), POLICY)
    assert removed(plan) == ["o1"]
    assert decided(plan, "o1").frees_on == ((OVERLAY, 100 * MIB),)


def test_image_without_freed_space_on_the_full_filesystem_is_kept() -> None:
    used_elsewhere = graph(
        [piece("base", 500, snapshotter="native", references=[ReferenceKind.CONTAINER]), piece("s-o", 10)],
        {"k1": ["base"], "o1": ["s-o"]},
    )
    plan = plan_image_gc(node(10, 95, names=("k1", "o1"), storage=used_elsewhere), POLICY)
    assert codes(plan) == {"k1": "frees-no-space", "o1": "below-high-threshold"}
    assert plan.shortfall_bytes == 150 * MIB
    assert decided(plan, "k1").reason.sentence == "its removal frees no space on any image filesystem"


def test_snapshots_of_an_unknown_filesystem_free_nothing() -> None:
    remote = graph([piece("s-r", 500, snapshotter="stargz")], {"r": ["s-r"]})
    assert codes(plan_image_gc(node(95, 95, names=("r",), storage=remote), POLICY)) == {"r": "frees-no-space"}


def test_image_outside_the_storage_graph_is_kept() -> None:
    plan = plan_image_gc(node(95, 95, names=("k1", "new"), storage=graph(layers("k1"), {"k1": ["s-k1"]})), POLICY)
    assert codes(plan) == {"k1": "least-recently-used", "new": "filesystem-unknown"}


def test_without_storage_graph_images_are_removed_by_age_only() -> None:
    observed = replace(node(95, 95), storage=None)
    plan = plan_image_gc(observed, POLICY)
    assert codes(plan) == dict.fromkeys(NAMES, "filesystem-unknown")
    assert "runtime.imagefs_path limits collection to one" in plan.warnings[0]
    by_age = plan_image_gc(
        replace(observed, image_usage=dict.fromkeys(NAMES, used(3 * DAY_S, seen_s=9 * DAY_S))),
        replace(POLICY, maximum_unused_age_s=2 * DAY_S),
    )
    assert {each.reason.code for each in by_age.removals} == {ReasonCode.UNUSED_TOO_LONG}
    assert len(by_age.removals) == len(NAMES)


@pytest.mark.difference("impossible-filesystem-reading")
def test_unreadable_filesystem_keeps_its_images_only() -> None:
    observed = node(95, 95, content=False)
    broken = ImageFilesystem(KATA, frozenset({"native"}), None, "no answer")
    plan = plan_image_gc(replace(observed, image_filesystems=(observed.image_filesystems[0], broken)), POLICY)
    assert removed(plan) == ["o1", "o2"]
    assert decided(plan, "k1").reason.sentence == f"cannot read the image filesystem {KATA}: no answer"
    assert f"no image is removed by threshold: cannot read the image filesystem {KATA}: no answer" in plan.warnings


def test_unreferenced_content_counts_for_its_own_filesystem() -> None:
    observed = node(95, 95, content=False)
    assert observed.storage is not None
    pending = replace(observed.storage, pending={"native": Space(150 * MIB)})
    plan = plan_image_gc(replace(observed, storage=pending), POLICY)
    assert removed(plan) == ["o1", "o2"]
    assert codes(plan)["k1"] == "collection-pending"
    assert plan.pending_bytes == 150 * MIB
    undo = replace(observed.storage, undo={"native": Space(400 * MIB)})
    plan = plan_image_gc(replace(observed, storage=undo), POLICY)
    assert codes(plan)["k1"] == "undo-window-open"
    assert removed(plan) == ["o1", "o2"]


def test_reclaim_for_one_filesystem_removes_only_images_that_free_space_there() -> None:
    plan = plan_image_gc(node(10, 10, content=False), POLICY, remove_all_unused=True, only_on=OVERLAY)
    assert removed(plan) == ["o1", "o2"]
    assert decided(plan, "k1").reason.sentence == f"its removal frees no space on {OVERLAY}"
    plan = plan_image_gc(node(10, 10), POLICY, remove_all_unused=True)
    assert sorted(removed(plan)) == sorted(NAMES)


def test_image_whose_layers_a_kept_image_still_needs_is_not_removed() -> None:
    shared = graph(
        [piece("base", 400, snapshotter="native"), piece("s-k2", 160, snapshotter="native")],
        {"first": ["base"], "second": ["base"], "k2": ["s-k2"]},
    )
    plan = plan_image_gc(node(10, 95, names=("first", "k2", "second"), storage=shared), POLICY)
    assert removed(plan) == ["k2"]
    assert codes(plan)["first"] == codes(plan)["second"] == "enough-freed"
    plan = plan_image_gc(node(10, 95, names=("first", "second", "k2"), storage=shared), POLICY)
    assert removed(plan) == ["first", "second"]
    assert plan.frees_bytes == 400 * MIB


def test_image_shared_with_one_in_use_frees_no_space() -> None:
    shared = graph([piece("base", 400, snapshotter="native")], {"first": ["base"], "busy": ["base"]})
    observed = node(10, 95, names=("first", "busy"), storage=shared, containers=(container("c", image_ref="busy"),))
    assert codes(plan_image_gc(observed, POLICY))["first"] == "frees-no-space"


def test_limit_of_the_pass_counts_over_all_filesystems() -> None:
    plan = plan_image_gc(node(95, 96), replace(POLICY, max_images_per_pass=1))
    assert removed(plan) == ["k1"]
    assert codes(plan)["o1"] == "limit-images-per-pass"


def test_images_that_cannot_be_pulled_again_are_last_on_their_own_filesystem() -> None:
    sources = {
        name: frozenset[str]() if name in ("k1", "o1") else frozenset({f"registry.example/{name}"}) for name in NAMES
    }
    plan = plan_image_gc(node(10, 94, image_sources=sources), POLICY)
    assert removed(plan) == ["k2", "k1"]
    assert codes(plan)["o1"] == "irreplaceable-later"
    assert removed(plan_image_gc(node(10, 90, image_sources=sources), POLICY)) == ["k2"]


def test_writable_layers_of_removed_containers_count_on_every_filesystem() -> None:
    dead = container("c", image_ref="k2", finished_s=DAY_S, created_s=2 * DAY_S)
    observed = node(
        10,
        95,
        containers=(dead,),
        writable_bytes={"c": 100 * MIB},
        pod_list=PodList(PodListSource.API_SERVER, frozenset(), synced=True),
        booted_at=ago(DAY_S),
    )
    plans = plan_all(observed, GCPolicy())
    assert removed(plans.containers) == ["c"]
    assert plans.images is not None
    assert plans.images.wanted_bytes == 50 * MIB


STORES = ("", "overlayfs", "native", "stargz")


@st.composite
def nodes(draw: st.DrawFn) -> NodeSnapshot:
    pieces = [
        piece(
            f"p{number}",
            draw(st.integers(0, 90)),
            snapshotter=draw(st.sampled_from(STORES)),
            references=draw(st.sampled_from([(), (), (), (ReferenceKind.LEASE,)])),
        )
        for number in range(draw(st.integers(1, 8)))
    ]
    names = [f"i{number}" for number in range(draw(st.integers(1, 6)))]
    keys = st.lists(st.sampled_from([each.key for each in pieces]), unique=True, max_size=4)
    storage = graph(pieces, {name: draw(keys) for name in names})
    percent = st.integers(60, 100)
    return node(draw(percent), draw(percent), names=names, storage=storage, content=draw(st.booleans()))


def freed_on(observed: NodeSnapshot, ids: Iterable[str], path: str) -> int:
    """Return the bytes that the removal of images frees on a filesystem, computed independently of the planner."""
    storage = observed.storage
    assert storage is not None
    kept = {index for name, indexes in storage.by_image.items() if name not in ids for index in indexes}
    (stores,) = (each.stores for each in observed.image_filesystems if each.path == path)
    return sum(
        each.size_bytes
        for index, each in enumerate(storage.pieces)
        if index not in kept
        and not each.references
        and each.snapshotter in stores
        and any(index in indexes for indexes in storage.by_image.values())
    )


@settings(max_examples=150)
@given(nodes())
def test_every_removal_frees_space_on_a_filesystem_above_its_threshold(observed: NodeSnapshot) -> None:
    plan = plan_image_gc(observed, POLICY)
    ids = frozenset(removed(plan))
    over = {each.path for each in observed.image_filesystems if each.observed and each.observed.used_percent >= 85}
    assert {each.path for each in plan.targets} <= over
    for each in observed.image_filesystems:
        assert sum(decision.bytes_on(each.path) for decision in plan.removals) == freed_on(observed, ids, each.path)
    for name in ids:
        without = ids - {name}
        assert any(freed_on(observed, ids, path) > freed_on(observed, without, path) for path in over)
    assert len(plan.decisions) == len(observed.images)
