"""Images without a tag, which are removed before others with ``image_gc.untagged_first``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.gc.plan.explanation import explain
from nodeagent.gc.plan.image_protection import Irreplaceable, ProtectionPolicy, irreplaceable_images, parse_rule
from nodeagent.gc.plan.image_targets import SpaceNeeded
from nodeagent.gc.plan.images import in_order_of_use, plan_image_gc, untagged_images
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy
from nodeagent.model.decision import ReasonCode
from nodeagent.model.runtime import Image, ImageRecord, ImageUsage, StorageGraph
from nodeagent.record import replace
from tests.unit.builders import (
    DAY_S,
    MIB,
    codes,
    decided,
    digest,
    filesystem,
    image,
    pulled_from,
    removed,
    snapshot,
    used,
)
from tests.unit.gc_strategies import EXAMPLES, image_policies, nodes

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot

FIRST = ImageGCPolicy(untagged_first=True)


def untagged(image_id: str) -> Image:
    return replace(image(image_id), repo_tags=(), repo_digests=(f"r.example/app@{digest(image_id)}",))


def node(used_percent: int, imported: str = "", **fields: object) -> NodeSnapshot:
    """Return a node with tagged images ``a`` and ``c``, untagged images ``b`` and ``d``, ``a`` unused the longest."""
    images: tuple[tuple[Image, ImageUsage], ...] = (
        (image("a"), used(900)),
        (untagged("b"), used(800)),
        (image("c"), used(700)),
        (untagged("d"), used(600)),
    )
    sources = {each.id: frozenset() if each.id in imported else pulled_from(each) for each, _ in images}
    return snapshot(*images, image_filesystem=filesystem(used_percent), **({"image_sources": sources} | fields))


@pytest.mark.parametrize(
    ("tags", "digests", "names", "expected"),
    [
        pytest.param(["r.example/app:1"], [], ["r.example/app:1"], False, id="tag"),
        pytest.param([], ["r.example/app@" + digest("m")], None, True, id="digest, with CRI alone"),
        pytest.param([], [], None, True, id="no name"),
        pytest.param([], [], [digest("a")], True, id="id only"),
        pytest.param([], ["r.example/app@" + digest("m")], ["r.example/app@" + digest("m")], True, id="digest"),
        pytest.param([], [], ["import-2026", digest("a")], False, id="name that CRI does not list"),
        pytest.param([], [], ["sha256:latest", digest("a")], False, id="name like an id"),
    ],
)
def test_image_is_untagged_if_all_names_are_ids_or_digests(
    tags: list[str], digests: list[str], names: list[str] | None, expected: bool
) -> None:
    records = {} if names is None else {"a": ImageRecord(tuple(names))}
    observed = snapshot(Image("a", tuple(tags), tuple(digests)), storage=StorageGraph(records=records))
    assert untagged_images(observed) == (frozenset("a") if expected else frozenset())


@pytest.mark.parametrize(
    ("used_percent", "imported", "expected"),
    [
        pytest.param(90, "", ["b"], id="one"),
        pytest.param(95, "", ["b", "d"], id="all untagged"),
        pytest.param(99, "", ["b", "d"], id="untagged suffice exactly"),
        pytest.param(100, "", ["b", "d"], id="full"),
        pytest.param(100, "d", ["b", "a"], id="irreplaceable untagged image is kept"),
        pytest.param(100, "abcd", ["b", "d"], id="irreplaceable images in the same order"),
    ],
)
def test_untagged_images_are_removed_before_all_others(used_percent: int, imported: str, expected: list[str]) -> None:
    plan = plan_image_gc(node(used_percent, imported), FIRST)
    assert removed(plan) == expected
    last = {each: "irreplaceable-last" for each in expected if each in imported}
    by_tag = {each: "untagged-first" if each in "bd" else "least-recently-used" for each in expected}
    assert {each: codes(plan)[each] for each in expected} == by_tag | last


def test_reason_and_kept_images_name_the_order() -> None:
    plan = plan_image_gc(node(95), FIRST)
    assert decided(plan, "b").reason.sentence == (
        "no tag, removed before all images with a tag; imagefs is 95% full, target 80%"
    )
    assert decided(plan, "a").reason.sentence == "images before it in order free enough"
    assert [each.id for each in plan.decisions] == ["b", "d", "a", "c"]


def test_order_is_by_use_alone_by_default() -> None:
    assert removed(plan_image_gc(node(100), ImageGCPolicy())) == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({"remove_all_unused": True}, ReasonCode.ALL_UNUSED, id="all unused"),
        pytest.param({"needed": SpaceNeeded(400 * MIB)}, ReasonCode.EVICTION_THRESHOLD_MET, id="eviction threshold"),
    ],
)
def test_other_removals_have_the_same_order_and_their_own_reason(fields: dict[str, object], code: ReasonCode) -> None:
    plan = plan_image_gc(node(50, "cd"), FIRST, **fields)  # type: ignore[arg-type]
    assert removed(plan) == ["b", "a", "d", "c"]
    assert plan.removals[0].reason.code is code


def test_removal_by_age_has_the_same_order() -> None:
    policy = replace(FIRST, maximum_unused_age_s=300.0, max_images_per_pass=1)
    assert removed(plan_image_gc(node(50), policy)) == ["b"]


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        pytest.param(replace(FIRST, minimum_age_s=2 * DAY_S), "too-young", id="minimum age"),
        pytest.param(
            replace(FIRST, protection=ProtectionPolicy((parse_rule("r.example/app"),))), "protected", id="protected"
        ),
    ],
)
def test_untagged_images_have_all_keep_rules(policy: ImageGCPolicy, code: str) -> None:
    plan = plan_image_gc(node(100), policy)
    assert (codes(plan)["b"], codes(plan)["d"]) == (code, code)


@pytest.mark.parametrize(
    ("query", "when"),
    [
        pytest.param("b", "it would be removed first", id="first"),
        pytest.param("a", "and removing the 2 before it in order (200 MiB) is not enough", id="after the untagged"),
    ],
)
def test_explanation_states_the_place_in_the_order(query: str, when: str) -> None:
    observed = node(50)
    (found,) = explain(observed, GCPolicy(images=FIRST), (plan_image_gc(observed, FIRST),), query)
    assert when in found.when
    young = replace(FIRST, minimum_age_s=2 * DAY_S)
    (found,) = explain(observed, GCPolicy(images=young), (plan_image_gc(observed, young),), query)
    group = {"a": "after all images without a tag", "b": "before all images with a tag"}[query]
    assert found.when == f"once it is old enough; then when imagefs is 85% full, in order of use, {group}"


@EXAMPLES
@given(nodes(), image_policies(gain=False), st.booleans(), st.sampled_from(Irreplaceable))
def test_removals_for_space_are_untagged_first_and_by_use_in_each_group(
    observed: NodeSnapshot, policy: ImageGCPolicy, everything: bool, treatment: Irreplaceable
) -> None:
    policy = replace(policy, untagged_first=True, protection=replace(policy.protection, irreplaceable=treatment))
    plan = plan_image_gc(observed, policy, remove_all_unused=everything)
    last = irreplaceable_images(observed, ()) if treatment is Irreplaceable.LAST else {}
    by_use = [each.id for each in in_order_of_use(observed)]
    without_tag = {each.id for each in observed.images if not each.repo_tags}

    def place(image_id: str) -> tuple[bool, bool, int]:
        return image_id in last, image_id not in without_tag, by_use.index(image_id)

    for by_age in (True, False):
        removals = [each.id for each in plan.removals if (each.reason.code is ReasonCode.UNUSED_TOO_LONG) is by_age]
        assert removals == sorted(removals, key=place)
    kept = [each.id for each in plan.decisions[len(plan.removals) :]]
    assert kept == sorted(kept, key=place)


@EXAMPLES
@given(nodes(), image_policies(limits=False))
def test_switch_changes_no_set_of_removable_images(observed: NodeSnapshot, policy: ImageGCPolicy) -> None:
    plans = [
        plan_image_gc(observed, replace(policy, untagged_first=each), remove_all_unused=True) for each in (False, True)
    ]
    assert set(removed(plans[0])) == set(removed(plans[1]))
