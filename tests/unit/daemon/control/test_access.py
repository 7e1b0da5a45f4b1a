"""Access rights of root, group members and other users to the control API."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from typing import Any

import pytest

from nodeagent.api import requests as api
from nodeagent.api.operations import OPERATIONS, Access, method_name
from nodeagent.daemon.control.requests import access_of
from nodeagent.daemon.control.service import ControlService
from nodeagent.host.sockets import Peer, read_peer
from nodeagent.loops.pause_file import PauseFile
from nodeagent.record import replace
from nodeagent.settings.settings import ControlSettings
from tests.unit.control_node import GROUP, MEMBER, ROOT, STRANGER, Node

ACCESS = {name: each.access for name, each in OPERATIONS.items()}


OTHER_MEMBER = Peer(4, 4713, frozenset({4713, GROUP}))


@pytest.mark.parametrize(
    ("peer", "group", "may_act", "right"),
    [
        (ROOT, GROUP, False, Access.ACT),
        (ROOT, None, False, Access.ACT),
        (MEMBER, GROUP, False, Access.READ),
        (MEMBER, GROUP, True, Access.ACT),
        (MEMBER, None, True, Access.NOTHING),
        (STRANGER, GROUP, True, Access.NOTHING),
        (STRANGER, None, False, Access.NOTHING),
    ],
)
def test_rights_follow_from_user_group_and_configuration(
    peer: Peer, group: int | None, may_act: bool, right: Access
) -> None:
    assert access_of(peer, ControlSettings(group_may_act=may_act), group) is right


def test_every_method_requires_an_access_right() -> None:
    assert all(hasattr(ControlService, method_name(each)) for each in OPERATIONS)
    actors = {name for name, right in ACCESS.items() if right is Access.ACT}
    assert actors == {"AddHold", "RemoveHold", "Pause", "Resume", "Trigger", "Reload", "Undo", "Apply"}
    assert {each.method for each in OPERATIONS.values() if each.access is Access.READ} == {"GET"}
    assert Access.NOTHING not in ACCESS.values()


def test_peer_credentials_are_those_of_the_kernel() -> None:
    one, other = socket.socketpair()
    with one, other:
        peer = read_peer(one)
    assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
    assert peer.groups >= {os.getgid()}


@pytest.mark.parametrize("method", sorted(OPERATIONS))
async def test_user_outside_the_group_is_refused_every_method(node: Node, method: str) -> None:
    node.peer[0] = STRANGER
    code, why = await node.refused(method)
    assert code == 403
    assert "access requires root or membership in group group-of-the-test" in why
    assert [each["method"] for each in node.logged("control_refused")] == [method]


@pytest.mark.parametrize("method", sorted(name for name, right in ACCESS.items() if right is Access.ACT))
async def test_member_may_act_only_if_the_configuration_allows_it(node: Node, method: str) -> None:
    node.peer[0] = MEMBER
    code, why = await node.refused(method)
    assert code == 403
    assert "control.group_may_act = true" in why
    settings = node.context.settings
    node.context.settings = replace(settings, control=replace(settings.control, group_may_act=True))
    if method in ("Resume", "Reload"):
        return  # requests without required fields
    code, _ = await node.refused(method)
    assert code == 400  # access is granted, but required fields are missing


async def test_only_root_places_a_hold_for_another_user(as_actor: Node) -> None:
    request = api.AddHoldRequest(image="app:*", seconds=60, by="alice")
    assert await as_actor.refused("AddHold", request) == (400, "by: only root places holds for other users")
    as_actor.peer[0] = ROOT
    assert (await as_actor.ask("AddHold", request))["by"] == "alice"


async def test_hold_has_its_caller_and_is_removed(node: Node) -> None:
    placed = await node.ask("AddHold", api.AddHoldRequest(image="app:*", seconds=60, why="rollback"))
    assert (placed["by"], placed["why"]) == ("root", "rollback")
    assert [each["id"] for each in (await node.ask("Holds"))["holds"]] == [placed["id"]]
    await node.ask("RemoveHold", api.RemoveHoldRequest(id=placed["id"]))
    assert (await node.ask("Holds"))["holds"] == []


@pytest.mark.parametrize("placed_by", [ROOT, OTHER_MEMBER])
async def test_member_cannot_remove_the_hold_of_another_user(as_actor: Node, placed_by: Peer) -> None:
    as_actor.peer[0] = placed_by
    placed = await as_actor.ask("AddHold", api.AddHoldRequest(image="app:*", seconds=60, why="rollback"))
    as_actor.peer[0] = MEMBER
    code, why = await as_actor.refused("RemoveHold", api.RemoveHoldRequest(id=placed["id"]))
    assert (code, f"placed by {placed_by.name}; requires root" in why) == (400, True), why
    assert [each["id"] for each in (await as_actor.ask("Holds"))["holds"]] == [placed["id"]]
    as_actor.peer[0] = ROOT
    await as_actor.ask("RemoveHold", api.RemoveHoldRequest(id=placed["id"]))
    assert (await as_actor.ask("Holds"))["holds"] == []


async def test_member_removes_own_hold(as_actor: Node) -> None:
    placed = await as_actor.ask("AddHold", api.AddHoldRequest(image="app:*", seconds=60))
    await as_actor.ask("RemoveHold", api.RemoveHoldRequest(id=placed["id"]))
    assert (await as_actor.ask("Holds"))["holds"] == []


async def test_member_has_a_maximum_number_of_holds_and_root_has_no_maximum(as_actor: Node) -> None:
    hold = api.AddHoldRequest(image="app:*", seconds=3600)
    for _ in range(100):
        await as_actor.ask("AddHold", hold)
    code, why = await as_actor.refused("AddHold", hold)
    assert (code, "has 100 holds, the maximum of a user other than root; remove one first" in why) == (400, True), why
    as_actor.peer[0] = OTHER_MEMBER
    await as_actor.ask("AddHold", hold)
    as_actor.peer[0] = ROOT
    await as_actor.ask("AddHold", api.AddHoldRequest(image="app:*", seconds=3600, by=MEMBER.name))
    as_actor.peer[0] = MEMBER
    await as_actor.ask("RemoveHold", api.RemoveHoldRequest(id="2"))
    await as_actor.ask("RemoveHold", api.RemoveHoldRequest(id="1"))
    await as_actor.ask("AddHold", hold)


async def test_patterns_of_all_members_together_have_a_maximum_length_from_their_first_wildcard(
    as_actor: Node,
) -> None:
    pattern = api.AddHoldRequest(image="registry.example/*" + "a" * 236, seconds=3600)
    for _ in range(4):
        await as_actor.ask("AddHold", pattern)
    as_actor.peer[0] = OTHER_MEMBER
    await as_actor.ask("AddHold", api.AddHoldRequest(image="registry.example/" + "a" * 200, seconds=3600))
    code, why = await as_actor.refused("AddHold", pattern)
    assert (code, "the patterns of all holds would exceed 1024 characters" in why) == (400, True), why
    as_actor.peer[0] = ROOT
    await as_actor.ask("AddHold", pattern)


@pytest.mark.parametrize("image", ["regex:^app", "label:keep", " label:keep=yes"])
async def test_member_cannot_hold_images_by_a_regular_expression_or_a_label(as_actor: Node, image: str) -> None:
    code, why = await as_actor.refused("AddHold", api.AddHoldRequest(image=image, seconds=60))
    assert (code, "only root places holds by regular expressions or labels" in why) == (400, True), why
    as_actor.peer[0] = ROOT
    assert (await as_actor.ask("AddHold", api.AddHoldRequest(image=image, seconds=60)))["image"] == image


@pytest.mark.parametrize("placed_by", [ROOT, OTHER_MEMBER])
@pytest.mark.parametrize(("method", "request_"), [("Resume", None), ("Pause", api.PauseRequest(seconds=1))])
async def test_member_cannot_end_or_replace_the_pause_of_another_user(
    as_actor: Node, placed_by: Peer, method: str, request_: Any
) -> None:
    as_actor.peer[0] = placed_by
    await as_actor.ask("Pause", api.PauseRequest(seconds=600, why="maintenance"))
    as_actor.peer[0] = MEMBER
    code, why = await as_actor.refused(method, request_)
    assert (code, f"placed by {placed_by.name} until" in why) == (400, True), why
    kept, pause = PauseFile(as_actor.context.settings.state_directory).read(), as_actor.context.pass_lock.pause()
    assert (kept and kept.by, pause and "maintenance" in pause.reason) == (placed_by.name, True)
    as_actor.peer[0] = ROOT
    assert (await as_actor.ask("Resume"))["was_paused"] is True


async def test_member_shortens_and_ends_own_pause(as_actor: Node) -> None:
    await as_actor.ask("Pause", api.PauseRequest(seconds=600))
    await as_actor.ask("Pause", api.PauseRequest(seconds=5))
    assert (await as_actor.ask("Resume"))["was_paused"] is True
    assert (await as_actor.ask("Resume"))["was_paused"] is False


@pytest.mark.parametrize("state_file", ["unreadable", "none"])
async def test_member_cannot_end_a_pause_of_unknown_author(as_actor: Node, state_file: str) -> None:
    await as_actor.ask("Pause", api.PauseRequest(seconds=600))
    path = as_actor.context.settings.state_directory / "pause.json"
    path.unlink()
    if state_file == "unreadable":
        path.write_text("{")
    for method, request in (("Resume", None), ("Pause", api.PauseRequest(seconds=1))):
        code, why = await as_actor.refused(method, request)
        assert (code, "its author is unknown" in why) == (400, True), why
    assert as_actor.context.pass_lock.pause() is not None


@pytest.mark.parametrize(
    ("disabled", "scope", "refused"),
    [
        ("container_interval_s", "containers", "container_gc.enabled = false"),
        ("container_interval_s", "all", "container_gc.enabled = false"),
        ("container_interval_s", "images", ""),
        ("image_interval_s", "images", "image_gc.enabled = false"),
        ("image_interval_s", "all", "image_gc.enabled = false"),
        ("image_interval_s", "containers", ""),
    ],
)
@pytest.mark.parametrize("how", ["scope", "plan"])
async def test_member_cannot_run_collection_that_the_configuration_disables(
    as_actor: Node, how: str, disabled: str, scope: str, refused: str
) -> None:
    request = api.ApplyRequest(scope=scope)
    if how == "plan":
        saved = await as_actor.ask("Plan", api.PlanRequest(scope=scope, lasts_seconds=60))
        request = api.ApplyRequest(plan=json.dumps(saved))
    agent = as_actor.context.agent
    assert agent is not None
    off: dict[str, Any] = {disabled: None}
    as_actor.context.agent = dataclasses.replace(agent, settings=replace(agent.settings, **off))
    if refused:
        code, why = await as_actor.refused("Apply", request)
        assert (code, refused in why) == (400, True), why
        assert len(as_actor.sim.containers) == 2
        as_actor.peer[0] = ROOT
    await as_actor.ask("Apply", request)
