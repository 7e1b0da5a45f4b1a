"""Saved plans over the control API: drift, stricter policies, and forged plans of a group member."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from nodeagent.api import requests as api
from nodeagent.gc.agent import open_agent
from nodeagent.record import replace
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


async def test_plan_older_than_a_stricter_policy_removes_nothing_that_the_policy_keeps(as_actor: Node) -> None:
    saved = await as_actor.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=600))
    assert sum(each["verdict"] == "remove" for each in saved["decisions"]) == 2
    settings = as_actor.context.settings
    containers = replace(settings.policy.containers, max_per_pod_container=5)
    stricter = replace(settings, policy=replace(settings.policy, containers=containers))
    async with open_agent(stricter, record=True, dry_run=False) as agent:
        as_actor.context.agent = agent
        report = await as_actor.ask("Apply", api.ApplyRequest(plan=json.dumps(saved)))
    assert report["results"] == []
    assert [each["gone"] for each in report["drift"]] == [False, False]
    assert len(as_actor.sim.containers) == 2


def forged(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a plan that removes all listed items, with the id that matches its content."""
    made: dict[str, Any] = json.loads(json.dumps(plan))
    for each in made["decisions"]:
        each["verdict"] = "remove"
    content = {key: value for key, value in made.items() if key != "id"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return made | {"id": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}


async def test_peer_reported_by_the_kernel_is_an_unprivileged_member(kept: Node) -> None:
    await kept.ask("Apply", api.ApplyRequest(scope="containers"))
    (logged,) = kept.logged("control_request")
    assert (logged["method"], logged["uid"]) == ("Apply", os.geteuid() or UNPRIVILEGED_UID)
    assert logged["uid"] != 0


async def test_plan_forged_by_a_member_removes_nothing_that_the_policy_keeps(kept: Node) -> None:
    before = set(kept.sim.containers) | set(kept.sim.images)
    plan = forged(await kept.ask("Plan", api.PlanRequest(scope="all", lasts_seconds=600)))
    assert {each["id"] for each in plan["decisions"]} >= before
    report = await kept.ask("Apply", api.ApplyRequest(plan=json.dumps(plan)))
    assert report["results"] == []
    assert {each["id"] for each in report["drift"]} >= before
    assert set(kept.sim.containers) | set(kept.sim.images) == before
