"""Plans after a jump of the wall clock: no removal by age within the grace period."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.plan.consistency import plan_leaks
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.planner import plan_all, plan_containers
from nodeagent.gc.plan.policy import ContainerGCPolicy, GCPolicy, ImageGCPolicy, PodLogPolicy, SandboxGCPolicy
from nodeagent.model.clock import ClockTrust
from nodeagent.model.runtime import PieceKind, StoredPiece, UnlistedContent, UnreferencedPiece
from nodeagent.record import replace
from tests.unit.builders import (
    DAY_S,
    NOW,
    ago,
    codes,
    container,
    filesystem,
    image,
    log_directory,
    log_link,
    removed,
    sandbox,
    snapshot,
    used,
)

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot

JUMPED = ClockTrust(jump_s=3650 * DAY_S, jumped_at=ago(60), untrusted_until=ago(-540))
AFTER_GRACE = replace(JUMPED, jumped_at=ago(601), untrusted_until=None)
POLICY = GCPolicy(images=ImageGCPolicy(high_threshold_percent=100, maximum_unused_age_s=1000, minimum_age_s=0))


def old_items(clock: ClockTrust) -> NodeSnapshot:
    """Return a node with one item of each kind that GC removes by age."""
    return snapshot(
        (image("i"), used(2 * DAY_S, seen_s=3 * DAY_S)),
        clock=clock,
        containers=(container("c", pod="a", sandbox_id="sb-a"),),
        sandboxes=(sandbox("a"), sandbox("b")),
        pod_log_directories=(log_directory("uid-unlisted"),),
        dead_log_links=(log_link("abcdef012345"),),
    )


def test_items_of_every_kind_are_removed_by_age_with_a_trusted_clock() -> None:
    for clock in (ClockTrust(), AFTER_GRACE):
        plans = plan_all(old_items(clock), POLICY).plans
        assert [len(plan.removals) for plan in plans] == [1, 2, 2, 1]


@pytest.mark.difference("clock-jump")
def test_no_item_is_removed_by_age_in_the_grace_period_after_a_jump() -> None:
    plans = plan_all(old_items(JUMPED), POLICY).plans
    assert [removed(plan) for plan in plans] == [[], [], [], []]
    images = plans[-1]
    assert codes(images) == {"i": "clock-untrusted"}
    assert images.decisions[0].reason.sentence == (
        "no removal by age before 2026-03-01T12:09:00Z: wall clock set forward by 3650d"
    )
    assert images.warnings == (
        "images: no removal by age before 2026-03-01T12:09:00Z: wall clock set forward by 3650d",
    )


def test_removals_without_an_age_limit_do_not_depend_on_the_clock() -> None:
    policy = GCPolicy(
        containers=ContainerGCPolicy(max_per_pod_container=0, deleted_pod_grace_s=0),
        sandboxes=SandboxGCPolicy(minimum_age_s=0),
        logs=PodLogPolicy(minimum_age_s=0),
    )
    plan = plan_containers(old_items(JUMPED), policy)
    assert [len(each.removals) for each in plan.plans] == [1, 2, 2]


def test_sandboxes_and_containers_of_a_minimum_age_are_kept_in_the_grace_period() -> None:
    policy = GCPolicy(containers=ContainerGCPolicy(minimum_age_s=1, max_per_pod_container=0, deleted_pod_grace_s=0))
    plans = plan_containers(old_items(JUMPED), policy).plans
    assert [set(codes(plan).values()) for plan in plans[:2]] == [
        {"clock-untrusted"},
        {"sandbox-has-containers", "clock-untrusted"},
    ]


def test_images_are_removed_by_threshold_in_least_recently_used_order_in_the_grace_period() -> None:
    images = [(image(name, size_mib=60), used(unused, seen_s=DAY_S)) for name, unused in (("a", 50), ("b", 500))]
    node = snapshot(*images, clock=JUMPED, image_filesystem=filesystem(90))
    assert removed(plan_image_gc(node, ImageGCPolicy(maximum_unused_age_s=100))) == ["b", "a"]


@pytest.mark.parametrize(
    ("clock", "code"),
    [
        (ClockTrust(), "unreferenced"),
        (JUMPED, "created-recently"),
        (replace(JUMPED, jumped_at=ago(3601)), "clock-untrusted"),
        (replace(AFTER_GRACE, jumped_at=ago(3599)), "created-recently"),
        (replace(AFTER_GRACE, jumped_at=ago(3600)), "unreferenced"),
    ],
    ids=["no jump", "jump", "grace period", "jump within the minimum age", "jump before"],
)
def test_unreferenced_piece_is_at_most_as_old_as_the_last_jump(clock: ClockTrust, code: str) -> None:
    found = UnreferencedPiece(StoredPiece("x", PieceKind.BLOB, 1, 1), "", ago(10 * DAY_S), rooted=False)
    assert codes(
        plan_leaks(UnlistedContent(unreferenced=(found,)), NOW, minimum_age_s=3600, rooted=False, clock=clock)
    ) == {"x": code}
