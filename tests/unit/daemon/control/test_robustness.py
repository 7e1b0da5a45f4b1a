"""Control API with arbitrary requests, many connections, hanging filesystems and unprintable text."""

from __future__ import annotations

import asyncio
import json
import pwd
import socket
import threading
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from nodeagent.api import requests as api
from nodeagent.api.common import encode
from nodeagent.api.operations import LARGE_BODY_BYTES, OPERATIONS, SMALL_BODY_BYTES
from nodeagent.api.requests import request_type
from nodeagent.daemon.control import server as control
from nodeagent.daemon.control.server import LIMITS
from nodeagent.errors import ObservationError
from nodeagent.gc.collector import Collector
from nodeagent.gc.documents.history import HistoryDocument
from nodeagent.host.sockets import Peer, group_number
from tests.unit.control_node import MEMBER, ROOT, STRANGER, Node

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Hang:
    """A function that hangs until ``released`` is set, as a call on an unresponsive filesystem."""

    calls: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, *_: object, **__: object) -> Any:
        self.calls += 1
        self.released.wait(30)
        raise ObservationError("unmounted")


@pytest.fixture
def hang() -> Iterator[Hang]:
    made = Hang()
    yield made
    made.released.set()


async def test_hanging_filesystem_blocks_one_thread(node: Node, hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.daemon.node_filesystems.read_filesystem", hang)
    monkeypatch.setattr("nodeagent.daemon.node_filesystems._READ_WITHIN_S", 0.05, raising=False)
    answer = await asyncio.wait_for(asyncio.gather(*(node.ask("Status") for _ in range(3))), 10)
    assert hang.calls == 1
    assert {each["problem"] for each in answer[0]["filesystems"]} == {
        "not read: a filesystem does not answer within 0.05 s"
    }
    hang.released.set()
    assert (await node.ask("Status"))["filesystems"][0]["problem"] == "unmounted"


async def test_hanging_signal_reading_blocks_one_thread(
    node: Node, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.ask("Status")
    monkeypatch.setattr("nodeagent.eviction.signals.read_filesystem_signals", lambda *_: hang())
    monkeypatch.setattr("nodeagent.eviction.signals._READ_WITHIN_S", 0.05)
    answer = await asyncio.wait_for(asyncio.gather(*(node.ask("Pressure") for _ in range(3))), 10)
    assert hang.calls == 1
    assert all("does not answer" in each["warnings"][-1] for each in answer)


async def test_hanging_pod_directories_block_one_thread_each(
    node: Node, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.pods.usage.PodDiskWalk.advance", hang)
    monkeypatch.setattr("nodeagent.pods.usage.HANGS_S", 0.05)
    monkeypatch.setattr("nodeagent.pods.usage.HANGS_S", 0.05)
    node.sim.add_pod("db")
    for _ in range(3):
        assert "a directory does not answer" in (await node.ask("Pods"))["warnings"][-1]
    assert hang.calls == len(node.sim.sandboxes)


async def test_name_service_and_history_are_read_in_threads(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def recorded(real: Any) -> Any:
        def call(*words: Any, **more: Any) -> Any:
            threads.add(threading.current_thread())
            return real(*words, **more)

        return call

    monkeypatch.setattr("pwd.getpwuid", recorded(pwd.getpwuid))
    monkeypatch.setattr(control, "group_number", recorded(group_number))
    monkeypatch.setattr(HistoryDocument, "of", recorded(HistoryDocument.of))
    await node.ask("History")
    node.peer[0] = STRANGER
    await node.refused("History")
    assert threads
    assert threading.main_thread() not in threads


FIELDS = {
    str: st.text(max_size=20) | st.sampled_from(["images", "containers", "all", "eviction"]),
    float: st.floats(),
    int: st.integers(-1, 2**64),
    bool: st.booleans(),
    str | None: st.none() | st.text(max_size=20) | st.sampled_from(["*", "registry.example/app:*,"]),
}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, msgspec.Struct | None, bytes | None]:
    """Return a request of an operation that does not wait, with random fields or with a random body."""
    waiting = ("Events", "Reload", "PreviewReload")
    name = draw(st.sampled_from([each for each in sorted(OPERATIONS) if each not in waiting]))
    if draw(st.booleans()):
        return name, None, draw(st.binary(max_size=60))
    kind = request_type(name)
    fields = msgspec.structs.fields(kind)
    return name, kind(**{each.name: draw(FIELDS[each.type]) for each in fields if draw(st.booleans())}), None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls())
async def test_any_request_is_answered_without_a_crash(
    node: Node, call: tuple[str, msgspec.Struct | None, bytes | None]
) -> None:
    name, request, body = call
    status, documents = await node.exchange(name, request, body=body)
    assert status in {200, 400, 404, 409, 413}, documents
    assert node.logged("control_failed") == []
    assert (await node.ask("Status"))["agent"]["running"]


async def test_http_2_of_a_client_of_version_0_1_is_refused(node: Node) -> None:
    reader, writer = await asyncio.open_unix_connection(node.path)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 ")
    writer.transport.abort()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400))
