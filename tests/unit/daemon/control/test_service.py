"""The control service over its real socket, on a simulated node; who asks is what the test says."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import io
import json
import os
import pwd
import socket
import threading
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from google.protobuf import message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent._proto.control.v1 import control_pb2 as api
from nodeagent.api.codec import encode
from nodeagent.api.history import History
from nodeagent.clock import SystemClock
from nodeagent.config.control import ControlSettings
from nodeagent.config.handoff import checked
from nodeagent.config.settings import Origin
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.control import guard
from nodeagent.daemon.control import socket as control_socket
from nodeagent.daemon.control.access import Access, access_of
from nodeagent.daemon.control.guard import RIGHTS
from nodeagent.daemon.control.socket import (
    ControlUnavailableError,
    make_inner,
    open_socket,
    who_may_connect,
)
from nodeagent.daemon.loop_status import LoopStatuses
from nodeagent.daemon.pass_lock import PassLock, Pause, PausedBy
from nodeagent.daemon.pause import restore_pause
from nodeagent.daemon.service_manager import ReloadTask
from nodeagent.errors import ObservationError
from nodeagent.host.notify import Notifier
from nodeagent.host.peer import Peer, group_number, read_peer
from nodeagent.host.signals import read_signals
from nodeagent.observe.node_role import RoleWatch
from nodeagent.plan.gc.saved_plan import unseal
from nodeagent.sim.content import Layer
from nodeagent.store.pause import PauseFile
from nodeagent.store.plan_key import FILE_NAME, PlanKeyFile
from nodeagent.telemetry import logging as log
from tests.unit.control_node import GROUP, MEMBER, NOBODY, ROOT, SERVICE, STRANGER, Node, served_to_member, serving
from tests.unit.kubelet_double import KUBELET, HandClock, KubeletDouble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from nodeagent.host.signals import SignalPaths


OTHER_MEMBER = Peer(4, 4713, frozenset({4713, GROUP}))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as made:
        yield made


# ---- who may


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


def test_every_call_has_its_right() -> None:
    assert set(RIGHTS) == set(SERVICE.methods_by_name)
    readers = {name for name, right in RIGHTS.items() if right is Access.READ}
    assert readers == {"Status", "Pressure", "Plan", "Pods", "History", "Holds", "Events", "PreviewReload"}
    assert Access.NOTHING not in RIGHTS.values()


def test_the_kernel_tells_who_connected() -> None:
    one, other = socket.socketpair()
    with one, other:
        peer = read_peer(one)
    assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
    assert peer.groups >= {os.getgid()}


@pytest.mark.parametrize("method", sorted(RIGHTS))
async def test_a_stranger_is_refused_everything(node: Node, method: str) -> None:
    node.peer[0] = STRANGER
    code, why = await node.refused(method)
    assert code == "PERMISSION_DENIED"
    assert "it takes root or a member of group group-of-the-test" in why
    assert [each["method"] for each in node.logged("control_refused")] == [method]


@pytest.mark.parametrize("method", sorted(name for name, right in RIGHTS.items() if right is Access.ACT))
async def test_a_member_acts_only_if_the_configuration_says_so(node: Node, method: str) -> None:
    node.peer[0] = MEMBER
    code, why = await node.refused(method)
    assert code == "PERMISSION_DENIED"
    assert "control.group_may_act = true" in why
    settings = node.context.settings
    node.context.settings = replace(settings, control=replace(settings.control, group_may_act=True))
    if method in ("Resume", "Reload"):
        return  # these need no more than the right
    code, _ = await node.refused(method)
    assert code == "INVALID_ARGUMENT"  # understood, and incomplete


async def test_whoever_does_not_come_by_the_socket_is_nobody(node: Node) -> None:
    await node.ask("Status")
    (inner,) = [each for each in node.path.parent.iterdir() if each.is_dir()]
    async with grpc.aio.insecure_channel(f"unix:{inner}/s") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE.full_name}/Status", bytes, bytes)(b"", timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert inner.stat().st_mode & 0o777 == 0o700


async def test_it_answers_while_every_disk_is_full(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    assert (await node.ask("Status"))["agent"]["running"]


async def test_what_keeps_it_from_answering_is_told(node: Node) -> None:
    taken = node.path.with_name(f".{node.path.name}.d")
    taken.write_text("in the way")
    with pytest.raises(grpc.aio.AioRpcError):
        await node.ask("Status")
    assert "File exists" in node.logged("control_unavailable")[0]["error"]
    taken.unlink()
    assert (await node.ask("Status"))["agent"]["running"]


def test_what_a_killed_agent_left_is_no_hindrance(tmp_path: Path) -> None:
    first = make_inner(tmp_path / "control.sock")
    first.touch()
    assert make_inner(tmp_path / "control.sock") == first
    assert list(first.parent.iterdir()) == []
    assert first.parent.parent == tmp_path


def test_a_long_path_leaves_room_for_no_other(tmp_path: Path) -> None:
    inner = make_inner(tmp_path / ("x" * (106 - len(str(tmp_path)))))
    assert not inner.is_relative_to(tmp_path)
    inner.parent.rmdir()


# ---- answers


async def test_status_tells_of_node_and_daemon(node: Node) -> None:
    node.context.loop_statuses.waiting("images", 60, 60)
    node.peer[0] = MEMBER
    told = await node.ask("Status")
    assert told["schema"] == "nodeagent/status/v1"
    assert told["agent"]["running"] is told["agent"]["ready"] is True
    assert told["runtime"]["name"] == "containerd"
    assert [each["name"] for each in told["loops"]] == ["images"]
    assert {"memory.available", "pid.available"} <= {each["signal"] for each in told["signals"]}
    assert told["image_use"] == {"observed_since": None, "maximum_unused_age_s": None}
    await node.ask("Plan", api.PlanRequest(scope="images"))
    assert (await node.ask("Status"))["image_use"]["observed_since"] is not None


async def test_status_answers_without_a_runtime(node: Node) -> None:
    node.context.agent = None
    told = await node.ask("Status")
    assert told["agent"]["ready"] is False
    assert told["runtime"]["up"] is False
    node.context.settings = replace(node.context.settings, endpoint="")
    assert (await node.ask("Status"))["runtime"]["endpoint"] is None
    assert await node.refused("Plan", api.PlanRequest(scope="all")) == (
        "UNAVAILABLE",
        "not ready: the daemon starts, reloads, or waits for a container runtime",
    )


@dataclass
class Hang:
    """A call that hangs as one to a dead mount does, until the test is over."""

    begun: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, *_: object, **__: object) -> Any:
        self.begun += 1
        self.over.wait(30)
        raise ObservationError("gone")


@pytest.fixture
def hang() -> Iterator[Hang]:
    made = Hang()
    yield made
    made.over.set()


async def test_a_filesystem_that_hangs_takes_one_thread(
    node: Node, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.daemon.status.read_filesystem", hang)
    monkeypatch.setattr("nodeagent.daemon.status._READ_WITHIN_S", 0.05, raising=False)
    told = await asyncio.wait_for(asyncio.gather(*(node.ask("Status") for _ in range(3))), 10)
    assert hang.begun == 1
    assert [each["problem"] for each in told[0]["filesystems"]] == [
        "not read: a filesystem does not answer within 0.05 s"
    ]
    hang.over.set()
    assert (await node.ask("Status"))["filesystems"][0]["problem"] == "gone"


async def test_signals_that_hang_take_one_thread(node: Node, hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.ask("Status")
    real = read_signals

    def read(paths: SignalPaths, *words: Any, **more: Any) -> Any:
        return hang() if paths.nodefs else real(paths, *words, **more)

    monkeypatch.setattr("nodeagent.observe.eviction_signals.read_signals", read)
    monkeypatch.setattr("nodeagent.observe.eviction_signals._READ_WITHIN_S", 0.05)
    told = await asyncio.wait_for(asyncio.gather(*(node.ask("Pressure") for _ in range(3))), 10)
    assert hang.begun == 1
    assert all("does not answer" in each["warnings"][-1] for each in told)


async def test_a_pod_s_directory_that_hangs_takes_one_thread(
    node: Node, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.observe.pod_disk_usage.read_pod_disk", hang)
    monkeypatch.setattr("nodeagent.observe.pod_disk_usage._WALK_S", 0.05)
    monkeypatch.setattr("nodeagent.observe.pod_disk_usage._WALK_POD_S", 0.05)
    node.sim.add_pod("db")
    for _ in range(3):
        assert "a directory does not answer" in (await node.ask("Pods"))["warnings"][-1]
    assert hang.begun == 1


async def test_a_plan_is_what_the_planner_says(node: Node) -> None:
    told = await node.ask("Plan", api.PlanRequest(scope="containers"))
    agent = node.context.agent
    assert agent is not None
    preview = await agent.collector.preview("containers")  # type: ignore[arg-type]
    removals = [each["id"] for plan in told["plans"] for each in plan["decisions"] if each["verdict"] == "remove"]
    assert removals == [each.id for each in preview.removals]
    assert len(removals) == 2


@pytest.mark.parametrize(
    ("method", "request_", "words"),
    [
        ("Plan", api.PlanRequest(scope="everything"), "write images, containers or all"),
        ("Plan", api.PlanRequest(scope="leaks"), "write images, containers or all"),
        ("Plan", api.PlanRequest(scope="all", lasts_seconds=-1), "is not between 0 and"),
        ("Plan", api.PlanRequest(scope="all", lasts_seconds=float("nan")), "is not between 0 and"),
        ("History", api.HistoryRequest(seconds=1e300), "out of range"),
        ("History", api.HistoryRequest(image="\x1b[2J"), "printable"),
        ("History", api.HistoryRequest(image="x" * 5000), "at most 4096 characters"),
        ("AddHold", api.AddHoldRequest(image="app:*", why="x"), "a hold needs a duration"),
        ("AddHold", api.AddHoldRequest(image="sha256:", seconds=5), "image: "),
        ("RemoveHold", api.RemoveHoldRequest(id="77"), "no hold 77"),
        ("Pause", api.PauseRequest(), "a pause needs a duration"),
        ("Pause", api.PauseRequest(seconds=1e9), "is not between 0 and"),
        ("Trigger", api.TriggerRequest(loop="shutdown"), "does not run here"),
        ("Apply", api.ApplyRequest(), "exactly one of them is required"),
        ("Apply", api.ApplyRequest(scope="all", plan="{}"), "exactly one of them is required"),
        ("Apply", api.ApplyRequest(scope="all", rounds=21), "rounds: at most 20"),
        ("Apply", api.ApplyRequest(plan="{}"), "not a plan of this agent"),
    ],
)
async def test_what_makes_no_sense_is_told_and_changes_nothing(
    node: Node, method: str, request_: Any, words: str
) -> None:
    code, why = await node.refused(method, request_)
    assert (code, words in why) == ("INVALID_ARGUMENT", True), why
    assert node.context.pass_lock.pause() is None
    assert len(node.sim.containers) == 2


async def test_a_hold_is_placed_by_who_asks_and_taken_back(node: Node) -> None:
    placed = await node.ask("AddHold", api.AddHoldRequest(image="app:*", seconds=60, why="rollback"))
    assert (placed["by"], placed["why"]) == ("root", "rollback")
    assert [each["id"] for each in (await node.ask("Holds"))["holds"]] == [placed["id"]]
    await node.ask("RemoveHold", api.RemoveHoldRequest(id=placed["id"]))
    assert (await node.ask("Holds"))["holds"] == []


async def test_a_pause_stops_and_lasts_over_a_restart(node: Node) -> None:
    await node.ask("Pause", api.PauseRequest(seconds=600, why="looking"))
    assert (await node.ask("Status"))["paused"]["why"].startswith("looking (by root, until ")
    code, why = await node.refused("Apply", api.ApplyRequest(scope="containers"))
    assert (code, "the agent is paused" in why) == ("INVALID_ARGUMENT", True)
    assert len(node.sim.containers) == 2
    again = DaemonContext(
        node.context.settings,
        node.context.logger,
        node.context.clock,
        LoopStatuses(SystemClock()),
        PassLock(SystemClock()),
    )
    restore_pause(again)
    pause = again.pass_lock.pause()
    assert pause is not None
    assert pause.until_s is not None
    assert 590 < pause.until_s - again.clock.monotonic_s() <= 600
    assert (await node.ask("Resume"))["was_paused"] is True
    assert (await node.ask("Resume"))["was_paused"] is False
    assert PauseFile(node.context.settings.state_directory).read() is None


async def test_a_pause_is_kept_that_comes_while_one_ends(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.ask("Pause", api.PauseRequest(seconds=600, why="one"))
    real, ending, go_on = PauseFile.clear, threading.Event(), threading.Event()

    def slowly(file: PauseFile) -> None:
        ending.set()
        go_on.wait(20)
        real(file)

    monkeypatch.setattr(PauseFile, "clear", slowly)
    resumed = asyncio.ensure_future(node.ask("Resume"))
    assert await asyncio.to_thread(ending.wait, 20)
    paused = asyncio.ensure_future(node.ask("Pause", api.PauseRequest(seconds=600, why="two")))
    while len(node.logged("control_request")) != 3:  # noqa: ASYNC110 - the log is what tells
        await asyncio.sleep(0)
    await asyncio.wait({paused}, timeout=0.2)
    go_on.set()
    await asyncio.gather(resumed, paused)
    kept = PauseFile(node.context.settings.state_directory).read()
    assert kept is not None
    assert kept.why == "two"
    assert node.context.pass_lock.pause() is not None


def test_a_pause_that_cannot_be_read_counts(tmp_path: Path) -> None:
    (tmp_path / "pause.json").write_text("{")
    stream, clock = io.StringIO(), SystemClock()
    made = replace(checked(Origin(None, (("state.directory", str(tmp_path)),))))
    context = DaemonContext(made, log.configure("json", "info", stream), clock, LoopStatuses(clock), PassLock(clock))
    restore_pause(context)
    pause = context.pass_lock.pause()
    assert pause is not None
    assert pause.until_s is None


async def test_a_pass_tells_each_result_and_the_report(node: Node) -> None:
    found = (await node.ask("Apply", api.ApplyRequest(scope="containers")))["all"]
    assert [each["schema"] for each in found] == ["nodeagent/result/v1", "nodeagent/result/v1", "nodeagent/report/v1"]
    assert found[-1]["trigger"] == "control"
    assert len(node.sim.containers) == 0
    assert [each["trigger"] for each in (await node.ask("History"))["passes"]] == ["control"]


async def test_a_saved_plan_is_carried_out_as_saved(node: Node) -> None:
    saved = await node.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=600))
    gone = next(iter(node.sim.containers))
    node.sim.remove_container(gone)
    found = (await node.ask("Apply", api.ApplyRequest(plan=json.dumps(saved))))["all"]
    assert found[-1]["schema"] == "nodeagent/report/v1"
    assert [each["id"] for each in found[-1]["drift"]] == [gone]
    changed = json.dumps({**saved, "scope": "all"})
    code, why = await node.refused("Apply", api.ApplyRequest(plan=changed))
    assert (code, "changed since it was saved" in why) == ("INVALID_ARGUMENT", True)


@pytest.fixture
def as_actor(node: Node) -> Node:
    """Every request comes from a member of the group, who may act."""
    node.peer[0] = MEMBER
    settings = node.context.settings
    node.context.settings = replace(settings, control=replace(settings.control, group_may_act=True))
    return node


@pytest.mark.parametrize("placed_by", [ROOT, OTHER_MEMBER])
async def test_member_cannot_remove_the_hold_of_another_user(as_actor: Node, placed_by: Peer) -> None:
    as_actor.peer[0] = placed_by
    placed = await as_actor.ask("AddHold", api.AddHoldRequest(image="app:*", seconds=60, why="rollback"))
    as_actor.peer[0] = MEMBER
    code, why = await as_actor.refused("RemoveHold", api.RemoveHoldRequest(id=placed["id"]))
    assert (code, f"placed by {placed_by.name}; only root" in why) == ("INVALID_ARGUMENT", True), why
    assert [each["id"] for each in (await as_actor.ask("Holds"))["holds"]] == [placed["id"]]
    as_actor.peer[0] = ROOT
    await as_actor.ask("RemoveHold", api.RemoveHoldRequest(id=placed["id"]))
    assert (await as_actor.ask("Holds"))["holds"] == []


async def test_member_removes_his_own_hold(as_actor: Node) -> None:
    placed = await as_actor.ask("AddHold", api.AddHoldRequest(image="app:*", seconds=60))
    await as_actor.ask("RemoveHold", api.RemoveHoldRequest(id=placed["id"]))
    assert (await as_actor.ask("Holds"))["holds"] == []


@pytest.mark.parametrize("placed_by", [ROOT, OTHER_MEMBER])
@pytest.mark.parametrize(("method", "request_"), [("Resume", None), ("Pause", api.PauseRequest(seconds=1))])
async def test_member_cannot_end_or_replace_the_pause_of_another_user(
    as_actor: Node, placed_by: Peer, method: str, request_: Any
) -> None:
    as_actor.peer[0] = placed_by
    await as_actor.ask("Pause", api.PauseRequest(seconds=600, why="looking"))
    as_actor.peer[0] = MEMBER
    code, why = await as_actor.refused(method, request_)
    assert (code, f"placed by {placed_by.name} until" in why) == ("INVALID_ARGUMENT", True), why
    kept, pause = PauseFile(as_actor.context.settings.state_directory).read(), as_actor.context.pass_lock.pause()
    assert (kept and kept.by, pause and "looking" in pause.reason) == (placed_by.name, True)
    as_actor.peer[0] = ROOT
    assert (await as_actor.ask("Resume"))["was_paused"] is True


async def test_member_shortens_and_ends_his_own_pause(as_actor: Node) -> None:
    await as_actor.ask("Pause", api.PauseRequest(seconds=600))
    await as_actor.ask("Pause", api.PauseRequest(seconds=5))
    assert (await as_actor.ask("Resume"))["was_paused"] is True
    assert (await as_actor.ask("Resume"))["was_paused"] is False


@pytest.mark.parametrize("left", ["unreadable", "none"])
async def test_member_cannot_end_a_pause_of_unknown_author(as_actor: Node, left: str) -> None:
    await as_actor.ask("Pause", api.PauseRequest(seconds=600))
    path = as_actor.context.settings.state_directory / "pause.json"
    path.unlink()
    if left == "unreadable":
        path.write_text("{")
    for method, request in (("Resume", None), ("Pause", api.PauseRequest(seconds=1))):
        code, why = await as_actor.refused(method, request)
        assert (code, "its author is unknown" in why) == ("INVALID_ARGUMENT", True), why
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
    as_actor.context.agent = replace(agent, settings=replace(agent.settings, **off))
    if refused:
        code, why = await as_actor.refused("Apply", request)
        assert (code, refused in why) == ("INVALID_ARGUMENT", True), why
        assert len(as_actor.sim.containers) == 2
        as_actor.peer[0] = ROOT
    await as_actor.ask("Apply", request)


def tighten(node: Node) -> None:
    """Put a configuration in force that keeps both dead containers."""
    agent = node.context.agent
    assert agent is not None
    policy = agent.settings.policy
    kept = replace(policy, containers=replace(policy.containers, max_per_pod_container=5))
    node.context.agent = replace(agent, settings=replace(agent.settings, policy=kept))


async def test_plan_made_before_the_policy_was_tightened_removes_nothing_that_it_keeps(as_actor: Node) -> None:
    saved = await as_actor.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=600))
    assert sum(each["verdict"] == "remove" for each in saved["decisions"]) == 2
    tighten(as_actor)
    report = await as_actor.ask("Apply", api.ApplyRequest(plan=json.dumps(saved)))
    assert report["results"] == []
    assert [each["gone"] for each in report["drift"]] == [False, False]
    assert len(as_actor.sim.containers) == 2


# ---- forged plans, from an unprivileged member of the group over the real socket


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Node]:
    """A node whose configuration keeps its two dead containers and the unused image, served to a member."""
    async with served_to_member(tmp_path, max_per_pod_container=5) as made:
        made.sim.add_image("registry.example/old:v1", layers=[Layer("old", 1 << 20)], age_s=90 * 86_400)
        yield made


def forged(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a plan that removes whatever it lists at once, with the id that fits it."""
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
    (asked,) = kept.logged("control_request")
    assert (asked["method"], asked["uid"]) == ("Apply", os.geteuid() or NOBODY)
    assert asked["uid"] != 0


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
    assert (code, "make a new plan; nothing was removed" in why) == ("INVALID_ARGUMENT", True), why
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
    assert (code, "or the key was replaced since" in why) == ("INVALID_ARGUMENT", True)
    path.write_text(key)
    report = (await node.ask("Apply", api.ApplyRequest(plan=json.dumps(saved))))["all"][-1]
    assert len(report["results"]) == 2


