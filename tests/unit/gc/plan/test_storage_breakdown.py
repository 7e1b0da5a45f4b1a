"""Usage breakdown, and the tree of images by shared layers."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.gc.plan.breakdown import MeasuredTree, MeasuredUsage, Member, UsageCategory, break_down, sharing_tree
from nodeagent.model.runtime import ContainerState, HeldContent, ReferenceKind, Space
from tests.unit.builders import MIB, NOW, container, filesystem, graph, image, piece, sandbox, snapshot, used

PIECES = [
    piece("base", 30),
    piece("own-a", 5),
    piece("own-b", 7),
]


def test_shares_add_up_to_the_used_bytes() -> None:
    fs = filesystem(60)
    observed = snapshot(
        (image("a", "r/a:1"), used(1)),
        (image("b", "r/b:1"), used(2)),
        containers=(
            container("run", state=ContainerState.RUNNING, image_ref="a"),
            container("dead", pod="job", image_ref="a"),
        ),
        storage=graph(PIECES, {"a": ["base", "own-a"], "b": ["base", "own-b"]}),
        image_filesystem=fs,
    )
    measured = MeasuredUsage(
        held=[
            HeldContent(None, "lost", 11 * MIB),
            HeldContent(ReferenceKind.LEASE, "old", 2 * MIB, NOW, "no expiry"),
            HeldContent(ReferenceKind.UNLISTED_IMAGE, "r/broken:1", 3 * MIB, None, "1 of 3 blobs missing"),
            HeldContent(ReferenceKind.CONTAINER, "dead", 1 * MIB, None, "image removed"),
            HeldContent(ReferenceKind.OTHER_NAMESPACE, "moby", 6 * MIB),
            HeldContent(ReferenceKind.OTHER_NAMESPACE, "buildkit", 7 * MIB),
            HeldContent(ReferenceKind.INGEST, "layer-1", 1 * MIB),
        ],
        writable={"run": Space(3 * MIB, 30), "dead": Space(4 * MIB, 40), "0123456789abcdef": Space(1 * MIB)},
        logs=[
            MeasuredTree("/var/log/pods/shop_job_uid-job/app/0.log", 12 * MIB, inodes=1),
            MeasuredTree("/var/log/pods/shop_gone_uid-gone", 1 * MIB, inodes=8),
        ],
        volumes=[MeasuredTree("/pods/x", 17 * MIB, complete=False), MeasuredTree("/pods/uid-web/uid-job", 0)],
        metadata=[MeasuredTree("/var/lib/containerd/io.containerd.metadata.v1.bolt", 5 * MIB)],
        deleted=[MeasuredTree("logger (pid 7)", 8 * MIB)],
        unread_processes=1,
        host=MeasuredTree("/", 300 * MIB),
        largest=[MeasuredTree("/opt", 100 * MIB), MeasuredTree("/usr", 190 * MIB)],
        reserved_bytes=20 * MIB,
    )
    found = break_down(observed, fs, measured)
    sizes = {share.part: share.size_bytes // MIB for share in found.shares}
    assert sizes == {
        UsageCategory.IMAGES_IN_USE: 36,
        UsageCategory.IMAGES_UNUSED: 7,
        UsageCategory.IMAGES_UNLISTED: 3,
        UsageCategory.LEASED: 2,
        UsageCategory.BEING_WRITTEN: 1,
        UsageCategory.OTHER_NAMESPACES: 13,
        UsageCategory.UNREFERENCED: 11,
        UsageCategory.WRITABLE_RUNNING: 4,
        UsageCategory.WRITABLE_DEAD: 4,
        UsageCategory.POD_LOGS: 13,
        UsageCategory.POD_VOLUMES: 17,
        UsageCategory.RUNTIME_METADATA: 5,
        UsageCategory.DELETED_FILES: 8,
        UsageCategory.HOST_FILES: 300,
        UsageCategory.RESERVED: 20,
        UsageCategory.UNEXPLAINED: 600 - 444,
    }
    assert sum(sizes.values()) == 600
    members = {share.part: share.members for share in found.shares}
    assert members[UsageCategory.IMAGES_IN_USE] == (
        Member("r/a:1", 35 * MIB, 2, "shop/job, shop/web"),
        Member("app", 1 * MIB, 0, "shop/job", "image removed"),
    )
    assert members[UsageCategory.LEASED] == (Member("old", 2 * MIB, detail="no expiry, since 2026-03-01"),)
    assert members[UsageCategory.OTHER_NAMESPACES] == (Member("buildkit", 7 * MIB), Member("moby", 6 * MIB))
    assert members[UsageCategory.WRITABLE_RUNNING] == (
        Member("app", 3 * MIB, 30, "shop/web"),
        Member("0123456789ab", 1 * MIB),
    )
    assert [each.name for each in members[UsageCategory.HOST_FILES]] == ["/usr", "/opt"]
    assert [each.pod for each in members[UsageCategory.POD_LOGS]] == ["shop/job", ""]
    assert [each.pod for each in members[UsageCategory.POD_VOLUMES]] == ["", "shop/web"]  # a pod names its own files
    inodes = {share.part: share.inodes for share in found.shares if share.inodes}
    assert inodes == {
        UsageCategory.IMAGES_IN_USE: 2,
        UsageCategory.IMAGES_UNUSED: 1,
        UsageCategory.WRITABLE_RUNNING: 30,
        UsageCategory.WRITABLE_DEAD: 40,
        UsageCategory.POD_LOGS: 9,
        UsageCategory.UNEXPLAINED: fs.inodes - fs.inodes_free - 82,
    }
    assert {share.part for share in found.shares if not share.exact} == {
        UsageCategory.POD_VOLUMES,
        UsageCategory.DELETED_FILES,
        UsageCategory.UNEXPLAINED,
    }


def test_writable_layers_of_sandboxes_have_the_names_of_their_pods_and_count_by_their_state() -> None:
    fs = filesystem(60)
    observed = snapshot(sandboxes=(sandbox("web", ready=True), sandbox("job")), image_filesystem=fs)
    measured = MeasuredUsage(writable={"sb-web": Space(3 * MIB), "sb-job": Space(4 * MIB)})
    members = {share.part: share.members for share in break_down(observed, fs, measured).shares}
    assert members[UsageCategory.WRITABLE_RUNNING] == (Member("sandbox", 3 * MIB, pod="shop/web"),)
    assert members[UsageCategory.WRITABLE_DEAD] == (Member("sandbox", 4 * MIB, pod="shop/job"),)


def test_upper_bound_sizes_are_marked_and_the_remainder_is_not_negative() -> None:
    fs = filesystem(10)
    observed = snapshot((image("a", "r/a:1", size_mib=900), used(1)), image_filesystem=fs)
    found = break_down(observed, fs, MeasuredUsage())
    assert not found.exact
    assert {share.part: share.size_bytes for share in found.shares}[UsageCategory.UNEXPLAINED] == 0


def test_deleted_files_are_a_lower_bound_with_a_warning_if_processes_could_not_be_read() -> None:
    fs = filesystem(60)
    found = break_down(snapshot(image_filesystem=fs), fs, MeasuredUsage(unread_processes=2))
    assert found.warnings == ("deleted files that are open: a lower bound, unreadable processes: 2",)
    (share,) = [each for each in found.shares if each.part is UsageCategory.DELETED_FILES]
    assert (share.size_bytes, share.exact) == (0, False)
    assert not break_down(snapshot(image_filesystem=fs), fs, MeasuredUsage()).warnings


@pytest.mark.parametrize(
    ("measured", "lower_bounds"),
    [
        ({"writable": {"run": Space(MIB), "dead": Space(MIB)}}, set()),
        ({"writable": {"dead": Space(MIB)}}, {UsageCategory.WRITABLE_RUNNING}),
        ({"writable": {"run": Space(MIB)}}, {UsageCategory.WRITABLE_DEAD}),
        (
            {"writable": {"run": Space(MIB), "dead": Space(MIB)}, "incomplete_layers": {"run"}},
            {UsageCategory.WRITABLE_RUNNING},
        ),
    ],
    ids=["measured", "running-unmeasured", "dead-unmeasured", "running-in-part"],
)
def test_writable_layers_are_a_lower_bound_if_one_was_not_measured_completely(
    measured: dict[str, Any], lower_bounds: set[UsageCategory]
) -> None:
    fs = filesystem(60)
    observed = snapshot(
        containers=(container("run", state=ContainerState.RUNNING), container("dead")),
        storage=graph([], {}),
        image_filesystem=fs,
    )
    found = break_down(observed, fs, MeasuredUsage(**measured))
    assert {share.part for share in found.shares if not share.exact} - {UsageCategory.UNEXPLAINED} == lower_bounds


def test_images_are_grouped_by_common_layers() -> None:
    pieces = [piece(name, size) for name, size in (("l1", 10), ("l2", 20), ("l3", 5), ("a", 1), ("b", 2), ("x", 9))]
    references = {
        "base": ["l2", "l1"],
        "app-a": ["a", "l3", "l2", "l1"],
        "app-b": ["b", "l3", "l2", "l1"],
        "alone": ["x"],
        "twin": ["x"],
    }
    images = [image(name, f"r/{name}:1") for name in (*references, "artifact")]
    stacks, unknown = sharing_tree(images, graph(pieces, references))
    assert [each.id for each in unknown] == ["artifact"]
    base, alone = stacks
    assert ([each.id for each in base.images], base.layers, base.size_bytes) == (["base"], 2, 30 * MIB)
    assert ([each.id for each in alone.images], alone.layers) == (["alone", "twin"], 1)
    (shared,) = base.derived
    assert (shared.images, shared.layers, shared.image_count) == ([], 1, 2)
    assert [stack.images[0].id for stack in shared.derived] == ["app-b", "app-a"]
    assert base.image_count == 3
