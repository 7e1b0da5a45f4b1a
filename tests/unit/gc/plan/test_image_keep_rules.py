"""Keep rules for images: order, reason codes and precedence."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.plan.image_protection import (
    KEEP_RULES,
    Irreplaceable,
    ProtectionPolicy,
    first_keep_reasons,
    keep_context,
    keep_reasons,
    parse_rule,
)
from nodeagent.gc.plan.image_users import find_users
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.model.node import Hold, NodeSnapshot, PodImages
from nodeagent.model.runtime import LabelReading
from nodeagent.record import replace
from tests.unit.builders import NOW, container, digest, filesystem, image, snapshot, used

if TYPE_CHECKING:
    from nodeagent.model.runtime import Image

PROTECTION = ProtectionPolicy((parse_rule("r.io/*"), parse_rule("label:keep")), irreplaceable=Irreplaceable.NEVER)
READ = LabelReading(frozenset({("keep", None)}))
PRECEDENCE = [
    "not-in-plan",
    "in-use-by-container",
    "pinned",
    "sandbox-image",
    "named-by-pod",
    "protected",
    "irreplaceable",
    "held",
    "labels-unknown",
    "failed-earlier",
    "used-this-pass",
    "use-unknown",
]


def node(**fields: object) -> NodeSnapshot:
    """Return a node with the image ``all``, kept by every rule, and the image ``one``, kept only by the last rule."""
    return snapshot(
        (image("all", "r.io/pause:1", pinned=True), used(-60)),
        (image("one", "other:1"), used()),
        containers=(container("c", image_ref="all"),),
        holds=(Hold("1", "all", "why", "me", NOW, NOW + timedelta(hours=1)),),
        holds_error="cannot read holds",
        image_sources={"all": frozenset(), "one": frozenset({"other"})},
        pod_images=PodImages({"r.io/pause:1": ("shop/web (kubelet)",)}),
        label_reading=replace(READ, unread={"all": "call failed"}),
        **fields,
    )


def reasons_by_rule() -> list[dict[str, Reason]]:
    observed = node()
    context = keep_context(observed, PROTECTION, find_users(observed), failed={"all": "busy"}, only=frozenset({"one"}))
    return [dict(rule.find(context)) for rule in KEEP_RULES]


def test_rules_are_ordered_by_precedence() -> None:
    assert [found["all"].code.value for found in reasons_by_rule()] == PRECEDENCE


def test_rule_returns_only_its_own_reason_codes() -> None:
    for rule, found in zip(KEEP_RULES, reasons_by_rule(), strict=True):
        assert {reason.code for reason in found.values()} <= set(rule.codes)


def test_reason_code_belongs_to_one_rule() -> None:
    counts = Counter(code for rule in KEEP_RULES for code in rule.codes)
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("position", range(len(KEEP_RULES)))
def test_reason_is_that_of_the_first_rule_that_keeps_the_image(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.gc.plan.image_protection.KEEP_RULES", KEEP_RULES[position:])
    observed = node()
    context = keep_context(observed, PROTECTION, find_users(observed), failed={"all": "busy"}, only=frozenset({"one"}))
    assert first_keep_reasons(context)["all"].code.value == PRECEDENCE[position]
    assert first_keep_reasons(context)["one"].code is ReasonCode.USE_UNKNOWN


def test_all_reasons_of_an_image_are_in_order_of_precedence() -> None:
    reasons = keep_reasons(node(), PROTECTION, ["all", "one"])
    assert [reason.code.value for reason in reasons["all"]] == [
        code for code in PRECEDENCE if code not in ("not-in-plan", "failed-earlier")
    ]
    assert [reason.code.value for reason in reasons["one"]] == ["use-unknown"]


def test_image_without_a_keep_reason_is_absent() -> None:
    observed = snapshot(image("a", "q.io/app:1"), label_reading=READ)
    context = keep_context(observed, PROTECTION, find_users(observed), failed={}, only=None)
    assert first_keep_reasons(context) == {}


class TestImagesNamedByPods:
    """Images named by static manifests and bound pods are kept, for every form of image reference."""

    DIGEST = digest("app")
    LISTED = (
        image("a" * 64, "docker.io/library/nginx:1.27"),
        image("b" * 64, "docker.io/library/redis:latest"),
        image("c" * 64, "registry.example:5000/team/app:2", digests=(f"registry.example:5000/team/app@{DIGEST}",)),
        image("d" * 64, "docker.io/library/nginx:1.26"),
    )

    @pytest.mark.difference("image-named-by-pod")
    @pytest.mark.parametrize(
        ("reference", "kept"),
        [
            pytest.param("nginx:1.27", "a", id="short name"),
            pytest.param("docker.io/library/nginx:1.27", "a", id="full name"),
            pytest.param("redis", "b", id="without tag"),
            pytest.param(f"registry.example:5000/team/app@{DIGEST}", "c", id="digest"),
            pytest.param(f"registry.example:5000/team/app:2@{DIGEST}", "c", id="tag and digest"),
            pytest.param("nginx:1.28", "", id="not pulled yet"),
            pytest.param("a", "", id="shortened id"),
            pytest.param("sha256:aaaa", "", id="shortened id with algorithm"),
            pytest.param("\x1b[2J*", "", id="hostile text"),
        ],
    )
    def test_image_is_kept_for_the_reference_of_a_pod(self, reference: str, kept: str) -> None:
        observed = snapshot(
            *self.LISTED, image_filesystem=filesystem(99), pod_images=PodImages({reference: ("shop/web (kubelet)",)})
        )
        plan = plan_image_gc(observed, ImageGCPolicy(), remove_all_unused=True)
        assert {each.id[0] for each in plan.decisions if each.reason.code is ReasonCode.NAMED_BY_POD} == {*kept}
        assert len(plan.removals) == 4 - len(kept)

    def test_reason_names_every_pod_once(self) -> None:
        named = {
            "nginx:1.27": ("shop/web (kubelet)", "shop/x (kubelet)"),
            "docker.io/nginx:1.27": ("shop/x (kubelet)",),
        }
        plan = plan_image_gc(snapshot(*self.LISTED, pod_images=PodImages(named)), ImageGCPolicy())
        reason = next(each.reason for each in plan.decisions if each.id[0] == "a")
        assert reason.sentence == "named by 2 pod(s) of this node: shop/web (kubelet), shop/x (kubelet)"

    def test_every_image_is_kept_while_a_configured_list_was_never_read(self) -> None:
        images: tuple[Image, ...] = self.LISTED
        plan = plan_image_gc(
            snapshot(*images, pod_images=PodImages(error="kubelet: connection refused")),
            ImageGCPolicy(maximum_unused_age_s=1),
            remove_all_unused=True,
        )
        assert {each.reason.code for each in plan.decisions} == {ReasonCode.USE_UNKNOWN}
        assert plan.warnings == ("no image is removed: kubelet: connection refused",)
