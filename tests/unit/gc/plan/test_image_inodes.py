"""Image GC for inodes: thresholds, targets, and stores whose inodes are unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.plan.image_targets import SpaceNeeded, space_above_low, wanted_on
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.model.runtime import FsObservation, ImageFilesystem, Space
from nodeagent.record import replace
from tests.unit.builders import DAY_S, MIB, NOW, ago, codes, decided, graph, piece, pulled_from, removed
from tests.unit.image_nodes import POLICY, aged, node

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import ImageGCPolicy
    from nodeagent.model.decision import Plan

IMAGES = tuple(aged(name, age) for name, age in (("a", 4000), ("b", 3000), ("c", 2000), ("d", 1000)))
STORAGE = graph([piece(f"p{name}", 10, inodes=60) for name in "abcd"], {name: [f"p{name}"] for name in "abcd"})


def usage(used_percent: int = 50, inodes_free: int = 500, inodes: int = 1000) -> FsObservation:
    """Return a filesystem of 1000 MiB and by default 1000 inodes."""
    return FsObservation(
        "/var/lib/containerd", 7, 1000 * MIB, 10 * (100 - used_percent) * MIB, inodes, inodes_free, NOW
    )


def plan(observed: FsObservation, policy: ImageGCPolicy = POLICY, **fields: object) -> Plan:
    return plan_image_gc(node(*IMAGES, image_filesystem=observed, **{"storage": STORAGE, **fields}), policy)


@pytest.mark.difference("inode-thresholds")
@pytest.mark.parametrize(
    ("observed", "expected", "wanted"),
    [
        pytest.param(usage(inodes_free=110), "", (0, 0), id="89% is below"),
        pytest.param(usage(inodes_free=109), "a", (0, 41), id="89.1% counts as 90%"),
        pytest.param(usage(inodes_free=100), "a", (0, 50), id="exactly 90%"),
        pytest.param(usage(inodes_free=40), "ab", (0, 110), id="to the low threshold"),
        pytest.param(usage(inodes_free=0), "abc", (0, 150), id="no free inode"),
        pytest.param(usage(85), "abcd", (50 * MIB, 0), id="bytes only"),
        pytest.param(usage(82, inodes_free=100), "a", (0, 50), id="bytes between the thresholds are no target"),
        pytest.param(usage(inodes_free=0, inodes=0), "", (0, 0), id="no fixed number of inodes"),
    ],
)
def test_images_are_removed_until_each_resource_reaches_its_low_threshold(
    observed: FsObservation, expected: str, wanted: tuple[int, int]
) -> None:
    found = plan(observed)
    assert removed(found) == list(expected)
    assert (found.wanted_bytes, found.wanted_inodes) == wanted
    if expected and wanted[1]:
        used = observed.inodes_used_percent
        sentence = f"least recently used; imagefs uses {used}% of its inodes, target 85%"
        assert {each.reason.sentence for each in found.removals} == {sentence}
        assert {each.frees_inodes for each in found.removals} == {60}


def test_bytes_above_their_threshold_are_the_only_target() -> None:
    """On XFS, the number of free inodes follows from the free bytes."""
    found = plan(usage(82, inodes_free=0), replace(POLICY, high_threshold_percent=82, low_threshold_percent=81))
    assert removed(found) == ["a"]
    assert (found.wanted_bytes, found.wanted_inodes) == (10 * MIB, 0)
    assert decided(found, "a").reason.sentence == "least recently used; imagefs is 82% full, target 81%"


def test_too_few_inodes_are_a_shortfall() -> None:
    found = plan(usage(inodes_free=0), storage=graph([piece("pa", 10, inodes=60)], {"a": ["pa"]}))
    assert (found.wanted_inodes, found.frees_inodes, found.shortfall_inodes) == (150, 60, 90)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(replace(POLICY, high_threshold_inodes_percent=100), id="inodes"),
        pytest.param(replace(POLICY, high_threshold_percent=100), id="removal for space"),
    ],
)
def test_disabled_threshold_keeps_all_images(policy: ImageGCPolicy) -> None:
    assert removed(plan(usage(inodes_free=0), policy)) == []


def test_images_without_known_inodes_are_kept_with_a_warning() -> None:
    found = plan(usage(inodes_free=30), storage=None)
    assert removed(found) == []
    assert set(codes(found).values()) == {"below-high-threshold"}
    assert found.warnings[-1] == (
        "imagefs uses 97% of its inodes, but no image is removed for inodes: CRI alone reports no inodes of images"
    )


@pytest.mark.parametrize(
    ("pending", "undo", "expected", "code"),
    [
        pytest.param(50, 0, "", "collection-pending", id="unreferenced content suffices"),
        pytest.param(30, 20, "", "undo-window-open", id="undo windows suffice"),
        pytest.param(30, 19, "a", "least-recently-used", id="one inode too few"),
    ],
)
def test_inodes_of_unreferenced_content_reduce_the_target(pending: int, undo: int, expected: str, code: str) -> None:
    storage = replace(STORAGE, pending={"": Space(MIB, pending)}, undo={"": Space(MIB, undo)})
    found = plan(usage(inodes_free=100), storage=storage)
    assert removed(found) == list(expected)
    assert codes(found)["a"] == code


def test_minimum_gain_in_bytes_is_ignored_while_inodes_are_needed() -> None:
    policy = replace(POLICY, minimum_gain_bytes=11 * MIB)
    assert removed(plan(usage(inodes_free=40), policy)) == ["a", "b"]
    assert removed(plan(usage(85), policy)) == []


def test_inodes_of_images_removed_by_age_count() -> None:
    policy = replace(POLICY, maximum_unused_age_s=3500)
    found = plan(usage(inodes_free=40), policy, image_use_observed_since=ago(2 * DAY_S))
    assert [(each.id, each.reason.code.value) for each in found.removals] == [
        ("a", "unused-too-long"),
        ("b", "least-recently-used"),
    ]


def test_irreplaceable_images_are_kept_if_all_inodes_are_too_few() -> None:
    sources = {each.id: frozenset() if each.id == "a" else pulled_from(each) for each, _ in IMAGES}
    found = plan(usage(inodes_free=0, inodes=10_000), image_sources=sources)
    assert removed(found) == ["b", "c", "d"]
    assert codes(found)["a"] == "irreplaceable-insufficient"


def test_each_of_several_filesystems_has_its_own_inodes() -> None:
    images = tuple(aged(name, age) for name, age in (("o", 2000), ("k", 1000)))
    storage = graph(
        [piece("so", 10, inodes=60, snapshotter="overlayfs"), piece("sk", 10, inodes=60, snapshotter="native")],
        {"o": ["so"], "k": ["sk"]},
    )
    filesystems = (
        ImageFilesystem("/overlay", frozenset({"overlayfs", ""}), replace(usage(), path="/overlay")),
        ImageFilesystem("/native", frozenset({"native"}), replace(usage(inodes_free=100), path="/native")),
    )
    observed = node(*images, image_filesystem=usage(), storage=storage, image_filesystems=filesystems)
    found = plan_image_gc(observed, POLICY)
    assert removed(found) == ["k"]
    assert [(each.path, each.wanted_bytes, each.wanted_inodes) for each in found.targets] == [("/native", 0, 50)]
    assert wanted_on([found], "/native") == SpaceNeeded(0, 50)
    assert wanted_on([found], "/overlay") == SpaceNeeded()


def test_missing_space_counts_wanted_resources_only() -> None:
    full = usage(90, inodes_free=0)
    assert space_above_low(full, POLICY, SpaceNeeded(1, 1)) == SpaceNeeded(100 * MIB, 150)
    assert space_above_low(full, POLICY, SpaceNeeded(0, 1)) == SpaceNeeded(0, 150)
    assert space_above_low(full, POLICY, SpaceNeeded()) == SpaceNeeded()
