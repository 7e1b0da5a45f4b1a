"""Task that sends Events about the node and its pods, over TLS against a fake API server."""

from __future__ import annotations

import asyncio
import io
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cluster import EVENTS as TASK
from nodeagent.cluster.events import EventsTask
from nodeagent.cluster.task import RegistrationTask
from nodeagent.loops.passes import Activity
from nodeagent.model.kubernetes import Machine
from nodeagent.record import replace
from tests.support.api_server import EVENTS, NODES, ApiServer, Fault, serving_api
from tests.unit.cluster.tasks import context_of, running as run_task, settings_with, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.settings.settings import Settings
    from tests.support.certificates import Authority

MESSAGE = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 450Mi, available: 166168Ki. Container h was "
    "using 491560Ki, request is 10Mi, has larger consumption of ephemeral-storage. "
)
"""Eviction message recorded from a kubelet 1.36, including the trailing space."""
POD = {"pod_uid": "uid-hog", "pod_namespace": "shop", "pod_name": "hog"}
EVICTED = {**POD, "took_s": 1.5, "why": "low", "message": MESSAGE}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    own = Machine("node-1", machine_id="m", system_uuid="u")
    monkeypatch.setattr("nodeagent.cluster.facts.read_machine", lambda *_: own)
    monkeypatch.setattr("nodeagent.cluster.events.EVENT_POLL_S", 0.01)
    monkeypatch.setattr(EventsTask, "poll_s", 0.01)
    server = ApiServer("publish_events")
    ids = {"machineID": "m", "systemUUID": "u"}
    server.put(NODES, "node-1", {"status": {"nodeInfo": ids}})
    return server


@pytest.fixture
def url(api: ApiServer, authority: Authority) -> Iterator[str]:
    with serving_api(api, partial(authority.server_context, "server")) as found:
        yield found


@pytest.fixture(name="settings")
def enabled_settings(authority: Authority, url: str, tmp_path: Path) -> Settings:
    return settings_with(authority, url, tmp_path, {"publish_events": True}, {"dry_run": False})


def running(settings: Settings, stream: io.StringIO) -> AbstractAsyncContextManager[DaemonContext]:
    context = context_of(settings, stream)
    return run_task(context, EventsTask(context))


async def identified(api: ApiServer) -> None:
    await until(lambda: len(api.seen("GET")) == 1)


def events_of(api: ApiServer, kind: str) -> list[dict[str, Any]]:
    return [each for each in api.objects[EVENTS].values() if each["regarding"]["kind"] == kind]


async def test_eviction_is_an_event_about_the_pod_with_the_message_of_the_kubelet_and_one_about_the_node(
    api: ApiServer, settings: Settings
) -> None:
    async with running(settings, io.StringIO()) as context:
        await identified(api)
        context.logger.warning("evicted", **EVICTED)
        await until(lambda: len(api.objects[EVENTS]) == 2)
    (event,) = events_of(api, "Pod")
    assert (event["reason"], event["type"], event["note"]) == ("Evicted", "Warning", MESSAGE)
    assert event["metadata"]["namespace"] == "shop"
    assert event["regarding"]["uid"] == "uid-hog"
    (node,) = events_of(api, "Node")
    assert (node["reason"], node["metadata"]["namespace"]) == ("Evicted", "default")
    assert node["note"] == "evicted shop/hog in 1.5 s: low"


async def test_expected_shortage_is_an_event_about_the_node_and_so_is_its_end(
    api: ApiServer, settings: Settings
) -> None:
    detail = "nodefs: eviction at 90% in 1h to 4h, at 1.00 GiB/h, 80% by shop/\x1b[31m logs"
    async with running(settings, io.StringIO()) as context:
        await identified(api)
        context.logger.warning("shortage_expected", resource="nodefs.available", threshold="hard", detail=detail)
        context.logger.info("shortage_not_expected", resource="nodefs.available")
        await until(lambda: len(events_of(api, "Node")) == 2)
    expected, ended = events_of(api, "Node")
    assert (expected["reason"], expected["type"]) == ("ShortageExpected", "Warning")
    assert expected["note"] == f"shortage expected: {detail}".replace("\x1b", r"\x1b")
    assert (ended["reason"], ended["type"]) == ("NoShortageExpected", "Normal")
    assert ended["note"] == "no shortage of nodefs.available expected any longer"


async def test_event_is_about_the_node_object_that_replaced_the_earlier_one(api: ApiServer, settings: Settings) -> None:
    async with running(settings, io.StringIO()) as context:
        await identified(api)
        earlier = api.objects[NODES].pop("node-1")
        replacement = api.put(NODES, "node-1", {"status": earlier["status"]})
        context.logger.warning("evicted", **EVICTED)
        await until(lambda: len(events_of(api, "Node")) == 1)
    uids = [each["metadata"]["uid"] for each in (earlier, replacement)]
    assert events_of(api, "Node")[0]["regarding"]["uid"] == uids[1] != uids[0]


