"""Image GC: one case for each rule, with its boundaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.plan.image_targets import SpaceNeeded
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import Spent
from nodeagent.model.decision import Accounting, ReasonCode
from nodeagent.model.runtime import Image, Space
from nodeagent.record import replace
from tests.unit.builders import (
    DAY_S,
    MIB,
    NOW,
    ago,
    codes,
    container,
    decided,
    filesystem,
    graph,
    image,
    piece,
    pulled_from,
    removed,
    used,
)
from tests.unit.image_nodes import POLICY, aged, node

if TYPE_CHECKING:
    from nodeagent.model.decision import Plan
    from nodeagent.model.node import NodeSnapshot


@pytest.mark.parametrize(
    ("available_bytes", "expected"),
    [
        pytest.param(160, [], id="84% is below"),
        pytest.param(159, ["a"], id="84.1% counts as 85%"),
        pytest.param(150, ["a"], id="exactly 85%"),
        pytest.param(149, ["a", "b"], id="target 51 MiB, images of 50 MiB"),
    ],
)
def test_collection_starts_at_the_high_threshold(available_bytes: int, expected: list[str]) -> None:
    fs = filesystem(capacity_mib=1, available_bytes=0)
    fs = replace(fs, capacity_bytes=1000, available_bytes=available_bytes)
    images = [(Image(name, (f"r/{name}:1",), (), 50), used(age)) for name, age in (("c", 1), ("b", 2), ("a", 3))]
    plan = plan_image_gc(node(*images, image_filesystem=fs), POLICY)
    assert removed(plan) == expected


@pytest.mark.parametrize(
    ("capacity", "available", "low", "target"),
    [
        pytest.param(1000, 100, 80, 100, id="to the low threshold"),
        pytest.param(999, 100, 80, 99, id="the target truncates"),
        pytest.param(1000, 0, 0, 1000, id="everything"),
        pytest.param(10, 1, 89, 0, id="truncated to 0"),
    ],
)
def test_target_is_the_distance_to_the_low_threshold(capacity: int, available: int, low: int, target: int) -> None:
    fs = replace(filesystem(), capacity_bytes=capacity, available_bytes=available)
    policy = replace(POLICY, high_threshold_percent=90, low_threshold_percent=low)
    plan = plan_image_gc(node(Image("a", (), (), 10), image_filesystem=fs), policy)
    assert plan.wanted_bytes == target
    assert bool(plan.removals) == (target > 0)


def test_never_used_images_are_removed_first_then_least_recently_used() -> None:
    images = [
        aged("new", 100),
        aged("old", 5000),
        aged("never-late", None, seen_s=500),
        aged("never-early", None, seen_s=900),
        aged("same-b", 3000, seen_s=DAY_S),
        aged("same-a", 3000, seen_s=DAY_S),
        aged("same-early", 3000, seen_s=2 * DAY_S),
    ]
    plan = plan_image_gc(node(*images), POLICY, remove_all_unused=True)
    assert removed(plan) == ["never-early", "never-late", "old", "same-early", "same-a", "same-b", "new"]
    assert {each.reason.code for each in plan.removals} == {ReasonCode.ALL_UNUSED}


def test_removals_stop_once_enough_is_freed() -> None:
    images = [aged("a", 400, size_mib=60), aged("b", 300, size_mib=40), aged("c", 200, size_mib=1), aged("d", 100)]
    plan = plan_image_gc(node(*images, image_filesystem=filesystem(90)), POLICY)
    assert plan.wanted_bytes == 100 * MIB
    assert removed(plan) == ["a", "b"]
    assert codes(plan)["c"] == "enough-freed"
    assert plan.shortfall_bytes == 0
    assert plan.removals[0].reason.sentence == "least recently used; imagefs is 90% full, target 80%"


def test_shortfall_is_the_target_minus_the_freed_bytes() -> None:
    plan = plan_image_gc(node(aged("a", 400, size_mib=60), image_filesystem=filesystem(90)), POLICY)
    assert plan.shortfall_bytes == 40 * MIB


def test_usage_between_low_and_high_removes_nothing() -> None:
    plan = plan_image_gc(node(aged("a", 400), image_filesystem=filesystem(82)), POLICY)
    assert codes(plan) == {"a": "below-high-threshold"}
    assert plan.wanted_bytes == 0
    assert decided(plan, "a").reason.sentence == "imagefs is 82% full, below the high threshold 85%"


@pytest.mark.difference("high-threshold-100")
def test_high_threshold_100_removes_nothing_on_a_full_filesystem() -> None:
    policy = replace(POLICY, high_threshold_percent=100)
    plan = plan_image_gc(node(aged("a", 400), image_filesystem=filesystem(100)), policy)
    assert codes(plan) == {"a": "threshold-disabled"}
    assert not plan.warnings


@pytest.mark.parametrize(
    ("seen_s", "expected"),
    [
        pytest.param(119.999999, "too-young", id="just younger"),
        pytest.param(120, "all-unused", id="exactly the minimum age is old enough"),
        pytest.param(-3600, "too-young", id="detection in the future counts as now"),
    ],
)
def test_image_below_the_minimum_age_is_kept(seen_s: float, expected: str) -> None:
    plan = plan_image_gc(node(aged("a", None, seen_s=seen_s)), POLICY, remove_all_unused=True)
    assert codes(plan) == {"a": expected}


def test_too_young_image_has_its_time_of_eligibility() -> None:
    plan = plan_image_gc(node(aged("a", None, seen_s=30)), POLICY, remove_all_unused=True)
    assert decided(plan, "a").reason.sentence == (
        "on this node for 30s, less than the minimum age 2m; eligible from 2026-03-01T12:01:30Z"
    )


def test_image_without_recorded_use_counts_as_detected_now() -> None:
    plan = plan_image_gc(node(aged("a", None), image_usage={}), POLICY, remove_all_unused=True)
    assert codes(plan) == {"a": "too-young"}


@pytest.mark.parametrize("minimum_age_s", [1e12, 1e300])
def test_age_beyond_the_calendar_keeps_the_image(minimum_age_s: float) -> None:
    policy = replace(POLICY, minimum_age_s=minimum_age_s, maximum_unused_age_s=minimum_age_s)
    plan = plan_image_gc(node(aged("a", None), image_filesystem=filesystem(99)), policy)
    assert codes(plan) == {"a": "too-young"}
    assert decided(plan, "a").reason.sentence


def test_unreadable_filesystem_without_error_text_has_a_reason() -> None:
    plan = plan_image_gc(node(aged("a", 1), image_filesystem=None), POLICY)
    assert decided(plan, "a").reason.sentence == "cannot read the image filesystem: no reading"


def test_image_used_at_the_time_of_observation_is_removed_last() -> None:
    plan = plan_image_gc(node(aged("now", 0), aged("before", 1)), POLICY, remove_all_unused=True)
    assert removed(plan) == ["before", "now"]


class TestLimits:
    IMAGES = (aged("a", 900, size_mib=40), aged("b", 800, size_mib=40), aged("c", 700, size_mib=1))

    @pytest.mark.parametrize(
        ("limits", "spent", "expected"),
        [
            pytest.param({}, Spent(9, 10**12), ["a", "b", "c"], id="no limit"),
            pytest.param({"max_images_per_pass": 2}, Spent(), ["a", "b"], id="images"),
            pytest.param({"max_images_per_pass": 2}, Spent(1), ["a"], id="images, one already removed"),
            pytest.param({"max_images_per_pass": 2}, Spent(5), [], id="images, overspent"),
            pytest.param({"max_bytes_per_pass": 80 * MIB}, Spent(), ["a", "b"], id="bytes, exactly"),
            pytest.param(
                {"max_bytes_per_pass": 79 * MIB}, Spent(), ["a"], id="bytes: no smaller image is removed instead"
            ),
            pytest.param({"max_bytes_per_pass": 80 * MIB}, Spent(1, 40 * MIB), ["a"], id="bytes, some already freed"),
            pytest.param({"max_bytes_per_pass": 10 * MIB}, Spent(), ["a"], id="larger than the limit, first and alone"),
            pytest.param({"max_bytes_per_pass": 10 * MIB}, Spent(1, 1), [], id="larger than the limit, not the first"),
        ],
    )
    def test_removals_end_at_limits_per_pass(self, limits: dict[str, int], spent: Spent, expected: list[str]) -> None:
        policy = replace(POLICY, **limits)  # type: ignore[arg-type]
        plan = plan_image_gc(node(*self.IMAGES), policy, spent=spent, remove_all_unused=True)
        assert removed(plan) == expected
        for decision in plan.decisions:
            assert decision.reason.sentence

    def test_kept_image_has_the_limit_in_its_reason(self) -> None:
        plan = plan_image_gc(node(*self.IMAGES), replace(POLICY, max_bytes_per_pass=MIB), remove_all_unused=True)
        assert codes(plan)["c"] == "limit-bytes-per-pass"
        assert decided(plan, "c").reason.sentence == "exceeds the limit of 1.00 MiB per pass"


class TestMinimumGain:
    def test_image_below_the_minimum_gain_is_skipped(self) -> None:
        images = [aged("small", 900, size_mib=4), aged("exact", 800, size_mib=5), aged("big", 700, size_mib=500)]
        policy = replace(POLICY, minimum_gain_bytes=5 * MIB)
        plan = plan_image_gc(node(*images, image_filesystem=filesystem(90)), policy)
        assert removed(plan) == ["exact", "big"]
        assert decided(plan, "small").reason.sentence == "would free only 4.00 MiB, less than the minimum gain 5.00 MiB"

    def test_unknown_gain_is_not_below_the_minimum(self) -> None:
        policy = replace(POLICY, minimum_gain_bytes=5 * MIB)
        plan = plan_image_gc(node(image("a", size_mib=None)), policy, remove_all_unused=True)
        assert removed(plan) == ["a"]
        (warning,) = plan.warnings
        assert warning == "size of 1 image(s) to remove unknown; counted as 0"


class TestAccounting:
    def test_sizes_without_a_storage_graph_are_upper_bounds(self) -> None:
        plan = plan_image_gc(node(aged("a", 1, size_mib=7)), POLICY)
        assert plan.accounting is Accounting.UPPER_BOUND
        assert (plan.decisions[0].frees_bytes, plan.decisions[0].frees_inodes) == (7 * MIB, None)

    def stack(self, **fields: object) -> NodeSnapshot:
        """Return a node with three images; each further image adds a layer to the previous image."""
        pieces = [piece("base", 400, inodes=40), piece("middle", 50, inodes=5), piece("top", 10, inodes=1)]
        references = {"base": ["base"], "middle": ["base", "middle"], "top": ["base", "middle", "top"]}
        images = [
            aged("base", 900, size_mib=400),
            aged("middle", 800, size_mib=450),
            aged("top", 700, size_mib=460),
        ]
        return node(*images, storage=graph(pieces, references), **fields)

    @pytest.mark.difference("freed-bytes")
    def test_base_image_frees_nothing_while_derived_images_are_kept(self) -> None:
        plan = plan_image_gc(self.stack(image_filesystem=filesystem(90)), POLICY)
        assert plan.accounting is Accounting.LAYERS
        assert removed(plan) == ["base", "middle", "top"]
        assert [each.frees_bytes for each in plan.removals] == [0, 0, 460 * MIB]
        assert [each.frees_inodes for each in plan.removals] == [0, 0, 46]
        assert plan.frees_bytes == 460 * MIB

    def test_with_a_minimum_gain_a_base_image_is_removed_after_derived_images(self) -> None:
        policy = replace(POLICY, minimum_gain_bytes=1)
        plan = plan_image_gc(self.stack(image_filesystem=filesystem(90)), policy)
        assert [(each.id, each.frees_bytes) for each in plan.removals] == [
            ("top", 10 * MIB),
            ("middle", 50 * MIB),
            ("base", 400 * MIB),
        ]

    def test_with_a_minimum_gain_removals_stop_once_enough_is_freed(self) -> None:
        policy = replace(POLICY, minimum_gain_bytes=1, low_threshold_percent=84)
        plan = plan_image_gc(self.stack(image_filesystem=filesystem(90)), policy)
        assert removed(plan) == ["top", "middle"]
        assert codes(plan)["base"] == "enough-freed"

    def test_image_still_below_the_minimum_gain_keeps_that_reason(self) -> None:
        policy = replace(POLICY, minimum_gain_bytes=20 * MIB)
        plan = plan_image_gc(self.stack(image_filesystem=filesystem(90)), policy)
        assert codes(plan) == dict.fromkeys(("base", "middle", "top"), "gain-too-small")

    def test_kept_image_has_its_gain_after_the_removals(self) -> None:
        using = container("c", image_ref="middle")
        plan = plan_image_gc(self.stack(containers=(using,)), POLICY, remove_all_unused=True)
        assert [each.frees_bytes for each in plan.removals] == [0, 10 * MIB]
        assert decided(plan, "middle").frees_bytes == 450 * MIB

    def test_piece_with_another_reference_is_never_freed(self) -> None:
        from nodeagent.model.runtime import ReferenceKind  # noqa: PLC0415

        storage = graph([piece("x", 5, references=[ReferenceKind.CONTAINER]), piece("y", 3)], {"a": ["x", "y"]})
        plan = plan_image_gc(node(image("a"), storage=storage), POLICY, remove_all_unused=True)
        assert plan.removals[0].frees_bytes == 3 * MIB

    def test_unlisted_image_in_the_graph_keeps_its_references(self) -> None:
        storage = graph([piece("x", 5)], {"a": ["x"], "unlisted": ["x"]})
        plan = plan_image_gc(node(image("a"), storage=storage), POLICY, remove_all_unused=True)
        assert plan.removals[0].frees_bytes == 0

    def test_image_without_entry_in_the_graph_counts_as_zero_bytes(self) -> None:
        images = [aged("unknown", 900), aged("known", 800)]
        storage = graph([piece("x", 100)], {"known": ["x"]})
        plan = plan_image_gc(node(*images, storage=storage, image_filesystem=filesystem(90)), POLICY)
        assert [(each.id, each.frees_bytes) for each in plan.removals] == [("unknown", None), ("known", 100 * MIB)]
        assert len(plan.warnings) == 1


def test_kept_images_are_in_order_of_use_after_the_removals() -> None:
    images = [aged("c", 100), aged("b", 200), aged("a", 300)]
    fields = {"image_filesystem": filesystem(90), "containers": (container("x", image_ref="b"),)}
    plan = plan_image_gc(node(*images, **fields), POLICY)
    assert [each.id for each in plan.decisions] == ["a", "b", "c"]
    assert plan.made_at == NOW
    assert plan.kind == "images"


def test_image_is_named_by_its_first_tag_or_its_id() -> None:
    plan = plan_image_gc(node(Image("a", ("x:1", "y:2")), Image("b")), POLICY)
    assert {each.id: each.name for each in plan.decisions} == {"a": "x:1", "b": "b"}


def test_image_with_a_record_in_the_future_is_the_newest() -> None:
    images = [aged("future", -50), aged("recent", 10), aged("old", 100)]
    plan = plan_image_gc(node(*images), POLICY, remove_all_unused=True)
    assert removed(plan) == ["old", "recent"]
    assert decided(plan, "future").reason.details["last_used_at"] == ago(-50)


@pytest.mark.difference("unreferenced-content")
@pytest.mark.parametrize(
    ("pending", "target", "expected"),
    [
        pytest.param(0, 100, ["a", "b"], id="none"),
        pytest.param(40, 60, ["a", "b"], id="partly: two images of 50 MiB for 60 MiB"),
        pytest.param(60, 40, ["a"], id="more"),
        pytest.param(100, 0, [], id="just enough"),
        pytest.param(5000, 0, [], id="too much"),
    ],
)
def test_unreferenced_bytes_reduce_the_target(pending: int, target: int, expected: list[str]) -> None:
    fs = replace(filesystem(), capacity_bytes=1000 * MIB, available_bytes=100 * MIB)
    images = [(Image(name, (f"r/{name}:1",), (), 1), used(age)) for name, age in (("b", 2), ("a", 3))]
    pieces = graph([piece("pa", 50), piece("pb", 50)], {"a": ["pa"], "b": ["pb"]})
    storage = replace(pieces, pending={"": Space(pending * MIB)})
    plan = plan_image_gc(node(*images, image_filesystem=fs, storage=storage), POLICY)
    assert (plan.wanted_bytes, plan.pending_bytes, removed(plan)) == (target * MIB, pending * MIB, expected)
    assert (ReasonCode.COLLECTION_PENDING in codes(plan).values()) == (not expected)


class TestNeededSpace:
    """Images for a met eviction threshold: ``a`` to ``d`` with 16 MiB and 100 inodes each, below the high threshold."""

    IMAGES = tuple(aged(name, age) for name, age in (("a", 4000), ("b", 3000), ("c", 2000), ("d", 1000)))
    STORAGE = graph([piece(f"p{name}", 16, inodes=100) for name in "abcd"], {name: [f"p{name}"] for name in "abcd"})

    def plan(self, needed: SpaceNeeded, pending: int = 0, undo: int = 0, imported: str = "") -> Plan:
        """Return the plan; unreferenced content has one inode per MiB."""
        storage = replace(self.STORAGE, pending={"": Space(pending * MIB, pending)}, undo={"": Space(undo * MIB, undo)})
        sources = {each.id: frozenset() if each.id in imported else pulled_from(each) for each, _ in self.IMAGES}
        observed = node(*self.IMAGES, storage=storage, image_filesystem=filesystem(10), image_sources=sources)
        return plan_image_gc(observed, POLICY, needed=needed)

    @pytest.mark.difference("reclaim-goal")
    @pytest.mark.parametrize(
        ("needed", "expected"),
        [
            (SpaceNeeded(5 * MIB), "a"),
            (SpaceNeeded(16 * MIB), "a"),
            (SpaceNeeded(16 * MIB + 1), "ab"),
            (SpaceNeeded(1000 * MIB), "abcd"),
            (SpaceNeeded(inodes=100), "a"),
            (SpaceNeeded(inodes=101), "ab"),
            (SpaceNeeded(16 * MIB, 201), "abc"),
        ],
    )
    def test_images_are_removed_in_order_until_the_space_is_freed(self, needed: SpaceNeeded, expected: str) -> None:
        plan = self.plan(needed)
        assert removed(plan) == list(expected)
        assert {each.reason.code for each in plan.removals} == {ReasonCode.EVICTION_THRESHOLD_MET}
        kept = set("abcd") - set(expected)
        assert {each: codes(plan)[each] for each in kept} == dict.fromkeys(kept, "enough-freed")
        assert (plan.wanted_bytes, plan.shortfall_bytes) == (0, 0)  # no target of the image GC thresholds

    @pytest.mark.parametrize(
        ("needed", "pending", "undo", "collected", "ends_undo", "expected"),
        [
            pytest.param(SpaceNeeded(20 * MIB), 20, 30, 20, False, "", id="pending content suffices"),
            pytest.param(SpaceNeeded(40 * MIB), 20, 30, 50, True, "", id="undo windows suffice"),
            pytest.param(SpaceNeeded(60 * MIB), 20, 30, 50, True, "a", id="images for the rest"),
            pytest.param(SpaceNeeded(inodes=20), 20, 0, 20, False, "", id="pending inodes suffice"),
            pytest.param(SpaceNeeded(inodes=21), 20, 0, 20, True, "a", id="images for the rest of the inodes"),
        ],
    )
    def test_content_without_references_is_collected_before_images(  # noqa: PLR0917
        self, needed: SpaceNeeded, pending: int, undo: int, collected: int, ends_undo: bool, expected: str
    ) -> None:
        plan = self.plan(needed, pending, undo)
        assert (plan.pending_bytes, plan.ends_undo, removed(plan)) == (collected * MIB, ends_undo, list(expected))

    @pytest.mark.difference("reclaim-goal")
    @pytest.mark.parametrize(
        ("needed", "expected"),
        [
            pytest.param(SpaceNeeded(20 * MIB), "bd", id="others suffice"),
            pytest.param(SpaceNeeded(40 * MIB), "bda", id="one is needed"),
            pytest.param(SpaceNeeded(64 * MIB), "bdac", id="all are needed"),
            pytest.param(SpaceNeeded(64 * MIB + 1), "bd", id="all are too little"),
            pytest.param(SpaceNeeded(inodes=401), "bd", id="all are too few inodes"),
            pytest.param(SpaceNeeded(40 * MIB, growing_bytes=24 * MIB), "bda", id="slow growth"),
            pytest.param(SpaceNeeded(40 * MIB, growing_bytes=24 * MIB + 1), "bd", id="growth consumes their space"),
        ],
    )
    def test_images_that_cannot_be_pulled_again_are_removed_only_to_end_the_shortage(
        self, needed: SpaceNeeded, expected: str
    ) -> None:
        plan = self.plan(needed, imported="ac")
        assert removed(plan) == list(expected)
        if not needed.ended_by(64 * MIB, 400):
            assert {codes(plan)[each] for each in "ac"} == {"irreplaceable-insufficient"}
