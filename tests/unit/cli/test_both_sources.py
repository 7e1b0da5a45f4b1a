"""Read-only commands: the document from the daemon equals the document from ``--direct``."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.api.client import ControlClient
from nodeagent.api.operations import OPERATIONS
from nodeagent.api.requests import AddHoldRequest
from nodeagent.cli import control_client
from nodeagent.errors import NodeAgentError
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.stops import NodeStop, StopEnd, StopKind, StoppedPod
from nodeagent.runtime.leases import ImageName
from nodeagent.store.history import Retention
from tests.unit.control_node import IMAGE, MEMBER, Node, say, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.gc.agent import Agent

READING = {
    "images": "Images",
    "images --tree": "ImageLayers",
    "containers": "Containers",
    "pods": "PodList",
    f"explain {IMAGE}": "Explain",
    "du --timeout 1s": "DiskUsage",
    "history": "History",
    "hold list": "Holds",
    "pressure": "Pressure",
    "gc images --dry-run": "Plan",
    "gc containers --dry-run": "Plan",
    "gc all --dry-run": "Plan",
    "gc leaks": "Leaks",
    "report": "NodeReport",
    "gc undo --list": "UndoList",
    "evict --simulate memory.available=1Mi": "EvictionPreview",
    "evict --dry-run": "EvictionPreview",
    "shutdown --dry-run": "ShutdownPlan",
    "shutdown status": "ShutdownStatus",
    "config show --effective": "Config",
    "trend": "Trend",
    "version": "Version",
}
"""Control API operation of each read-only command with the option ``--direct``."""
VOLATILE = re.compile(
    r"_at$|^(id|available|available_bytes|inodes_free|used_percent|pod_memory_bytes|distance|change_per_s|held_s)$"
    r"|^(observed_since|since|first_detected|last_used|seconds_left|age_s|unused_s|observed_s)$"
)
"""Document fields with readings or times that differ between two observations."""


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """Yield a node with a daemon; commands use its configuration by default and run as root."""
    async with serving(tmp_path) as made:
        (Path(made.sim.root_path) / "io.containerd.snapshotter.v1.overlayfs").mkdir()
        monkeypatch.setattr("nodeagent.config.files.DEFAULT_PATH", made.config)
        monkeypatch.setattr("nodeagent.config.paths.CONFIG_FILE", str(made.config))
        monkeypatch.setattr("os.geteuid", lambda: 0)
        agent, now = made.context.agent, made.context.clock.now()
        assert agent is not None
        stop = NodeStop("b" * 32, StopKind.UNCLEAN, now, end=StopEnd.UNKNOWN, pods=(StoppedPod("u", "default", "web"),))
        agent.history.add_stop(stop, Retention(timedelta(days=30), 1 << 20), now)
        await made.ask("AddHold", AddHoldRequest(image="other:*", seconds=3600, why="rollback"))
        await lease_for_undo(agent)
        await agent.preview(Scope.IMAGES)  # recorded, so that no command is the first reading
        yield made


async def lease_for_undo(agent: Agent) -> None:
    """Create the undo lease of a pass that removed an image."""
    records = agent.storage.removals
    assert records is not None
    stored = await records.leases.list_names()
    names = [ImageName(IMAGE, each, encoded) for each, encoded in stored.values()]
    await records.undo.keep(names, (), pass_id="20260101T000000Z-abcdef", window=timedelta(hours=1), size_bytes=4096)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each control API operation requested by a command is appended."""
    found: list[str] = []
    call = ControlClient.call

    def recorded(client: ControlClient, name: str, *arguments: Any, **options: Any) -> str:
        found.append(name)
        return call(client, name, *arguments, **options)

    monkeypatch.setattr(ControlClient, "call", recorded)
    return found


def without_readings(value: Any) -> Any:
    if isinstance(value, dict) and "formula_bytes" in value:
        return sorted(value)  # memory of this machine, which changes between two readings
    if isinstance(value, dict) and "role_because" in value:  # other fields describe the agent process
        value = {each: value[each] for each in ("version", "dry_run", "role", "role_because")}
    if isinstance(value, dict):
        return {key: without_readings(each) for key, each in value.items() if not VOLATILE.search(key)}
    return [without_readings(each) for each in value if not of_others(each)] if isinstance(value, list) else value


def of_others(value: Any) -> bool:
    """Return whether a value describes other processes, or a filesystem shared with them."""
    if isinstance(value, dict):
        return value.get("part") in ("host-files", "deleted-files", "unexplained")
    return str(value).startswith("deleted files that are open")


def test_every_reading_operation_is_compared() -> None:
    others = {"Status", "Pods", "Events", "PreviewReload"}  # operations of commands without --direct
    assert {name for name, each in OPERATIONS.items() if each.method == "GET"} - others == set(READING.values())


