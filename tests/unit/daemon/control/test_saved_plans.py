"""Saved plans over the control API: drift, stricter policies, signatures, and forged plans of a group member."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.api import requests as api
from nodeagent.plan.gc.saved_plan import unseal
from nodeagent.record import replace
from nodeagent.store.plan_key import FILE_NAME, PlanKeyFile
from tests.support.other_user import UNPRIVILEGED_UID

if TYPE_CHECKING:
    from tests.unit.control_node import Node


async def test_saved_plan_is_applied_with_drift_and_refused_once_changed(node: Node) -> None:
    saved = await node.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=600))
    removed = next(iter(node.sim.containers))
    node.sim.remove_container(removed)
    found = (await node.ask("Apply", api.ApplyRequest(plan=json.dumps(saved))))["all"]
    assert found[-1]["schema"] == "nodeagent/report/v1"
    assert [each["id"] for each in found[-1]["drift"]] == [removed]
    changed = json.dumps({**saved, "scope": "all"})
    code, why = await node.refused("Apply", api.ApplyRequest(plan=changed))
    assert (code, "changed since it was saved" in why) == (400, True)


def apply_stricter_policy(node: Node) -> None:
    """Replace the policy of the running agent by one that keeps both dead containers."""
    agent = node.context.agent
    assert agent is not None
    policy = agent.settings.policy
    kept = replace(policy, containers=replace(policy.containers, max_per_pod_container=5))
    node.context.agent = dataclasses.replace(agent, settings=replace(agent.settings, policy=kept))


async def test_plan_older_than_a_stricter_policy_removes_nothing_that_the_policy_keeps(as_actor: Node) -> None:
    saved = await as_actor.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=600))
    assert sum(each["verdict"] == "remove" for each in saved["decisions"]) == 2
    apply_stricter_policy(as_actor)
    report = await as_actor.ask("Apply", api.ApplyRequest(plan=json.dumps(saved)))
    assert report["results"] == []
    assert [each["gone"] for each in report["drift"]] == [False, False]
    assert len(as_actor.sim.containers) == 2


def forged(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a plan that removes all listed items, with the id that matches its content."""
    made: dict[str, Any] = json.loads(json.dumps(plan))
    made["policy"]["images"] |= {"high_threshold_percent": 1, "low_threshold_percent": 0, "minimum_age_s": 0.0}
    made["policy"]["containers"] |= {"max_per_pod_container": 0, "max_containers": 0, "deleted_pod_grace_s": 0.0}
    made["policy"]["containers"]["include_unlabelled"] = True
    for each in made["decisions"]:
        each["verdict"] = "remove"
    content = {key: value for key, value in made.items() if key not in ("id", "mac")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return made | {"id": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}


def signed(plan: dict[str, Any], key: bytes) -> dict[str, Any]:
    content = {name: value for name, value in plan.items() if name != "mac"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return plan | {"mac": f"hmac-sha256:{hmac.new(key, text.encode(), hashlib.sha256).hexdigest()}"}


async def test_peer_reported_by_the_kernel_is_an_unprivileged_member(kept: Node) -> None:
    await kept.ask("Apply", api.ApplyRequest(scope="containers"))
    (logged,) = kept.logged("control_request")
    assert (logged["method"], logged["uid"]) == ("Apply", os.geteuid() or UNPRIVILEGED_UID)
    assert logged["uid"] != 0


@pytest.mark.parametrize("signature", ["kept", "removed", "of another plan", "of a guessed key"])
async def test_plan_forged_by_a_member_is_refused_and_nothing_is_removed(kept: Node, signature: str) -> None:
    before = set(kept.sim.containers) | set(kept.sim.images)
    plan = forged(await kept.ask("Plan", api.PlanRequest(scope="all", lasts_seconds=600)))
    assert {each["id"] for each in plan["decisions"]} >= before
    match signature:
        case "removed":
            plan.pop("mac", None)
        case "of another plan":
            other = await kept.ask("Plan", api.PlanRequest(scope="images", lasts_seconds=600))
            plan |= {name: other[name] for name in ("mac",) if name in other}
        case "of a guessed key":
            plan = signed(plan, bytes(32))
    code, why = await kept.refused("Apply", api.ApplyRequest(plan=json.dumps(plan)))
    assert (code, "create a new plan; nothing was removed" in why) == (400, True), why
    assert set(kept.sim.containers) | set(kept.sim.images) == before


async def test_forged_plan_removes_nothing_that_the_policy_keeps_even_with_the_right_key(kept: Node) -> None:
    before = set(kept.sim.containers) | set(kept.sim.images)
    plan = forged(await kept.ask("Plan", api.PlanRequest(scope="all", lasts_seconds=600)))
    key = PlanKeyFile(kept.context.settings.state_directory).read()
    assert key is not None
    report = await kept.ask("Apply", api.ApplyRequest(plan=json.dumps(signed(plan, key))))
    assert report["results"] == []
    assert {each["id"] for each in report["drift"]} >= before
    assert set(kept.sim.containers) | set(kept.sim.images) == before


async def test_member_cannot_read_the_plan_key(kept: Node) -> None:
    plan = await kept.ask("Plan", api.PlanRequest(scope="all", lasts_seconds=600))
    path = kept.context.settings.state_directory / FILE_NAME
    assert path.stat().st_mode & 0o7777 == 0o600
    assert path.stat().st_uid == os.geteuid()
    assert path.read_text().strip() not in json.dumps(plan)


async def test_plan_is_refused_while_its_key_is_replaced(node: Node) -> None:
    saved = await node.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=600))
    path = node.context.settings.state_directory / FILE_NAME
    key = path.read_text()
    path.unlink()
    code, why = await node.refused("Apply", api.ApplyRequest(plan=json.dumps(saved)))
    assert (code, "or the key was replaced since" in why) == (400, True)
    path.write_text(key)
    report = (await node.ask("Apply", api.ApplyRequest(plan=json.dumps(saved))))["all"][-1]
    assert len(report["results"]) == 2


async def test_plans_are_signed_with_a_key_in_memory_while_the_key_file_is_unusable(node: Node) -> None:
    state = node.context.settings.state_directory
    state.mkdir(exist_ok=True)
    (state / FILE_NAME).write_text("ab" * 32)
    (state / FILE_NAME).chmod(0o644)
    saved = await node.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=600))
    with pytest.raises(ValueError, match="the signature does not match"):
        unseal(json.dumps(saved), bytes.fromhex("ab" * 32))
    report = (await node.ask("Apply", api.ApplyRequest(plan=json.dumps(saved))))["all"][-1]
    assert len(report["results"]) == 2
    (warned,) = node.logged("plan_key_unavailable")
    assert "mode 0644 gives access to others" in warned["error"]
