"""Saved plans: encoding, digests, drift, comparison, and the limits of their application."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.api.common import encode
from nodeagent.gc.documents.undo import encode_saved_plan
from nodeagent.gc.pass_state import Preview, plans_for_saved
from nodeagent.gc.plan.image_protection import ProtectionPolicy, parse_rule
from nodeagent.gc.plan.planner import plan_all
from nodeagent.gc.plan.policy import ContainerGCPolicy, GCPolicy, ImageGCPolicy, Scope
from nodeagent.gc.plan.saved_plan import SavedPlan, compare, item_digests, parse_plan, plan_id, refusal_of, seal
from nodeagent.model.decision import Verdict
from nodeagent.record import replace
from tests.unit.builders import NOW, container, filesystem, image, log_directory, sandbox, snapshot, used

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot

POLICY = GCPolicy(
    images=ImageGCPolicy(
        high_threshold_percent=70,
        low_threshold_percent=10,
        protection=ProtectionPolicy((parse_rule("*/base"), parse_rule("regex:^quay"))),
    ),
    containers=ContainerGCPolicy(deleted_pod_grace_s=60),
)


def node(*without: str, used_percent: int = 90) -> NodeSnapshot:
    images = [(image(name, f"r.example/{name}:1"), used(age)) for name, age in (("c", 1), ("b", 2), ("a", 3))]
    containers = [
        container("old", created_s=9000, attempt=0),
        container("new", created_s=8000, attempt=1),
        container("deleted", pod="other"),
    ]
    return snapshot(
        *(each for each in images if each[0].id not in without),
        containers=tuple(each for each in containers if each.id not in without),
        sandboxes=(sandbox(ready=True), sandbox("other", ready=False)),
        image_filesystem=filesystem(used_percent),
    )


def save(observed: NodeSnapshot, policy: GCPolicy = POLICY) -> str:
    plans = plan_all(observed, policy).plans
    preview = Preview(Scope.ALL, observed, plans)
    return encode(encode_saved_plan(preview, node="here", expires_at=NOW.replace(year=2999), agent_version="1"), "json")


def test_saved_plan_round_trip_keeps_items_digests_and_time() -> None:
    observed = node()
    plans = plan_all(observed, POLICY).plans
    saved = parse_plan(save(observed))
    assert [(each.kind, each.id) for each in saved.removals] == [
        (each.kind, each.id) for plan in plans for each in plan.removals
    ]
    assert {(each.kind, each.id): each.digest for each in saved.items} == item_digests(observed)
    assert (saved.scope, saved.node, saved.made_at) == (Scope.ALL, "here", observed.observed_at)
    applied, drift = plans_for_saved(saved, observed, POLICY)
    assert ([plan.removals for plan in applied], drift) == ([plan.removals for plan in plans], ())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace('"here"', '"there"'), id="another node"),
        pytest.param(lambda text: text.replace('"remove"', '"keep"', 1), id="a verdict"),
        pytest.param(lambda text: text.replace("sha256:", "sha256:0", 1), id="the id"),
        pytest.param(lambda text: text.replace("plan/v2", "plan/v1"), id="a former schema"),
        pytest.param(lambda text: text.replace("plan/v2", "plan/v3"), id="a newer schema"),
        pytest.param(lambda text: text[:-20], id="truncated"),
        pytest.param(lambda _: "[]", id="not a plan"),
        pytest.param(lambda _: '{"schema": "nodeagent/preview/v1"}', id="another document"),
    ],
)
def test_changed_plan_is_refused(change: object) -> None:
    assert callable(change)
    with pytest.raises(ValueError, match=r"not JSON|not a plan|schema|changed since"):
        parse_plan(change(save(node())))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"schema": "nodeagent/plan/v2", "a": ' + "[" * 100_000,
        '{"schema": "nodeagent/plan/v2", "scope": NaN}',
        '{"schema": "nodeagent/plan/v2", "scope": ' + "1" * 5000 + "}",
    ],
)
def test_document_that_is_not_a_plan_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        parse_plan(text)


def body_of(text: str) -> dict[str, Any]:
    return {name: value for name, value in json.loads(text).items() if name not in ("schema", "id")}


def test_plan_of_leaks_is_refused() -> None:
    with pytest.raises(ValueError, match="scope leaks cannot be saved"):
        parse_plan(json.dumps(seal(body_of(save(node())) | {"scope": "leaks"})))


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()))
def test_id_is_unchanged_by_a_json_round_trip(body: dict[str, Any]) -> None:
    """Seal arbitrary content again after a JSON round trip: the canonical form does not depend on formatting."""
    sealed = seal({name: value for name, value in body.items() if name not in ("schema", "id")})
    assert seal(body_of(json.dumps(sealed, indent=2, ensure_ascii=False))) == sealed


NAMES = ("a", "b", "c", "old", "new", "deleted")


@given(st.sets(st.sampled_from(NAMES)), st.integers(0, 100), st.sets(st.sampled_from(NAMES)))
def test_listed_items_are_either_removed_or_reported_as_drift(
    before: set[str], used_percent: int, after: set[str]
) -> None:
    saved = parse_plan(save(node(*before)))
    listed = {item.id for item in saved.removals}
    plans, found = plans_for_saved(saved, node(*after, used_percent=used_percent), POLICY)
    removed = {each.id for plan in plans for each in plan.removals}
    drift = {each.item.id for each in found}
    assert removed | drift == listed
    assert not removed & drift
    assert all(each.gone == (each.item.id in after) for each in found if each.item.id in NAMES)


def change_image(observed: NodeSnapshot, **changes: Any) -> NodeSnapshot:
    return replace(
        observed, images=tuple(replace(each, **changes) if each.id == "a" else each for each in observed.images)
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"repo_tags": ("r.example/a:1", "r.example/a:prod")}, "it changed after the plan", id="new tag"),
        pytest.param({"repo_tags": ()}, "it changed after the plan was saved", id="no tag"),
        pytest.param({"repo_digests": ("r.example/a@sha256:1",)}, "it changed after the plan was saved", id="digest"),
        pytest.param({"repo_tags": ("r.example/base:1",)}, "protected by", id="protected under its new name"),
    ],
)
def test_item_that_changed_after_the_plan_is_kept_with_the_reason(changes: dict[str, Any], why: str) -> None:
    policy = replace(POLICY, images=replace(POLICY.images, protection=ProtectionPolicy((parse_rule("*/base"),))))
    saved = parse_plan(save(node(), policy))
    plans, drift = plans_for_saved(saved, change_image(node(), **changes), policy)
    assert "a" not in {each.id for plan in plans for each in plan.removals}
    (found,) = (each for each in drift if each.item.id == "a")
    assert not found.gone
    assert why in found.why


def test_image_of_a_container_that_is_not_listed_is_kept() -> None:
    """The new plan removes an image only together with its dead container, which the saved plan does not list."""
    saved = parse_plan(save(node()))
    held = container("late", attempt=2, created_s=9500, image_ref="a", pod="other")
    now = replace(node(), containers=(*node().containers, held))
    fresh = {each.id for plan in plan_all(now, POLICY).plans for each in plan.removals}
    assert {"late", "a"} <= fresh
    plans, drift = plans_for_saved(saved, now, POLICY)
    assert not {"late", "a"} & {each.id for plan in plans for each in plan.removals}
    assert {each.item.id: each.why for each in drift}["a"].startswith("in use by 1 container")


def test_item_that_only_a_restricted_plan_would_remove_is_kept() -> None:
    """Listed images in their order cannot take the place of an image that the new plan removes before them."""
    policy = replace(POLICY, images=replace(POLICY.images, max_images_per_pass=1))
    saved = parse_plan(save(node("a"), policy))
    assert [each.id for each in saved.removals if each.id in ("a", "b", "c")] == ["b"]
    plans, drift = plans_for_saved(saved, node(), policy)
    assert not {"a", "b", "c"} & {each.id for plan in plans for each in plan.removals}
    assert "b" in {each.item.id for each in drift if not each.gone}


def test_dead_container_is_removed_although_a_newer_one_is_not_listed() -> None:
    saved = parse_plan(save(node()))
    assert "old" in {item.id for item in saved.removals}
    plans = plan_all(node(), POLICY, only=frozenset({"old"})).plans
    assert [each.id for plan in plans for each in plan.removals] == ["old"]


def test_plan_less_strict_than_policy_in_force_removes_only_items_of_that_policy() -> None:
    loose = replace(POLICY, images=replace(POLICY.images, minimum_age_s=0, high_threshold_percent=1))
    saved = parse_plan(save(node(), loose))
    assert {"a", "b", "c"} <= {item.id for item in saved.removals}
    now = replace(POLICY, images=ImageGCPolicy(protection=ProtectionPolicy((parse_rule("r.example/a"),))))
    plans, drift = plans_for_saved(saved, node(used_percent=84), now)
    assert not {"a", "b", "c"} & {each.id for plan in plans for each in plan.removals}
    why = {each.item.id: each.why for each in drift}
    assert "protected by" in why["a"]
    assert "below the high threshold 85%" in why["b"]


def test_plan_stricter_than_policy_in_force_keeps_its_kept_items() -> None:
    strict = replace(POLICY, containers=replace(POLICY.containers, max_per_pod_container=5))
    saved = parse_plan(save(node(), strict))
    listed = {item.id for item in saved.removals}
    assert "deleted" in listed
    assert "old" not in listed
    plans, _ = plans_for_saved(saved, node(), POLICY)
    assert {each.id for plan in plans for each in plan.removals} <= listed


def both(one: NodeSnapshot, other: NodeSnapshot) -> tuple[SavedPlan, SavedPlan]:
    return parse_plan(save(one)), parse_plan(save(other))


def test_plans_are_compared_by_verdict_and_reason() -> None:
    assert compare(*both(node(), node())) == ()
    found = compare(*both(node("a"), node("b", used_percent=50)))
    differing = {(each.after or each.before).id: each for each in found if each.after or each.before}  # type: ignore[union-attr]
    assert differing["a"].before is None
    assert differing["b"].after is None
    changed = differing["c"]
    assert changed.before is not None
    assert changed.after is not None
    assert (changed.before.verdict, changed.after.verdict) == (Verdict.REMOVE, Verdict.KEEP)


def test_digests_depend_on_items_and_not_on_time() -> None:
    one = node()
    assert item_digests(one) == item_digests(replace(node(), observed_at=NOW.replace(year=2999)))
    assert len(set(item_digests(one).values())) == len(item_digests(one))
    plans = plan_all(one, POLICY).plans
    assert plan_id(Scope.ALL, one, plans) != plan_id(Scope.IMAGES, one, plans)


def test_file_name_that_is_not_utf_8_is_restored_from_plan() -> None:
    raw = "ns\udcff_pod_0a1b2c3d-1111-2222-3333-444455556666"
    uid = raw.rpartition("_")[2]
    observed = replace(node(), pod_log_directories=(log_directory(uid, name=raw, modified_s=1e6),))
    saved = parse_plan(save(observed))
    assert raw in {each.id for each in saved.removals}
    assert plans_for_saved(saved, observed, POLICY)[1] == ()


def test_plan_with_invalid_base64_id_is_refused() -> None:
    observed = replace(node(), pod_log_directories=(log_directory("", name="x\udcff"),))
    body = body_of(save(observed))
    (row,) = (each for each in body["decisions"] if "id_base64" in each)
    row["id_base64"] = "%"
    with pytest.raises(ValueError, match="base64"):
        parse_plan(json.dumps(seal(body)))


def test_plan_error_names_the_path_of_a_wrong_value() -> None:
    body = body_of(save(node()))
    body["decisions"][0]["verdict"] = 1
    with pytest.raises(ValueError, match=r"at `\$.decisions\[0\].verdict`"):
        parse_plan(json.dumps(seal(body)))


def test_plan_dated_in_the_first_year_is_not_refused_for_its_date() -> None:
    first = datetime(1, 1, 1, tzinfo=UTC)
    saved = SavedPlan("id", first, NOW + timedelta(hours=1), "here", Scope.ALL, ())
    assert refusal_of(saved, NOW, "here") == ""
