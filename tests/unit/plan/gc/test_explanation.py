"""Explanations: agreement with the plan, and the condition of a removal."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from nodeagent.model import ContainerState, Hold, NodeSnapshot, ReferenceKind
from nodeagent.plan.decision import ReasonCode, Verdict
from nodeagent.plan.gc.explanation import Explanation, explain
from nodeagent.plan.gc.image_protection import ProtectionPolicy, parse_rule
from nodeagent.plan.gc.images import ImageGCPolicy
from nodeagent.plan.gc.planner import GCPolicy, plan_all
from tests.unit.builders import (
    DAY_S,
    MIB,
    NOW,
    ago,
    container,
    filesystem,
    graph,
    image,
    log_directory,
    piece,
    sandbox,
    snapshot,
    used,
)

POLICY = GCPolicy()


def node(used_percent: int = 50, **fields: object) -> NodeSnapshot:
    pieces = [
        piece("base", 30),
        piece("own-a", 5),
        piece("own-b", 7),
        piece("leased", 2, references=[ReferenceKind.LEASE]),
    ]
    return snapshot(
        (image("a", "r.example/a:1", "r.example/a:latest"), used(3 * DAY_S, seen_s=9 * DAY_S)),
        (image("b", "r.example/b:1"), used(2 * DAY_S, seen_s=9 * DAY_S)),
        (image("young", "r.example/young:1"), used(None, seen_s=30)),
        (image("busy", "r.example/busy:1", pinned=True), used(0)),
        containers=(
            container("run", pod="web", state=ContainerState.RUNNING, image_ref="busy"),
            container("dead1", pod="web", created_s=9000, attempt=1),
            container("dead2", pod="web", created_s=8000, attempt=2),
        ),
        sandboxes=(sandbox("web", ready=True),),
        pod_log_directories=(log_directory("uid-web"),),
        image_filesystem=filesystem(used_percent),
        storage=graph(pieces, {"a": ["base", "own-a", "leased"], "b": ["base", "own-b"]}),
        **fields,
    )


def one(query: str, observed: NodeSnapshot | None = None, policy: GCPolicy = POLICY) -> Explanation:
    observed = observed or node()
    (found,) = explain(observed, policy, plan_all(observed, policy).plans, query)
    return found


def test_explanation_of_image_below_the_threshold_states_the_usage_at_removal() -> None:
    first, second = one("r.example/a:1"), one("r.example/b:1")
    assert first.decision.reason.code is ReasonCode.BELOW_HIGH_THRESHOLD
    assert first.when == "once imagefs is 85% full, 350 MiB more than now; it would be removed first"
    assert "removing the 1 unused less recently" in second.when
    assert (first.position, second.position, first.positions) == (2, 3, 4)
    assert first.names == ("r.example/a:1", "r.example/a:latest", "a")
    assert first.last_used == ago(3 * DAY_S)


def test_shared_bytes_are_listed_with_the_other_images() -> None:
    sharing = one("a:1", snapshot((image("x", "a:1"), used(1)), image_filesystem=filesystem(10))).sharing
    assert sharing is None
    sharing = one("r.example/a:1").sharing
    assert sharing is not None
    assert (sharing.unique_bytes, sharing.shared_bytes) == (5 * MIB, 32 * MIB)
    assert sharing.with_images == (("r.example/b:1", 30 * MIB),)
    assert sharing.held_by == ("lease",)


def test_image_in_use_has_its_users_and_further_keep_reasons() -> None:
    busy = one("r.example/busy:1")
    assert busy.decision.reason.code is ReasonCode.IN_USE_BY_CONTAINER
    assert busy.users == ("container shop/web/app (running)",)
    assert [each.code for each in busy.also] == [ReasonCode.PINNED]
    assert busy.when.startswith("once unreferenced")


def test_image_kept_by_age_or_hold_has_its_time_of_eligibility() -> None:
    young = one("r.example/young:1", node(95))
    assert young.decision.reason.code is ReasonCode.TOO_YOUNG
    assert young.eligible_at == NOW + timedelta(seconds=90)
    hold = Hold("1", "r.example/a:1", "why", "me", NOW, NOW + timedelta(hours=2))
    on_hold = one("r.example/a:1", node(95, holds=(hold,)))
    assert (on_hold.decision.reason.code, on_hold.eligible_at) == (ReasonCode.HELD, hold.until)
    policy = replace(POLICY, images=ImageGCPolicy(maximum_unused_age_s=5 * DAY_S))
    assert one("r.example/a:1", policy=policy).eligible_at == ago(3 * DAY_S) + timedelta(days=5)


def test_image_of_unobserved_age_has_its_time_of_eligibility() -> None:
    policy = replace(POLICY, images=ImageGCPolicy(maximum_unused_age_s=DAY_S))
    found = one("r.example/b:1", node(image_use_observed_since=ago(3600)), policy)
    assert found.decision.reason.code is ReasonCode.AGE_NOT_OBSERVED
    assert found.eligible_at == NOW + timedelta(hours=23)
    assert found.when == (
        "once image use has been observed for 1d without a gap, if unused until then; or once imagefs is 85% "
        "full, 350 MiB more than now, and removing the 1 unused less recently (5.00 MiB) is not enough"
    )
    off = replace(policy, images=replace(policy.images, high_threshold_percent=100))
    found = one("r.example/b:1", node(image_use_observed_since=ago(3600)), off)
    assert found.when == "once image use has been observed for 1d without a gap, if unused until then"
    assert one("r.example/b:1", node(image_use_observed_since=None), policy).eligible_at is None


def test_time_of_removal_by_age_counts_from_the_observation() -> None:
    policy = replace(POLICY, images=ImageGCPolicy(maximum_unused_age_s=10 * DAY_S))
    found = one("r.example/a:1", node(image_use_observed_since=ago(DAY_S)), policy)
    assert found.decision.reason.code is ReasonCode.BELOW_HIGH_THRESHOLD
    assert found.eligible_at == ago(DAY_S) + timedelta(days=10)
    assert one("r.example/a:1", node(image_use_observed_since=None), policy).eligible_at is None


def test_removal_has_its_number_in_the_next_pass() -> None:
    removal = one("r.example/b:1", node(99))
    assert removal.decision.verdict is Verdict.REMOVE
    assert removal.when == "in the next pass, as number 2 of 2"


def test_protected_image_has_its_rule() -> None:
    policy = GCPolicy(images=ImageGCPolicy(protection=ProtectionPolicy((parse_rule("r.example/a"),))))
    kept = one("r.example/a:1", node(95), policy)
    assert kept.decision.reason.details["rule"] == "r.example/a"
    assert kept.when == "not while the rule is in protect.images"


@pytest.mark.parametrize("query", ["web", "shop/web", "uid-web"])
def test_pod_matches_its_containers_sandboxes_and_logs(query: str) -> None:
    observed = node()
    found = explain(observed, POLICY, plan_all(observed, POLICY).plans, query)
    assert [each.decision.kind.value for each in found] == [
        "container",
        "container",
        "container",
        "sandbox",
        "pod-log-directory",
    ]
    assert all(each.pod is not None and not each.pod.deleted for each in found)


@pytest.mark.parametrize("query", ["dead1", "shop/web/app", "web/app", "app"])
def test_containers_are_found_by_id_and_by_name(query: str) -> None:
    observed = node()
    found = explain(observed, POLICY, plan_all(observed, POLICY).plans, query)
    ids = [each.decision.id for each in found]
    assert ids == (["dead1"] if query == "dead1" else ["run", "dead1", "dead2"])
    verdicts = {each.decision.id: each.decision.verdict for each in found}
    assert verdicts["dead1"] is Verdict.REMOVE


def test_unknown_item_has_no_explanation() -> None:
    observed = node()
    assert explain(observed, POLICY, plan_all(observed, POLICY).plans, "nothing") == ()
