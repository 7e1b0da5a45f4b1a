"""The task that deletes failed pods, over TLS: deleted and kept pods, dry run, pauses, refusals, history."""

from __future__ import annotations

import io
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cluster.failed_pods import FailedPodsTask
from nodeagent.loops.passes import Pause, PausedBy
from nodeagent.model.kubernetes import Machine
from nodeagent.record import replace
from tests.support.api_pods import pod
from tests.support.api_server import NODES, ApiServer, Fault, serving_api
from tests.unit.cluster.tasks import context_of, running, settings_with, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.store.history import PastPass
    from tests.support.certificates import Authority

OLD = (datetime.now(UTC) - timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
TERMINATED = {"name": "app", "state": {"terminated": {"exitCode": 137, "finishedAt": OLD}}}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Machine("node-1", machine_id="m", system_uuid="u")
    monkeypatch.setattr("nodeagent.cluster.facts.read_machine", lambda *_: own)
    for name in ("poll_s", "list_interval_s", "between_deletions_s"):
        monkeypatch.setattr(FailedPodsTask, name, 0.01)


def failed(
    name: str, *, metadata: dict[str, Any] | None = None, status: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a pod that an eviction left two hours ago."""
    writes = [
        {"manager": "kube-scheduler", "operation": "Update", "time": OLD},
        {"manager": "kubelet", "operation": "Update", "subresource": "status", "time": OLD},
    ]
    own_metadata = {"ownerReferences": [OWNER], "managedFields": writes, **(metadata or {})}
    own_status = {
        "phase": "Failed",
        "reason": "Evicted",
        "conditions": [{"type": "DisruptionTarget", "status": "True", "lastTransitionTime": OLD}],
        "containerStatuses": [TERMINATED],
        **(status or {}),
    }
    return pod(name, metadata=own_metadata, status=own_status)


def server(*pods: dict[str, Any], machine_id: str = "m") -> ApiServer:
    made = ApiServer("delete_failed_after")
    made.put(NODES, "node-1", {"status": {"nodeInfo": {"machineID": machine_id, "systemUUID": "u"}}})
    for each in pods:
        made.pods.put(each)
    return made


class Writer:
    """Writer of a history in memory."""

    def __init__(self) -> None:
        self.begun: list[PastPass] = []
        self.finished: list[PastPass] = []

    async def begin(self, past: PastPass, _: float) -> None:
        self.begun.append(past)

    async def finish(self, past: PastPass, _: float) -> None:
        self.finished.append(past)


class Agent:
    """Agent with a history."""

    record = True

    def __init__(self) -> None:
        self.history_writer = Writer()


class Run:
    """The task in a daemon."""

    def __init__(self, context: DaemonContext, stream: io.StringIO, writer: Writer) -> None:
        self.context, self.stream, self.writer = context, stream, writer

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [each for each in map(json.loads, self.stream.getvalue().splitlines()) if each["event"] == event]

    async def polled(self, times: int) -> None:
        """Wait until the task has started to wait ``times`` times."""
        deadlines: set[float | None] = set()

        def count() -> int:
            deadlines.update(each.next_run_s for each in self.context.loop_statuses.all)
            return len(deadlines - {None})

        await until(lambda: count() >= times)

    @property
    def outcomes(self) -> dict[str, str]:
        return {each.name: each.outcome for past in self.writer.finished for each in past.actions}


@asynccontextmanager
async def deleting(
    api: ApiServer,
    authority: Authority,
    directory: Path,
    *,
    dry_run: bool = False,
    pause: Pause | None = None,
) -> AsyncIterator[Run]:
    with serving_api(api, partial(authority.server_context, "server")) as url:
        settings = settings_with(authority, url, directory, {"delete_failed_after": "1h"}, {"dry_run": dry_run})
        stream = io.StringIO()
        context = context_of(settings, stream)
        agent: Any = Agent()
        context.agent = agent
        if pause is not None:
            context.pass_lock.add_pause(pause)
        async with running(context, FailedPodsTask(context)):
            yield Run(context, stream, agent.history_writer)


def lists(api: ApiServer) -> int:
    return len(api.seen("GET", "/pods"))


async def test_old_failed_pods_are_deleted_with_uid_and_version_and_recorded(
    authority: Authority, tmp_path: Path
) -> None:
    api = server(failed("web"), failed("shut", status={"reason": "Terminated"}), pod("running"))
    version = api.pods.pods["uid-web"]["metadata"]["resourceVersion"]
    async with deleting(api, authority, tmp_path) as run:
        await until(lambda: len(run.writer.finished) == 1)
        assert set(api.pods.pods) == {"uid-running"}
        assert run.outcomes == {"default/web": "done", "default/shut": "done"}
        assert {each.outcome for each in run.writer.begun[0].actions} == {"planned"}
        assert [each["pod_name"] for each in run.logged("failed_pod_deleted")] == ["shut", "web"]
    options = next(each.body for each in api.seen("DELETE", "/web"))
    assert options["preconditions"] == {"uid": "uid-web", "resourceVersion": version}
    assert {each.query for each in api.seen("GET", "/pods")} == {
        "fieldSelector=spec.nodeName%3Dnode-1%2Cstatus.phase%3DFailed&limit=50"
    }


@pytest.mark.parametrize(
    "kept",
    [
        failed("web", metadata={"managedFields": []}),
        failed("web", metadata={"ownerReferences": []}),
        failed("web", metadata={"ownerReferences": [{**OWNER, "kind": "Node"}]}),
        failed("web", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}),
        failed("web", metadata={"finalizers": ["batch.kubernetes.io/job-tracking"]}),
        failed("web", metadata={"deletionTimestamp": OLD}),
        failed("web", status={"reason": "DeadlineExceeded"}),
        failed("web", status={"conditions": [{"lastTransitionTime": "2999-01-01T00:00:00Z"}]}),
        failed("web", status={"containerStatuses": [{"state": {"running": {"startedAt": OLD}}}]}),
        failed("web", status={"containerStatuses": "malformed"}),
    ],
    ids=[
        "unknown-time",
        "no-controller",
        "of-node",
        "mirror",
        "finalizer",
        "deleting",
        "other-reason",
        "recent",
        "running",
        "malformed",
    ],
)
async def test_other_failed_pod_is_not_deleted(authority: Authority, tmp_path: Path, kept: dict[str, Any]) -> None:
    api = server(kept)
    async with deleting(api, authority, tmp_path):
        await until(lambda: lists(api) > 2)
    assert api.seen("DELETE") == []


async def test_pod_whose_status_the_agent_published_is_deleted_despite_the_former_kubelets_container_statuses(
    authority: Authority, tmp_path: Path
) -> None:
    published = {"manager": "nodeagent", "operation": "Update", "subresource": "status", "time": OLD}
    running = {"containerStatuses": [{"state": {"running": {"startedAt": OLD}}}]}
    api = server(failed("web", metadata={"managedFields": [published]}, status=running))
    async with deleting(api, authority, tmp_path):
        await until(lambda: bool(api.seen("DELETE", "/web")))


async def test_dry_run_reports_and_records_each_pod_once_and_deletes_none(authority: Authority, tmp_path: Path) -> None:
    api = server(failed("web"))
    async with deleting(api, authority, tmp_path, dry_run=True) as run:
        await until(lambda: lists(api) > 3)
        assert [each["pod_name"] for each in run.logged("would_delete_failed_pod")] == ["web"]
        assert [each.dry_run for each in run.writer.finished] == [True]
        assert run.outcomes == {"default/web": "dry-run"}
    assert api.seen("DELETE") == []


async def test_conflict_keeps_the_pod_until_the_next_list(authority: Authority, tmp_path: Path) -> None:
    api = server(failed("web"))
    stale = failed("web")
    stale["metadata"]["resourceVersion"] = "1"
    api.faults = [Fault(200, json.dumps({"kind": "PodList", "items": [stale]}))]
    async with deleting(api, authority, tmp_path) as run:
        await until(lambda: "uid-web" not in api.pods.pods)
        await until(lambda: len(run.writer.finished) == 2)
        assert [each.actions[0].outcome for each in run.writer.finished] == ["changed", "done"]
        assert len(run.logged("failed_pod_kept")) == 1


async def test_nothing_is_deleted_by_the_name_of_another_machine(authority: Authority, tmp_path: Path) -> None:
    api = server(failed("web"), machine_id="other")
    async with deleting(api, authority, tmp_path) as run:
        await until(lambda: bool(run.logged("api_request_failed")))
        assert "another machine" in run.logged("api_request_failed")[0]["error"]
    assert api.seen("DELETE") == []


async def test_nothing_is_listed_or_deleted_with_an_invalid_configuration(authority: Authority, tmp_path: Path) -> None:
    api = server(failed("web"))
    async with deleting(api, authority, tmp_path, pause=Pause(PausedBy.SHUTDOWN, "the node is shutting down")) as run:
        await run.polled(3)
        run.context.settings = replace(run.context.settings, invalid_because="unknown key")
        run.context.pass_lock.end_pause(PausedBy.SHUTDOWN)
        await until(lambda: "disabled" in str([each.activity for each in run.context.loop_statuses.all]))
        assert api.requests == []


async def test_nothing_is_listed_or_deleted_during_a_pause(authority: Authority, tmp_path: Path) -> None:
    api = server(failed("web"))
    async with deleting(api, authority, tmp_path, pause=Pause(PausedBy.SHUTDOWN, "the node is shutting down")) as run:
        await run.polled(3)
        assert api.requests == []
        run.context.pass_lock.end_pause(PausedBy.SHUTDOWN)
        await until(lambda: "uid-web" not in api.pods.pods)


async def test_missing_rule_is_logged_once_and_recovery_after_it(authority: Authority, tmp_path: Path) -> None:
    api = server(failed("web"))
    api.denied = {("DELETE", "pods")}
    async with deleting(api, authority, tmp_path) as run:
        await until(lambda: bool(run.logged("api_request_failed")))
        assert "forbidden" in run.logged("api_request_failed")[0]["error"]
        assert {each.actions[0].outcome for each in run.writer.finished} == {"failed"}
        assert "forbidden" in run.writer.finished[0].actions[0].detail
        api.denied = set()
        await until(lambda: bool(run.logged("api_request_recovered")))
    assert len(run.logged("api_request_failed")) == 1
    assert api.pods.pods == {}


async def test_pod_with_a_refused_deletion_is_recorded_as_failed_and_the_others_are_deleted(
    authority: Authority, tmp_path: Path
) -> None:
    api = server(failed("kept"), failed("web"))
    api.pods.denied = {"kept": 'admission webhook "pods.example" denied the request: kept for analysis'}
    async with deleting(api, authority, tmp_path) as run:
        await until(lambda: len(run.writer.finished) > 1)
        assert set(api.pods.pods) == {"uid-kept"}
        assert run.writer.finished[0].result == "complete"
        assert {each.name: each.outcome for each in run.writer.finished[0].actions} == {
            "default/kept": "failed",
            "default/web": "done",
        }
        assert "kept for analysis" in run.logged("api_request_failed")[0]["error"]
        assert [each["pod_name"] for each in run.logged("failed_pod_kept")] == ["kept"]


async def test_deletion_without_a_response_is_recorded_with_an_unknown_outcome(
    authority: Authority, tmp_path: Path
) -> None:
    api = server(failed("lost"), failed("next"))
    listed = {"kind": "PodList", "items": list(api.pods.pods.values())}
    api.faults = [
        Fault(200, json.dumps(listed), headers={"Date": datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")}),
        Fault(200, json.dumps(api.node)),
        *[Fault(behaviour="close-after")] * 2,  # the client sends the request again over a new connection
    ]
    async with deleting(api, authority, tmp_path) as run:
        await until(lambda: bool(run.writer.finished))
        first = run.writer.finished[0]
        assert first.result == "cancelled"
        assert [each.outcome for each in first.actions] == ["unknown", "not-attempted"]
        assert first.actions[0].detail
