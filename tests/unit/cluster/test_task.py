"""Registration task over TLS: enablement, dry run, role, reload, and an unavailable API server."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cluster import NAME
from nodeagent.cluster.plan.node_status import SHUTTING_DOWN
from nodeagent.cluster.task import RUNTIME_LOST_S, FactsSource, LastFacts, RegistrationTask
from nodeagent.config.validation import convert
from nodeagent.daemon.context import DaemonContext
from nodeagent.loops.passes import Activity, LoopStatuses, PassLock, Pause, PausedBy
from nodeagent.model.kubernetes import Machine, NodeFacts
from nodeagent.pods.role import RoleWatch
from nodeagent.record import replace
from nodeagent.settings.settings import Config
from nodeagent.telemetry import logging as log
from nodeagent.units import SystemClock
from tests.support.api_server import EVENTS, LEASES, NODES, ApiServer, Fault, serving_api
from tests.support.manual_clock import MIDNIGHT, ManualClock
from tests.unit.kubelet_double import KUBELET, KubeletDouble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.settings.settings import Settings
    from tests.support.certificates import Authority

WITHIN_S = 20


class Stream(io.StringIO):
    """A log stream that sets ``written`` at each write."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


@dataclass
class Running:
    """A running registration task and its log."""

    context: DaemonContext
    stream: Stream

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [each for each in map(json.loads, self.stream.getvalue().splitlines()) if each["event"] == event]

    async def until(self, event: str) -> dict[str, Any]:
        """Wait for an event in the log; return its first occurrence."""
        async with asyncio.timeout(WITHIN_S):
            while not self.logged(event):
                self.stream.written.clear()
                await self.stream.written.wait()
        return self.logged(event)[0]


def registering(authority: Authority, url: str, directory: Path, **changes: Any) -> Settings:
    token = directory / "token"
    token.write_text("token-of-the-agent")
    section = {"register_node": True, "server": url, "ca_file": str(authority.ca_file), "token_file": str(token)}
    document = {"kubernetes": section, "kubelet": {"node_name": "node-1"}, "role": "standalone", **changes}
    return convert(Config, document).settings()


@asynccontextmanager
async def running(settings: Settings, double: KubeletDouble | None = None, **options: float) -> AsyncIterator[Running]:
    stream = Stream()
    clock = SystemClock()
    logger = log.configure("json", "info", stream)
    context = DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))
    if double is not None:
        context.roles = RoleWatch(double.clock, logger, reader=double)
    stop = asyncio.Event()
    task = asyncio.create_task(RegistrationTask(context, **options).run(stop))
    try:
        yield Running(context, stream)
    finally:
        stop.set()
        async with asyncio.timeout(WITHIN_S):
            await task


