"""Task that sets and removes the taints of the agent's conditions over TLS, beside the taints of other programs."""

from __future__ import annotations

import asyncio
import io
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cluster import TAINTS
from nodeagent.cluster.conditions import TaintsTask
from nodeagent.cluster.session_task import START_FAILURES
from nodeagent.config.validation import convert
from nodeagent.model.kubernetes import Machine
from nodeagent.settings.settings import Config
from tests.support.api_server import NODES, ApiServer, Fault, Received, serving_api
from tests.unit.cluster.tasks import context_of, running as run_task, settings_with, until

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.settings.settings import Settings
    from tests.support.certificates import Authority

KEY = "nodeagent.dev/image-gc-degraded"
OWN = {"key": KEY, "effect": "NoSchedule"}
FOREIGN = [
    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-23T12:00:00Z"},
    {"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"},
]
LATER = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
ATTEMPTS = 5


class ContestedServer(ApiServer):
    """API server at which another program adds a taint before each of the first ``contests`` patches."""

    contests = 1

    def answer(self, request: Received) -> tuple[int, dict[str, Any]]:
        if request.method == "PATCH" and self.contests:
            self.contests -= 1
            node = self.node
            self.put(NODES, "node-1", {**node, "spec": {"taints": [*FOREIGN, LATER]}})
        return super().answer(request)


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Machine("node-1", machine_id="m", system_uuid="u")
    monkeypatch.setattr("nodeagent.cluster.facts.read_machine", lambda *_: own)
    monkeypatch.setattr(TaintsTask, "poll_s", 0.01)


def server(*taints: dict[str, str], made: ApiServer | None = None, machine_id: str = "m") -> ApiServer:
    made = made or ApiServer("condition_taints")
    info = {"machineID": machine_id, "systemUUID": "u"}
    made.put(NODES, "node-1", {"spec": {"taints": [*FOREIGN, *taints]}, "status": {"nodeInfo": info}})
    return made


def tainting(
    authority: Authority, url: str, directory: Path, taints: str = f"{KEY}:NoSchedule", *, dry_run: bool = False
) -> Settings:
    section = {"publish_conditions": bool(taints), "condition_taints": taints}
    return settings_with(authority, url, directory, section, {"dry_run": dry_run})


def running(settings: Settings, stream: io.StringIO) -> AbstractAsyncContextManager[DaemonContext]:
    context = context_of(settings, stream)
    context.loop_statuses.ended("images", "shortfall")
    return run_task(context, TaintsTask(context))


def taints(api: ApiServer) -> list[dict[str, str]]:
    found: list[dict[str, str]] = api.node["spec"]["taints"]
    return found


def logged(stream: io.StringIO, event: str) -> list[dict[str, Any]]:
    return [each for each in map(json.loads, stream.getvalue().splitlines()) if each["event"] == event]


async def test_taint_is_set_while_the_condition_is_true_and_those_of_others_are_kept(
    authority: Authority, tmp_path: Path
) -> None:
    api, stream = server(), io.StringIO()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path), stream) as context:
            await until(lambda: OWN in taints(api))
            await until(lambda: context.loop_statuses.all[-1].detail == f"node tainted: {KEY}:NoSchedule")
            context.loop_statuses.ended("images", "cancelled")
            context.loop_statuses.ended("images", "complete")
            await until(lambda: taints(api) == FOREIGN)
            await until(lambda: context.loop_statuses.all[-1].detail == "")
    assert len(api.seen("PATCH")) == 2
    (tainted,), (untainted,) = logged(stream, "node_tainted"), logged(stream, "node_untainted")
    assert tainted["taints"] == untainted["taints"] == f"{KEY}:NoSchedule"
    assert "token-of-the-agent" not in stream.getvalue()


async def test_unchanged_taints_are_neither_read_nor_written_again(authority: Authority, tmp_path: Path) -> None:
    api = server(OWN)
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path), io.StringIO()) as context:
            await until(lambda: context.loop_statuses.all[-1].name == TAINTS)
            at = context.loop_statuses.all[-1].next_run_s
            await until(lambda: context.loop_statuses.all[-1].next_run_s != at)
    assert [each.method for each in api.requests] == ["GET"]


async def test_change_by_another_program_between_read_and_patch_is_kept(authority: Authority, tmp_path: Path) -> None:
    api, stream = server(made=ContestedServer()), io.StringIO()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path), stream):
            await until(lambda: OWN in taints(api))
    assert taints(api) == [*FOREIGN, LATER, OWN]
    assert len(api.seen("PATCH")) == 2
    assert logged(stream, "api_request_failed") == []


async def test_permanent_conflict_is_logged_after_five_attempts_and_retried(
    authority: Authority, tmp_path: Path
) -> None:
    contested = ContestedServer()
    contested.contests = ATTEMPTS + 1
    api, stream = server(made=contested), io.StringIO()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path), stream):
            await until(lambda: OWN in taints(api))
            await until(lambda: bool(logged(stream, "api_request_recovered")))
    assert len(api.seen("PATCH")) == ATTEMPTS + 2
    assert len(logged(stream, "api_request_failed")) == 1


async def test_refusal_to_a_node_certificate_is_logged_once(authority: Authority, tmp_path: Path) -> None:
    api, stream = server(), io.StringIO()
    api.node_identity = True
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path), stream):
            await until(lambda: len(api.seen("PATCH")) > 1)
    (warning,) = logged(stream, "api_request_failed")
    assert (warning["part"], warning["hint"]) == ("taints", "nodeagent doctor")
    assert "is not allowed to modify taints" in warning["error"]
    assert taints(api) == FOREIGN


