"""Commands over the control API, each in a separate thread of the process of the daemon."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.api import requests as api
from nodeagent.api.client import ControlClient, DaemonRefusedError
from nodeagent.cli import control_client, gc
from nodeagent.cli.exit_codes import guarded
from nodeagent.errors import PassBusyError
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.host.lock import process_lock
from nodeagent.model.decision import Accounting, Plan
from nodeagent.model.stops import NodeStop, StopEnd, StopKind, StoppedPod
from nodeagent.record import replace
from nodeagent.settings.settings import DEFAULT_SOCKET
from nodeagent.store.history import Retention
from tests.unit.control_node import IMAGE, MEMBER, STRANGER, Node, say, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.model.node import NodeSnapshot


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    async with serving(tmp_path) as served_node:
        served_node.context.loop_statuses.waiting("images", 60, 60)
        path = served_node.path
        monkeypatch.setattr(control_client, "find_socket", lambda config: path if config is None else config)
        monkeypatch.setenv("COLUMNS", "200")
        yield served_node


@pytest.fixture
def as_member(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    node.peer[0] = MEMBER
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    return node


@pytest.mark.usefixtures("node")
async def test_status_shows_agent_runtime_signals_and_loops(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = await say(capsys, "status")
    assert code == 0
    for words in ("running (pid ", "containerd 1.7", "memory ", "no pressure", "images"):
        assert words in out
    assert re.search(r"in (1m|\d+s)", out)


async def test_status_shows_the_length_of_image_use_observation(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    agent = node.context.agent
    assert agent is not None
    assert "image use" not in (await say(capsys, "status"))[1]  # maximum_unused_age is unset
    policy = replace(agent.settings.policy, images=ImageGCPolicy(maximum_unused_age_s=14 * 86_400))
    agent.settings = replace(agent.settings, policy=policy)
    assert "image use: not observed; no image is removed by age" in (await say(capsys, "status"))[1]
    await node.ask("Plan", api.PlanRequest(scope="images"))
    out = (await say(capsys, "status"))[1]
    assert re.search(
        r"image use: observed since [-0-9]+\s[:0-9]+\sUTC\s\(\d+m?s\);\s+no image is removed\s+by age until use is\s+"
        r"observed for 14d",
        out,
    )


async def test_status_exits_with_1_while_the_agent_is_not_ready(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.context.agent = None
    code, out, _ = await say(capsys, "status")
    assert (code, "not ready: starting or reloading" in out) == (1, True)


async def test_status_as_json_is_the_document_of_the_control_api(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = await say(capsys, "status", "-o", "json")
    assert json.loads(out)["schema"] == "nodeagent/status/v1"
    assert json.loads(out).keys() == (await node.ask("Status")).keys()


async def test_status_without_an_agent_reads_the_node_directly(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "find_socket", lambda _: node.path.with_name("none"))
    code, out, _ = await say(capsys, "status", "--config", str(node.config), "-o", "json")
    local, remote = json.loads(out), await node.ask("Status")
    assert code == 1
    assert local["agent"]["running"] is False
    assert "no agent listening on control socket" in local["warnings"][0]
    for part in ("runtime", "holds", "conditions", "last_passes"):
        assert local[part] == remote[part]
    assert [each["name"] for each in local["filesystems"]] == [each["name"] for each in remote["filesystems"]]


@pytest.mark.usefixtures("node")
async def test_top_shows_pods_in_eviction_order(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = await say(capsys, "top")
    assert (code, "pods in eviction order for memory.available" in out) == (0, True)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("image", "is_noted"),
    [
        (IMAGE, False),
        ("registry.example/*", False),
        ("registry.example/ap:v1", True),
        ("regex:^none$", True),
        ("label:none", False),
    ],
)
@pytest.mark.parametrize("form", ["table", "json"])
async def test_hold_that_matches_no_image_has_a_note(
    capsys: pytest.CaptureFixture[str], image: str, is_noted: bool, form: str
) -> None:
    code, out, err = await say(capsys, "hold", "add", image, "--for", "1h", "-o", form)
    note = f"note: no image on this node matches {image}; the hold applies to matching images pulled later\n"
    assert (code, bool(out), err) == (0, True, note if is_noted else "")


async def test_hold_on_a_node_that_cannot_be_read_is_placed(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.faults.fail("ListImages", times=None, status="UNAVAILABLE")
    code, out, err = await say(capsys, "hold", "add", "other:*", "--for", "1h")
    assert (code, out.startswith("hold 1 on other:*"), err) == (0, True, "")


@pytest.mark.usefixtures("node")
async def test_pause_is_shown_by_status_and_ended_by_resume(capsys: pytest.CaptureFixture[str]) -> None:
    assert (await say(capsys, "pause", "--for", "10m", "--why", "debugging"))[1].startswith("paused until ")
    assert "paused (" in (await say(capsys, "status"))[1]
    code, _, err = await say(capsys, "trigger", "images")
    assert (code, "paused" in err or "is not running" in err) == (2, True)
    assert (await say(capsys, "resume"))[1] == "resumed\n"
    assert (await say(capsys, "resume"))[1] == "not paused\n"
    code, _, err = await say(capsys, "pause", "--for", "soon")
    assert (code, "--for" in err) == (2, True)


async def test_status_of_a_user_outside_the_group_names_the_required_group(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.peer[0] = STRANGER
    code, out, err = await say(capsys, "status")
    assert (code, out) == (1, "")
    assert "access requires root or membership in group" in err


async def test_denied_connection_names_the_command_that_grants_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("socket.socket.connect", denied)
    monkeypatch.setattr(control_client, "find_socket", lambda _: DEFAULT_SOCKET)
    code, _, err = await say(capsys, "status")
    assert (code, "usermod -aG nodeagent" in err) == (1, True)


async def test_member_previews_through_the_agent_and_may_not_remove(
    as_member: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = await say(capsys, "gc", "containers", "--dry-run")
    assert (code, "Removes 2 of 2 containers" in out) == (0, True)
    _, out, _ = await say(capsys, "gc", "containers", "--dry-run", "-o", "json")
    assert json.loads(out)["schema"] == "nodeagent/preview/v1"
    code, _, err = await say(capsys, "gc", "containers", "--yes")
    assert (code, "control.group_may_act = true" in err) == (1, True)
    assert len(as_member.sim.containers) == 2


async def test_member_that_may_act_removes_through_the_agent(
    as_member: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = as_member.context.settings
    as_member.context.settings = replace(settings, control=replace(settings.control, group_may_act=True))
    code, out, _ = await say(capsys, "gc", "containers", "--yes")
    assert (code, "complete: removed 2 of 2" in out) == (0, True)
    assert len(as_member.sim.containers) == 0
    _, out, _ = await say(capsys, "history")
    assert out.splitlines()[1].split()[4:7] == ["control", "containers", "complete"]


@pytest.fixture
def as_actor(as_member: Node) -> Node:
    settings = as_member.context.settings
    as_member.context.settings = replace(settings, control=replace(settings.control, group_may_act=True))
    return as_member


@pytest.mark.parametrize(("failures", "code"), [(1, 3), (2, 1)])
async def test_failed_removals_have_the_exit_code_of_the_local_command(
    as_actor: Node, capsys: pytest.CaptureFixture[str], failures: int, code: int
) -> None:
    as_actor.faults.fail("RemoveContainer", times=failures)
    assert (await say(capsys, "gc", "containers", "--yes"))[0] == code


async def test_blocked_plan_exits_with_1_and_its_reason(
    as_actor: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(snapshot: NodeSnapshot, *_: object, **__: object) -> Plan:
        return Plan("images", snapshot.observed_at, (), Accounting.UPPER_BOUND, blocked="layers unknown")

    monkeypatch.setattr("nodeagent.gc.pass_state.plan_image_gc", refused)
    for source in ((), ("--config", str(as_actor.config))):
        code, out, _ = await say(capsys, "gc", "images", "--yes", *source)
        assert (code, "layers unknown" in out) == (1, True)


async def test_concurrent_pass_exits_with_5_through_the_agent(
    as_actor: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    with process_lock(as_actor.context.settings.state_directory / "pass.lock"):
        code, _, err = await say(capsys, "gc", "containers", "--yes")
    assert (code, "another pass is running" in err) == (5, True)


def test_concurrent_pass_exits_with_5_without_an_agent() -> None:
    with pytest.raises(SystemExit) as ended, guarded():
        raise PassBusyError("another pass is running")
    assert ended.value.code == 5


async def test_history_through_the_agent_lists_node_stops(as_member: Node, capsys: pytest.CaptureFixture[str]) -> None:
    agent, now = as_member.context.agent, as_member.context.clock.now()
    assert agent is not None
    stop = NodeStop("b" * 32, StopKind.UNCLEAN, now, end=StopEnd.UNKNOWN, pods=(StoppedPod("u", "default", "web"),))
    agent.history.add_stop(stop, Retention(timedelta(days=30), 1 << 20), now)
    _, out, _ = await say(capsys, "history")
    assert out.splitlines()[0].split() == ["NODE", "STOP", "KIND", "RESULT", "PODS"]
    assert out.splitlines()[1].split()[3:] == ["unclean", "unknown", "1"]
    none = "no matching passes in the agent's history\n"
    assert (await say(capsys, "history", "--all", "--since", "0s"))[1:] == ("", none)


@pytest.mark.parametrize("answer", [True, False])
async def test_items_are_removed_only_after_confirmation(
    as_actor: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(
        "nodeagent.cli.gc.confirm", lambda question: answer and question.startswith("Remove 2 containers")
    )
    code, out, _ = await say(capsys, "gc", "containers")
    assert (code, "removed 2 of 2" in out, len(as_actor.sim.containers)) == (0, answer, 0 if answer else 2)


async def test_environment_with_settings_bypasses_the_agent(
    as_actor: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODEAGENT_CONTROL__SOCKET", str(as_actor.path))
    assert (await say(capsys, "gc", "containers", "--dry-run"))[0] == 0
    monkeypatch.setenv("NODEAGENT_RUNTIME__ENDPOINT", f"unix://{as_actor.path.with_name('other.sock')}")
    assert (await say(capsys, "gc", "containers", "--yes"))[0] == 4
    assert len(as_actor.sim.containers) == 2


@pytest.mark.usefixtures("as_member")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("history", "--limit", str(2**40)), 0),
        (("history", "--image", "\udcff"), 2),
        (("hold", "add", "app", "--for", "1h", "--why", "\udcff"), 2),
        (("hold", "remove", "\udcff"), 2),
        (("pause", "--why", "\udcff"), 2),
        (("trigger", "\udcff"), 2),
    ],
)
async def test_undecodable_argument_exits_with_2(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int
) -> None:
    assert (await say(capsys, *words))[0] == code


@pytest.mark.parametrize("words", [("history",), ("hold", "list"), ("pressure",)])
async def test_member_reads_the_same_documents_through_the_agent(
    as_member: Node, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, out, err = await say(capsys, *words)
    assert (code, bool(out or err)) == (0, True)
    _, out, _ = await say(capsys, *words, "-o", "json")
    method: Any = {"history": "History", "hold": "Holds", "pressure": "Pressure"}[words[0]]
    assert json.loads(out)["schema"] == (await as_member.ask(method))["schema"]


async def test_response_of_another_version_is_an_error_without_traceback(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.path.exists()
    monkeypatch.setattr("nodeagent.daemon.control.service.status_document", lambda *_: _document_of_another_version())
    code, _, err = await say(capsys, "status")
    assert (code, "its version may differ" in err) == (1, True)


async def _document_of_another_version() -> dict[str, str]:
    return {"schema": "nodeagent/status/v9"}


async def test_local_gc_warns_of_a_paused_daemon(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    gc.warn_of_pause(node.context.settings)
    await say(capsys, "pause", "--for", "10m", "--why", "debugging")
    gc.warn_of_pause(node.context.settings)
    assert "daemon paused by root until" in capsys.readouterr().err


async def test_pressure_is_read_locally_if_the_agent_denies_access(
    as_member: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object, **__: object) -> None:
        raise DaemonRefusedError("access denied")

    assert as_member.path.exists()
    monkeypatch.setattr(control_client, "connected", deny)
    code, out, _ = await say(capsys, "pressure", "-o", "json")
    assert (code, json.loads(out)["schema"]) == (0, "nodeagent/pressure/v1")
    monkeypatch.setattr(ControlClient, "call", deny)
    code, _, err = await say(capsys, "history")
    assert (code, "access denied" in err) == (1, True)


@pytest.mark.parametrize("words", [("history",), ("hold", "list"), ("pressure",)])
async def test_root_reads_through_the_daemon_despite_an_invalid_configuration(
    node: Node,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
) -> None:
    path = tmp_path / "config.toml"
    path.write_text("not TOML")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("nodeagent.config.files.DEFAULT_PATH", path)
    code, out, _ = await say(capsys, *words, "-o", "json")
    name = {"history": "History", "hold": "Holds", "pressure": "Pressure"}[words[0]]
    assert (code, json.loads(out).keys()) == (0, (await node.ask(name)).keys())
    code, _, err = await say(capsys, *words, "--direct")
    assert (code, "invalid TOML" in err) == (2, True)