async def test_node_is_registered_over_tls(authority: Authority, tmp_path: Path) -> None:
    server = ApiServer("register_node")
    with serving_api(server, partial(authority.server_context, "server")) as url:
        async with running(registering(authority, url, tmp_path), KubeletDouble()) as made:
            await made.until("node_registered")
            async with asyncio.timeout(WITHIN_S):
                while not server.objects[LEASES] or not server.seen("PATCH", "/status"):
                    await asyncio.to_thread(server.received.wait, 1)
                    server.received.clear()
    node = server.node
    assert node["spec"]["unschedulable"]
    # Without a runtime the node is not ready.
    assert [each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready"] == ["False"]
    assert {each.content_type for each in server.seen("PATCH")} == {"application/strategic-merge-patch+json"}
    assert "token-of-the-agent" not in made.stream.getvalue()


async def test_nothing_is_sent_in_a_dry_run(authority: Authority, tmp_path: Path) -> None:
    server = ApiServer("register_node")
    with serving_api(server, partial(authority.server_context, "server")) as url:
        async with running(registering(authority, url, tmp_path, dry_run=True), KubeletDouble()) as made:
            found = await made.until("loop_disabled")
            assert "dry run" in found["because"]
            assert found["level"] == "info"
            status = next(each for each in made.context.loop_statuses.all if each.name == NAME)
            assert status.activity is Activity.DISABLED
    assert server.requests == []


async def test_default_configuration_has_no_registration_in_status_and_log() -> None:
    async with running(Config().settings(), KubeletDouble()) as made:
        await asyncio.sleep(0)
        assert made.context.loop_statuses.all == ()
    assert made.stream.getvalue() == ""


async def test_registration_is_refused_beside_a_kubelet(authority: Authority, tmp_path: Path) -> None:
    server = ApiServer("register_node")
    with serving_api(server, partial(authority.server_context, "server")) as url:
        settings = registering(authority, url, tmp_path, role="auto")
        async with running(settings, KubeletDouble(KUBELET)) as made:
            found = await made.until("loop_disabled")
            assert found["level"] == "warning"
            assert "register_node = true is refused: a kubelet manages this node" in found["because"]
    assert server.requests == []
    assert server.objects[NODES] == {}


async def test_server_that_is_away_is_logged_with_its_cause_and_does_not_end_the_task(
    authority: Authority, tmp_path: Path
) -> None:
    settings = registering(authority, "https://127.0.0.1:1", tmp_path)
    async with running(settings, KubeletDouble()) as made:
        found = await made.until("api_request_failed")
        assert "connection refused" in found["error"]
        assert not made.context.loop_statuses.stuck()


async def test_stop_does_not_wait_for_a_server_that_does_not_answer(authority: Authority, tmp_path: Path) -> None:
    server = ApiServer("register_node")
    server.faults = [Fault(behaviour="hang")]
    with serving_api(server, partial(authority.server_context, "server")) as url:
        settings = registering(authority, url, tmp_path)
        assert settings.kubernetes.access is not None
        patient = replace(settings.kubernetes.access, timeout_s=600)  # longer than WITHIN_S for the stop
        async with running(replace(settings, kubernetes=replace(settings.kubernetes, access=patient)), KubeletDouble()):
            await asyncio.to_thread(server.received.wait, WITHIN_S)


async def test_reload_continues_with_the_new_settings(authority: Authority, tmp_path: Path) -> None:
    server = ApiServer("register_node")
    with serving_api(server, partial(authority.server_context, "server")) as url:
        settings = registering(authority, url, tmp_path)
        async with running(settings, KubeletDouble()) as made:
            await made.until("node_registered")
            made.context.swap(replace(settings, kubernetes=replace(settings.kubernetes, max_pods=7)))
            made.context.take_next()
            await made.until("node_heartbeat_ended")
            async with asyncio.timeout(WITHIN_S):
                while server.node["status"]["capacity"]["pods"] != "7":
                    await asyncio.to_thread(server.received.wait, 1)
                    server.received.clear()


async def test_unclean_stop_that_is_logged_before_the_registration_is_an_event_about_the_node(
    authority: Authority, tmp_path: Path
) -> None:
    server = ApiServer("register_node")
    with serving_api(server, partial(authority.server_context, "server")) as url:
        async with running(registering(authority, url, tmp_path), KubeletDouble()) as made:
            await asyncio.sleep(0)
            made.context.logger.warning("unclean_stop", running=["default/web"])
            async with asyncio.timeout(WITHIN_S):
                while not server.objects[EVENTS]:
                    await asyncio.to_thread(server.received.wait, 1)
                    server.received.clear()
    (event,) = server.objects[EVENTS].values()
    assert (event["reason"], event["type"]) == ("UncleanStop", "Warning")
    assert "default/web" in event["note"]


@pytest.mark.parametrize("again", [False, True])
async def test_deleted_node_object_is_created_again_only_if_configured(
    authority: Authority, tmp_path: Path, again: bool
) -> None:
    server = ApiServer("register_node")
    with serving_api(server, partial(authority.server_context, "server")) as url:
        settings = registering(authority, url, tmp_path)
        settings = replace(settings, kubernetes=replace(settings.kubernetes, register_again=again))
        async with running(settings, KubeletDouble(), again_s=0.01) as made:
            await made.until("node_registered")
            async with asyncio.timeout(WITHIN_S):
                while not server.objects[LEASES]:
                    await asyncio.to_thread(server.received.wait, 1)
                    server.received.clear()
            with server.lock:
                deleted = server.objects[NODES].pop("node-1")
                del server.objects[LEASES]["node-1"]
            made.context.pass_lock.add_pause(Pause(PausedBy.SHUTDOWN, "a changed status is reported at once"))
            found = await made.until("loop_disabled")
            assert "the Node object was deleted" in found["because"]
            if not again:
                statuses = made.context.loop_statuses.all
                assert [each.reason for each in statuses if each.name == NAME] == [found["because"]]
            else:
                async with asyncio.timeout(WITHIN_S):
                    while "node-1" not in server.objects[NODES]:
                        await asyncio.to_thread(server.received.wait, 1)
                        server.received.clear()
                assert server.node["metadata"]["uid"] != deleted["metadata"]["uid"]
    assert bool(server.objects[NODES]) is again


READ = NodeFacts("node-1", Machine("node-1"), MIDNIGHT, runtime_version="containerd://1", images=())
LOST = replace(READ, runtime_version="", images=None, not_ready=("container runtime is down",))


async def test_short_absence_of_the_runtime_is_not_reported_and_a_shutdown_is() -> None:
    clock = ManualClock()
    settings = Config().settings()
    context = DaemonContext(
        settings, log.configure("json", "info", io.StringIO()), clock, LoopStatuses(clock), PassLock(clock)
    )
    answers = [READ, LOST, LOST, READ]

    async def read(*_: object) -> NodeFacts:
        return answers.pop(0)

    source = FactsSource(context, settings, read, LastFacts())
    assert (await source.read()).not_ready == ()
    clock.at_s = RUNTIME_LOST_S - 1
    assert (await source.read()).not_ready == ()
    clock.at_s = RUNTIME_LOST_S
    assert (await source.read()).not_ready == ("container runtime is down",)
    context.pass_lock.add_pause(Pause(PausedBy.SHUTDOWN, "the node is shutting down"))
    assert (await source.read()).not_ready == (SHUTTING_DOWN,)
    assert source.is_shutting_down()