@pytest.mark.parametrize("fault", [Fault(500, "{}"), Fault(404, "{}"), Fault(behaviour="close-after")])
async def test_taint_is_set_seconds_after_a_failed_request(authority: Authority, tmp_path: Path, fault: Fault) -> None:
    api, stream = server(), io.StringIO()
    api.faults = [fault]
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path), stream):
            await until(lambda: OWN in taints(api))
    assert taints(api) == [*FOREIGN, OWN]


@pytest.mark.parametrize("configured", [True, False])
async def test_node_object_of_another_machine_is_not_written(
    authority: Authority, tmp_path: Path, *, configured: bool
) -> None:
    api, stream = server(OWN, machine_id="other"), io.StringIO()
    settings = f"{KEY}:PreferNoSchedule" if configured else ""
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path, settings), stream):
            await until(lambda: bool(api.requests))
            if configured:
                await until(lambda: "another machine" in stream.getvalue())
    assert api.seen("PATCH") == []
    assert bool(logged(stream, "api_request_failed")) is configured


async def test_taint_of_an_earlier_run_is_removed_once_at_the_start_without_the_setting(
    authority: Authority, tmp_path: Path
) -> None:
    api, stream = server(OWN), io.StringIO()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path, ""), stream) as context:
            await until(lambda: taints(api) == FOREIGN)
            await until(lambda: context.loop_statuses.all[-1].reason == "not enabled")
    assert [each.method for each in api.requests] == ["GET", "GET", "PATCH"]


@pytest.fixture
def immediate_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.cluster.plan.heartbeat.retry_delay_s", lambda _failures: 0.01)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.usefixtures("immediate_retries")
async def test_start_without_the_setting_and_the_right_to_read_the_object_reports_nothing(
    authority: Authority, tmp_path: Path, status: int
) -> None:
    api, stream = server(OWN), io.StringIO()
    api.faults = [Fault(status, "{}")] * (START_FAILURES + 5)
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path, ""), stream) as context:
            await until(lambda: len(api.requests) == START_FAILURES + 1)
            await asyncio.sleep(0.05)
            assert [each.name for each in context.loop_statuses.all] == ["images"]
    assert [each.method for each in api.requests] == ["GET"] * (START_FAILURES + 1)
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("immediate_retries")
async def test_taint_of_an_earlier_run_is_removed_after_the_refusals_of_a_starting_api_server(
    authority: Authority, tmp_path: Path
) -> None:
    api, stream = server(OWN), io.StringIO()
    api.faults = [Fault(403, "{}")] * START_FAILURES
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path, ""), stream):
            await until(lambda: taints(api) == FOREIGN)


async def test_start_without_the_setting_removes_a_taint_after_an_outage_that_is_not_reported(
    authority: Authority, tmp_path: Path
) -> None:
    api, stream = server(OWN), io.StringIO()
    api.faults = [Fault(500, "{}")] * 3
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path, ""), stream):
            await until(lambda: taints(api) == FOREIGN)
    assert logged(stream, "api_request_failed") == []


async def test_start_without_the_setting_and_taints_reads_the_object_once_and_reports_nothing(
    authority: Authority, tmp_path: Path
) -> None:
    api, stream = server(), io.StringIO()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path, ""), stream) as context:
            await until(lambda: bool(api.requests))
            await asyncio.sleep(0.05)
            assert [each.name for each in context.loop_statuses.all] == ["images"]
    assert [each.method for each in api.requests] == ["GET"]
    assert stream.getvalue() == ""


async def test_reload_with_another_effect_replaces_and_without_the_setting_removes_the_taint(
    authority: Authority, tmp_path: Path
) -> None:
    api = server()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path), io.StringIO()) as context:
            await until(lambda: OWN in taints(api))
            context.settings = tainting(authority, url, tmp_path, f"{KEY}:PreferNoSchedule")
            await until(lambda: taints(api) == [*FOREIGN, {**OWN, "effect": "PreferNoSchedule"}])
            context.settings = tainting(authority, url, tmp_path, "")
            await until(lambda: taints(api) == FOREIGN)


async def test_removal_after_a_reload_is_retried_if_the_api_server_fails(authority: Authority, tmp_path: Path) -> None:
    api, stream = server(), io.StringIO()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path), stream) as context:
            await until(lambda: OWN in taints(api))
            api.faults = [Fault(500, "{}")] * 2
            before_s = context.loop_statuses.all[-1].report_until_s or 0
            context.settings = tainting(authority, url, tmp_path, "")
            await until(lambda: bool(logged(stream, "api_request_failed")))
            await until(lambda: (context.loop_statuses.all[-1].report_until_s or 0) > before_s)
            await until(lambda: taints(api) == FOREIGN)


async def test_reload_without_an_api_server_removes_the_taint(authority: Authority, tmp_path: Path) -> None:
    api = server()
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path), io.StringIO()) as context:
            await until(lambda: OWN in taints(api))
            context.settings = convert(Config, {"dry_run": False}).settings()
            await until(lambda: taints(api) == FOREIGN)


async def test_nothing_is_requested_in_a_dry_run(authority: Authority, tmp_path: Path) -> None:
    api = server(OWN)
    with serving_api(api, partial(authority.server_context, "server")) as url:
        async with running(tainting(authority, url, tmp_path, dry_run=True), io.StringIO()) as context:
            await asyncio.sleep(0.05)
            assert [each.name for each in context.loop_statuses.all] == ["images"]
    assert api.requests == []
