"""Pod watch task over TLS: enablement, reload, stored pods, and imports."""

from __future__ import annotations

import asyncio
import io
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cluster import POD_WATCH
from nodeagent.cluster.pod_watch import PodWatchTask
from nodeagent.config.validation import convert
from nodeagent.errors import ConfigError, StoreError
from nodeagent.loops.passes import Activity
from nodeagent.model.kubernetes import Machine
from nodeagent.pods.watched import FILE_NAME, MAX_BYTES, read_watched_pods, write_watched_pods
from nodeagent.settings.settings import Config
from tests.support.api_pods import pod
from tests.support.api_server import NODES, ApiServer, serving_api
from tests.unit.cluster.plan.test_pod_watch import START, spec
from tests.unit.cluster.tasks import context_of, running as run_task, settings_with, until

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.settings.settings import Settings
    from tests.support.certificates import Authority

WITHIN_S = 20
OWN = Machine("node-1", machine_id="m", system_uuid="u")


def watching(authority: Authority, url: str, directory: Path, **changes: Any) -> Settings:
    state = {"state": {"directory": str(directory / "state")}}
    return settings_with(authority, url, directory, {"watch_pods": True, **changes}, state)


def running(settings: Settings, stream: io.StringIO) -> AbstractAsyncContextManager[DaemonContext]:
    context = context_of(settings, stream)
    return run_task(context, PodWatchTask(context))


@pytest.fixture
def server() -> ApiServer:
    made = ApiServer("watch_pods")
    made.put(NODES, "node-1", {"status": {"nodeInfo": {"machineID": "m", "systemUUID": "u"}}})
    made.pods.put(pod("a"))
    return made


async def test_pods_are_watched_and_stored_and_a_reload_ends_the_watch(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ApiServer
) -> None:
    monkeypatch.setattr("nodeagent.cluster.facts.read_machine", lambda *_: OWN)
    stream = io.StringIO()
    with serving_api(server, partial(authority.server_context, "server")) as url:
        settings = watching(authority, url, tmp_path)
        async with running(settings, stream) as context:
            watched = context.watched_pods
            await until(lambda: {each.name for each in watched.pods} == {"a"})
            server.pods.put(pod("b"))
            await until(lambda: {each.name for each in watched.pods} == {"a", "b"})
            assert watched.is_current
            found = watched.reading()
            assert found is not None
            assert (found.address, found.pods, found.detail) == (
                "API server, pods of node-1",
                2,
                "connected for less than 1m",
            )
            context.settings = watching(authority, url, tmp_path, watch_pods=False)
            await until(lambda: not watched.configured)
            assert watched.pods == ()
            (status,) = context.loop_statuses.all
            assert (status.name, status.activity) == (POD_WATCH, Activity.DISABLED)
    stored = read_watched_pods(tmp_path / "state", "node-1")
    assert stored is not None
    assert [each.name for each in stored.pods] == ["a"]
    assert (tmp_path / "state" / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert "token-of-the-agent" not in stream.getvalue()


async def test_stored_pods_are_facts_while_the_api_server_is_away(authority: Authority, tmp_path: Path) -> None:
    write_watched_pods(tmp_path / "state", "node-1", [spec("a")], START)
    async with running(watching(authority, "https://127.0.0.1:9", tmp_path), io.StringIO()) as context:
        await until(lambda: bool(context.watched_pods.pods))
        assert not context.watched_pods.is_current
        found = context.watched_pods.pod_list()
        assert found is not None
        assert not found.proves_absence
        reading = context.watched_pods.reading()
        assert reading is not None
        assert reading.observed_at == START


async def test_node_without_a_watch_has_no_task_row_and_no_list(authority: Authority, tmp_path: Path) -> None:
    settings = watching(authority, "https://127.0.0.1:9", tmp_path, watch_pods=False)
    async with running(settings, io.StringIO()) as context:
        await asyncio.sleep(0)
        assert context.loop_statuses.all == ()
        assert context.watched_pods.reading() is None
        assert context.watched_pods.pod_list() is None


def test_watch_without_a_server_is_refused() -> None:
    with pytest.raises((ConfigError, ValueError), match="watch_pods = true requires kubeconfig or server"):
        convert(Config, {"kubernetes": {"watch_pods": True}})


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"version": 1}', b"\xff", b" " * (MAX_BYTES + 1)],
    ids=["empty", "cut", "list", "part", "bytes", "large"],
)
def test_malformed_stored_pods_are_an_error(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(text)
    with pytest.raises(StoreError, match="not used"):
        read_watched_pods(tmp_path, "node-1")


def test_stored_pods_of_another_node_or_format_are_not_used(tmp_path: Path) -> None:
    assert read_watched_pods(tmp_path, "node-1") is None
    write_watched_pods(tmp_path, "other", [spec("a")], START)
    assert read_watched_pods(tmp_path, "node-1") is None
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text().replace('"version":1', '"version":2').replace("other", "node-1"))
    assert read_watched_pods(tmp_path, "node-1") is None
