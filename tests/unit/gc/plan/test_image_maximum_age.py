"""Removal of images by maximum unused age."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.record import replace
from tests.unit.builders import DAY_S, MIB, ago, codes, decided, filesystem, removed
from tests.unit.image_nodes import aged, node

if TYPE_CHECKING:
    from datetime import datetime


class TestMaximumAge:
    POLICY = ImageGCPolicy(maximum_unused_age_s=1000, minimum_age_s=10**6)

    @pytest.mark.parametrize(
        ("last_s", "seen_s", "expected"),
        [
            pytest.param(1000, DAY_S, "too-young", id="exactly the maximum"),
            pytest.param(1000.000001, DAY_S, "unused-too-long", id="just above the maximum, below the minimum age"),
            pytest.param(None, 1001, "unused-too-long", id="never used counts from first detection"),
            pytest.param(None, 1000, "too-young", id="never used, exactly the maximum"),
            pytest.param(10, DAY_S, "too-young", id="used recently"),
        ],
    )
    def test_only_image_above_maximum_is_removed(self, last_s: float | None, seen_s: float, expected: str) -> None:
        plan = plan_image_gc(node(aged("a", last_s, seen_s=seen_s)), self.POLICY)
        assert codes(plan) == {"a": expected}

    def test_removal_by_age_is_first_and_counts_towards_the_target(self) -> None:
        policy = replace(self.POLICY, minimum_age_s=0)
        images = [aged("expired", 2000, size_mib=40), aged("old", 900, size_mib=60), aged("new", 100)]
        plan = plan_image_gc(node(*images, image_filesystem=filesystem(90)), policy)
        assert removed(plan) == ["expired", "old"]
        assert [each.reason.code.value for each in plan.removals] == ["unused-too-long", "least-recently-used"]
        assert plan.wanted_bytes == 100 * MIB
        assert plan.shortfall_bytes == 0

    def test_removal_by_age_can_bring_usage_below_the_high_threshold(self) -> None:
        policy = replace(self.POLICY, minimum_age_s=0)
        images = [aged("expired", 2000, size_mib=60), aged("old", 900, size_mib=60)]
        plan = plan_image_gc(node(*images, image_filesystem=filesystem(90)), policy)
        assert codes(plan) == {"expired": "unused-too-long", "old": "below-high-threshold"}
        assert plan.wanted_bytes == 0

    def test_removal_by_age_does_not_require_a_filesystem_reading(self) -> None:
        fields = {"image_filesystem": None, "image_filesystem_error": "no such file"}
        images = [aged("expired", 2000), aged("old", 900)]
        plan = plan_image_gc(node(*images, **fields), replace(self.POLICY, minimum_age_s=0))
        assert codes(plan) == {"expired": "unused-too-long", "old": "filesystem-unreadable"}
        assert not plan.blocked
        (warning,) = plan.warnings
        assert "no such file" in warning

    def test_removal_by_age_ignores_the_minimum_gain(self) -> None:
        policy = replace(self.POLICY, minimum_gain_bytes=10**12)
        assert removed(plan_image_gc(node(aged("a", 2000)), policy)) == ["a"]

    def test_maximum_age_is_ignored_when_all_unused_are_removed(self) -> None:
        plan = plan_image_gc(node(aged("a", 2000)), replace(self.POLICY, minimum_age_s=0), remove_all_unused=True)
        assert codes(plan) == {"a": "all-unused"}

    def test_removal_by_age_respects_the_limits(self) -> None:
        policy = replace(self.POLICY, max_images_per_pass=1)
        plan = plan_image_gc(node(aged("a", 2000), aged("b", 1900)), policy)
        assert codes(plan) == {"a": "unused-too-long", "b": "limit-images-per-pass"}

    @pytest.mark.parametrize(
        ("observed_s", "expected"),
        [
            pytest.param(None, "age-not-observed", id="not observed"),
            pytest.param(0, "age-not-observed", id="first detection"),
            pytest.param(1000, "age-not-observed", id="exactly the maximum"),
            pytest.param(1000.000001, "unused-too-long", id="just longer"),
        ],
    )
    def test_image_is_removed_only_after_use_was_observed_for_longer_than_the_maximum(
        self, observed_s: float | None, expected: str
    ) -> None:
        since = None if observed_s is None else ago(observed_s)
        plan = plan_image_gc(node(aged("a", 20 * DAY_S), image_use_observed_since=since), self.POLICY)
        assert codes(plan) == {"a": expected}

    def test_reason_names_the_observed_time_and_the_pass_warns(self) -> None:
        policy = replace(self.POLICY, maximum_unused_age_s=14 * DAY_S)
        images = [aged("old", 20 * DAY_S, seen_s=30 * DAY_S), aged("recent", 10)]
        plan = plan_image_gc(node(*images, image_use_observed_since=ago(7200)), policy)
        assert codes(plan) == {"old": "age-not-observed", "recent": "too-young"}
        reason = decided(plan, "old").reason
        assert reason.sentence == (
            "not removed by age: no use observed for 2h, observed since 2026-03-01T10:00:00.000Z, maximum 14d"
        )
        assert reason.details["eligible_at"] == ago(7200 - 14 * DAY_S)
        assert plan.warnings == ("no image is removed by age before image use has been observed for 14d without a gap",)

    def test_reason_and_warning_name_an_unavailable_state_database(self) -> None:
        plan = plan_image_gc(node(aged("a", 2000), image_use_observed_since=None), self.POLICY)
        assert decided(plan, "a").reason.sentence == (
            "not removed by age: image use is not observed: state database unavailable, maximum 16m40s"
        )
        assert plan.warnings == ("no image is removed by age: image use is not observed: state database unavailable",)

    def test_removal_by_age_names_the_unused_time_and_the_start_of_the_observation(self) -> None:
        plan = plan_image_gc(node(aged("a", 2000), image_use_observed_since=ago(DAY_S)), self.POLICY)
        reason = decided(plan, "a").reason
        assert reason.details == {"unused_s": 2000, "maximum_s": 1000, "observed_since_at": ago(DAY_S)}
        assert reason.sentence == (
            "no use observed for 33m20s, more than the maximum of 16m40s; observed since 2026-02-28T12:00:00Z"
        )

    @pytest.mark.difference("never-used-image")
    def test_unused_age_counts_from_the_start_of_the_observation(self) -> None:
        plan = plan_image_gc(node(aged("a", DAY_S), image_use_observed_since=ago(2000)), self.POLICY)
        assert decided(plan, "a").reason.details["unused_s"] == 2000

    @pytest.mark.difference("image-pulled-again")
    def test_pull_counts_as_use(self) -> None:
        plan = plan_image_gc(node(aged("a", DAY_S, seen_s=1000)), self.POLICY)
        assert codes(plan) == {"a": "too-young"}

    @pytest.mark.parametrize("since", [None, ago(0)])
    def test_removal_by_threshold_and_of_all_unused_needs_no_observation(self, since: datetime | None) -> None:
        policy = replace(self.POLICY, minimum_age_s=0)
        images = [aged("old", 2000, size_mib=60), aged("new", 900, size_mib=60), aged("newest", 100)]
        fields = {"image_use_observed_since": since, "image_filesystem": filesystem(90)}
        plan = plan_image_gc(node(*images, **fields), policy)
        assert [(each.id, each.reason.code.value) for each in plan.removals] == [
            ("old", "least-recently-used"),
            ("new", "least-recently-used"),
        ]
        plan = plan_image_gc(node(*images, **fields), policy, remove_all_unused=True)
        assert set(codes(plan).values()) == {"all-unused"}

    def test_limit_per_pass_precedes_the_observation_as_the_reason(self) -> None:
        policy = replace(self.POLICY, minimum_age_s=0, max_images_per_pass=1)
        fields = {"image_use_observed_since": ago(0), "image_filesystem": filesystem(99)}
        plan = plan_image_gc(node(aged("a", 2000), aged("b", 1900), **fields), policy)
        assert codes(plan) == {"a": "least-recently-used", "b": "limit-images-per-pass"}
