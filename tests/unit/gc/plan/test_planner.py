"""Combined GC plans, and projections of the node after a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.gc.plan.image_users import find_users
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.planner import plan_all, plan_containers, project_with_users
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy
from nodeagent.model.runtime import ReferenceKind
from nodeagent.record import replace
from tests.unit.builders import (
    DAY_S,
    MIB,
    NOW,
    ago,
    container,
    decided,
    filesystem,
    graph,
    image,
    kubelet_list,
    log_directory,
    log_link,
    piece,
    removed,
    sandbox,
    snapshot,
    used,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.gc.plan.planner import GCPlan
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import FsObservation

POLICY = GCPolicy(images=ImageGCPolicy(minimum_age_s=0))
NODE: dict[str, Any] = {
    "containers": (
        container("dead", pod="gone", image_ref="held"),
        container("live", pod="web", image_ref="shared"),
        container("old", pod="gone", name="side", image_ref="shared"),
    ),
    "sandboxes": (sandbox("gone", image="infra"), sandbox(ready=True)),
    "pod_log_directories": (log_directory("uid-gone", pod="gone"), log_directory("uid-web")),
    "dead_log_links": (log_link("dead"),),
    "writable_bytes": {"dead": 10 * MIB, "live": 7 * MIB},
    "image_filesystem": filesystem(95),
}
IMAGES = (
    (image("held"), used(50)),
    (image("shared"), used(50)),
    (image("idle", size_mib=5), used(900)),
    (image("infra"), used(9)),
)


def test_each_plan_is_made_on_the_projection_after_the_previous_plan() -> None:
    made = plan_all(snapshot(*IMAGES, **NODE), POLICY)
    assert [plan.kind for plan in made.plans] == ["containers", "sandboxes", "logs", "images"]
    assert removed(made.containers) == ["dead", "old"]
    assert removed(made.sandboxes) == ["sb-gone"]
    assert removed(made.logs) == ["shop_gone_uid-gone", "web_shop_app-dead.log"]
    assert made.images is not None
    assert removed(made.images) == ["idle", "held", "infra"]
    assert decided(made.images, "shared").reason.code.value == "in-use-by-container"


def test_plan_of_containers_has_no_image_plan() -> None:
    made = plan_containers(snapshot(*IMAGES, **NODE), POLICY)
    assert made.images is None
    assert len(made.plans) == 3


def test_image_plan_counts_freed_writable_layers() -> None:
    made = plan_all(snapshot(*IMAGES, **NODE), POLICY)
    assert made.images is not None
    assert made.images.wanted_bytes == 140 * MIB


def test_items_of_finished_pods_are_removed_on_request() -> None:
    fields = NODE | {"pod_list": kubelet_list("uid-gone", "uid-web"), "image_filesystem": filesystem(10)}
    made = plan_containers(snapshot(*IMAGES, **fields), POLICY, evict_non_deleted_pods=True)
    assert removed(made.containers) == ["dead", "old"]
    assert removed(made.sandboxes) == ["sb-gone"]


class TestProjection:
    def project(self, **fields: Any) -> NodeSnapshot:
        before = snapshot(*IMAGES, **(NODE | fields))
        removed_containers, removed_sandboxes = frozenset({"dead", "old"}), frozenset({"sb-gone"})
        return project_with_users(before, removed_containers, removed_sandboxes, find_users(before))[0]

    def test_removed_containers_and_sandboxes_are_absent(self) -> None:
        after = self.project(sandboxes_unread=frozenset({"sb-gone", "sb-web"}))
        assert [each.id for each in after.containers] == ["live"]
        assert [each.id for each in after.sandboxes] == ["sb-web"]
        assert after.sandboxes_unread == {"sb-web"}
        assert after.writable_bytes == {"live": 7 * MIB}

    def test_freed_bytes_are_added_up_to_the_capacity(self) -> None:
        def after(writable_bytes: dict[str, int]) -> FsObservation:
            observed = self.project(writable_bytes=writable_bytes).image_filesystem
            assert observed is not None
            return observed

        assert after({"dead": 10 * MIB, "live": 7 * MIB}).available_bytes == 60 * MIB
        assert after({"dead": 10**12}).available_bytes == after({}).capacity_bytes
        assert self.project(image_filesystem=None).image_filesystem is None

    def test_image_without_remaining_user_counts_as_used_now(self) -> None:
        usage = self.project().image_usage
        assert usage["held"].last_used == usage["infra"].last_used == NOW
        assert usage["held"].first_detected == ago(DAY_S)
        assert usage["shared"].last_used == ago(50)

    def test_image_without_recorded_use_counts_as_detected_now_in_a_projection(self) -> None:
        assert self.project(image_usage={}).image_usage["held"].first_detected == NOW

    def test_pieces_lose_only_the_references_of_removed_containers_and_sandboxes(self) -> None:
        by_container = ReferenceKind.CONTAINER, ReferenceKind.LEASE
        pieces = [piece(key, references=by_container) for key in ("removed", "removed-twice", "sandbox", "used")]
        pieces += [piece("leased", references=by_container[1:]), piece("foreign", references=by_container)]
        users = {"dead": (0, 1, 3, 4), "old": (1,), "live": (3,), "sb-gone": (2,), "of-another-client": (5,)}
        storage = replace(graph(pieces, {"held": ["removed"]}), by_container=users)
        after = self.project(storage=storage).storage
        assert after is not None
        assert {each.key for each in after.pieces if ReferenceKind.CONTAINER in each.references} == {"used", "foreign"}
        assert all(ReferenceKind.LEASE in each.references for each in after.pieces)
        assert after.by_image is storage.by_image

    def test_projection_without_removals_is_the_snapshot_itself(self) -> None:
        before = snapshot(*IMAGES, **NODE)
        users = find_users(before)
        assert project_with_users(before, frozenset(), frozenset(), users) == (before, users)
        after = project_with_users(before, frozenset({"live"}), frozenset(), users)[0]
        assert after.image_usage is before.image_usage

    def test_plan_on_a_projection_removes_released_images_last(self) -> None:
        assert removed(plan_image_gc(self.project(), POLICY.images, remove_all_unused=True)) == [
            "idle",
            "held",
            "infra",
        ]


def test_images_are_counted_with_the_layers_of_the_containers_that_the_plan_removes() -> None:
    pieces = [piece(f"{name}-{part}", 20) for name in ("a", "b") for part in ("layer", "blob")]
    pieces = [replace(each, references=(ReferenceKind.CONTAINER,)) if "layer" in each.key else each for each in pieces]
    storage = replace(
        graph(pieces, {name: [f"{name}-layer", f"{name}-blob"] for name in ("a", "b")}),
        by_container={"dead-a": (0,), "dead-b": (2,)},
    )
    fields: dict[str, Any] = {
        "containers": tuple(container(f"dead-{name}", pod=name, image_ref=name) for name in ("a", "b")),
        "image_filesystem": filesystem(available_bytes=169 * MIB),
        "storage": storage,
    }
    policy = replace(POLICY, images=replace(POLICY.images, high_threshold_percent=81))
    made = plan_all(snapshot((image("a"), used(50)), (image("b"), used(40)), **fields), policy)
    assert made.images is not None
    assert (made.images.wanted_bytes, removed(made.images)) == (31 * MIB, ["a"])
    assert made.images.frees_bytes == 40 * MIB


@pytest.mark.parametrize("scope", [plan_all, plan_containers])
def test_empty_node_has_empty_plans(scope: Callable[[NodeSnapshot, GCPolicy], GCPlan]) -> None:
    assert {plan.decisions for plan in scope(snapshot(), POLICY).plans} == {()}