async def test_unusable_key_file_leaves_plans_that_last_as_long_as_the_daemon(node: Node) -> None:
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


async def test_what_may_take_long_holds_nothing_else_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of users may be far away, and a history long."""
    threads = set()

    def asked(real: Any) -> Any:
        def ask(*words: Any, **more: Any) -> Any:
            threads.add(threading.current_thread())
            return real(*words, **more)

        return ask

    monkeypatch.setattr("pwd.getpwuid", asked(pwd.getpwuid))
    monkeypatch.setattr(guard, "group_number", asked(group_number))
    monkeypatch.setattr(History, "of", asked(History.of))
    await node.ask("History")
    node.peer[0] = STRANGER
    await node.refused("History")
    assert threads
    assert threading.main_thread() not in threads


async def test_events_come_as_they_happen(node: Node) -> None:
    async with node.channel() as channel:
        call = channel.unary_stream(f"/{SERVICE.full_name}/Events", bytes, bytes)(b"")
        reading: asyncio.Future[Any] = asyncio.ensure_future(call.read())
        while not reading.done():
            node.context.logger.info("resumed", by="somebody", kept={"in-use": 3})
            await asyncio.sleep(0.01)
        event = json.loads(api.Document.FromString(await reading).json)
    assert (event["schema"], event["event"], event["by"]) == ("nodeagent/event/v1", "resumed", "somebody")
    assert event["kept"] == {"in-use": 3}


async def test_a_trigger_wakes_its_loop_and_waits(node: Node) -> None:
    loop_statuses, wake = node.context.loop_statuses, asyncio.Event()
    node.context.wake["images"] = wake
    loop_statuses.waiting("images", 600, 600)
    asked = asyncio.ensure_future(node.ask("Trigger", api.TriggerRequest(loop="images", wait=True)))
    await asyncio.wait_for(wake.wait(), 20)
    loop_statuses.running("images", 60)
    loop_statuses.ended("images", "complete", detail="all well")
    told = await asked
    assert (told["result"], told["detail"]) == ("complete", "all well")


async def test_trigger_of_eviction_beside_a_kubelet_is_refused_with_the_reason(node: Node) -> None:
    node.context.wake["eviction"] = asyncio.Event()
    node.context.loop_statuses.disabled("eviction", "a kubelet manages this node")
    code, why = await node.refused("Trigger", api.TriggerRequest(loop="eviction", wait=True))
    assert (code, "does not run here: a kubelet manages this node" in why) == ("INVALID_ARGUMENT", True)
    assert "those that do: eviction" not in why


async def test_trigger_that_waits_is_refused_when_its_loop_is_disabled_meanwhile(node: Node) -> None:
    node.context.wake["eviction"] = asyncio.Event()
    node.context.loop_statuses.waiting("eviction", 600, 600)
    asked = asyncio.ensure_future(node.refused("Trigger", api.TriggerRequest(loop="eviction", wait=True)))
    await asyncio.wait_for(node.context.wake["eviction"].wait(), 20)
    node.context.loop_statuses.disabled("eviction", "a kubelet manages this node")
    code, why = await asked
    assert (code, "does not run here: a kubelet manages this node" in why) == ("INVALID_ARGUMENT", True)


async def test_status_shows_the_role_and_what_is_refused_beside_a_kubelet(node: Node) -> None:
    agent = node.context.agent
    assert agent is not None
    agent.settings = replace(agent.settings, eviction=replace(agent.settings.eviction, enabled=True))
    agent.roles = RoleWatch(HandClock(), reader=KubeletDouble(KUBELET))
    shown = await node.ask("Status")
    assert shown["agent"]["role"] == "beside-kubelet"
    assert shown["agent"]["role_because"] == "kubelet process 812 (kubelet)"
    assert "a kubelet manages this node (kubelet process 812 (kubelet))" in shown["shutdown"]["off_because"]
    warnings = "\n".join(shown["warnings"])
    assert 'role = "standalone" is configured, but not in force' in warnings
    assert 'eviction is disabled: eviction.enabled = "on" is refused' in warnings


@pytest.mark.parametrize("how", ["scope", "plan"])
@pytest.mark.parametrize("meanwhile", ["asked for", "done"])
async def test_nothing_goes_under_settings_that_a_reload_replaces(node: Node, how: str, meanwhile: str) -> None:
    request = api.ApplyRequest(scope="containers")
    if how == "plan":
        saved = await node.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=60))
        request = api.ApplyRequest(plan=json.dumps(saved))
    async with node.context.pass_lock.take():
        asked = asyncio.ensure_future(node.refused("Apply", request))
        while len(node.context.pass_lock._lock._waiters or ()) == 0:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0)
        if meanwhile == "asked for":
            node.context.renew.set()
        else:
            node.context.agent = replace(node.context.agent)  # type: ignore[type-var]
    code, why = await asked
    assert (code, "the configuration changed during the request" in why) == ("FAILED_PRECONDITION", True)
    assert len(node.sim.containers) == 2


@pytest.mark.parametrize("wait", [False, True])
async def test_nothing_is_triggered_while_no_agent_is_composed(node: Node, wait: bool) -> None:
    node.context.wake["images"] = asyncio.Event()
    node.context.loop_statuses.waiting("images", 600, 600)
    node.context.agent = None
    code, why = await node.refused("Trigger", api.TriggerRequest(loop="images", wait=wait))
    assert (code, "not ready: the daemon" in why) == ("UNAVAILABLE", True)


async def test_who_waits_for_a_run_is_told_of_a_pause(node: Node) -> None:
    node.context.wake["images"] = asyncio.Event()
    node.context.loop_statuses.waiting("images", 600, 600)
    asked = asyncio.ensure_future(node.refused("Trigger", api.TriggerRequest(loop="images", wait=True)))
    await asyncio.wait_for(node.context.wake["images"].wait(), 20)
    node.context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, "looking"))
    code, why = await asked
    assert (code, "the agent is paused" in why) == ("INVALID_ARGUMENT", True)


async def test_a_reload_tells_what_changed_or_why_not(node: Node) -> None:
    stop = asyncio.Event()
    running = asyncio.ensure_future(ReloadTask(node.context, Notifier({})).run(stop))
    node.context.settings = checked(Origin(node.config))
    text = node.config.read_text()
    node.config.write_text(text + "[image_gc]\nhigh_threshold_percent = 90\n")
    assert (await node.ask("Reload"))["changes"] == ["image_gc.high_threshold_percent: 85 -> 90"]
    node.config.write_text(text + "[image_gc]\nhigh_threshold_percent = 900\n")
    code, why = await node.refused("Reload")
    assert (code, "high_threshold_percent = 900" in why) == ("INVALID_ARGUMENT", True)
    stop.set()
    await running


# ---- what must not stop it


FIELDS = {
    "TYPE_STRING": st.text(max_size=40),
    "TYPE_DOUBLE": st.floats(),
    "TYPE_UINT32": st.integers(0, 2**32 - 1),
    "TYPE_BOOL": st.booleans(),
}
KINDS = {9: "TYPE_STRING", 1: "TYPE_DOUBLE", 13: "TYPE_UINT32", 8: "TYPE_BOOL"}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, bytes]:
    """A call of any method but those that wait: its fields at random, or random bytes for a request."""
    name = draw(st.sampled_from([each for each in sorted(RIGHTS) if each not in ("Events", "Reload", "PreviewReload")]))
    if draw(st.booleans()):
        return name, draw(st.binary(max_size=60))
    kind = SERVICE.methods_by_name[name].input_type
    values = {each.name: draw(FIELDS[KINDS[each.type]]) for each in kind.fields if draw(st.booleans())}
    return name, message_factory.GetMessageClass(kind)(**values).SerializeToString()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls())
async def test_no_request_ends_it(node: Node, call: tuple[str, bytes]) -> None:
    name, raw = call
    try:
        await node.ask(name, raw=raw)
    except grpc.aio.AioRpcError as error:
        assert error.code().name in {"INVALID_ARGUMENT", "FAILED_PRECONDITION"}, error.details()  # noqa: PT017
    assert node.logged("control_failed") == []
    assert (await node.ask("Status"))["agent"]["running"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400))
async def test_no_bytes_end_it(node: Node, data: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(node.path)
    writer.write(data)
    writer.write_eof()
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert (await node.ask("Status"))["agent"]["running"]


async def test_no_user_takes_every_connection(node: Node) -> None:
    node.peer[0] = MEMBER
    async with AsyncExitStack() as stack:
        greeted = 0
        for _ in range(20):
            reader, writer = await asyncio.open_unix_connection(node.path)
            stack.push_async_callback(writer.wait_closed)
            stack.callback(writer.close)
            with suppress(ConnectionError):
                greeted += bool(await asyncio.wait_for(reader.read(9), 20))  # the service greets who is let in
        assert greeted == 16
        with pytest.raises(grpc.aio.AioRpcError):
            await node.ask("Status")
        node.peer[0] = ROOT
        assert (await node.ask("Status"))["agent"]["running"]


async def test_no_user_takes_every_call(node: Node) -> None:
    node.peer[0] = MEMBER
    async with node.channel() as channel:
        follow = channel.unary_stream(f"/{SERVICE.full_name}/Events", bytes, bytes)
        calls = [follow(b"") for _ in range(64)]
        ends = [asyncio.ensure_future(each.code()) for each in calls]
        async with asyncio.timeout(20):
            while sum(each.done() for each in ends) < 48:
                await asyncio.wait([each for each in ends if not each.done()], return_when="FIRST_COMPLETED")
        assert {each.result().name for each in ends if each.done()} == {"RESOURCE_EXHAUSTED"}
        assert "16 calls" in await next(call for call, end in zip(calls, ends, strict=True) if end.done()).details()
        node.peer[0] = ROOT
        assert (await node.ask("Status"))["agent"]["running"]
        for each in calls:
            each.cancel()
        await asyncio.wait(ends)
    node.peer[0] = MEMBER
    assert (await node.ask("Status"))["agent"]["running"]


async def test_what_is_too_large_is_refused_before_it_is_taken_in(node: Node) -> None:
    node.peer[0] = MEMBER
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.ask("AddHold", raw=b"x" * (9 << 20))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert node.logged("control_refused") == []


async def test_nobody_is_answered_any_more_once_it_is_switched_off(node: Node) -> None:
    context = node.context
    on, off = (
        replace(context.settings, control=replace(context.settings.control, socket=each)) for each in (node.path, None)
    )
    async with node.channel() as channel:
        ask = channel.unary_unary(f"/{SERVICE.full_name}/Status", bytes, bytes)
        await ask(b"")
        context.settings = off
        context.renew.set()
        async with asyncio.timeout(20):
            while any(node.path.parent.glob(f"*{node.path.name}*")):  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(b"", timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    context.settings = on
    async with asyncio.timeout(20):
        while not node.path.exists():  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.01)
    assert (await node.ask("Status"))["agent"]["running"]
    context.renew.clear()


# ---- the socket


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with open_socket(path, "no-such-group"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert who_may_connect(path, "no-such-group").startswith("root only, not group no-such-group")


def test_the_group_gets_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "group_number", lambda _: os.getgid())
    with open_socket(tmp_path / "s", "any"):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o660


def test_nothing_else_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    with pytest.raises(ControlUnavailableError, match="not a socket"):
        open_socket(tmp_path / "s", "any")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "t"))
        other.listen()
        with pytest.raises(ControlUnavailableError, match="another agent is listening"):
            open_socket(tmp_path / "t", "any")
    with pytest.raises(ControlUnavailableError, match="no such directory"):
        open_socket(tmp_path / "none/s", "any")


async def test_an_error_with_any_text_reaches_whoever_asked(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ObservationError("/pods/\udcff\x1b\n")

    assert node.context.agent is not None
    monkeypatch.setattr(node.context.agent.collector, "preview", fail)
    code, details = await node.refused("Plan", api.PlanRequest(scope="images"))
    assert (code, details) == ("FAILED_PRECONDITION", "/pods/\\xff\x1b\n")


@pytest.mark.parametrize("name", ["[/x]", "a\x1b[31m\n\u202e\x9b\x00", "\udcff"])
def test_documents_hold_any_name(name: str) -> None:
    shown = encode({"schema": "s", "name": name, "names": [name]}, "json")
    assert api.Document.FromString(api.Document(json=shown).SerializeToString()).json == shown
    assert json.loads(shown)["name"] == json.loads(shown)["names"][0] == name.replace("\udcff", "\\xff")
