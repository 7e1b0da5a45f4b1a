"""Image removal by name: patterns, and plans limited to the selected images."""

from __future__ import annotations

from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.errors import UsageError
from nodeagent.gc.pass_state import plans_for
from nodeagent.gc.plan.image_protection import Irreplaceable, ProtectionPolicy, parse_rule, select_images
from nodeagent.gc.plan.image_users import ImageIndex, images_in_use, repository_of
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope
from nodeagent.model.decision import ReasonCode
from nodeagent.model.node import Hold
from nodeagent.model.runtime import Image, Space
from nodeagent.record import replace
from tests.unit.builders import (
    MIB,
    NOW,
    codes,
    container,
    decided,
    filesystem,
    graph,
    image,
    piece,
    removed,
    snapshot,
    used,
)
from tests.unit.gc_strategies import EXAMPLES, nodes, policies

if TYPE_CHECKING:
    from nodeagent.model.decision import Plan
    from nodeagent.model.node import NodeSnapshot

HEX_A, HEX_B, HEX_E = "aa11" + "0" * 60, "aa22" + "0" * 60, "cafe" + "0" * 60
DIGEST, UNKNOWN = "sha256:" + "d" * 64, "sha256:" + "e" * 64
IMAGES = (
    Image(f"sha256:{HEX_A}", ("docker.io/library/nginx:latest", "r.io/team/web:1"), (f"r.io/team/web@{DIGEST}",)),
    Image(f"sha256:{HEX_B}", ("docker.io/library/nginx:1.27",)),
    Image("bb33" + "0" * 60, ("r.io/team/api:1",)),
    Image(f"sha256:dd44{'0' * 60}", ("docker.io/library/cafe:1", "docker.io/library/cafe:latest")),
    Image(f"sha256:{HEX_E}", (f"docker.io/library/{HEX_E}:latest",)),
)
A, B, C, D, E = (each.id for each in IMAGES)
POLICY = GCPolicy(images=ImageGCPolicy(minimum_age_s=0))


def plan_for(node: NodeSnapshot, *patterns: str, policy: GCPolicy = POLICY) -> Plan:
    """Return the plan of an image pass with these patterns."""
    (plan,) = plans_for(Scope.IMAGES, node, policy, None, patterns)
    return plan


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [
        pytest.param("r.io/team/web:1", {A}, id="full name"),
        pytest.param("nginx", {A}, id="short name has the tag latest"),
        pytest.param("nginx:1.27", {B}, id="short name with tag"),
        pytest.param(A, {A}, id="id"),
        pytest.param(HEX_B, {B}, id="id without algorithm"),
        pytest.param("aa22", {B}, id="shortened id of one image"),
        pytest.param("sha256:bb33", {C}, id="shortened id with algorithm"),
        pytest.param("cafe:1", {D}, id="name with tag that begins like an id"),
        pytest.param(HEX_E, {E}, id="id that is a name too"),
        pytest.param(DIGEST, {A}, id="digest"),
        pytest.param(f"r.io/team/web@{DIGEST}", {A}, id="name with digest"),
        pytest.param("r.io/team/*", {A, C}, id="wildcard"),
        pytest.param("nginx:*", {A, B}, id="wildcard for the tag of a short name"),
        pytest.param("*/web", {A}, id="wildcard without a tag selects every tag"),
        pytest.param("r.io/team/?p[hi]:1", {C}, id="other wildcards"),
        pytest.param("*", {A, B, C, D, E}, id="wildcard alone"),
    ],
)
def test_pattern_selects_the_images_that_it_names(pattern: str, selected: set[str]) -> None:
    assert select_images([pattern], IMAGES, ImageIndex(IMAGES)) == selected


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        pytest.param("r.io/team/web:2", "no image on this node matches r.io/team/web:2", id="other tag"),
        pytest.param("r.io/team/web", "no image on this node", id="missing tag is latest"),
        pytest.param("R.io/*", "no image on this node", id="other case"),
        pytest.param(f"r.io/team/web:1@{UNKNOWN}", "no image on this node", id="name with another digest"),
        pytest.param(UNKNOWN, "no image on this node", id="unknown digest"),
        pytest.param("aa", "aa is the beginning of 2 image ids", id="ambiguous shortened id"),
        pytest.param("aa2", "aa2 is the beginning of an image id; nothing was removed; give at least 4", id="short id"),
        pytest.param("cafe", "cafe is a name and the beginning of an image id", id="name and shortened id"),
        pytest.param("r.io/team/web@sha256:aa11", "no image on this node", id="name with the beginning of an id"),
        pytest.param("web@aa11", "no image on this node", id="name with the beginning of an id, no algorithm"),
        pytest.param("regex:nginx.*", "expressions select no image", id="expression"),
        pytest.param("sha256:aa*", "not a full digest", id="wildcard in a digest"),
        pytest.param("*" * 300, "300 characters, more than 256", id="wildcard too long"),
        pytest.param("", "no image on this node", id="empty"),
    ],
)
def test_pattern_without_a_certain_match_is_refused(pattern: str, message: str) -> None:
    for patterns in ([pattern], ["*", pattern]):
        with pytest.raises(UsageError) as caught:
            select_images(patterns, IMAGES, ImageIndex(IMAGES))
        assert message in str(caught.value)
        assert "nothing was removed" in str(caught.value)