async def test_random_bytes_do_not_break_the_service(node: Node, data: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(node.path)
    writer.write(data)
    writer.write_eof()
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert (await node.ask("Status"))["agent"]["running"]


async def test_root_is_answered_while_one_user_has_50_connections(node: Node) -> None:
    node.peer[0] = MEMBER
    with ExitStack() as stack:
        for _ in range(50):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            await asyncio.to_thread(connection.connect, str(node.path))
            with suppress(ConnectionError):
                connection.send(b"POST /v1/passes HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n")
        node.peer[0] = ROOT
        assert (await node.ask("Status"))["agent"]["running"]
        node.peer[0] = MEMBER
        assert (await node.ask("Status"))["agent"]["running"]


async def test_one_user_has_16_requests_in_progress_and_root_is_answered(node: Node) -> None:
    node.peer[0] = MEMBER
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(node.follow("Events")) for _ in range(LIMITS.per_user)]
        for reader in readers:
            waiting = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
            while not waiting.done():
                node.context.logger.info("resumed", by="operator")
                await asyncio.sleep(0.01)
            assert (await waiting).startswith(b"HTTP/1.1 200 ")
        assert (await node.exchange("Status"))[0] == 429
        node.peer[0] = ROOT
        assert (await node.ask("Status"))["agent"]["running"]
    node.peer[0] = MEMBER
    async with asyncio.timeout(20):
        while (await node.exchange("Status"))[0] != 200:
            pass


@pytest.mark.parametrize(
    ("peer", "operation", "size", "status"),
    [
        (ROOT, "AddHold", SMALL_BODY_BYTES + 1, 413),
        (ROOT, "Apply", LARGE_BODY_BYTES + 1, 413),
        (ROOT, "Status", 1, 413),
        (MEMBER, "Apply", LARGE_BODY_BYTES + 1, 403),
    ],
    ids=["small", "large", "none", "access-first"],
)
async def test_body_over_its_limit_is_refused_unread(
    node: Node, peer: Peer, operation: str, size: int, status: int
) -> None:
    node.peer[0] = peer
    assert (await node.exchange(operation, body=b"x" * size))[0] == status


async def test_unprintable_text_of_an_error_is_returned_to_the_caller(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise ObservationError("/pods/\udcff\x1b\n")

    monkeypatch.setattr(Collector, "preview", fail)
    code, details = await node.refused("Plan", api.PlanRequest(scope="images"))
    assert (code, details) == (409, "/pods/\\xff\x1b\n")


@pytest.mark.parametrize("name", ["[/x]", "a\x1b[31m\n\u202e\x9b\x00", "\udcff"])
def test_unprintable_names_in_a_document_are_encoded(name: str) -> None:
    text = encode({"schema": "s", "name": name, "names": [name]}, "json")
    assert json.loads(text)["name"] == json.loads(text)["names"][0] == name.replace("\udcff", "\\xff")
