"""``nodeagent report``: one JSON line per node, and the summary of the lines of many nodes."""

from __future__ import annotations

import io
import json
import re
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from nodeagent.api import requests
from nodeagent.api.client import ControlClient
from nodeagent.api.common import decode, encode_line
from nodeagent.api.outlook import GrowthDocument
from nodeagent.daemon.report_document import Fleet, NodeReport, PlannedRemovals
from nodeagent.errors import NodeAgentError
from nodeagent.host.node import node_name
from nodeagent.model.outlook import Outlook
from nodeagent.text import display_width, escape
from tests.support.node_reports import expecting, fleet, planned, report
from tests.support.terminal import Shown, in_pipe, on_terminal
from tests.unit.control_node import STRANGER, Node, say, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.api.outlook import OutlookDocument
    from nodeagent.daemon.context import DaemonContext

HOSTILE = GrowthDocument(part="p\x1b[2J\nnodeagent: fine", rate_per_s=1.0, share=1.0)
GOOD = encode_line(report("node-1", plan=planned()))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.jsonl"
    path.write_text("".join(map(encode_line, fleet(500))))
    return path


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as made:
        yield made


def merged(path: Path, text: str | bytes, *options: str) -> Shown:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return in_pipe("report", "--merge", str(path), *options)


def agent_settings(context: DaemonContext) -> str:
    assert context.agent is not None
    return context.agent.settings.kubelet.node_name