async def test_event_during_a_reading_is_about_the_node_object_that_replaced_the_read_one(
    api: ApiServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, replaced = asyncio.Event(), asyncio.Event()

    async def compare(_: object) -> str:
        reading.set()
        await replaced.wait()
        return ""

    monkeypatch.setattr("nodeagent.cluster.facts.compare_with_machine", compare)
    async with running(settings, io.StringIO()) as context:
        await reading.wait()
        replacement = api.put(NODES, "node-1", {"status": api.objects[NODES].pop("node-1")["status"]})
        context.logger.warning("evicted", **EVICTED)
        replaced.set()
        await until(lambda: len(events_of(api, "Node")) == 1)
    assert events_of(api, "Node")[0]["regarding"]["uid"] == replacement["metadata"]["uid"]


@pytest.mark.parametrize("outcome", ["failed", "refused"])
async def test_event_of_a_failed_eviction_states_the_outcome_once(
    api: ApiServer, settings: Settings, outcome: str
) -> None:
    async with running(settings, io.StringIO()) as context:
        await identified(api)
        context.logger.error("eviction_failed", **POD, outcome=outcome, detail="no answer in 10 s")
        await until(lambda: len(events_of(api, "Pod")) == 1)
    assert events_of(api, "Pod")[0]["note"] == f"eviction of shop/hog: {outcome}: no answer in 10 s"


async def test_repeated_event_is_sent_once_and_counted(api: ApiServer, settings: Settings) -> None:
    async with running(settings, io.StringIO()) as context:
        await identified(api)
        for _ in range(500):
            context.logger.warning("eviction_postponed", **POD, because="budget")
        context.logger.warning("eviction_cleanup_failed", **POD, detail="layer on the disk")
        await until(lambda: len(events_of(api, "Pod")) == 2)
    assert {each["reason"] for each in events_of(api, "Pod")} == {"EvictionPostponed", "ContainersNotRemoved"}
    assert len(api.seen("POST")) <= 4


async def test_events_of_an_outage_are_sent_after_it(api: ApiServer, settings: Settings) -> None:
    stream = io.StringIO()
    async with running(settings, stream) as context:
        await identified(api)
        api.faults = [Fault(503, "{}"), Fault(behaviour="close"), Fault(behaviour="close")]
        context.logger.warning("evicted", **EVICTED)
        await until(lambda: len(events_of(api, "Pod")) == 1)
        await until(lambda: "api_request_recovered" in stream.getvalue())


async def test_event_in_a_namespace_that_is_being_deleted_is_dropped(api: ApiServer, settings: Settings) -> None:
    refused = '{"kind": "Status", "reason": "Forbidden", "details": {"causes": [{"reason": "NamespaceTerminating"}]}}'
    async with running(settings, io.StringIO()) as context:
        await identified(api)
        api.faults = [Fault(403, refused)]
        context.logger.warning("eviction_postponed", **POD, because="budget")
        await until(lambda: not api.faults)
        await until(lambda: [each.name for each in context.loop_statuses.all] == [TASK])
    assert api.objects[EVENTS] == {}


async def test_nothing_is_requested_in_a_dry_run_or_without_the_setting(
    api: ApiServer, authority: Authority, url: str, tmp_path: Path
) -> None:
    for kubernetes, dry_run in (({"publish_events": True}, True), ({}, False)):
        settings = settings_with(authority, url, tmp_path, kubernetes, {"dry_run": dry_run})
        async with running(settings, io.StringIO()) as context:
            context.logger.warning("evicted", **EVICTED)
            await asyncio.sleep(0.02)
    assert api.requests == []


async def test_no_event_is_sent_about_another_machine(api: ApiServer, settings: Settings) -> None:
    api.node["status"]["nodeInfo"]["machineID"] = "other"
    stream = io.StringIO()
    async with running(settings, stream) as context:
        context.logger.warning("evicted", **EVICTED)
        await until(lambda: "another machine" in stream.getvalue())
    assert api.objects[EVENTS] == {}


async def test_reload_that_disables_events_ends_them(api: ApiServer, settings: Settings) -> None:
    async with running(settings, io.StringIO()) as context:
        await identified(api)
        off = settings_off(settings)
        context.settings = off
        await until(lambda: [each.activity for each in context.loop_statuses.all] == [Activity.DISABLED])
        context.logger.warning("evicted", **EVICTED)
        await asyncio.sleep(0.02)
    assert api.seen("POST") == []


def settings_off(settings: Settings) -> Settings:
    return replace(settings, kubernetes=replace(settings.kubernetes, publish_events=False))


@pytest.mark.parametrize("publish_events", [False, True])
async def test_registered_node_has_one_event_of_each_whether_or_not_those_of_pods_are_enabled(
    authority: Authority, tmp_path: Path, api: ApiServer, url: str, publish_events: bool
) -> None:
    api.objects[NODES].clear()
    section = {"register_node": True, "publish_events": publish_events}
    api.settings = tuple(name for name, enabled in section.items() if enabled)
    settings = settings_with(authority, url, tmp_path, section, {"role": "standalone", "dry_run": False})
    context = context_of(settings, io.StringIO())
    async with run_task(context, RegistrationTask(context)), run_task(context, EventsTask(context)):
        await until(lambda: any(each.path.endswith("/status") for each in api.requests))
        context.logger.warning("evicted", **EVICTED)
        await until(lambda: len(events_of(api, "Node")) == 1)
        if publish_events:
            await until(lambda: len(events_of(api, "Pod")) == 1)
    assert len([each for each in api.seen("POST", "/events") if each.body["regarding"]["kind"] == "Node"]) == 1
