"""Task that writes the agent's own node conditions over TLS, beside the conditions of a kubelet."""

from __future__ import annotations

import asyncio
import io
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cluster import CONDITIONS
from nodeagent.cluster.conditions import ConditionsTask
from nodeagent.cluster.plan.conditions import SHORTAGE_TYPE
from nodeagent.model.kubernetes import Machine
from nodeagent.model.outlook import ExpectedShortage
from nodeagent.trend.plan.outlook import ResourceOutlook
from tests.support.api_server import NODES, ApiServer, Fault, serving_api
from tests.unit.cluster.tasks import context_of, running as run_task, settings_with, until

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.settings.settings import Settings
    from tests.support.certificates import Authority

WITHIN_S = 20
OWN = "nodeagent.dev/ImageGCDegraded"
KUBELET = [
    {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-11-21T12:00:00Z"},
    {"type": "DiskPressure", "status": "False"},
]


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Machine("node-1", machine_id="m", system_uuid="u")
    monkeypatch.setattr("nodeagent.cluster.facts.read_machine", lambda *_: own)
    monkeypatch.setattr(ConditionsTask, "poll_s", 0.01)


def server(machine_id: str = "m") -> ApiServer:
    made = ApiServer("publish_conditions")
    info = {"machineID": machine_id, "systemUUID": "u"}
    made.put(NODES, "node-1", {"status": {"nodeInfo": info, "conditions": KUBELET}})
    return made


def publishing(authority: Authority, url: str, directory: Path, *, dry_run: bool = False, **changes: Any) -> Settings:
    return settings_with(authority, url, directory, {"publish_conditions": True, **changes}, {"dry_run": dry_run})


def running(settings: Settings, stream: io.StringIO) -> AbstractAsyncContextManager[DaemonContext]:
    context = context_of(settings, stream)
    context.loop_statuses.ended("images", "shortfall", detail="1 GiB missing")
    return run_task(context, ConditionsTask(context))


def conditions(api: ApiServer) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in api.node["status"]["conditions"]}


async def test_own_conditions_are_added_changed_and_removed_and_those_of_the_kubelet_are_not_touched(
    authority: Authority, tmp_path: Path
) -> None:
    api, stream = server(), io.StringIO()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(publishing(authority, url, tmp_path), stream) as context:
            await until(lambda: OWN in conditions(api))
            assert conditions(api)[OWN]["message"] == "1 GiB missing"
            context.loop_statuses.ended("images", "complete")
            await until(lambda: conditions(api)[OWN]["status"] == "False")
            context.settings = publishing(authority, url, tmp_path, publish_conditions=False)
            await until(lambda: OWN not in conditions(api))
    assert api.node["status"]["conditions"] == KUBELET
    writes = [each for each in api.requests if each.method != "GET"]
    assert {(each.path, each.query, each.content_type) for each in writes} == {
        (f"{NODES}/node-1/status", "fieldManager=nodeagent", "application/strategic-merge-patch+json")
    }
    assert "token-of-the-agent" not in stream.getvalue()


async def test_expected_shortage_is_a_condition_that_changes_and_is_removed(
    authority: Authority, tmp_path: Path
) -> None:
    api = server()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(publishing(authority, url, tmp_path), io.StringIO()) as context:
            await until(lambda: OWN in conditions(api))
            assert SHORTAGE_TYPE not in conditions(api), "before the first forecast nothing is stated"
            for shortage, status in (
                (ExpectedShortage(None, "nodefs: unknown"), "Unknown"),
                (ExpectedShortage(True, "nodefs: full in 1h"), "True"),
                (ExpectedShortage(False), "False"),
            ):
                context.trend.shortage = shortage
                await until(lambda: conditions(api).get(SHORTAGE_TYPE, {}).get("status") == status)  # noqa: B023
                assert conditions(api)[SHORTAGE_TYPE]["message"] == (shortage.detail or "no shortage is expected")
            old = context.clock.now() - timedelta(hours=1)
            context.trend.outlook = (ResourceOutlook("nodefs.available", 1.0, 2.0, old, (), (), ()),)
            await until(lambda: conditions(api)[SHORTAGE_TYPE]["status"] == "Unknown")
            context.settings = publishing(authority, url, tmp_path, publish_conditions=False)
            await until(lambda: SHORTAGE_TYPE not in conditions(api))
    assert api.node["status"]["conditions"] == KUBELET


