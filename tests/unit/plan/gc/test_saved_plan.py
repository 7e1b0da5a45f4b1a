"""Saved plans: encoding, signature, drift, comparison, and the limits of their application."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.act.gc.preview import plans_for_saved
from nodeagent.api.codec import encode
from nodeagent.api.saved_plan import encode_saved_plan
from nodeagent.plan.decision import Verdict
from nodeagent.plan.gc.image_protection import ProtectionPolicy, parse_rule
from nodeagent.plan.gc.planner import plan_all
from nodeagent.plan.gc.policy import ContainerGCPolicy, GCPolicy, ImageGCPolicy
from nodeagent.plan.gc.saved_plan import (
    SavedPlan,
    compare,
    decode_policy,
    encode_policy,
    find_drift,
    parse_plan,
    plan_id,
    refusal_of,
    seal,
    snapshot_digest,
    unseal,
)
from nodeagent.plan.gc.scope import Scope
from nodeagent.record import replace
from tests.unit.builders import NOW, container, filesystem, image, log_directory, sandbox, snapshot, used

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.model import NodeSnapshot

KEY = bytes(range(32))
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


def save(observed: NodeSnapshot, policy: GCPolicy = POLICY, key: bytes | None = KEY) -> str:
    plans = plan_all(observed, policy).plans
    return encode(
        encode_saved_plan(
            "all", observed, plans, policy, node="here", expires_at=NOW.replace(year=2999), agent_version="1", key=key
        ),
        "json",
    )


def test_saved_plan_round_trip_keeps_removals_policy_and_time() -> None:
    observed = node()
    plans = plan_all(observed, POLICY).plans
    saved = unseal(save(observed), KEY)
    assert [(each.kind, each.id) for each in saved.removals] == [
        (each.kind, each.id) for plan in plans for each in plan.removals
    ]
    assert len(saved.items) == sum(len(plan.decisions) for plan in plans)
    assert (saved.policy, saved.scope, saved.node, saved.made_at) == (POLICY, Scope.ALL, "here", observed.observed_at)
    assert find_drift(saved, plans) == ()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace('"here"', '"there"'), id="another node"),
        pytest.param(lambda text: text.replace('"remove"', '"keep"', 1), id="a verdict"),
        pytest.param(lambda text: text.replace("sha256:", "sha256:0", 1), id="the id"),
        pytest.param(lambda text: text.replace("plan/v1", "plan/v2"), id="a newer schema"),
        pytest.param(lambda text: text[:-20], id="truncated"),
        pytest.param(lambda _: "[]", id="not a plan"),
        pytest.param(lambda _: '{"schema": "nodeagent/preview/v1"}', id="another document"),
    ],
)
def test_changed_plan_is_refused(change: object) -> None:
    assert callable(change)
    with pytest.raises(ValueError, match=r"not JSON|not a plan|schema|changed since"):
        unseal(change(save(node())), KEY)


def forge(text: str, change: Callable[[dict[str, Any]], None]) -> str:
    """Return a changed plan document with a matching id, which any user can compute without the plan key."""
    document = json.loads(text)
    change(document)
    content = {name: value for name, value in document.items() if name not in ("id", "mac")}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps(document | {"id": f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"})


def lower_ages(document: dict[str, Any]) -> None:
    document["policy"]["images"] |= {"minimum_age_s": 0, "high_threshold_percent": 1}


def remove_everything(document: dict[str, Any]) -> None:
    for each in document["decisions"]:
        each["verdict"] = "remove"


FORGERIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "policy": lower_ages,
    "verdicts": remove_everything,
    "expiry": lambda document: document.update(expires_at="9999-01-01T00:00:00+00:00"),
    "node": lambda document: document.update(node="there"),
    "mac of another type": lambda document: document.update(mac=[1]),
    "mac that is not ASCII": lambda document: document.update(mac="hmac-sha256:\ud800é"),
    "empty mac": lambda document: document.update(mac=""),
    "further field": lambda document: document.update(extra=1),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_plan_with_a_matching_id_is_rejected(name: str) -> None:
    text = forge(save(node()), FORGERIES[name])
    assert parse_plan(text).id, "the text is a valid plan apart from the signature"
    with pytest.raises(ValueError, match=r"the signature does not match this node's plan key.*create a new plan"):
        unseal(text, KEY)


def test_plan_signed_with_another_key_is_refused() -> None:
    with pytest.raises(ValueError, match="is from another node or state directory, or the key was replaced"):
        unseal(save(node()), bytes(32))


@pytest.mark.parametrize(
    ("text", "key", "why"),
    [
        pytest.param(save(node(), key=None), KEY, "the plan is not signed.*create a new plan", id="unsigned"),
        pytest.param(save(node(), key=None), None, "the plan is not signed", id="unsigned without a key"),
        pytest.param(save(node()), None, "has no plan key.*create a new plan", id="no key"),
    ],
)
def test_plan_that_cannot_be_verified_is_refused(text: str, key: bytes | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unseal(text, key)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"schema": "nodeagent/plan/v1", "a": ' + "[" * 100_000,
        '{"schema": "nodeagent/plan/v1", "policy": NaN}',
        '{"schema": "nodeagent/plan/v1", "policy": ' + "1" * 5000 + "}",
    ],
)
def test_document_that_is_not_a_plan_raises_value_error(text: str) -> None:
    for read in (parse_plan, lambda each: unseal(each, KEY)):
        with pytest.raises(ValueError, match="not JSON"):
            read(text)


def test_signed_plan_of_leaks_is_refused() -> None:
    body = {name: value for name, value in json.loads(save(node())).items() if name not in ("schema", "id", "mac")}
    with pytest.raises(ValueError, match="scope leaks cannot be saved"):
        unseal(json.dumps(seal(body | {"scope": "leaks"}, KEY)), KEY)


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()))
def test_signature_is_unchanged_by_a_json_round_trip(body: dict[str, Any]) -> None:
    """Sign arbitrary content again after a JSON round trip: the canonical form does not depend on formatting."""
    sealed = seal({name: value for name, value in body.items() if name not in ("schema", "id", "mac")}, KEY)
    again = json.loads(json.dumps(sealed, indent=2, ensure_ascii=False))
    again.pop("schema"), again.pop("id"), again.pop("mac")
    assert seal(again, KEY) == sealed


@given(st.integers(0, 10**9), st.floats(0, 1e9), st.integers(-1, 50), st.booleans())
def test_policy_is_unchanged_by_a_json_round_trip(size: int, age_s: float, limit: int, unlabelled: bool) -> None:
    policy = GCPolicy(
        images=replace(POLICY.images, max_bytes_per_pass=size, minimum_age_s=age_s),
        containers=ContainerGCPolicy(max_containers=limit, include_unlabelled=unlabelled),
    )
    assert decode_policy(json.loads(json.dumps(encode_policy(policy)))) == policy


@pytest.mark.parametrize("key", ["images.minimum_age_s", "containers.max_containers", "logs.minimum_age_s"])
@pytest.mark.parametrize("value", [None, "1", True, [1]])
def test_policy_setting_of_another_type_is_refused(key: str, value: object) -> None:
    document = encode_policy(POLICY)
    section, name = key.split(".")
    inner = document[section]
    assert isinstance(inner, dict)
    inner[name] = value
    with pytest.raises((TypeError, ValueError)):
        decode_policy(document)


NAMES = ("a", "b", "c", "old", "new", "deleted")


@given(st.sets(st.sampled_from(NAMES)), st.integers(0, 100), st.sets(st.sampled_from(NAMES)))
def test_listed_items_are_either_removed_or_reported_as_drift(
    before: set[str], used_percent: int, after: set[str]
) -> None:
    saved = unseal(save(node(*before)), KEY)
    listed = {item.id for item in saved.removals}
    plans = plan_all(node(*after, used_percent=used_percent), POLICY, only=frozenset(listed)).plans
    removed = {each.id for plan in plans for each in plan.removals}
    drift = {each.item.id for each in find_drift(saved, plans)}
    assert removed | drift == listed
    assert not removed & drift
    assert all(each.gone == (each.item.id in after) for each in find_drift(saved, plans) if each.item.id in NAMES)


def test_dead_container_is_removed_although_a_newer_one_is_not_listed() -> None:
    saved = unseal(save(node()), KEY)
    assert "old" in {item.id for item in saved.removals}
    plans = plan_all(node(), POLICY, only=frozenset({"old"})).plans
    assert [each.id for plan in plans for each in plan.removals] == ["old"]


def test_plan_less_strict_than_policy_in_force_removes_only_items_of_that_policy() -> None:
    """Apply a plan of a less strict policy: a saved or forged plan can only restrict the removals of the policy."""
    loose = replace(POLICY, images=replace(POLICY.images, minimum_age_s=0, high_threshold_percent=1))
    saved = unseal(save(node(), loose), KEY)
    assert {"a", "b", "c"} <= {item.id for item in saved.removals}
    now = replace(POLICY, images=ImageGCPolicy(protection=ProtectionPolicy((parse_rule("r.example/a"),))))
    in_force, plans = plans_for_saved(saved, node(used_percent=84), now)
    assert not {"a", "b", "c"} & {each.id for plan in plans for each in plan.removals}
    why = {each.item.id: each.why for each in find_drift(saved, (*in_force, *plans))}
    assert "protected by" in why["a"]
    assert "below the high threshold 85%" in why["b"]


def test_plan_stricter_than_policy_in_force_keeps_its_kept_items() -> None:
    strict = replace(POLICY, containers=replace(POLICY.containers, max_per_pod_container=5))
    saved = unseal(save(node(), strict), KEY)
    listed = {item.id for item in saved.removals}
    assert "deleted" in listed
    assert "old" not in listed
    _, plans = plans_for_saved(saved, node(), POLICY)
    assert {each.id for plan in plans for each in plan.removals} <= listed


def both(one: NodeSnapshot, other: NodeSnapshot) -> tuple[SavedPlan, SavedPlan]:
    return parse_plan(save(one, key=None)), parse_plan(save(other))


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


def test_snapshot_digest_depends_on_items_and_not_on_time() -> None:
    one = node()
    assert snapshot_digest(one) == snapshot_digest(replace(node(), observed_at=NOW.replace(year=2999)))
    assert snapshot_digest(one) != snapshot_digest(node("a"))
    plans = plan_all(one, POLICY).plans
    assert plan_id(Scope.ALL, one, plans) != plan_id(Scope.IMAGES, one, plans)


def test_file_name_that_is_not_utf_8_is_restored_from_plan() -> None:
    raw = "ns\udcff_pod_0a1b2c3d-1111-2222-3333-444455556666"
    uid = raw.rpartition("_")[2]
    observed = replace(node(), pod_log_directories=(log_directory(uid, name=raw, modified_s=1e6),))
    saved = unseal(save(observed), KEY)
    assert raw in {each.id for each in saved.removals}
    plans = plan_all(observed, POLICY, only=frozenset(each.id for each in saved.removals)).plans
    assert find_drift(saved, plans) == ()


def test_plan_with_invalid_base64_id_is_refused() -> None:
    observed = replace(node(), pod_log_directories=(log_directory("", name="x\udcff"),))
    document = json.loads(save(observed))
    (row,) = (each for each in document["decisions"] if "id_base64" in each)
    row["id_base64"] = "%"
    del document["id"], document["schema"], document["mac"]
    with pytest.raises(ValueError, match="base64"):
        unseal(json.dumps(seal(document, KEY)), KEY)


@pytest.mark.parametrize("section", ["images", "images.protection", "containers", "logs"])
def test_policy_with_a_missing_or_unknown_setting_is_refused(section: str) -> None:
    for further in (True, False):
        inner = document = encode_policy(POLICY)
        for name in section.split("."):
            inner = inner[name]
        inner |= {"further": 1} if further else {}
        if not further:
            del inner[min(inner.keys() - {"irreplaceable"})]
        with pytest.raises(ValueError, match="missing"):
            decode_policy(document)


def test_plan_error_names_the_path_of_a_wrong_value() -> None:
    body = {name: value for name, value in json.loads(save(node())).items() if name not in ("schema", "id", "mac")}
    body["decisions"][0]["verdict"] = 1
    with pytest.raises(ValueError, match=r"at `\$.decisions\[0\].verdict`"):
        unseal(json.dumps(seal(body, KEY)), KEY)


def test_plan_dated_in_the_first_year_is_not_refused_for_its_date() -> None:
    first = datetime(1, 1, 1, tzinfo=UTC)
    saved = SavedPlan("id", first, NOW + timedelta(hours=1), "here", Scope.ALL, POLICY, ())
    assert refusal_of(saved, NOW, "here") == ""
