"""Sandbox GC: removed and kept sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.gc.plan.containers import plan_sandbox_gc
from nodeagent.gc.plan.policy import SandboxGCPolicy
from nodeagent.model.node import Role
from nodeagent.pods.plan.deletion import check_pods
from nodeagent.record import replace
from nodeagent.settings.settings import Config
from tests.unit.builders import codes, container, decided, kubelet_list, removed, sandbox, snapshot

if TYPE_CHECKING:
    from nodeagent.model.decision import Plan

BESIDE: dict[str, Any] = {"role": Role.BESIDE_KUBELET}


def plan_for(policy: SandboxGCPolicy | None = None, *, fields: dict[str, Any], **rest: Any) -> Plan:
    node = snapshot(**fields)
    return plan_sandbox_gc(node, policy or SandboxGCPolicy(), statuses=check_pods(node, 300), **rest)


@pytest.mark.difference("unlabelled-items", "unknown-creation-time")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param({}, "pod-deleted", id="deleted"),
        pytest.param({"ready": True}, "sandbox-ready", id="ready"),
        pytest.param({"labelled": False}, "not-kubelet-managed", id="unlabelled"),
        pytest.param({"created_s": None}, "age-unknown", id="no creation time"),
        pytest.param({"created_s": 3999}, "created-recently", id="too young"),
        pytest.param({"created_s": 4000}, "pod-deleted", id="exactly the minimum age"),
        pytest.param({"created_s": -1}, "created-recently", id="created in the future"),
    ],
)
def test_only_old_inactive_sandbox_of_a_deleted_pod_is_removed(change: dict[str, Any], code: str) -> None:
    plan = plan_for(SandboxGCPolicy(minimum_age_s=4000), fields={"sandboxes": (sandbox(**change),)})
    assert codes(plan) == {"sb-web": code}
    assert plan.decisions[0].reason.sentence


@pytest.mark.difference("sandbox-minimum-age")
@pytest.mark.parametrize(("age_s", "code"), [(59.9, "created-recently"), (60, "pod-deleted")])
def test_sandbox_is_kept_for_a_minute_by_default(age_s: float, code: str) -> None:
    policy = Config().settings().policy.sandboxes
    assert policy == SandboxGCPolicy()
    node = snapshot(sandboxes=(sandbox(created_s=age_s),))
    plan = plan_sandbox_gc(node, policy, statuses=check_pods(node, 0))
    assert codes(plan) == {"sb-web": code}


def test_sandbox_with_a_container_in_any_state_is_kept() -> None:
    plan = plan_for(fields={"sandboxes": (sandbox(),), "containers": (container("c"),)})
    assert decided(plan, "sb-web").reason.sentence == "still has 1 container(s)"


def test_sandbox_is_removed_after_its_containers() -> None:
    fields = {"sandboxes": (sandbox(),), "containers": (container("c"),)}
    assert removed(plan_for(fields=fields, removed_containers=frozenset({"c"}))) == ["sb-web"]


def test_newest_sandbox_of_a_pod_is_kept_ready_or_not() -> None:
    sandboxes = (
        sandbox(sandbox_id="old", created_s=900),
        sandbox(sandbox_id="mid", created_s=800),
        sandbox(sandbox_id="new", created_s=700),
    )
    plan = plan_for(fields=BESIDE | {"sandboxes": sandboxes})
    assert removed(plan) == ["old", "mid"]
    assert codes(plan)["new"] == "newest-of-pod"
    assert (
        decided(plan, "old").reason.sentence == "not ready, without containers, and a newer sandbox of the pod exists"
    )
    ready = (*sandboxes[:2], replace(sandboxes[2], ready=True))
    assert removed(plan_for(fields=BESIDE | {"sandboxes": ready})) == ["old", "mid"]


def test_older_ready_sandbox_does_not_supersede_the_newest() -> None:
    sandboxes = (sandbox(sandbox_id="old", ready=True, created_s=900), sandbox(sandbox_id="new", created_s=800))
    assert codes(plan_for(fields={"sandboxes": sandboxes})) == {"old": "sandbox-ready", "new": "newest-of-pod"}


def test_sandbox_without_creation_time_does_not_count_as_newer() -> None:
    sandboxes = (sandbox(sandbox_id="known"), sandbox(sandbox_id="unknown", created_s=None))
    assert codes(plan_for(fields={"sandboxes": sandboxes})) == {"known": "newest-of-pod", "unknown": "age-unknown"}


def test_sandboxes_of_finished_pods_are_removed_only_when_disk_space_is_needed() -> None:
    fields = {"sandboxes": (sandbox(),), "pod_list": kubelet_list("uid-web")}
    assert codes(plan_for(fields=fields)) == {"sb-web": "newest-of-pod"}
    assert codes(plan_for(fields=fields, evict_non_deleted_pods=True)) == {"sb-web": "pod-finished"}


def test_unlabelled_sandboxes_can_be_included() -> None:
    plan = plan_for(SandboxGCPolicy(include_unlabelled=True), fields={"sandboxes": (sandbox(labelled=False),)})
    assert removed(plan) == ["sb-web"]


def test_sandbox_without_pod_counts_as_the_newest_of_its_pod() -> None:
    lone = replace(sandbox(labelled=False), uid="", name="")
    plan = plan_for(SandboxGCPolicy(include_unlabelled=True), fields={"sandboxes": (lone,)})
    assert codes(plan) == {"sb-web": "newest-of-pod"}
    assert plan.decisions[0].name == "sb-web"


def test_removals_are_ordered_oldest_first() -> None:
    sandboxes = (sandbox("a", created_s=500), sandbox("b", created_s=900), sandbox("c", created_s=700))
    assert removed(plan_for(fields={"sandboxes": sandboxes})) == ["sb-b", "sb-c", "sb-a"]
