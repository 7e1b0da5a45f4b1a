"""The control API over its real socket, on a simulated node, with a peer set by the test."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
import json
import os
import pwd
import socket
import threading
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.act.gc.removal_recovery import RemovalRecovery
from nodeagent.api import requests as api
from nodeagent.api.codec import Document, decode, encode
from nodeagent.api.config import EffectiveConfig
from nodeagent.api.control import Paused, Resumed
from nodeagent.api.diagnostics import Version
from nodeagent.api.eviction import EvictionPreview
from nodeagent.api.explain import Explanation
from nodeagent.api.gc import DiskUsage, Preview
from nodeagent.api.history import History
from nodeagent.api.holds import Hold, HoldList
from nodeagent.api.lists import Containers, Images, ImageTree, Pods
from nodeagent.api.operations import LARGE_BODY_BYTES, OPERATIONS, SMALL_BODY_BYTES, Access, method_name
from nodeagent.api.pods import PodUsage
from nodeagent.api.pressure import Pressure
from nodeagent.api.requests import request_type
from nodeagent.api.shutdown import ShutdownPlan, ShutdownStatus
from nodeagent.api.status import Status
from nodeagent.api.undo import UndoList
from nodeagent.clock import SystemClock
from nodeagent.config.control import ControlSettings
from nodeagent.config.handoff import checked
from nodeagent.config.settings import Origin
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.control import server as control
from nodeagent.daemon.control import socket as control_socket
from nodeagent.daemon.control.access import access_of
from nodeagent.daemon.control.server import LIMITS
from nodeagent.daemon.control.service import ControlService
from nodeagent.daemon.control.socket import (
    ControlUnavailableError,
    open_socket,
    socket_users,
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
from tests.unit.control_node import (
    GROUP,
    IMAGE,
    MEMBER,
    ROOT,
    STRANGER,
    UNPRIVILEGED_UID,
    Node,
    served_to_member,
    serving,
)
from tests.unit.kubelet_double import KUBELET, HandClock, KubeletDouble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nodeagent.host.signals import SignalPaths


ACCESS = {name: each.access for name, each in OPERATIONS.items()}
OTHER_MEMBER = Peer(4, 4713, frozenset({4713, GROUP}))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as made:
        yield made


# ---- access rights


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
        return  # valid without fields
    code, _ = await node.refused(method)
    assert code == 400  # parsed, and incomplete


# ---- responses


async def test_status_has_agent_runtime_loops_and_signals(node: Node) -> None:
    node.context.loop_statuses.waiting("images", 60, 60)
    node.peer[0] = MEMBER
    answer = await node.ask("Status")
    assert answer["schema"] == "nodeagent/status/v1"
    assert answer["agent"]["running"] is answer["agent"]["ready"] is True
    assert answer["runtime"]["name"] == "containerd"
    assert [each["name"] for each in answer["loops"]] == ["images"]
    assert {"memory.available", "pid.available"} <= {each["signal"] for each in answer["signals"]}
    assert answer["image_use"] == {"observed_since": None, "maximum_unused_age_s": None, "gaps": []}
    await node.ask("Plan", api.PlanRequest(scope="images"))
    assert (await node.ask("Status"))["image_use"]["observed_since"] is not None


@pytest.mark.parametrize(
    ("method", "request_", "kind"),
    [
        ("Status", None, Status),
        ("Pressure", None, Pressure),
        ("Pods", None, PodUsage),
        ("Plan", api.PlanRequest(scope="all"), Preview),
        ("History", None, History),
        ("Version", None, Version),
        ("Images", None, Images),
        ("ImageLayers", None, ImageTree),
        ("Containers", None, Containers),
        ("PodList", None, Pods),
        ("Explain", api.ExplainRequest(name=IMAGE), Explanation),
        ("DiskUsage", api.DiskUsageRequest(within_seconds=5), DiskUsage),
        ("Leaks", api.LeaksRequest(minimum_age_seconds=60, rooted=True), Preview),
        ("EvictionPreview", api.EvictionPreviewRequest(simulate="memory.available=1Mi"), EvictionPreview),
        ("ShutdownPlan", None, ShutdownPlan),
        ("ShutdownStatus", api.ShutdownStatusRequest(limit=3), ShutdownStatus),
        ("Config", None, EffectiveConfig),
        ("AddHold", api.AddHoldRequest(image="app:*", seconds=60), Hold),
        ("Holds", None, HoldList),
        ("UndoList", None, UndoList),
        ("Pause", api.PauseRequest(seconds=60), Paused),
        ("Resume", None, Resumed),
    ],
)
async def test_response_is_decoded_without_loss(node: Node, method: str, request_: Any, kind: type[Document]) -> None:
    (Path(node.sim.root_path) / "io.containerd.snapshotter.v1.overlayfs").mkdir()
    answer = await node.ask(method, request_)
    assert json.loads(encode(decode(json.dumps(answer), kind))) == answer


async def test_only_passes_complete_interrupted_removals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    completions: list[None] = []

    async def complete(_: RemovalRecovery) -> None:
        completions.append(None)

    monkeypatch.setattr(RemovalRecovery, "run", complete)
    (tmp_path / "io.containerd.snapshotter.v1.overlayfs").mkdir()
    requests = {"Plan": api.PlanRequest(scope="all", lasts_seconds=60), "Explain": api.ExplainRequest(name=IMAGE)}
    readings = {name for name, each in OPERATIONS.items() if each.access is Access.READ} - {"Events", "DiskUsage"}
    async with serving(tmp_path) as node:
        for each in sorted(readings):
            await node.ask(each, requests.get(each))
        assert node.faults.count("ListImages")
        assert not completions
        await node.ask("Apply", api.ApplyRequest(scope="images", rounds=1))
        assert len(completions) == 1


async def test_configuration_has_the_values_in_force_with_their_sources(node: Node) -> None:
    node.config.write_text("dry_run = true\n")
    settings = (await node.ask("Config"))["settings"]
    assert settings["dry_run"] == {"value": "false", "source": "default"}
    assert settings["role"] == {"value": '"standalone"', "source": str(node.config)}


async def test_status_is_returned_without_a_runtime(node: Node) -> None:
    node.context.agent = None
    answer = await node.ask("Status")
    assert answer["agent"]["ready"] is False
    assert answer["runtime"]["up"] is False
    node.context.settings = replace(node.context.settings, endpoint="")
    assert (await node.ask("Status"))["runtime"]["endpoint"] is None
    assert await node.refused("Plan", api.PlanRequest(scope="all")) == (
        503,
        "not ready: the daemon starts, reloads, or waits for a container runtime",
    )


@dataclass
class Hang:
    """A call that hangs until the end of the test, as on a dead mount."""

    calls: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, *_: object, **__: object) -> Any:
        self.calls += 1
        self.released.wait(30)
        raise ObservationError("unmounted")


@pytest.fixture
def hang() -> Iterator[Hang]:
    made = Hang()
    yield made
    made.released.set()


async def test_hanging_filesystem_blocks_one_thread(node: Node, hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.daemon.status.read_filesystem", hang)
    monkeypatch.setattr("nodeagent.daemon.status._READ_WITHIN_S", 0.05, raising=False)
    answer = await asyncio.wait_for(asyncio.gather(*(node.ask("Status") for _ in range(3))), 10)
    assert hang.calls == 1
    assert [each["problem"] for each in answer[0]["filesystems"]] == [
        "not read: a filesystem does not answer within 0.05 s"
    ]
    hang.released.set()
    assert (await node.ask("Status"))["filesystems"][0]["problem"] == "unmounted"


async def test_hanging_signal_reading_blocks_one_thread(
    node: Node, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.ask("Status")
    real = read_signals

    def read(paths: SignalPaths, *words: Any, **more: Any) -> Any:
        return hang() if paths.nodefs else real(paths, *words, **more)

    monkeypatch.setattr("nodeagent.observe.eviction_signals.read_signals", read)
    monkeypatch.setattr("nodeagent.observe.eviction_signals._READ_WITHIN_S", 0.05)
    answer = await asyncio.wait_for(asyncio.gather(*(node.ask("Pressure") for _ in range(3))), 10)
    assert hang.calls == 1
    assert all("does not answer" in each["warnings"][-1] for each in answer)


async def test_hanging_pod_directories_block_one_thread_each(
    node: Node, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.observe.pod_disk_usage.PodDiskWalk.advance", hang)
    monkeypatch.setattr("nodeagent.observe.walk_queue.HANGS_S", 0.05)
    monkeypatch.setattr("nodeagent.observe.pod_disk_usage.HANGS_S", 0.05)
    node.sim.add_pod("db")
    for _ in range(3):
        assert "a directory does not answer" in (await node.ask("Pods"))["warnings"][-1]
    assert hang.calls == len(node.sim.sandboxes)


async def test_plan_has_the_removals_of_the_collector(node: Node) -> None:
    answer = await node.ask("Plan", api.PlanRequest(scope="containers"))
    agent = node.context.agent
    assert agent is not None
    preview = await agent.collector.preview("containers")  # type: ignore[arg-type]
    removals = [each["id"] for plan in answer["plans"] for each in plan["decisions"] if each["verdict"] == "remove"]
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
        ("Explain", api.ExplainRequest(name=" "), "give a name"),
        ("DiskUsage", api.DiskUsageRequest(within_seconds=1e6), "is not between 0 and"),
        ("Leaks", api.LeaksRequest(minimum_age_seconds=-1), "is not between 0 and"),
        ("EvictionPreview", api.EvictionPreviewRequest(simulate="memory=5"), "expected SIGNAL=AMOUNT"),
        ("ShutdownStatus", api.ShutdownStatusRequest(limit=-1), "is not between 0 and"),
        ("History", api.HistoryRequest(image="\x1b[2J"), "printable"),
        ("History", api.HistoryRequest(image="x" * 5000), "at most 4096 characters"),
        ("AddHold", api.AddHoldRequest(image="app:*", why="x"), "a hold needs a duration"),
        ("AddHold", api.AddHoldRequest(image="sha256:", seconds=5), "image: "),
        ("RemoveHold", api.RemoveHoldRequest(id="77"), "no hold 77"),
        ("Pause", api.PauseRequest(), "a pause needs a duration"),
        ("Pause", api.PauseRequest(seconds=1e9), "is not between 0 and"),
        ("Trigger", api.TriggerRequest(loop="shutdown"), "is not running"),
        ("Apply", api.ApplyRequest(), "exactly one of them is required"),
        ("Apply", api.ApplyRequest(scope="all", plan="{}"), "exactly one of them is required"),
        ("Apply", api.ApplyRequest(scope="all", rounds=21), "rounds: 21 is not between 0 and 20"),
        ("Apply", api.ApplyRequest(plan="{}"), "not a plan of this agent"),
    ],
)
async def test_invalid_request_is_refused_and_changes_nothing(
    node: Node, method: str, request_: Any, words: str
) -> None:
    code, why = await node.refused(method, request_)
    assert (code, words in why) == (400, True), why
    assert node.context.pass_lock.pause() is None
    assert len(node.sim.containers) == 2


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


async def test_pause_refuses_passes_and_is_restored_after_a_restart(node: Node) -> None:
    await node.ask("Pause", api.PauseRequest(seconds=600, why="maintenance"))
    assert (await node.ask("Status"))["paused"]["why"].startswith("maintenance (by root, until ")
    code, why = await node.refused("Apply", api.ApplyRequest(scope="containers"))
    assert (code, "the agent is paused" in why) == (400, True)
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


async def test_pause_during_a_resume_is_stored(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.ask("Pause", api.PauseRequest(seconds=600, why="one"))
    real, started, release = PauseFile.clear, threading.Event(), threading.Event()

    def clear_slowly(file: PauseFile) -> None:
        started.set()
        release.wait(20)
        real(file)

    monkeypatch.setattr(PauseFile, "clear", clear_slowly)
    resumed = asyncio.ensure_future(node.ask("Resume"))
    assert await asyncio.to_thread(started.wait, 20)
    paused = asyncio.ensure_future(node.ask("Pause", api.PauseRequest(seconds=600, why="two")))
    while len(node.logged("control_request")) != 3:  # noqa: ASYNC110 - the pause is visible only in the log
        await asyncio.sleep(0)
    await asyncio.wait({paused}, timeout=0.2)
    release.set()
    await asyncio.gather(resumed, paused)
    kept = PauseFile(node.context.settings.state_directory).read()
    assert kept is not None
    assert kept.why == "two"
    assert node.context.pass_lock.pause() is not None


def test_unreadable_pause_file_is_a_pause_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "pause.json").write_text("{")
    stream, clock = io.StringIO(), SystemClock()
    made = replace(checked(Origin(None, (("state.directory", str(tmp_path)),))))
    context = DaemonContext(made, log.configure("json", "info", stream), clock, LoopStatuses(clock), PassLock(clock))
    restore_pause(context)
    pause = context.pass_lock.pause()
    assert pause is not None
    assert pause.until_s is None


async def test_apply_streams_each_result_and_the_report(node: Node) -> None:
    found = (await node.ask("Apply", api.ApplyRequest(scope="containers")))["all"]
    assert [each["schema"] for each in found] == ["nodeagent/result/v1", "nodeagent/result/v1", "nodeagent/report/v1"]
    assert found[-1]["trigger"] == "control"
    assert len(node.sim.containers) == 0
    assert [each["trigger"] for each in (await node.ask("History"))["passes"]] == ["control"]


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


@pytest.fixture
def as_actor(node: Node) -> Node:
    """A node with a member of the group with write access as the caller."""
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
    assert (code, f"placed by {placed_by.name}; requires root" in why) == (400, True), why
    assert [each["id"] for each in (await as_actor.ask("Holds"))["holds"]] == [placed["id"]]
    as_actor.peer[0] = ROOT
    await as_actor.ask("RemoveHold", api.RemoveHoldRequest(id=placed["id"]))
    assert (await as_actor.ask("Holds"))["holds"] == []


async def test_member_removes_own_hold(as_actor: Node) -> None:
    placed = await as_actor.ask("AddHold", api.AddHoldRequest(image="app:*", seconds=60))
    await as_actor.ask("RemoveHold", api.RemoveHoldRequest(id=placed["id"]))
    assert (await as_actor.ask("Holds"))["holds"] == []


async def test_member_cannot_hold_images_by_a_regular_expression(as_actor: Node) -> None:
    code, why = await as_actor.refused("AddHold", api.AddHoldRequest(image="regex:^app", seconds=60))
    assert (code, "only root places holds by regular expressions" in why) == (400, True), why
    as_actor.peer[0] = ROOT
    assert (await as_actor.ask("AddHold", api.AddHoldRequest(image="regex:^app", seconds=60)))["image"] == "regex:^app"


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
    as_actor.context.agent = replace(agent, settings=replace(agent.settings, **off))
    if refused:
        code, why = await as_actor.refused("Apply", request)
        assert (code, refused in why) == (400, True), why
        assert len(as_actor.sim.containers) == 2
        as_actor.peer[0] = ROOT
    await as_actor.ask("Apply", request)


def apply_stricter_policy(node: Node) -> None:
    """Put a configuration in force that keeps both dead containers."""
    agent = node.context.agent
    assert agent is not None
    policy = agent.settings.policy
    kept = replace(policy, containers=replace(policy.containers, max_per_pod_container=5))
    node.context.agent = replace(agent, settings=replace(agent.settings, policy=kept))


async def test_plan_older_than_a_stricter_policy_removes_nothing_that_the_policy_keeps(as_actor: Node) -> None:
    saved = await as_actor.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=600))
    assert sum(each["verdict"] == "remove" for each in saved["decisions"]) == 2
    apply_stricter_policy(as_actor)
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
    """Return a plan that removes every item that it lists, with a matching id."""
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


async def test_name_service_and_history_are_read_in_threads(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def recorded(real: Any) -> Any:
        def call(*words: Any, **more: Any) -> Any:
            threads.add(threading.current_thread())
            return real(*words, **more)

        return call

    monkeypatch.setattr("pwd.getpwuid", recorded(pwd.getpwuid))
    monkeypatch.setattr(control, "group_number", recorded(group_number))
    monkeypatch.setattr(History, "of", recorded(History.of))
    await node.ask("History")
    node.peer[0] = STRANGER
    await node.refused("History")
    assert threads
    assert threading.main_thread() not in threads


async def test_events_are_streamed_as_json_lines(node: Node) -> None:
    async with node.follow("Events") as reader:
        reading = asyncio.ensure_future(reader.readuntil(b"}\n"))
        while not reading.done():
            node.context.logger.info("resumed", by="operator", kept={"in-use": 3})
            await asyncio.sleep(0.01)
    event = json.loads((await reading).splitlines()[-1])
    assert (event["schema"], event["event"], event["by"]) == ("nodeagent/event/v1", "resumed", "operator")
    assert event["kept"] == {"in-use": 3}


async def test_trigger_wakes_its_loop_and_returns_the_result(node: Node) -> None:
    loop_statuses, wake = node.context.loop_statuses, asyncio.Event()
    node.context.wake["images"] = wake
    loop_statuses.waiting("images", 600, 600)
    pending = asyncio.ensure_future(node.ask("Trigger", api.TriggerRequest(loop="images", wait=True)))
    await asyncio.wait_for(wake.wait(), 20)
    loop_statuses.running("images", 60)
    loop_statuses.ended("images", "complete", detail="all well")
    triggered = await pending
    assert (triggered["result"], triggered["detail"]) == ("complete", "all well")


async def test_trigger_of_eviction_beside_a_kubelet_is_refused_with_the_reason(node: Node) -> None:
    node.context.wake["eviction"] = asyncio.Event()
    node.context.loop_statuses.disabled("eviction", "a kubelet manages this node")
    code, why = await node.refused("Trigger", api.TriggerRequest(loop="eviction", wait=True))
    assert (code, "is not running: a kubelet manages this node" in why) == (400, True)
    assert "running loops: eviction" not in why


async def test_trigger_that_waits_is_refused_when_its_loop_is_disabled(node: Node) -> None:
    node.context.wake["eviction"] = asyncio.Event()
    node.context.loop_statuses.waiting("eviction", 600, 600)
    pending = asyncio.ensure_future(node.refused("Trigger", api.TriggerRequest(loop="eviction", wait=True)))
    await asyncio.wait_for(node.context.wake["eviction"].wait(), 20)
    node.context.loop_statuses.disabled("eviction", "a kubelet manages this node")
    code, why = await pending
    assert (code, "is not running: a kubelet manages this node" in why) == (400, True)


async def test_status_beside_a_kubelet_has_the_role_and_refused_features(node: Node) -> None:
    agent = node.context.agent
    assert agent is not None
    agent.settings = replace(agent.settings, eviction=replace(agent.settings.eviction, enabled=True))
    agent.roles = RoleWatch(HandClock(), reader=KubeletDouble(KUBELET))
    status = await node.ask("Status")
    assert status["agent"]["role"] == "beside-kubelet"
    assert status["agent"]["role_because"] == "kubelet process 812 (kubelet)"
    assert "a kubelet manages this node (kubelet process 812 (kubelet))" in status["shutdown"]["off_because"]
    warnings = "\n".join(status["warnings"])
    assert 'role = "standalone" is configured, but not in force' in warnings
    assert 'eviction is disabled: eviction.enabled = "on" is refused' in warnings


class CountingPassLock(PassLock):
    """A pass lock that counts the passes that requested it."""

    requests = 0

    @asynccontextmanager
    async def take(self, *, urgent: bool = False) -> AsyncIterator[asyncio.Event]:
        self.requests += 1
        async with super().take(urgent=urgent) as end:
            yield end


@pytest.mark.parametrize("how", ["scope", "plan"])
@pytest.mark.parametrize("reload", ["requested", "done"])
async def test_pass_is_refused_when_a_reload_replaces_its_settings(node: Node, how: str, reload: str) -> None:
    request = api.ApplyRequest(scope="containers")
    if how == "plan":
        saved = await node.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=60))
        request = api.ApplyRequest(plan=json.dumps(saved))
    pass_lock = node.context.pass_lock = CountingPassLock(node.context.clock)
    async with pass_lock.take():
        applying = asyncio.ensure_future(node.refused("Apply", request))
        while pass_lock.requests < 2:  # noqa: ASYNC110 - the lock has no event
            await asyncio.sleep(0)
        if reload == "requested":
            node.context.renew.set()
        else:
            node.context.agent = replace(node.context.agent)  # type: ignore[type-var]
    code, why = await applying
    assert (code, "the configuration changed during the request" in why) == (409, True)
    assert len(node.sim.containers) == 2


@pytest.mark.parametrize("wait", [False, True])
async def test_trigger_is_refused_before_the_daemon_is_ready(node: Node, wait: bool) -> None:
    node.context.wake["images"] = asyncio.Event()
    node.context.loop_statuses.waiting("images", 600, 600)
    node.context.agent = None
    code, why = await node.refused("Trigger", api.TriggerRequest(loop="images", wait=wait))
    assert (code, "not ready: the daemon" in why) == (503, True)


async def test_trigger_that_waits_is_refused_when_a_pause_begins(node: Node) -> None:
    node.context.wake["images"] = asyncio.Event()
    node.context.loop_statuses.waiting("images", 600, 600)
    pending = asyncio.ensure_future(node.refused("Trigger", api.TriggerRequest(loop="images", wait=True)))
    await asyncio.wait_for(node.context.wake["images"].wait(), 20)
    node.context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, "maintenance"))
    code, why = await pending
    assert (code, "the agent is paused" in why) == (400, True)


async def test_reload_returns_the_changes_or_the_error(node: Node) -> None:
    stop = asyncio.Event()
    running = asyncio.ensure_future(ReloadTask(node.context, Notifier({})).run(stop))
    node.context.settings = checked(Origin(node.config))
    text = node.config.read_text()
    node.config.write_text(text + "[image_gc]\nhigh_threshold_percent = 90\n")
    assert (await node.ask("Reload"))["changes"] == ["image_gc.high_threshold_percent: 85 -> 90"]
    node.config.write_text(text + "[image_gc]\nhigh_threshold_percent = 900\n")
    code, why = await node.refused("Reload")
    assert (code, "high_threshold_percent = 900" in why) == (400, True)
    stop.set()
    await running


# ---- robustness


FIELDS = {
    str: st.text(max_size=20) | st.sampled_from(["images", "containers", "all", "eviction"]),
    float: st.floats(),
    int: st.integers(-1, 2**64),
    bool: st.booleans(),
}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, msgspec.Struct | None, bytes | None]:
    """A request of any operation without a wait: with random fields, or with a random body."""
    waiting = ("Events", "Reload", "PreviewReload")
    name = draw(st.sampled_from([each for each in sorted(OPERATIONS) if each not in waiting]))
    if draw(st.booleans()):
        return name, None, draw(st.binary(max_size=60))
    kind = request_type(name)
    fields = msgspec.structs.fields(kind)
    return name, kind(**{each.name: draw(FIELDS[each.type]) for each in fields if draw(st.booleans())}), None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls())
async def test_any_request_is_answered_without_a_crash(
    node: Node, call: tuple[str, msgspec.Struct | None, bytes | None]
) -> None:
    name, request, body = call
    status, documents = await node.exchange(name, request, body=body)
    assert status in {200, 400, 404, 409, 413}, documents
    assert node.logged("control_failed") == []
    assert (await node.ask("Status"))["agent"]["running"]


async def test_http_2_of_a_client_of_version_0_1_is_refused(node: Node) -> None:
    reader, writer = await asyncio.open_unix_connection(node.path)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 ")
    writer.transport.abort()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400))
async def test_random_bytes_do_not_break_the_service(node: Node, data: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(node.path)
    writer.write(data)
    writer.write_eof()
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert (await node.ask("Status"))["agent"]["running"]


async def test_root_is_answered_while_one_user_has_50_connections(node: Node) -> None:
    node.peer[0] = MEMBER
    with ExitStack() as stack:
        for _ in range(50):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            await asyncio.to_thread(connection.connect, str(node.path))
            with suppress(ConnectionError):
                connection.send(b"POST /v1/passes HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n")
        node.peer[0] = ROOT
        assert (await node.ask("Status"))["agent"]["running"]
        node.peer[0] = MEMBER
        assert (await node.ask("Status"))["agent"]["running"]


async def test_one_user_has_16_requests_in_progress_and_root_is_answered(node: Node) -> None:
    node.peer[0] = MEMBER
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(node.follow("Events")) for _ in range(LIMITS.per_user)]
        for reader in readers:
            waiting = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
            while not waiting.done():
                node.context.logger.info("resumed", by="operator")
                await asyncio.sleep(0.01)
            assert (await waiting).startswith(b"HTTP/1.1 200 ")
        assert (await node.exchange("Status"))[0] == 429
        node.peer[0] = ROOT
        assert (await node.ask("Status"))["agent"]["running"]
    node.peer[0] = MEMBER
    async with asyncio.timeout(20):
        while (await node.exchange("Status"))[0] != 200:
            pass


@pytest.mark.parametrize(
    ("peer", "operation", "size", "status"),
    [
        (ROOT, "AddHold", SMALL_BODY_BYTES + 1, 413),
        (ROOT, "Apply", LARGE_BODY_BYTES + 1, 413),
        (ROOT, "Status", 1, 413),
        (MEMBER, "Apply", LARGE_BODY_BYTES + 1, 403),
    ],
    ids=["small", "large", "none", "access-first"],
)
async def test_body_over_its_limit_is_refused_unread(
    node: Node, peer: Peer, operation: str, size: int, status: int
) -> None:
    node.peer[0] = peer
    assert (await node.exchange(operation, body=b"x" * size))[0] == status


async def test_socket_is_removed_when_it_is_disabled_and_created_again(node: Node) -> None:
    context = node.context
    on, off = (
        replace(context.settings, control=replace(context.settings.control, socket=each)) for each in (node.path, None)
    )
    assert (await node.ask("Status"))["agent"]["running"]
    context.settings = off
    context.renew.set()
    async with asyncio.timeout(20):
        while node.path.exists():  # noqa: ASYNC110 - only the file shows it
            await asyncio.sleep(0.01)
    context.settings = on
    async with asyncio.timeout(20):
        while not node.path.exists():  # noqa: ASYNC110 - only the file shows it
            await asyncio.sleep(0.01)
    assert (await node.ask("Status"))["agent"]["running"]
    context.renew.clear()


# ---- the socket


def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with open_socket(path, "no-such-group"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert socket_users(path, "no-such-group").startswith("root only, not group no-such-group")


def test_socket_belongs_to_the_configured_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "group_number", lambda _: os.getgid())
    with open_socket(tmp_path / "s", "any"):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o660


def test_other_file_or_active_socket_is_not_replaced(tmp_path: Path) -> None:
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


async def test_unprintable_text_of_an_error_is_returned_to_the_caller(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise ObservationError("/pods/\udcff\x1b\n")

    assert node.context.agent is not None
    monkeypatch.setattr(node.context.agent.collector, "preview", fail)
    code, details = await node.refused("Plan", api.PlanRequest(scope="images"))
    assert (code, details) == (409, "/pods/\\xff\x1b\n")


@pytest.mark.parametrize("name", ["[/x]", "a\x1b[31m\n\u202e\x9b\x00", "\udcff"])
def test_unprintable_names_in_a_document_are_encoded(name: str) -> None:
    text = encode({"schema": "s", "name": name, "names": [name]}, "json")
    assert json.loads(text)["name"] == json.loads(text)["names"][0] == name.replace("\udcff", "\\xff")
