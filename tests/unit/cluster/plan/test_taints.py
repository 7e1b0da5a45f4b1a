"""Taints of the agent's conditions: effects from loop results, and plans that keep all other taints."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from nodeagent.cluster.plan.conditions import (
    TYPES,
    LoopResult,
    desired_effects,
    is_condition_taint,
    plan_taints,
    trial_patch,
)
from nodeagent.cluster.plan.registration import TAINT_EFFECTS, TAINT_KEYS
from nodeagent.model.kubernetes import Node, NodeSpec, ObjectMeta, Taint

IMAGES, CONTAINERS = TAINT_KEYS.values()
OWN = Taint(key=IMAGES, effect="NoSchedule", time_added="2026-11-23T12:00:00Z")
FOREIGN = (
    Taint(key="node.kubernetes.io/disk-pressure", effect="NoSchedule", time_added="2026-11-23T12:00:00Z"),
    Taint(key="example.com/gpu", value="yes", effect="NoExecute"),
    Taint(key=IMAGES, effect="NoExecute"),
    Taint(key=CONTAINERS, value="set-by-hand", effect="NoSchedule"),
)
TAINTS = st.lists(
    st.builds(
        Taint,
        key=st.sampled_from([IMAGES, CONTAINERS, "example.com/a", "node.kubernetes.io/unreachable"]),
        effect=st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        value=st.sampled_from(["", "", "v"]),
        time_added=st.sampled_from(["", "2026-11-23T12:00:00Z"]),
    ),
    unique_by=lambda each: (each.key, each.effect),
)
DESIRED = st.dictionaries(st.sampled_from([IMAGES, CONTAINERS]), st.sampled_from(["", *TAINT_EFFECTS]))


def node(*taints: Taint) -> Node:
    return Node(metadata=ObjectMeta(name="node-1", resource_version="7"), spec=NodeSpec(taints=taints))


def patched(found: Node, desired: dict[str, str]) -> Node:
    plan = plan_taints(found, desired)
    if plan.patch is None:
        return found
    assert plan.patch["metadata"] == {"resourceVersion": "7"}
    assert set(plan.patch["spec"]) == {"taints"}
    return node(*msgspec.convert(plan.patch["spec"]["taints"], tuple[Taint, ...]))


@pytest.mark.parametrize(
    ("loop", "configured", "desired"),
    [
        pytest.param(LoopResult("images", "shortfall"), True, "NoSchedule", id="true"),
        pytest.param(LoopResult("images", "complete"), True, "", id="false"),
        pytest.param(LoopResult("images", ""), True, None, id="before-the-first-pass"),
        pytest.param(LoopResult("images", "cancelled"), True, None, id="cancelled"),
        pytest.param(LoopResult("eviction", "failed"), True, None, id="not-reported"),
        pytest.param(LoopResult("images", "failed", is_disabled=True), True, "", id="disabled"),
        pytest.param(LoopResult("images", "failed"), False, "", id="not-configured"),
        pytest.param(LoopResult("images", ""), False, "", id="not-configured-before-the-first-pass"),
    ],
)
def test_effect_of_a_loop_result(loop: LoopResult, *, configured: bool, desired: str | None) -> None:
    found = desired_effects([loop], {IMAGES: "NoSchedule"} if configured else {})
    assert found.get(IMAGES) == desired
    assert found[CONTAINERS] == ""


@pytest.mark.difference("admission")
def test_missing_taint_is_appended_and_all_others_are_kept() -> None:
    plan = plan_taints(node(*FOREIGN), {IMAGES: "NoSchedule"})
    assert (plan.added, plan.removed, plan.present) == ((f"{IMAGES}:NoSchedule",), (), (f"{IMAGES}:NoSchedule",))
    assert patched(node(*FOREIGN), {IMAGES: "NoSchedule"}).spec.taints == (
        *FOREIGN,
        Taint(key=IMAGES, effect="NoSchedule"),
    )


def test_taint_of_a_false_condition_is_removed_and_all_others_are_kept() -> None:
    found = node(FOREIGN[0], OWN, *FOREIGN[1:])
    assert plan_taints(found, {IMAGES: ""}).removed == (f"{IMAGES}:NoSchedule",)
    assert patched(found, {IMAGES: ""}).spec.taints == FOREIGN


def test_changed_effect_replaces_the_taint_in_one_patch() -> None:
    plan = plan_taints(node(OWN), {IMAGES: "PreferNoSchedule"})
    assert (plan.added, plan.removed) == ((f"{IMAGES}:PreferNoSchedule",), (f"{IMAGES}:NoSchedule",))


@pytest.mark.parametrize("desired", [{}, {IMAGES: "NoSchedule"}, {CONTAINERS: ""}])
def test_present_or_undecided_taint_is_not_written_again(desired: dict[str, str]) -> None:
    assert plan_taints(node(OWN, *FOREIGN), desired).patch is None


def test_taint_with_the_key_and_effect_of_an_operators_taint_is_not_added() -> None:
    assert plan_taints(node(*FOREIGN), {CONTAINERS: "NoSchedule"}).patch is None


@pytest.mark.parametrize("taints", [(), (OWN,), FOREIGN, (OWN, *FOREIGN)])
def test_trial_of_the_permission_changes_the_taints(taints: tuple[Taint, ...]) -> None:
    patch = trial_patch(node(*taints))
    assert patch is not None
    assert msgspec.convert(patch["spec"]["taints"], tuple[Taint, ...]) != taints


@given(TAINTS, DESIRED)
def test_other_taints_are_never_changed_and_a_second_plan_is_empty(
    taints: list[Taint], desired: dict[str, str]
) -> None:
    after = patched(node(*taints), desired)
    others = [each for each in taints if not is_condition_taint(each)]
    assert [each for each in after.spec.taints if not is_condition_taint(each)] == others
    pairs = [(each.key, each.effect) for each in after.spec.taints]
    assert len(set(pairs)) == len(pairs)
    assert plan_taints(after, desired).patch is None
    for key, effect in desired.items():
        own = {each.effect for each in after.spec.taints if each.key == key and is_condition_taint(each)}
        assert own == {effect} - {""} or (key, effect) in {(each.key, each.effect) for each in others}


def test_every_condition_has_a_taint() -> None:
    assert TAINT_KEYS.keys() == TYPES.keys()