async def test_conditions_of_an_earlier_run_keep_their_transition_and_their_times_do_not_go_back(
    authority: Authority, tmp_path: Path
) -> None:
    api = server()
    times = {"lastHeartbeatTime": "2099-01-01T00:01:00Z", "lastTransitionTime": "2099-01-01T00:00:00Z"}
    written = {"type": OWN, "status": "True", "reason": "Shortfall", "message": "", **times}
    api.put(NODES, "node-1", {**api.node, "status": {**api.node["status"], "conditions": [*KUBELET, written]}})
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(publishing(authority, url, tmp_path), io.StringIO()) as context:
            await until(lambda: conditions(api)[OWN]["message"] == "1 GiB missing")
            assert conditions(api)[OWN]["lastTransitionTime"] == times["lastTransitionTime"]
            assert conditions(api)[OWN]["lastHeartbeatTime"] > times["lastHeartbeatTime"]
            context.loop_statuses.ended("images", "complete")
            await until(lambda: conditions(api)[OWN]["status"] == "False")
    assert conditions(api)[OWN]["lastTransitionTime"] > times["lastHeartbeatTime"]


async def test_unchanged_conditions_are_not_sent_again(authority: Authority, tmp_path: Path) -> None:
    api = server()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(publishing(authority, url, tmp_path), io.StringIO()) as context:
            await until(lambda: OWN in conditions(api))
            await until(lambda: context.loop_statuses.all[-1].name == CONDITIONS)
            at = context.loop_statuses.all[-1].next_run_s
            await until(lambda: context.loop_statuses.all[-1].next_run_s != at)
            await until(lambda: context.loop_statuses.all[-1].name == CONDITIONS)
    assert len(api.seen("PATCH")) == 1


async def test_node_object_of_another_machine_is_not_written(authority: Authority, tmp_path: Path) -> None:
    api, stream = server("other"), io.StringIO()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(publishing(authority, url, tmp_path), stream):
            await until(lambda: "another machine" in stream.getvalue())
    assert api.seen("PATCH") == []


@pytest.mark.parametrize("end", ["change", "removal"])
async def test_conditions_of_another_machine_that_has_taken_the_name_are_kept(
    authority: Authority, tmp_path: Path, end: str
) -> None:
    api = server()
    theirs = [*KUBELET, {"type": OWN, "status": "Unknown", "reason": "Theirs"}]
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(publishing(authority, url, tmp_path), io.StringIO()) as context:
            await until(lambda: OWN in conditions(api))
            del api.objects[NODES]["node-1"]
            info = {"machineID": "other", "systemUUID": "u"}
            api.put(NODES, "node-1", {"status": {"nodeInfo": info, "conditions": theirs}})
            if end == "change":
                context.loop_statuses.ended("images", "complete")
            else:
                context.settings = publishing(authority, url, tmp_path, publish_conditions=False)
            await until(lambda: len(api.seen("PATCH")) == 2)
    assert api.node["status"]["conditions"] == theirs


async def test_nothing_is_requested_in_a_dry_run(authority: Authority, tmp_path: Path) -> None:
    api = server()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(publishing(authority, url, tmp_path, dry_run=True), io.StringIO()) as context:
            await asyncio.sleep(0.05)
            assert [each.name for each in context.loop_statuses.all] == ["images"]
    assert api.requests == []


async def test_refusal_is_logged_once_and_names_the_missing_rule(authority: Authority, tmp_path: Path) -> None:
    api, stream = server(), io.StringIO()
    api.denied = {("PATCH", "nodes/status")}
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(publishing(authority, url, tmp_path), stream):
            await until(lambda: "api_request_failed" in stream.getvalue())
    assert stream.getvalue().count("api_request_failed") == 1
    assert 'cannot patch resource \\"nodes/status\\"' in stream.getvalue()


@pytest.mark.parametrize("status", [500, 401, 403])
async def test_conditions_are_written_seconds_after_a_refusal(
    authority: Authority, tmp_path: Path, status: int
) -> None:
    api, stream = server(), io.StringIO()
    api.faults = [Fault(status, "{}")]
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(publishing(authority, url, tmp_path), stream):
            await until(lambda: OWN in conditions(api))
            await until(lambda: "api_request_recovered" in stream.getvalue())
