"""Control API over its socket, on a simulated node, with a caller set by the test."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.api import requests as api
from nodeagent.api.common import Document, decode, encode
from nodeagent.api.operations import OPERATIONS, Access
from nodeagent.cli.status import status_view
from nodeagent.daemon.control_documents import EffectiveConfig, Paused, Resumed, Version
from nodeagent.daemon.documents import Status
from nodeagent.eviction.documents import EvictionPreview, PodUsageDocument, Pressure
from nodeagent.gc.documents.history import HistoryDocument
from nodeagent.gc.documents.holds import HoldDocument, HoldList
from nodeagent.gc.documents.lists import Containers, Images, ImageTree, Pods
from nodeagent.gc.documents.passes import DiskUsageDocument, ExplanationDocument, PreviewDocument
from nodeagent.gc.documents.undo import UndoList
from nodeagent.gc.restore import RemovalRecovery
from nodeagent.pods.role import RoleWatch
from nodeagent.record import replace
from nodeagent.shutdown.documents import ShutdownPlanDocument, ShutdownStatus
from tests.unit.control_node import IMAGE, MEMBER, Node, serving
from tests.unit.kubelet_double import KUBELET, HandClock, KubeletDouble


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


async def test_order_of_loops_in_the_status_does_not_depend_on_their_first_reports(node: Node) -> None:
    for each in ("metrics", "images", "containers"):
        node.context.loop_statuses.waiting(each, 60, 60)
    assert [each["name"] for each in (await node.ask("Status"))["loops"]] == ["containers", "images", "metrics"]


@pytest.mark.parametrize(
    ("method", "request_", "kind"),
    [
        ("Status", None, Status),
        ("Pressure", None, Pressure),
        ("Pods", None, PodUsageDocument),
        ("Plan", api.PlanRequest(scope="all"), PreviewDocument),
        ("History", None, HistoryDocument),
        ("Version", None, Version),
        ("Images", None, Images),
        ("ImageLayers", None, ImageTree),
        ("Containers", None, Containers),
        ("PodList", None, Pods),
        ("Explain", api.ExplainRequest(name=IMAGE), ExplanationDocument),
        ("DiskUsage", api.DiskUsageRequest(within_seconds=5), DiskUsageDocument),
        ("Leaks", api.LeaksRequest(minimum_age_seconds=60, rooted=True), PreviewDocument),
        ("EvictionPreview", api.EvictionPreviewRequest(simulate="memory.available=1Mi"), EvictionPreview),
        ("ShutdownPlan", None, ShutdownPlanDocument),
        ("ShutdownStatus", api.ShutdownStatusRequest(limit=3), ShutdownStatus),
        ("Config", None, EffectiveConfig),
        ("AddHold", api.AddHoldRequest(image="app:*", seconds=60), HoldDocument),
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
    readings = {name for name, each in OPERATIONS.items() if each.access is Access.READ} - {
        "Events",
        "DiskUsage",
    }
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


@pytest.mark.parametrize(
    ("invalid", "no_runtime", "cause", "shown"),
    [
        ("", "", "starting or reloading", "runtime not queried"),
        ("", "no socket", "waiting for a container runtime: no socket", "runtime unavailable: no socket"),
        ("role", "", "configuration invalid: only graceful shutdown runs", "runtime not queried"),
    ],
    ids=["start", "no-runtime", "invalid-configuration"],
)
async def test_status_without_an_agent_has_its_cause_and_no_unread_state_of_the_runtime(
    node: Node, invalid: str, no_runtime: str, cause: str, shown: str
) -> None:
    node.context.agent, node.context.runtime_problem = None, no_runtime
    node.context.settings = replace(node.context.settings, invalid_because=invalid)
    answer = await node.ask("Status")
    assert (answer["agent"]["ready"], answer["agent"]["not_ready_because"]) == (False, [cause])
    assert (answer["runtime"]["up"], answer["runtime"]["problem"]) == (False if no_runtime else None, no_runtime)
    assert shown in [each.text for each in status_view(decode(json.dumps(answer), Status), None)]
    assert await node.refused("Plan", api.PlanRequest(scope="all")) == (503, f"not ready: {cause}")
    node.context.settings = replace(node.context.settings, endpoint="")
    assert (await node.ask("Status"))["runtime"]["endpoint"] is None


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
        ("Plan", api.PlanRequest(scope="images", only="registry.example/other:*"), "no image on this node matches"),
        ("Plan", api.PlanRequest(scope="images", only="*,,x"), "the name of an image is empty"),
        ("Plan", api.PlanRequest(scope="images", only="x" * 5000), "only: at most 4096 characters"),
        ("Plan", api.PlanRequest(scope="images", only="\x1b[2J*"), "printable"),
        ("Plan", api.PlanRequest(scope="all", only="*"), "only: requires scope images"),
        ("Plan", api.PlanRequest(scope="images", only=",".join("*" * 65)), "only: 65 patterns, at most 64"),
        ("Plan", api.PlanRequest(scope="images", only="*", lasts_seconds=60), "cannot be saved"),
    ],
)
async def test_invalid_request_is_refused_and_changes_nothing(
    node: Node, method: str, request_: Any, words: str
) -> None:
    code, why = await node.refused(method, request_)
    assert (code, words in why) == (400, True), why
    assert node.context.pass_lock.pause() is None
    assert len(node.sim.containers) == 2


async def test_apply_streams_each_result_and_the_report(node: Node) -> None:
    found = (await node.ask("Apply", api.ApplyRequest(scope="containers")))["all"]
    assert [each["schema"] for each in found] == ["nodeagent/result/v1", "nodeagent/result/v1", "nodeagent/report/v1"]
    assert found[-1]["trigger"] == "control"
    assert len(node.sim.containers) == 0
    assert [each["trigger"] for each in (await node.ask("History"))["passes"]] == ["control"]


async def test_events_are_streamed_as_json_lines(node: Node) -> None:
    async with node.follow("Events") as reader:
        reading = asyncio.ensure_future(reader.readuntil(b"}\n"))
        while not reading.done():
            node.context.logger.info("resumed", by="operator", kept={"in-use": 3})
            await asyncio.sleep(0.01)
    event = json.loads((await reading).splitlines()[-1])
    assert (event["schema"], event["event"], event["by"]) == ("nodeagent/event/v1", "resumed", "operator")
    assert event["kept"] == {"in-use": 3}


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
