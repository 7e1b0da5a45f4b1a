"""Image GC: one case for each rule, with its boundaries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.model import ContainerState, Image, NodeSnapshot
from nodeagent.plan.decision import Accounting, ReasonCode, Verdict
from nodeagent.plan.gc.image_protection import ProtectionPolicy, parse_rule
from nodeagent.plan.gc.image_users import images_in_use
from nodeagent.plan.gc.images import ImageGCPolicy, plan_image_gc
from nodeagent.plan.gc.pass_limits import Spent
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
    removed,
    sandbox,
    snapshot,
    used,
)

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.plan.decision import Plan

POLICY = ImageGCPolicy()


def aged(image_id: str, last_s: float | None, *, size_mib: int = 100, seen_s: float = DAY_S) -> tuple[Image, object]:
    return image(image_id, size_mib=size_mib), used(last_s, seen_s=seen_s)


def node(*images: object, **fields: object) -> NodeSnapshot:
    return snapshot(*images, **fields)  # type: ignore[arg-type]


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
        "first seen 30s ago, less than the minimum age 2m; eligible from 2026-03-01T12:01:30Z"
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
            "not removed by age: not seen in use for 2h, observed since 2026-03-01T10:00:00.000Z, maximum 14d"
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
            "not seen in use for 33m20s, more than the maximum of 16m40s; observed since 2026-02-28T12:00:00Z"
        )

    def test_unused_age_counts_from_the_start_of_the_observation(self) -> None:
        plan = plan_image_gc(node(aged("a", DAY_S), image_use_observed_since=ago(2000)), self.POLICY)
        assert decided(plan, "a").reason.details["unused_s"] == 2000

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


def test_unreadable_filesystem_without_error_text_has_a_reason() -> None:
    plan = plan_image_gc(node(aged("a", 1), image_filesystem=None), POLICY)
    assert decided(plan, "a").reason.sentence == "cannot read the image filesystem: no reading"


class TestInUse:
    HEX = "ab" * 32
    DIGEST = "sha256:" + "cd" * 32

    def plan(self, **fields: object) -> Plan:
        listed = Image(f"sha256:{self.HEX}", ("docker.io/library/app:1",), (f"docker.io/library/app@{self.DIGEST}",), 1)
        return plan_image_gc(node(listed, **fields), POLICY, remove_all_unused=True)

    @pytest.mark.parametrize(
        "how",
        [
            pytest.param({"image_ref": f"sha256:{HEX}"}, id="ref is an id"),
            pytest.param({"image_ref": HEX}, id="ref is an id without sha256"),
            pytest.param({"image_ref": HEX[:12]}, id="ref is a short id"),
            pytest.param({"image_ref": f"docker.io/library/app@{DIGEST}"}, id="ref is a digest"),
            pytest.param({"image_ref": f"mirror/other@{DIGEST}"}, id="digest under another name"),
            pytest.param({"image_id": f"sha256:{HEX}"}, id="image id"),
            pytest.param({"image_name": "docker.io/library/app:1"}, id="name"),
            pytest.param({"image_name": "app:1"}, id="short name"),
            pytest.param({"volume_images": ("app:1",)}, id="mounted as a volume"),
            pytest.param({"image_ref": "gone", "image_name": "app:1"}, id="one of several"),
        ],
    )
    @pytest.mark.parametrize("state", list(ContainerState))
    def test_image_of_a_container_in_any_state_is_kept(self, how: dict[str, Any], state: ContainerState) -> None:
        plan = self.plan(containers=(container("c", state=state, **how),))
        assert codes(plan) == {f"sha256:{self.HEX}": "in-use-by-container"}

    @pytest.mark.parametrize("ready", [True, False])
    def test_image_of_a_sandbox_is_kept(self, ready: bool) -> None:
        plan = self.plan(sandboxes=(sandbox(ready=ready, image="app:1"),))
        (decision,) = plan.decisions
        assert decision.reason.sentence == "in use by 1 sandbox(es): shop/web"

    def test_reference_to_an_unlisted_image_is_ignored(self) -> None:
        plan = self.plan(containers=(container("c", image_ref="sha256:" + "0" * 64, image_name=""),))
        assert len(plan.removals) == 1

    def test_sentence_names_three_containers_with_states_and_details_name_all(self) -> None:
        states = [ContainerState.EXITED, ContainerState.RUNNING, ContainerState.CREATED, ContainerState.UNKNOWN]
        users = tuple(
            container(f"c{n}", name=f"app{n}", state=state, image_name="app:1") for n, state in enumerate(states)
        )
        (decision,) = self.plan(containers=users).decisions
        assert decision.reason.sentence == (
            "in use by 4 container(s): shop/web/app1, shop/web/app0 (dead), shop/web/app2 (created) and 1 more"
        )
        assert len(decision.reason.details["containers"]) == 4  # type: ignore[arg-type]

    def test_reason_states_that_only_dead_containers_use_the_image(self) -> None:
        (decision,) = self.plan(containers=(container("c", image_name="app:1"),)).decisions
        assert decision.reason.sentence == (
            "in use by 1 container(s): shop/web/app (dead); none is running: removable once they are removed"
        )

    def test_container_of_unknown_state_does_not_count_as_dead(self) -> None:
        (decision,) = self.plan(
            containers=(container("c", image_name="app:1", state=ContainerState.UNKNOWN),)
        ).decisions
        assert decision.reason.sentence.endswith("shop/web/app (state unknown)")

    def test_reason_counts_sandboxes_after_the_third(self) -> None:
        sandboxes = tuple(sandbox(f"p{n}", image="app:1") for n in range(5))
        (decision,) = self.plan(sandboxes=sandboxes).decisions
        assert decision.reason.sentence == "in use by 5 sandbox(es): shop/p0, shop/p1, shop/p2 and 2 more"

    def test_old_and_new_image_of_a_moved_tag_are_kept(self) -> None:
        old, new = Image("old", (), (), 1), Image("new", ("r.io/app:1",), (), 1)
        using = container("c", image_ref="old", image_name="r.io/app:1")
        assert images_in_use(node(old, new, Image("other"), containers=(using,))) == {"old", "new"}


class TestSandboxImage:
    def test_configured_sandbox_image_is_kept(self) -> None:
        plan = plan_image_gc(
            node(image("a", "r.io/infra:1"), sandbox_images=frozenset({"r.io/infra:1"})), POLICY, remove_all_unused=True
        )
        assert decided(plan, "a").reason.sentence == "sandbox image of the runtime (configured in the runtime)"

    def test_image_named_like_a_pause_image_is_kept(self) -> None:
        plan = plan_image_gc(node(image("a", "rancher/mirrored-pause:3.6")), POLICY, remove_all_unused=True)
        assert decided(plan, "a").reason.sentence == "sandbox image of the runtime (named like a pause image)"

    def test_pause_image_with_a_digest_reference_only_is_kept(self) -> None:
        listed = Image("a", (), ("registry.k8s.io/pause@sha256:1",), 1)
        assert codes(plan_image_gc(node(listed), POLICY, remove_all_unused=True)) == {"a": "sandbox-image"}

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            pytest.param({}, "use-unknown", id="sandbox image unknown"),
            pytest.param({"sandboxes_unread": frozenset()}, "all-unused", id="all sandboxes were read"),
            pytest.param({"sandbox_images": frozenset({"r.io/infra:1"})}, "all-unused", id="sandbox image reported"),
            pytest.param(
                {"sandboxes": (sandbox(image="r.io/infra:1"),)}, "all-unused", id="image of another sandbox known"
            ),
            pytest.param({"sandboxes": (sandbox(),)}, "use-unknown", id="sandbox without image"),
        ],
    )
    def test_unread_sandboxes_keep_everything_unless_their_image_is_known(
        self, fields: dict[str, object], expected: str
    ) -> None:
        given: dict[str, object] = {"sandboxes_unread": frozenset({"sb"})}
        plan = plan_image_gc(node(image("a"), **(given | fields)), POLICY, remove_all_unused=True)
        assert codes(plan) == {"a": expected}
        assert bool(plan.warnings) == (expected == "use-unknown")

    @pytest.mark.parametrize("known", [image("p", pinned=True), image("p", "registry.k8s.io/pause:3")])
    def test_pinned_or_pause_named_image_identifies_the_sandbox_image(self, known: Image) -> None:
        plan = plan_image_gc(
            node(image("a"), known, sandboxes_unread=frozenset({"sb"})), POLICY, remove_all_unused=True
        )
        assert removed(plan) == ["a"]


def test_reason_is_that_of_the_keep_rule_with_precedence() -> None:
    """Each image is kept by the rule in its name and by every later rule."""
    rules = (parse_rule("r.io/*"),)
    policy = ImageGCPolicy(protection=ProtectionPolicy(rules, keep_last_n_tags_per_repository=9))
    images = [
        (image("container", "r.io/pause:1", pinned=True), used()),
        (image("sandbox", "r.io/pause:2", pinned=True), used()),
        (image("pinned", "r.io/pause:3", pinned=True), used()),
        (image("configured", "r.io/x:4"), used()),
        (image("protected", "r.io/app:5"), used()),
        (image("newest", "q.io/app:6"), used()),
        (Image("failed", (), (), 1), used(seen_s=1)),
        (Image("future", (), (), 1), used(-60, seen_s=1)),
        (Image("young", (), (), 1), used(seen_s=1)),
    ]
    everything = {each.id: "busy" for each, _ in images if each.id not in ("future", "young")}
    plan = plan_image_gc(
        node(
            *images,
            containers=(container("c", image_ref="container"),),
            sandboxes=(sandbox(image="container"), sandbox("b", image="sandbox")),
            sandbox_images=frozenset({"r.io/x:4"}),
            image_filesystem=filesystem(99),
        ),
        policy,
        failed=everything,
    )
    assert codes(plan) == {
        "container": "in-use-by-container",
        "sandbox": "in-use-by-sandbox",
        "pinned": "pinned",
        "configured": "sandbox-image",
        "protected": "protected",
        "newest": "newest-tags",
        "failed": "failed-earlier",
        "future": "used-this-pass",
        "young": "too-young",
    }
    assert decided(plan, "failed").verdict is Verdict.FAILED
    assert decided(plan, "failed").reason.sentence == "removal failed in this pass: busy"


def test_image_used_at_the_time_of_observation_is_removed_last() -> None:
    plan = plan_image_gc(node(aged("now", 0), aged("before", 1)), POLICY, remove_all_unused=True)
    assert removed(plan) == ["before", "now"]


class TestFailedEarlier:
    def test_another_image_is_removed_in_place_of_a_failed_one(self) -> None:
        images = [aged("stuck", 900), aged("next", 800), aged("last", 700)]
        fields = {"image_filesystem": filesystem(90)}
        assert removed(plan_image_gc(node(*images, **fields), POLICY)) == ["stuck"]
        plan = plan_image_gc(node(*images, **fields), POLICY, failed={"stuck": "still referenced"})
        assert removed(plan) == ["next"]
        assert decided(plan, "stuck").verdict is Verdict.FAILED

    def test_failed_image_is_excluded_from_removal_by_age(self) -> None:
        policy = ImageGCPolicy(maximum_unused_age_s=10)
        plan = plan_image_gc(node(aged("stuck", 900)), policy, failed={"stuck": "x"})
        assert codes(plan) == {"stuck": "failed-earlier"}


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
        """Return three images, each derived from the one before."""
        pieces = [piece("base", 400, inodes=40), piece("middle", 50, inodes=5), piece("top", 10, inodes=1)]
        references = {"base": ["base"], "middle": ["base", "middle"], "top": ["base", "middle", "top"]}
        images = [
            aged("base", 900, size_mib=400),
            aged("middle", 800, size_mib=450),
            aged("top", 700, size_mib=460),
        ]
        return node(*images, storage=graph(pieces, references), **fields)

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
        from nodeagent.model import ReferenceKind  # noqa: PLC0415

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
    storage = replace(pieces, pending_bytes=pending * MIB)
    plan = plan_image_gc(node(*images, image_filesystem=fs, storage=storage), POLICY)
    assert (plan.wanted_bytes, plan.pending_bytes, removed(plan)) == (target * MIB, pending * MIB, expected)
    assert (ReasonCode.COLLECTION_PENDING in codes(plan).values()) == (not expected)


def test_images_absent_from_the_applied_plan_are_kept() -> None:
    images = [(Image(name, (f"r/{name}:1",), (), 50 * MIB), used(age)) for name, age in (("c", 1), ("b", 2), ("a", 3))]
    plan = plan_image_gc(node(*images), POLICY, remove_all_unused=True, only=frozenset({"b", "other"}))
    assert removed(plan) == ["b"]
    assert codes(plan)["a"] == codes(plan)["c"] == ReasonCode.NOT_IN_PLAN
