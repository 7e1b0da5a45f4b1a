"""Images kept because pods use them, and the precedence of keep rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.gc.plan.image_protection import ProtectionPolicy, parse_rule
from nodeagent.gc.plan.image_users import images_in_use
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.model.decision import ReasonCode, Verdict
from nodeagent.model.runtime import ContainerState, Image
from nodeagent.runtime.containerd import StoredContainer
from nodeagent.runtime.storage_graph import unlisted_containers
from tests.unit.builders import MIB, codes, container, decided, filesystem, image, removed, sandbox, used
from tests.unit.image_nodes import POLICY, aged, node

if TYPE_CHECKING:
    from nodeagent.model.decision import Plan


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

    @pytest.mark.difference("image-of-sandbox")
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

    @pytest.mark.difference("moved-tag")
    def test_old_and_new_image_of_a_moved_tag_are_kept(self) -> None:
        old, new = Image("old", (), (), 1), Image("new", ("r.io/app:1",), (), 1)
        using = container("c", image_ref="old", image_name="r.io/app:1")
        assert images_in_use(node(old, new, Image("other"), containers=(using,))) == {"old", "new"}

    @pytest.mark.difference("unlisted-container")
    def test_image_of_a_container_in_containerd_alone_is_kept(self) -> None:
        stored = [StoredContainer(each, "r.io/app:1", "overlayfs", each, {}) for each in ("c", "other")]
        unlisted = unlisted_containers(stored, [container("c")], ())
        assert [each.id for each in unlisted] == ["other"]
        assert images_in_use(node(image("a", "r.io/app:1"), containers=unlisted)) == {"a"}


class TestSandboxImage:
    @pytest.mark.difference("sandbox-image")
    def test_configured_sandbox_image_is_kept(self) -> None:
        plan = plan_image_gc(
            node(image("a", "r.io/infra:1"), sandbox_images=frozenset({"r.io/infra:1"})), POLICY, remove_all_unused=True
        )
        assert decided(plan, "a").reason.sentence == "sandbox image of the runtime (configured in the runtime)"

    @pytest.mark.difference("sandbox-image")
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
    """Plan images that are each kept by the rule of their name and by all rules of lower precedence."""
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


class TestFailedEarlier:
    @pytest.mark.difference("failed-image-removal")
    def test_another_image_is_removed_in_place_of_a_failed_one(self) -> None:
        images = [aged("stuck", 900), aged("next", 800), aged("last", 700)]
        fields = {"image_filesystem": filesystem(90)}
        assert removed(plan_image_gc(node(*images, **fields), POLICY)) == ["stuck"]
        plan = plan_image_gc(node(*images, **fields), POLICY, failed={"stuck": "still referenced"})
        assert removed(plan) == ["next"]
        assert decided(plan, "stuck").verdict is Verdict.FAILED

    @pytest.mark.difference("failed-image-removal")
    def test_failed_image_is_excluded_from_removal_by_age(self) -> None:
        policy = ImageGCPolicy(maximum_unused_age_s=10)
        plan = plan_image_gc(node(aged("stuck", 900)), policy, failed={"stuck": "x"})
        assert codes(plan) == {"stuck": "failed-earlier"}
        full = node(aged("stuck", 900), aged("next", 5), image_filesystem=filesystem(90))
        assert removed(plan_image_gc(full, policy, failed={"stuck": "x"})) == ["next"]


def test_images_absent_from_the_applied_plan_are_kept() -> None:
    images = [(Image(name, (f"r/{name}:1",), (), 50 * MIB), used(age)) for name, age in (("c", 1), ("b", 2), ("a", 3))]
    plan = plan_image_gc(node(*images), POLICY, remove_all_unused=True, only=frozenset({"b", "other"}))
    assert removed(plan) == ["b"]
    assert codes(plan)["a"] == codes(plan)["c"] == ReasonCode.NOT_IN_PLAN
