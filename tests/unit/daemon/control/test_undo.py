"""Undo of image removals through the control API and the command, on a simulated node."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from nodeagent.api import requests as api
from nodeagent.gc.pass_state import Preview
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import ImageGCPolicy, Scope
from nodeagent.record import replace
from tests.sim.content import Layer
from tests.unit.control_node import MEMBER, Node, say, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.gc.agent import Agent

UNUSED = "registry.example.com/unused:v1"


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    async with serving(tmp_path, extra='[image_gc]\nsettle = "0s"\n') as made:
        made.sim.add_image(UNUSED, layers=[Layer("unused", 1 << 20)])
        monkeypatch.setattr("nodeagent.config.files.DEFAULT_PATH", made.config)
        monkeypatch.setattr("nodeagent.config.paths.CONFIG_FILE", str(made.config))
        monkeypatch.setattr("os.geteuid", lambda: 0)
        yield made


def agent_of(node: Node) -> Agent:
    agent = node.context.agent
    assert agent is not None
    return agent


async def remove_unused(node: Node) -> str:
    """Run a pass that removes the unused image; return the id of the pass."""
    agent = agent_of(node)
    snapshot = (await agent.collector.preview(Scope.IMAGES)).snapshot
    plan = plan_image_gc(snapshot, ImageGCPolicy(minimum_age_s=0), remove_all_unused=True)
    preview = Preview(Scope.IMAGES, snapshot, (replace(plan, ends_undo=False),))
    report = await agent.run(preview, trigger="control", stop=asyncio.Event(), max_rounds=1)
    assert len(report.removed) == 1
    assert UNUSED not in node.sim.store.names
    return report.id


async def test_removal_is_listed_undone_and_recorded(node: Node) -> None:
    pass_id = await remove_unused(node)
    (listed,) = (await node.ask("UndoList"))["passes"]
    assert listed["pass_id"] == pass_id
    assert listed["images"][0]["names"][0] == UNUSED
    undone = await node.ask("Undo", api.UndoRequest(pass_id=pass_id[:-2]))
    assert [each["outcome"] for each in undone["results"]] == ["restored"]
    assert UNUSED in node.sim.store.names
    assert (await node.ask("UndoList"))["passes"] == []
    past = (await node.ask("History"))["passes"][0]
    assert (past["id"], past["trigger"], past["end"]) == (undone["undo_id"], "undo", "complete")
    assert past["end_detail"] == f"undo of pass {pass_id}"
    assert [each["outcome"] for each in past["actions"]] == ["restored"]
    assert [each["pass_id"] for each in node.logged("image_removal_undone")] == [pass_id]


async def test_undo_is_possible_during_a_pause_and_requires_the_right_to_act(node: Node) -> None:
    pass_id = await remove_unused(node)
    await node.ask("Pause", api.PauseRequest(seconds=60))
    node.peer[0] = MEMBER
    assert (await node.refused("Undo"))[0] == 403
    node.context.settings = replace(
        node.context.settings, control=replace(node.context.settings.control, group_may_act=True)
    )
    assert (await node.ask("Undo"))["pass_id"] == pass_id


async def test_undo_waits_for_the_running_pass(node: Node) -> None:
    await remove_unused(node)
    async with node.context.pass_lock.take():
        asked = asyncio.ensure_future(node.ask("Undo"))
        while not node.logged("control_request"):  # noqa: ASYNC110 - log writes set no asyncio.Event
            await asyncio.sleep(0)
        assert UNUSED not in node.sim.store.names
    await asked
    assert UNUSED in node.sim.store.names


async def test_command_reports_why_a_pass_cannot_be_undone(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, why = await say(capsys, "gc", "undo")
    assert (code, "nothing to undo" in why) == (2, True)
    pass_id = await remove_unused(node)
    await node.ask("Undo")
    for source in ((), ("--direct",)):
        code, _, why = await say(capsys, "gc", "undo", pass_id, *source)
        assert code == 2
        assert f"pass {pass_id} cannot be undone: its undo window is over" in why
        code, _, why = await say(capsys, "gc", "undo", "19700101", *source)
        assert code == 2
        assert "no pass 19700101 in the history" in why
    code, _, why = await say(capsys, "gc", "undo", pass_id, "--list")
    assert (code, "omit PASS" in why) == (2, True)


@pytest.mark.parametrize("source", [(), ("--direct",)], ids=["daemon", "direct"])
async def test_command_restores_the_newest_pass(
    node: Node, capsys: pytest.CaptureFixture[str], source: tuple[str, ...]
) -> None:
    pass_id = await remove_unused(node)
    code, out, _ = await say(capsys, "gc", "undo", "--list", *source)
    assert code == 0
    assert pass_id in out
    assert "unused:v1" in out
    code, out, _ = await say(capsys, "gc", "undo", *source)
    assert code == 0
    assert f"Restored 1 of 1 images of pass {pass_id}" in out
    assert UNUSED in node.sim.store.names
    code, out, _ = await say(capsys, "gc", "undo", "--list", "-o", "json", *source)
    assert (code, json.loads(out)["passes"]) == (0, [])
    assert agent_of(node).history.read(limit=1)[0].trigger == "undo"
