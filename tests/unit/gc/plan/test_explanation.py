"""Explanations of items: consistent with the plan, with the condition of a later removal."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nodeagent.gc.pass_state import plans_by_loop
from nodeagent.gc.plan.explanation import Explanation, condition_of, explain, image_condition
from nodeagent.gc.plan.image_protection import ProtectionPolicy, parse_rule
from nodeagent.gc.plan.planner import plan_all
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy
from nodeagent.model.decision import Reason, ReasonCode, Verdict
from nodeagent.model.node import Hold, NodeSnapshot
from nodeagent.model.runtime import ContainerState, ReferenceKind
from nodeagent.record import replace
from nodeagent.text import escape
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
    assert first.when == "once imagefs is 85% full, 340 MiB more than now; it would be removed first"
    assert "removing the 1 less recently used (5.00 MiB) is not enough" in second.when
    assert (first.position, second.position, first.positions) == (1, 2, 2)
    assert first.names == ("r.example/a:1", "r.example/a:latest", "a")
    assert first.last_used == ago(3 * DAY_S)


def test_shared_bytes_are_listed_with_the_other_images() -> None:
    sharing = one("a:1", snapshot((image("x", "a:1"), used(1)), image_filesystem=filesystem(10))).sharing
    assert sharing is None
    sharing = one("r.example/a:1").sharing
    assert sharing is not None
    assert (sharing.unique_bytes, sharing.shared_bytes) == (5 * MIB, 32 * MIB)
    assert sharing.with_images == (("r.example/b:1", 30 * MIB),)
    assert sharing.with_others == (("lease", 2 * MIB),)


def test_image_in_use_has_its_users_and_further_keep_reasons() -> None:
    busy = one("r.example/busy:1")
    assert busy.decision.reason.code is ReasonCode.IN_USE_BY_CONTAINER
    assert busy.users == ("container shop/web/app attempt 0 run (running)",)
    assert [each.code for each in busy.also] == [ReasonCode.PINNED]
    assert busy.when == "never while it is pinned in the runtime"
    assert busy.eligible_at is None


def test_sandbox_image_is_never_removable_although_its_sandboxes_can_end() -> None:
    observed = snapshot(
        (image("p", "registry.k8s.io/pause:3.9"), used(0)),
        sandboxes=(sandbox("web", ready=True, image="p"),),
        sandbox_images=("registry.k8s.io/pause:3.9",),
        image_filesystem=filesystem(95),
    )
    found = one("registry.k8s.io/pause:3.9", observed)
    assert found.decision.reason.code is ReasonCode.IN_USE_BY_SANDBOX
    assert found.when == "never while it is the sandbox image"


def test_image_of_dead_containers_states_their_planned_removal() -> None:
    dead = [
        container(f"dead{attempt}", pod="job", created_s=9000 - attempt, attempt=attempt, image_ref="a")
        for attempt in (1, 0, 2)
    ]
    observed = snapshot(
        (image("a", "r.example/a:1"), used(DAY_S)),
        containers=tuple(dead),
        sandboxes=(sandbox("job", ready=True),),
        image_filesystem=filesystem(50),
    )
    policy = replace(POLICY, containers=replace(POLICY.containers, max_per_pod_container=0))
    plans = plans_by_loop(observed, policy)
    (found,) = explain(observed, policy, plans, "r.example/a:1")
    assert found.decision.reason.code is ReasonCode.IN_USE_BY_CONTAINER
    assert found.also == (), "the planned removal of the containers causes no second verdict"
    assert found.when.startswith("once container GC has removed its dead containers; then when imagefs is 85% full")
    assert found.users == tuple(
        f"container shop/job/app attempt {attempt} dead{attempt} (exited, removed by container GC)"
        for attempt in (2, 1, 0)
    )
    (kept,) = explain(observed, POLICY, plans_by_loop(observed, POLICY), "r.example/a:1")
    assert kept.when.startswith("once it is unreferenced; ")


def test_conditions_of_several_reasons_are_all_stated() -> None:
    hold = Hold("1", "r.example/a:1", "why", "me", NOW, NOW + timedelta(hours=2))
    observed = node(95, holds=(hold,))
    used_too = replace(observed, containers=(container("c", pod="web", state=ContainerState.RUNNING, image_ref="a"),))
    found = one("r.example/a:1", used_too)
    assert found.when.startswith("once it is unreferenced and the hold has ended; then when imagefs is 85% full")
    assert found.eligible_at is None, "the image is not removable at the end of the hold alone"


def test_freed_bytes_are_stated_alone_and_within_the_plan() -> None:
    alone, second = one("r.example/a:1", node(99)), one("r.example/b:1", node(99))
    assert (alone.frees_alone_bytes, alone.decision.frees_bytes, alone.removals_before) == (5 * MIB, 5 * MIB, 0)
    assert (second.frees_alone_bytes, second.decision.frees_bytes, second.removals_before) == (7 * MIB, 37 * MIB, 1)


_REMOVED = frozenset(
    {
        ReasonCode.LEAST_RECENTLY_USED,
        ReasonCode.UNTAGGED_FIRST,
        ReasonCode.UNUSED_TOO_LONG,
        ReasonCode.COLLECT_AHEAD,
        ReasonCode.ALL_UNUSED,
        ReasonCode.EVICTION_THRESHOLD_MET,
        ReasonCode.IRREPLACEABLE_LAST,
        ReasonCode.IRREPLACEABLE_UNUSED,
        ReasonCode.POD_DELETED,
        ReasonCode.POD_FINISHED,
        ReasonCode.OVER_PER_CONTAINER_LIMIT,
        ReasonCode.OVER_TOTAL_LIMIT,
        ReasonCode.SANDBOX_SUPERSEDED,
        ReasonCode.LINK_TARGET_MISSING,
    }
)
_CODES = list(ReasonCode)
_LAST_OF_IMAGES = _CODES.index(ReasonCode.NOT_IN_PLAN)
_LAST_OF_LOGS = _CODES.index(ReasonCode.UNREFERENCED)


@pytest.mark.parametrize("code", [each for each in _CODES[: _LAST_OF_IMAGES + 1] if each not in _REMOVED])
def test_every_reason_to_keep_an_image_has_a_condition(code: ReasonCode) -> None:
    policy = ImageGCPolicy(maximum_unused_age_s=DAY_S)
    for order in ("in order of use", ""):
        for each in (policy, ImageGCPolicy()):
            assert image_condition([Reason(code)], each, by_use="by use", users_removed=False, order=order)


@pytest.mark.parametrize("code", [each for each in _CODES[_LAST_OF_IMAGES:_LAST_OF_LOGS] if each not in _REMOVED])
def test_every_reason_to_keep_a_container_sandbox_or_log_has_a_condition(code: ReasonCode) -> None:
    assert condition_of(Reason(code))


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
        "full, 340 MiB more than now, and removing the 1 less recently used (5.00 MiB) is not enough"
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
    assert kept.when == "never while it is matched by protect.images"


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
    assert ids == (["dead1"] if query == "dead1" else ["dead2", "dead1", "run"])
    verdicts = {each.decision.id: each.decision.verdict for each in found}
    assert verdicts["dead1"] is Verdict.REMOVE


@pytest.mark.parametrize("name", ["r.example/\x1b[31m\u202e:1", "ns/p\nod", "logs\udcff_x"])
def test_item_is_found_by_its_name_as_displayed(name: str) -> None:
    observed = snapshot(
        (image("a", "r.example/\x1b[31m\u202e:1"), used(3 * DAY_S)),
        sandboxes=(replace(sandbox("web"), namespace="ns", name="p\nod"),),
        pod_log_directories=(replace(log_directory("uid-web"), name="logs\udcff_x"),),
        image_filesystem=filesystem(50),
    )
    plans = plan_all(observed, POLICY).plans
    found = explain(observed, POLICY, plans, name)
    assert found
    assert explain(observed, POLICY, plans, escape(name)) == found
    assert explain(observed, POLICY, plans, escape(name) + "x") == ()


def test_unknown_item_has_no_explanation() -> None:
    observed = node()
    assert explain(observed, POLICY, plan_all(observed, POLICY).plans, "nothing") == ()
