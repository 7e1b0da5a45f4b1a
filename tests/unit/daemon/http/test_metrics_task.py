"""Metrics task over real sockets, with valid, slow and hostile clients."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import stat
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.http.connection import Deadlines
from nodeagent.daemon.http.metrics_task import LIMITS, NAME, MetricsTask
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Listen, MetricsSettings, Origin
from nodeagent.telemetry import logging as log
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.model.kubernetes import TlsFiles

WITHIN_S = 30
GET_METRICS = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


class Stream(io.StringIO):
    """A log stream that sets ``written`` at each write."""

    written: asyncio.Event

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


@dataclass
class Served:
    """A running metrics task and its log."""

    context: DaemonContext
    task: MetricsTask
    stream: io.StringIO
    written: asyncio.Event

    @property
    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    async def move(self, listen: Listen | None) -> None:
        """Change the listen address as a reload by the supervisor does."""
        self.context.swap(replace(self.context.settings, metrics=MetricsSettings(listen)))
        for _ in range(5):
            await asyncio.sleep(0)
        self.context.take_next()

    async def until(self, event: str, times: int = 1) -> None:
        """Wait until the event is logged at least ``times`` times."""
        async with asyncio.timeout(WITHIN_S):
            while [each["event"] for each in self.logged].count(event) < times:
                self.written.clear()
                await self.written.wait()


@asynccontextmanager
async def serving(
    listen: Listen | None, tls: TlsFiles | None = None, *, read_within_s: float = WITHIN_S
) -> AsyncIterator[Served]:
    stream, clock, written = Stream(), ManualClock(), asyncio.Event()
    stream.written = written
    logger = log.configure("json", "info", stream)
    made = replace(checked(Origin()), metrics=MetricsSettings(listen, tls=tls))
    context = DaemonContext(made, logger, clock, LoopStatuses(clock), PassLock(clock))
    served = Served(context, MetricsTask(context, deadlines=Deadlines(read_s=read_within_s)), stream, written)
    running = asyncio.ensure_future(served.task.run(context.stop))
    try:
        yield served
    finally:
        context.stop.set()
        await asyncio.wait_for(running, WITHIN_S)


async def connect(listen: Listen) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if listen.path:
        return await asyncio.open_unix_connection(listen.path)
    return await asyncio.open_connection(listen.host, listen.port)


async def send(listen: Listen, *parts: bytes) -> bytes:
    """Send bytes in parts; return the response up to the end of the connection, empty if the server aborts it."""
    reader, writer = await connect(listen)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), WITHIN_S)
    except (ConnectionResetError, BrokenPipeError):
        return b""
    finally:
        writer.transport.abort()


async def get(
    listen: Listen, path: str, *, method: str = "GET", accept: str = "", host: str = "localhost"
) -> tuple[int, dict[str, str], str]:
    """Return status code, headers and body of the response to a request."""
    extra = f"Accept: {accept}\r\n" if accept else ""
    answer = await send(listen, f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body.decode()


def exists(listen: Listen) -> bool:
    return Path(listen.path).exists()


def mode_of(listen: Listen) -> int:
    return Path(listen.path).stat().st_mode


@pytest.fixture
def socket_at(tmp_path: Path) -> Listen:
    return Listen(path=str(tmp_path / "metrics.sock"))


@pytest.fixture
def free_port() -> Listen:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Listen("127.0.0.1", probe.getsockname()[1])


@pytest.mark.parametrize("place", ["port", "socket"])
async def test_metrics_and_health_are_served(place: str, free_port: Listen, socket_at: Listen) -> None:
    listen = free_port if place == "port" else socket_at
    async with serving(listen) as made:
        await made.until("metrics_listening")
        status, headers, body = await get(listen, "/metrics")
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert headers["content-length"] == str(len(body))
        assert "\nnodeagent_ready 0.0\n" in body
        assert await get(listen, "/healthz") == (200, {**headers, **_text("ok\n")}, "ok\n")
        status, _, body = await get(listen, "/readyz")
        assert (status, body.startswith("starting or reloading")) == (503, True)


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
async def test_page_that_resolves_its_name_to_loopback_is_refused(path: str, free_port: Listen) -> None:
    async with serving(free_port) as made:
        await made.until("metrics_listening")
        status, _, body = await get(free_port, path, host="evil.example:20310")
        hint = f"address the agent by {free_port.text}, localhost, or the name of the node"
        assert (status, body) == (421, f"unknown host evil.example:20310; {hint}\n")


def _text(body: str) -> dict[str, str]:
    return {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body))}


async def test_openmetrics_is_served_to_a_client_that_accepts_it(socket_at: Listen) -> None:
    async with serving(socket_at) as made:
        await made.until("metrics_listening")
        accept = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        _, headers, body = await get(socket_at, "/metrics?debug=1", accept=accept)
        assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert body.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/metrics", 200),
        ("HEAD", "/readyz", 503),
        ("POST", "/metrics", 405),
        ("DELETE", "/healthz", 405),
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/../metrics", 404),
        ("GET", "http://a/metrics", 404),
        ("OPTIONS", "*", 404),
    ],
)
async def test_other_method_gets_405_other_path_404(method: str, path: str, status: int, socket_at: Listen) -> None:
    async with serving(socket_at) as made:
        await made.until("metrics_listening")
        found, headers, body = await get(socket_at, path, method=method)
        assert found == status
        assert headers["connection"] == "close"
        assert ("allow" in headers) is (status == 405)
        assert (body == "") is (method == "HEAD")
        assert int(headers["content-length"]) > 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /metrics HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"get /metrics HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nAccept: a\r\n folded\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nA: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"a" * 100_000, 431),
        (b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde", 405),
    ],
    ids=range(11),
)
async def test_malformed_request_is_refused_and_the_next_is_served(sent: bytes, status: int, socket_at: Listen) -> None:
    async with serving(socket_at) as made:
        await made.until("metrics_listening")
        answer = await send(socket_at, sent)
        assert not answer or answer.startswith(b"HTTP/1.1 %d " % status)
        assert (await get(socket_at, "/healthz"))[0] == 200


async def test_request_in_pieces_is_answered(socket_at: Listen) -> None:
    async with serving(socket_at) as made:
        await made.until("metrics_listening")
        answer = await send(socket_at, *(bytes([each]) for each in GET_METRICS))
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\n"], ids=["silent", "half"])
async def test_slow_client_is_disconnected(sent: bytes, socket_at: Listen) -> None:
    async with serving(socket_at, read_within_s=0.01) as made:
        await made.until("metrics_listening")
        assert await send(socket_at, sent) == b""


async def test_client_that_disconnects_early_is_not_logged(socket_at: Listen) -> None:
    async with serving(socket_at) as made:
        await made.until("metrics_listening")
        for sent in (b"", b"GET", GET_METRICS):
            _, writer = await connect(socket_at)
            writer.write(sent)
            writer.transport.abort()
        assert (await get(socket_at, "/healthz"))[0] == 200
        assert [each["event"] for each in made.logged] == ["metrics_listening"]


async def test_scrape_is_answered_while_slow_clients_use_every_connection(socket_at: Listen) -> None:
    async with serving(socket_at) as made:
        await made.until("metrics_listening")
        slow = []
        for _ in range(3 * LIMITS.total):
            slow.append(await connect(socket_at))
            slow[-1][1].write(b"GET /metrics HTTP/1.1\r\n")
            await slow[-1][1].drain()
        for _ in range(5):
            assert (await send(socket_at, GET_METRICS)).startswith(b"HTTP/1.1 200 OK\r\n")
        for _, writer in slow:
            writer.transport.abort()


async def test_clients_are_disconnected_at_the_stop(socket_at: Listen) -> None:
    async with serving(socket_at) as made:
        await made.until("metrics_listening")
        reader, writer = await connect(socket_at)
        writer.write(b"GET")
        await writer.drain()
        made.context.stop.set()
        assert await asyncio.wait_for(reader.read(), WITHIN_S) == b""
        writer.transport.abort()
    assert not exists(socket_at)


async def test_socket_is_open_to_owner_and_group(socket_at: Listen) -> None:
    async with serving(socket_at) as made:
        await made.until("metrics_listening")
        mode = mode_of(socket_at)
        assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o660)


async def test_stale_socket_is_replaced(socket_at: Listen) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(socket_at.path)
    async with serving(socket_at) as made:
        await made.until("metrics_listening")
        assert (await get(socket_at, "/healthz"))[0] == 200


def test_other_file_at_the_path_is_not_replaced(socket_at: Listen) -> None:
    async def serve() -> None:
        async with serving(socket_at) as made:
            await made.until("metrics_unavailable")
            assert made.logged[0]["error"] == "the path is in use"

    Path(socket_at.path).write_text("mine")
    asyncio.run(serve())
    assert Path(socket_at.path).read_text() == "mine"


async def test_socket_of_a_running_server_is_not_replaced(socket_at: Listen) -> None:
    async with serving(socket_at) as first:
        await first.until("metrics_listening")
        async with serving(socket_at) as second:
            await second.until("metrics_unavailable")
        assert (await get(socket_at, "/healthz"))[0] == 200


async def test_port_in_use_is_logged_and_retried(free_port: Listen) -> None:
    with socket.socket() as other:
        other.bind((free_port.host, free_port.port))
        other.listen()
        async with serving(free_port) as made:
            await made.until("metrics_unavailable")
            line = next(each for each in made.context.loop_statuses.all if each.name == NAME)
            assert (line.activity.value, line.reason) == ("paused", "the address is in use by another process")
            other.close()
            await made.move(None)  # a reload starts the retry immediately
            await made.until("loop_disabled")
            await made.move(free_port)
            await made.until("metrics_listening")
            assert [each["event"] for each in made.logged] == [
                "metrics_unavailable",
                "loop_disabled",
                "metrics_listening",
            ]
            assert made.logged[0]["listen"] == free_port.text
            assert (await get(free_port, "/healthz"))[0] == 200


async def test_reload_changes_the_address(free_port: Listen, socket_at: Listen) -> None:
    async with serving(None) as made:
        await made.until("loop_disabled")
        for number, listen in enumerate((free_port, socket_at, free_port), start=1):
            await made.move(listen)
            await made.until("metrics_listening", number)
            assert (await get(listen, "/healthz"))[0] == 200
            assert exists(socket_at) is (listen is socket_at)
        await made.move(None)
        await made.until("loop_disabled", 2)
        with pytest.raises(ConnectionRefusedError):
            await connect(free_port)


async def test_exception_in_a_page_is_logged_and_later_requests_are_answered(
    socket_at: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    async with serving(socket_at) as made:
        await made.until("metrics_listening")
        monkeypatch.setattr(made.context.loop_statuses, "stuck", broken)
        assert (await get(socket_at, "/healthz"))[0] == 500
        monkeypatch.undo()
        assert (await get(socket_at, "/healthz"))[0] == 200
        assert [each.get("path") for each in made.logged] == [None, "/healthz"]


@given(st.lists(st.binary(max_size=300) | st.sampled_from([b"GET ", b"/metrics", b" HTTP/1.1", b"\r\n", b":"])))
def test_any_bytes_are_answered_or_disconnected(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    listen = Listen(path=str(tmp_path_factory.mktemp("any") / "s"))

    async def exchange() -> None:
        async with serving(listen) as made:
            await made.until("metrics_listening")
            answer = await send(listen, *parts, b"\r\n\r\n")
            assert not answer or answer.startswith(b"HTTP/1.1 ")
            assert (await get(listen, "/healthz"))[0] == 200
            assert [each["event"] for each in made.logged] == ["metrics_listening"]

    asyncio.run(exchange())