@pytest.mark.parametrize("words", READING)
async def test_document_of_the_daemon_equals_that_of_a_direct_reading(
    node: Node, asked: list[str], capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert node.path.exists()
    code, served, _ = await say(capsys, *words.split(), "-o", "json")
    assert asked == [READING[words]]
    del asked[:]
    direct_code, direct, _ = await say(capsys, *words.split(), "-o", "json", "--direct")
    assert asked == (["Status"] if words == "report" else [])  # a report contains the state of the daemon
    assert code == direct_code
    assert without_readings(json.loads(served)) == without_readings(json.loads(direct))
    assert json.loads(served)["schema"] == OPERATIONS[READING[words]].schema


async def test_details_of_a_report_are_the_documents_of_the_daemon(
    node: Node, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.path.exists()
    _, served, _ = await say(capsys, "report", "--details")
    assert sorted(asked) == ["DiskUsage", "History", "NodeReport", "Status", "Trend", "Trend"]
    details = json.loads(served)["details"]
    assert [details[each]["schema"] for each in ("status", "usage", "day", "week")] == [
        OPERATIONS[each].schema for each in ("Status", "DiskUsage", "Trend", "Trend")
    ]
    assert details["unread"] == []
    _, direct, _ = await say(capsys, "report", "--details", "--direct")
    assert json.loads(direct)["details"].keys() == details.keys()


@pytest.mark.parametrize("words", [each for each in READING if each.split()[0] not in ("pressure", "evict", "report")])
async def test_table_of_the_daemon_equals_that_of_a_direct_reading(
    node: Node, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert node.path.exists()
    tables = [(await say(capsys, *words.split(), *source))[1] for source in ((), ("--direct",))]
    assert all(tables)
    shown = [
        re.sub(r"\d+(\.\d+)?", "N", table).replace(str(node.config.parent / "state"), "the agent's history")
        for table in tables
    ]
    if words.startswith("du"):  # directories and deleted files of other processes, which also change meanwhile
        other = r"^(?:  |(?:warning: )?deleted files that are open).*\n"
        shown = [re.sub(other, "", table, flags=re.MULTILINE) for table in shown]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("form", [("-q",), ("-o", "name")])
@pytest.mark.parametrize(("words", "field"), [("images", "images"), ("containers", "containers"), ("pods", "pods")])
async def test_ids_and_names_of_a_direct_reading_are_listed_by_cri_alone(
    node: Node, capsys: pytest.CaptureFixture[str], words: str, field: str, form: tuple[str, ...]
) -> None:
    _, served, _ = await say(capsys, words, *form)
    rows = json.loads((await say(capsys, words, "-o", "json"))[1])[field]
    node.faults.calls.clear()
    assert (await say(capsys, words, *form, "--direct"))[1] == served
    assert len(served.splitlines()) == len(rows) > 0
    assert not [each for each in node.faults.calls if "." in each.method]  # of containerd's own services


@pytest.mark.parametrize("options", [("--sort-by", "size"), ("--filter", "verdict=keep")])
async def test_selected_ids_of_a_direct_reading_use_the_records_of_containerd(
    node: Node, capsys: pytest.CaptureFixture[str], options: tuple[str, str]
) -> None:
    _, served, _ = await say(capsys, "images", "-q", *options)
    node.faults.calls.clear()
    assert (await say(capsys, "images", "-q", *options, "--direct"))[1] == served
    assert any("." in each.method for each in node.faults.calls)  # of containerd's own services


@pytest.mark.parametrize("words", READING)
async def test_member_is_answered_by_the_daemon(
    node: Node, asked: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    node.peer[0] = MEMBER
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    code, out, err = await say(capsys, *words.split(), "-o", "json")
    assert (asked, json.loads(out)["schema"]) == ([READING[words]], OPERATIONS[READING[words]].schema), (code, err)


@pytest.mark.parametrize("words", READING)
async def test_failed_request_is_an_error_not_a_direct_reading(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def failed(*_: object, **__: object) -> str:
        raise NodeAgentError("the daemon failed")

    assert node.path.exists()
    monkeypatch.setattr(ControlClient, "call", failed)
    code, out, err = await say(capsys, *words.split(), "-o", "json")
    assert (code, out, "the daemon failed" in err) == (1, "", True)


@pytest.mark.parametrize("words", READING)
async def test_node_is_read_where_no_daemon_is_listening(
    node: Node, asked: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr(control_client, "find_socket", lambda _: node.path.with_name("none"))
    _, out, _ = await say(capsys, *words.split(), "-o", "json")
    assert json.loads(out)["schema"] == OPERATIONS[READING[words]].schema
    assert set(asked) <= {READING[words]}


@pytest.mark.parametrize("source", [[], ["--direct"]])
@pytest.mark.parametrize("words", ["images", "containers", "pods"])
async def test_invalid_option_of_a_list_is_reported_rather_than_a_failed_reading(
    node: Node, capsys: pytest.CaptureFixture[str], words: str, source: list[str]
) -> None:
    node.faults.fail("ListContainers", None, times=9, status="INTERNAL", detail="busy")
    code, _, err = await say(capsys, *words.split(), *source, "--sort-by", "colour")
    assert (code, "colour" in err) == (2, True)