async def test_line_of_a_node_has_the_removals_of_the_preview(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    config = ("--config", str(node.config))
    code, out, err = await say(capsys, "report", *config)
    assert (code, err, out.count("\n")) == (0, "", 1)
    found = decode(out, NodeReport)
    preview = json.loads((await say(capsys, "gc", "all", "--dry-run", "-o", "json", *config))[1])
    removed = [each for plan in preview["plans"] for each in plan["decisions"] if each["verdict"] == "remove"]
    assert found.node == node_name(agent_settings(node.context))
    assert found.planned is not None
    assert found.planned.count == len(removed) == 2
    assert found.planned.bytes == sum(each["frees_bytes"] or 0 for each in removed)
    assert {each.kind for each in found.planned.removals} == {each["kind"] for each in removed}


@pytest.mark.parametrize("direct", [False, True], ids=["config", "direct"])
async def test_report_and_status_agree_about_the_running_daemon(
    node: Node, capsys: pytest.CaptureFixture[str], direct: bool
) -> None:
    await node.ask("Pause", requests.PauseRequest(seconds=600, why="maintenance"))
    config = ("--config", str(node.config))
    status = json.loads((await say(capsys, "status", "-o", "json", *config))[1])
    _, out, _ = await say(capsys, "report", *config, *(["--direct"] if direct else []))
    found = json.loads(out)
    found["paused"] |= {"seconds_left": status["paused"]["seconds_left"]}
    assert (found["agent"], found["paused"]) == (status["agent"], status["paused"])
    assert found["agent"]["running"] is True


@pytest.mark.parametrize("cause", ["denied", "no response within 30 s"])
async def test_report_beside_a_daemon_that_refuses_or_hangs_has_the_cause_as_a_warning(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    def hang(*_: object, **__: object) -> str:
        raise NodeAgentError(cause)

    if cause == "denied":
        node.peer[0] = STRANGER
    else:
        monkeypatch.setattr(ControlClient, "call", hang)
    _, out, _ = await say(capsys, "report", "--config", str(node.config))
    found = decode(out, NodeReport)
    assert (found.agent.running, cause in found.warnings[0]) == (False, True), found.warnings


async def test_node_that_cannot_be_listed_has_a_line_without_plan_and_exit_code_1(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.faults.fail("ListContainers", None, times=99, status="INTERNAL", detail="busy\x1b[2J")
    code, out, _ = await say(capsys, "report", "--config", str(node.config))
    found = decode(out, NodeReport)
    assert (code, found.planned, "busy" in found.unplanned_because) == (1, None, True)
    assert "\x1b" not in out


async def test_only_enabled_loops_are_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path) as made:
        text = made.config.read_text()
        scopes = []
        for images, containers in ((True, True), (True, False), (False, True), (False, False)):
            enabled = text.replace("[container_gc]\n", f"[container_gc]\nenabled = {str(containers).lower()}\n")
            made.config.write_text(f"{enabled}[image_gc]\nenabled = {str(images).lower()}\n")
            _, out, _ = await say(capsys, "report", "--config", str(made.config))
            plan = decode(out, NodeReport).planned
            assert plan is not None
            scopes.append((plan.scope, plan.count))
    assert scopes == [("all", 2), ("images", 0), ("containers", 2), ("none", 0)]


async def test_table_of_one_node_is_the_summary_of_its_line(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await say(capsys, "report", "-o", "table", "--config", str(node.config))
    assert out.startswith("1 node, observed")
    assert "2 removals on 1 node" in out


async def test_findings_of_doctor_are_added_on_request(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = await say(capsys, "report", "--doctor", "--config", str(node.config))
    found = decode(out, NodeReport)
    assert isinstance(found.checks, tuple)
    assert {each.verdict for each in found.checks} <= {"problem", "warning"}
    assert all(f"{each.verdict} {each.check}: {each.evidence}" in found.attention for each in found.checks)


def test_summary_of_500_nodes_takes_at_most_2_s_of_cpu_time_and_fits_80_columns(
    lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    started_s = time.process_time()
    shown = on_terminal(80, "report", "--merge", str(lines))
    assert time.process_time() - started_s < 2
    assert (shown.code, shown.err) == (0, "")
    assert max(map(display_width, shown.out.splitlines())) <= 80
    assert shown.out.startswith("500 nodes, observed")
    assert "5 nodes without a plan: removals unknown" in shown.out


def test_json_of_a_summary_has_every_node(lines: Path) -> None:
    found = decode(in_pipe("report", "--merge", str(lines), "-o", "json").out, Fleet)
    reports = list(fleet(500))
    assert len(found.nodes) == found.total.nodes == found.lines == 500
    assert found.total.bytes == sum(each.planned.bytes for each in reports if each.planned is not None)
    assert {each.name: each.nodes for each in found.by_role} == {"beside-kubelet": 400, "standalone": 100}


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("not JSON", "malformed"),
        ("{}", "observed_at"),
        ('{"schema": "nodeagent/status/v1"}', "nodeagent/status/v1"),
        (GOOD.replace('"node": "node-1"', '"node": ""'), "node"),
        (GOOD.replace('"node": "node-1",', ""), "node"),
        (GOOD.replace('"pending_bytes": 0', '"pending_bytes": -1'), "pending_bytes"),
        (GOOD.replace('"pending_bytes": 0', f'"pending_bytes": {10**400}'), ""),
        (GOOD.replace("2026-03-01T12", "2026-03-01T99"), "observed_at"),
        (GOOD[:-20], "truncated"),
        (GOOD.replace("node-1", "\\ud800"), ""),
        (GOOD[:-1] * 2, ""),
        ("[" * 100_000, ""),
        ("x" * ((4 << 20) + 10), "longer"),
    ],
    ids=["text", "empty", "schema", "no-name", "missing", "negative", "huge", "time", "cut", "text-form", "two",
         "nested", "long"],
)  # fmt: skip
def test_line_that_is_no_report_is_counted_and_named(tmp_path: Path, line: str, cause: str) -> None:
    path = tmp_path / "f"
    shown = merged(path, f"{GOOD}{line.rstrip()}\n\n{GOOD.replace('node-1', 'node-2')}", "-o", "json")
    assert shown.code == 3, shown.err
    found = decode(shown.out, Fleet)
    assert (found.lines, found.malformed, found.total.nodes) == (3, 1, 2)
    assert shown.err.startswith(f"nodeagent: {path}: line 2: ")
    assert cause in shown.err
    assert (shown.err.count("\n"), len(shown.err) < 1000) == (1, True)


def test_many_faults_are_counted_and_the_first_twenty_named(tmp_path: Path) -> None:
    shown = merged(tmp_path / "f", GOOD + "x\n" * 25)
    assert (shown.code, shown.err.count("\n")) == (3, 21)
    assert "and 5 more lines that are not reports" in shown.err
    assert "25 lines of 26 not counted: no report" in shown.out


@pytest.mark.parametrize("text", ["", "\n\n", "x\n", b"\xff\xfe\n"])
def test_input_without_a_report_exits_with_1(tmp_path: Path, text: str | bytes) -> None:
    shown = merged(tmp_path / "f", text)
    assert (shown.code, shown.out) == (1, "")
    assert "nothing to merge" in shown.err


def test_unreadable_file_exits_with_2_before_any_output(tmp_path: Path, lines: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        shown = in_pipe("report", "--merge", str(lines), str(path))
        assert (shown.code, shown.out) == (2, "")
        assert f"cannot read {path}: " in shown.err


@pytest.mark.parametrize("files", [(), ("-",)])
def test_standard_input_is_merged(monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(GOOD.encode())))
    shown = in_pipe("report", "--merge", *files)
    assert (shown.code, shown.out.startswith("1 node, ")) == (0, True)


def test_texts_of_a_report_are_escaped(tmp_path: Path) -> None:
    hostile = report(
        "n\x1b[2J\nx",
        plan=planned(),
        version="\u202e1",
        role="a\rb",
        warnings=("w\x1b]0;t\x07\nnodeagent: fine",),
        conditions=("\u2028",),
        outlook=(structs.replace(expecting(1.0), resource="r\x1b[2J", growth=(HOSTILE,)),),
    )
    for form in ("table", "json", "yaml"):
        shown = merged(tmp_path / "f", encode_line(hostile), "-o", form)
        assert shown.code == 0
        assert [escape(each) for each in shown.out.splitlines()] == shown.out.splitlines()
        assert "nodeagent: fine" not in shown.out.splitlines()


@pytest.mark.parametrize(
    ("outlook", "cell"),
    [
        ((expecting(2.0),), "1h to 4h"),
        ((expecting(None, Outlook.REACHED),), "now"),
        ((expecting(None),), "none"),
        ((expecting(None, Outlook.UNKNOWN),), "unknown"),
        ((), "unknown"),
    ],
    ids=["range", "met", "no trend", "unknown", "report of an older version"],
)
def test_merged_table_has_the_time_until_a_node_is_short(
    tmp_path: Path, outlook: tuple[OutlookDocument, ...], cell: str
) -> None:
    removals = PlannedRemovals(kind="image", count=1, bytes=1, without_size=0)
    text = encode_line(report("node-1", plan=planned(removals), outlook=outlook))
    out = merged(tmp_path / "f", text).out.splitlines()
    heading, row = next((line, out[number + 1]) for number, line in enumerate(out) if line.startswith("NODE"))
    start = heading.index("SHORT IN")
    assert row[start:].startswith(f"{cell}  ")
    assert ("1 node short of a resource within 4h" in out) is (cell in ("1h to 4h", "now"))


def test_node_that_will_be_short_is_listed_without_removals(tmp_path: Path) -> None:
    text = "".join(
        encode_line(report(f"node-{number}", plan=None, problem="busy", outlook=(expecting(float(hours)),)))
        for number, hours in enumerate((9, 2))
    )
    out = merged(tmp_path / "f", text).out
    assert out.index("\nnode-1  ") < out.index("\nnode-0  ")


@pytest.mark.parametrize("value", ["1e400", "-1e400", "1" * 400, "1e300", "null", "0"])
@pytest.mark.parametrize("name", ["expected_s", "latest_s", "rate_per_s", "used", "capacity", "share", "observed_s"])
def test_any_number_in_an_outlook_is_merged_or_refused(tmp_path: Path, name: str, value: str) -> None:
    text = encode_line(report("node-1", plan=planned(), outlook=(expecting(2.0),)))
    changed = re.sub(rf'"{name}": [^,}}]+', f'"{name}": {value}', text)
    for form in ("table", "json"):
        shown = merged(tmp_path / "f", GOOD.replace("node-1", "node-2") + changed, "-o", form)
        assert shown.code in (0, 3), shown.err


@pytest.mark.parametrize(
    "options", [("--doctor",), ("--direct",), ("--config", "f"), ("--endpoint", "unix:///x")], ids=lambda each: each[0]
)
def test_options_of_a_reading_are_refused_with_merge(lines: Path, options: tuple[str, ...]) -> None:
    shown = in_pipe("report", "--merge", str(lines), *options)
    assert (shown.code, shown.out, "are excluded" in shown.err) == (2, "", True)


def test_files_without_merge_are_refused(lines: Path) -> None:
    shown = in_pipe("report", str(lines))
    assert (shown.code, shown.out, "--merge" in shown.err) == (2, "", True)