@pytest.mark.parametrize("used_percent", [10, 95])
def test_selected_image_is_removed_and_every_other_image_kept_at_any_usage(used_percent: int) -> None:
    node = snapshot(*(image(each) for each in "abc"), image_filesystem=filesystem(used_percent))
    plan = plan_for(node, "registry.example/b:1")
    assert codes(plan) == {"a": "not-in-plan", "b": "all-unused", "c": "not-in-plan"}
    assert (removed(plan), plan.wanted_bytes, plan.shortfall_bytes) == (["b"], 0, 0)


def kept_node() -> NodeSnapshot:
    """Return a node with an image for each cause that keeps it, by its id, and the removable image ``free``."""
    imported = image("imported")
    return snapshot(
        image("used"),
        image("pinned", pinned=True),
        image("protected"),
        image("held"),
        (image("young"), used(seen_s=10)),
        imported,
        image("free"),
        containers=(container("c", image_ref="used"),),
        holds=(Hold("1", "registry.example/held:1", "why", "me", NOW, NOW + timedelta(hours=1)),),
        image_sources={each: frozenset({f"registry.example/{each}"}) for each in ("used", "pinned", "protected")}
        | {each: frozenset({f"registry.example/{each}"}) for each in ("held", "young", "free")}
        | {"imported": frozenset()},
    )


@pytest.mark.parametrize(
    ("irreplaceable", "code"), [(Irreplaceable.NEVER, "irreplaceable"), (Irreplaceable.LAST, "irreplaceable-unused")]
)
def test_selected_image_is_kept_by_every_keep_rule(irreplaceable: Irreplaceable, code: str) -> None:
    protection = ProtectionPolicy((parse_rule("registry.example/protected:1"),), irreplaceable=irreplaceable)
    plan = plan_for(kept_node(), "*", policy=GCPolicy(images=ImageGCPolicy(protection=protection)))
    assert codes(plan) == {
        "used": "in-use-by-container",
        "pinned": "pinned",
        "protected": "protected",
        "held": "held",
        "young": "too-young",
        "imported": code,
        "free": "all-unused",
    }
    assert ("imported" in removed(plan)) == (irreplaceable is Irreplaceable.LAST)


def test_limit_per_pass_applies_to_selected_images() -> None:
    policy = GCPolicy(images=ImageGCPolicy(minimum_age_s=0, max_images_per_pass=1))
    plan = plan_for(snapshot(*(image(each) for each in "abc")), "*/a:1", "*/b:1", policy=policy)
    assert codes(plan) == {"a": "all-unused", "b": "limit-images-per-pass", "c": "not-in-plan"}


def test_undo_windows_of_other_removals_do_not_end() -> None:
    storage = replace(graph([piece("own", 5)], {"a": ["own"]}), undo={"": Space(7 * MIB)}, pending={"": Space(3 * MIB)})
    plan = plan_for(snapshot(image("a"), storage=storage), "*/a:1")
    assert (removed(plan), plan.pending_bytes, plan.ends_undo) == (["a"], 0, False)


def test_selection_in_a_pass_over_all_items_plans_images_only() -> None:
    node = snapshot(image("a"), image("b"), containers=(container("c"),))
    (plan,) = plans_for(Scope.ALL, node, POLICY, None, ("*/a:1",))
    assert (plan.kind, removed(plan)) == ("images", ["a"])


_PATTERNS = ("r.io/app0:*", "r.io/*", "*/web0", "*pause*", "r.io/team/x:?", "sha256:0", "00", "*")


@EXAMPLES
@given(nodes(), policies(), st.data())
def test_no_image_outside_the_patterns_and_none_in_use_or_protected_is_removed(
    node: NodeSnapshot, policy: GCPolicy, data: st.DataObject
) -> None:
    names = [each for listed in node.images for each in (listed.id, listed.id[:9], *listed.references)]
    patterns = data.draw(st.lists(st.sampled_from([*_PATTERNS, *names]), min_size=1, max_size=3))
    try:
        plan = plan_for(node, *patterns, policy=policy)
    except UsageError:
        return
    protected = policy.images.protection.reasons(node.images, node.image_usage)
    removals = set(removed(plan))
    for listed in node.images:
        texts = {listed.id, *listed.references, *map(repository_of, listed.references)}
        digests = {each.partition("@")[2] for each in listed.repo_digests}
        matching = any(
            fnmatchcase(text, pattern) or listed.id.removeprefix("sha256:").startswith(pattern.removeprefix("sha256:"))
            for pattern in patterns
            for text in texts
        ) or any(pattern.partition("@")[2] in digests for pattern in patterns)
        if not matching:
            assert decided(plan, listed.id).reason.code is ReasonCode.NOT_IN_PLAN
        if listed.id in removals:
            assert matching
            assert not listed.pinned
    assert not removals & (images_in_use(node) | protected.keys())
    assert (plan.wanted_bytes, plan.pending_bytes, plan.ends_undo) == (0, 0, False)
