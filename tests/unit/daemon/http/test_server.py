"""HTTP server over sockets: routes, access checks before request bodies, limits, streams, malformed requests."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.daemon.http.connection import (
    JSON,
    Deadlines,
    RefusedRequestError,
    Request,
    Response,
    Route,
    Router,
    Service,
    problem,
)
from nodeagent.daemon.http.server import ConnectionLimits, HttpServer, bind
from nodeagent.settings.settings import Listen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

WITHIN_S = 30
BODY_BYTES = 1000


async def echo(request: Request) -> Response:
    shown = {
        "method": request.method,
        "path": request.path,
        "query": dict(request.query),
        "body": request.body.decode("latin-1"),
        "uid": None if request.peer is None else request.peer.uid,
        "variables": dict(request.variables),
    }
    return Response(HTTPStatus.OK, json.dumps(shown).encode(), JSON)


async def crash(_: Request) -> Response:
    raise ZeroDivisionError


async def raise_timeout(_: Request) -> Response:
    raise TimeoutError


async def raise_runtime_unavailable(_: Request) -> Response:
    raise ConnectionResetError


async def hang(_: Request) -> Response:
    await asyncio.Event().wait()
    raise AssertionError


async def refuse(_: Request) -> Response:
    raise RefusedRequestError(problem(HTTPStatus.CONFLICT, "another pass is running"))


class Feed:
    """A handler with a streamed response that the test writes and ends."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def stream(self, _: Request) -> Response:
        return Response(HTTPStatus.OK, self._iterate(), "application/jsonl")

    async def _iterate(self) -> AsyncIterator[bytes]:
        try:
            while (part := await self.parts.get()) is not None:
                yield part
        finally:
            self.closed.set()


class Watched:
    """A handler that waits until it is cancelled, and then raises the given error if any."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def wait(self, request: Request) -> Response:
        self.started.set()
        try:
            return await hang(request)
        finally:
            self.cancelled.set()
            if self._error is not None:
                raise self._error


async def authorise(request: Request) -> None:
    if request.headers.get("x-deny"):
        raise RefusedRequestError(problem(HTTPStatus.FORBIDDEN, "access denied"))


def fail(_: Request, error: Exception) -> Response:
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__)


@asynccontextmanager
async def serving(
    directory: Path,
    feed: Feed | None = None,
    watched: Watched | None = None,
    deadlines: Deadlines | None = None,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[Listen]:
    router = Router(
        {
            "/echo": Route({"GET": echo, "POST": echo}, {"POST": BODY_BYTES}),
            "/v1/loops/{name}": Route({"GET": echo}),
            "/crash": Route({"GET": crash}),
            "/hang": Route({"GET": hang}),
            "/time-out": Route({"GET": raise_timeout}),
            "/lose-the-runtime": Route({"GET": raise_runtime_unavailable}),
            "/watched-refusal": Route({"GET": refuse}, watched=frozenset({"GET"})),
            "/watched": Route(
                {method: (watched or Watched()).wait for method in ("GET", "POST")},
                {"POST": BODY_BYTES},
                watched=frozenset({"GET", "POST"}),
            ),
            "/refuse": Route({"GET": refuse}),
            "/stream": Route({"GET": (feed or Feed()).stream}),
        }
    )
    listen = Listen(path=str(directory / "s"))
    server = HttpServer(
        Service(router, authorise, fail, deadlines or Deadlines(WITHIN_S, WITHIN_S, WITHIN_S)),
        limits or ConnectionLimits(total=8, per_user=8, root=8),
    )
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, error: unhandled.append(error))
    await server.start(bind(listen))
    try:
        yield listen
    finally:
        await server.close()
    assert not unhandled


async def exchange(listen: Listen, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes; return status code, headers and body of the response; status 0 without a response."""
    reader, writer = await asyncio.open_unix_connection(listen.path)
    try:
        writer.write(sent)
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(), WITHIN_S)
    except (ConnectionResetError, BrokenPipeError):
        answer = b""
    finally:
        writer.transport.abort()
    if not answer:
        return 0, {}, b""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


def head(method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


async def test_request_reaches_its_handler_with_query_body_variables_and_credentials(tmp_path: Path) -> None:
    async with serving(tmp_path) as listen:
        status, headers, body = await exchange(listen, head("POST", "/echo?a=1&b=%20x", "Content-Length: 5") + b"hello")
        assert (status, headers["content-type"], headers["connection"]) == (200, JSON, "close")
        shown = json.loads(body)
        assert (shown["query"], shown["body"], shown["uid"]) == ({"a": "1", "b": " x"}, "hello", os.getuid())
        _, _, body = await exchange(listen, head("GET", "/v1/loops/a%2Fb%20c"))
        assert json.loads(body)["variables"] == {"name": "a/b c"}


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head("GET", "/missing"), 404),
        (head("GET", "/v1/loops/a/b"), 404),
        (head("DELETE", "/echo"), 405),
        (head("GET", "/crash"), 500),
        (head("GET", "/time-out"), 500),
        (head("GET", "/lose-the-runtime"), 500),
        (head("GET", "/refuse"), 409),
        (head("GET", "/watched-refusal"), 409),
        (head("POST", "/echo", "Transfer-Encoding: chunked") + b"1\r\na\r\n" * 900 + b"0\r\n\r\n", 400),
        (head("POST", "/echo", f"Content-Length: {BODY_BYTES + 1}"), 413),
        (head("POST", "/echo", "Transfer-Encoding: chunked") + b"7d1\r\n" + b"a" * 2001 + b"\r\n0\r\n\r\n", 413),
        (head("GET", "/echo", "Content-Length: 1") + b"a", 413),
        (head("POST", "/echo", "X-Deny: 1", "Content-Length: 999999999"), 403),
        (head("POST", "/echo", "Content-Length: -1"), 400),
        (head("POST", "/echo", "Content-Length: 1", "Content-Length: 2"), 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
    ],
    ids=[
        "no-path",
        "variable-is-one-segment",
        "no-method",
        "crash",
        "timeout-of-the-handler",
        "reset-in-the-handler",
        "refused-by-the-handler",
        "refused-by-a-watched-handler",
        "too-many-chunks",
        "announced-body-too-long",
        "chunked-body-too-long",
        "body-where-none-is-taken",
        "access-is-decided-before-the-body",
        "negative-length",
        "two-lengths",
        "tls",
    ],
)
async def test_faulty_request_is_answered_by_a_problem_document(sent: bytes, status: int, tmp_path: Path) -> None:
    async with serving(tmp_path) as listen:
        found, headers, body = await exchange(listen, sent)
        assert (found, headers["content-type"]) == (status, "application/problem+json")
        assert (json.loads(body)["status"], json.loads(body)["type"]) == (status, "about:blank")
        assert ("allow" in headers) is (status == 405)
        assert (await exchange(listen, head("GET", "/echo")))[0] == 200


async def test_head_has_the_length_and_no_body(tmp_path: Path) -> None:
    async with serving(tmp_path) as listen:
        status, headers, body = await exchange(listen, head("HEAD", "/echo"))
        assert (status, int(headers["content-length"]) > 0, body) == (200, True, b"")


async def test_head_request_of_an_unsupported_version_is_refused_without_a_body(tmp_path: Path) -> None:
    async with serving(tmp_path) as listen:
        status, _, body = await exchange(listen, b"HEAD /echo HTTP/5.1\r\nHost: x\r\n\r\n")
        assert (status, body) == (505, b"")


async def test_expect_continue_is_answered_before_the_body_is_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as listen:
        reader, writer = await asyncio.open_unix_connection(listen.path)
        writer.write(head("POST", "/echo", "Content-Length: 2", "Expect: 100-continue"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"ok")
        assert b'"body": "ok"' in await reader.read()
        writer.transport.abort()


async def test_handler_without_an_answer_in_time_returns_503(tmp_path: Path) -> None:
    async with serving(tmp_path, deadlines=Deadlines(WITHIN_S, 0.01, WITHIN_S)) as listen:
        assert (await exchange(listen, head("GET", "/hang")))[0] == 503


@pytest.mark.parametrize(
    "sent", [b"", b"GET /echo HTTP/1.1\r\n", head("POST", "/echo", "Content-Length: 9") + b"a"], ids=range(3)
)
async def test_slow_client_is_disconnected(sent: bytes, tmp_path: Path) -> None:
    async with serving(tmp_path, deadlines=Deadlines(0.01, WITHIN_S, WITHIN_S)) as listen:
        assert (await exchange(listen, sent))[0] == 0


async def test_stream_is_sent_part_by_part_and_closed_when_the_client_disconnects(tmp_path: Path) -> None:
    feed = Feed()
    async with serving(tmp_path, feed) as listen:
        reader, writer = await asyncio.open_unix_connection(listen.path)
        writer.write(head("GET", "/stream"))
        assert b"Transfer-Encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
        for part in (b'{"a": 1}\n', b'{"a": 2}\n'):
            feed.parts.put_nowait(part)
            assert await reader.readuntil(part + b"\r\n") == b"9\r\n" + part + b"\r\n"
        writer.transport.abort()
        await asyncio.wait_for(feed.closed.wait(), WITHIN_S)


async def test_handler_is_cancelled_when_a_watched_client_disconnects(tmp_path: Path) -> None:
    watched = Watched()
    async with serving(tmp_path, watched=watched) as listen:
        _, writer = await asyncio.open_unix_connection(listen.path)
        writer.write(head("GET", "/watched"))
        await asyncio.wait_for(watched.started.wait(), WITHIN_S)
        writer.transport.abort()
        await asyncio.wait_for(watched.cancelled.wait(), WITHIN_S)


@pytest.mark.parametrize("error", [None, BrokenPipeError()], ids=["cancelled", "failed"])
async def test_client_that_resets_its_connection_causes_no_logged_error(error: OSError | None, tmp_path: Path) -> None:
    watched = Watched(error)
    async with serving(tmp_path, watched=watched) as listen:  # asserts that the event loop reports no error
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(listen.path)
            client.sendall(head("POST", "/watched", "Content-Length: 1", "Expect: 100-continue"))
            await asyncio.to_thread(client.recv, 1)  # unread bytes cause a connection reset at close
            client.sendall(b"a")
            await asyncio.wait_for(watched.started.wait(), WITHIN_S)
        await asyncio.wait_for(watched.cancelled.wait(), WITHIN_S)
        assert (await exchange(listen, head("GET", "/echo")))[0] == 200  # the reset connection is closed by now
        gc.collect()


async def test_client_that_closes_its_side_after_the_request_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as listen:
        reader, writer = await asyncio.open_unix_connection(listen.path)
        writer.write(head("GET", "/echo"))
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.transport.abort()


async def test_stream_ends_with_its_last_part(tmp_path: Path) -> None:
    feed = Feed()
    feed.parts.put_nowait(b"a\n")
    feed.parts.put_nowait(None)
    async with serving(tmp_path, feed) as listen:
        assert (await exchange(listen, head("GET", "/stream")))[2] == b"2\r\na\n\r\n0\r\n\r\n"


async def test_connection_over_the_limit_gets_429_while_all_are_being_answered(tmp_path: Path) -> None:
    limits = ConnectionLimits(total=2, per_user=2, root=2)
    feed = Feed()
    async with serving(tmp_path, feed, limits=limits) as listen:
        open_streams = [await asyncio.open_unix_connection(listen.path) for _ in range(2)]
        for reader, writer in open_streams:
            writer.write(head("GET", "/stream"))
            await reader.readuntil(b"\r\n\r\n")
        assert (await exchange(listen, head("GET", "/echo")))[0] == 429
        open_streams[0][1].transport.abort()
        await asyncio.wait_for(feed.closed.wait(), WITHIN_S)
        async with asyncio.timeout(WITHIN_S):
            while (await exchange(listen, head("GET", "/echo")))[0] != 200:
                pass
        open_streams[1][1].transport.abort()


async def test_answered_connection_frees_its_slot_while_the_client_keeps_it_open(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=ConnectionLimits(total=1, per_user=1, root=1)) as listen:
        reader, writer = await asyncio.open_unix_connection(listen.path)
        writer.write(head("GET", "/echo"))
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        assert (await exchange(listen, head("GET", "/echo")))[0] == 200
        writer.transport.abort()


async def test_refused_clients_over_sixteen_are_disconnected_without_a_response(tmp_path: Path) -> None:
    feed = Feed()
    async with serving(tmp_path, feed, limits=ConnectionLimits(total=1, per_user=1, root=1)) as listen:
        stream, writer = await asyncio.open_unix_connection(listen.path)
        writer.write(head("GET", "/stream"))
        await stream.readuntil(b"\r\n\r\n")
        refused = [await asyncio.open_unix_connection(listen.path) for _ in range(40)]
        answers = [await asyncio.wait_for(reader.read(), WITHIN_S) for reader, _ in refused]
        assert sum(each.startswith(b"HTTP/1.1 429 ") for each in answers) == 16
        assert answers.count(b"") == 24
        for _, each in (*refused, (None, writer)):
            each.transport.abort()


@pytest.mark.parametrize("loop_steps", range(3, 9))  # the server has accepted a connection after three steps
async def test_connection_accepted_just_before_the_close_is_not_served(tmp_path: Path, loop_steps: int) -> None:
    async with serving(tmp_path) as listen:
        server = HttpServer(
            Service(Router({"/hang": Route({"GET": hang})}), authorise, fail), ConnectionLimits(8, 8, 8)
        )
        other = Listen(path=f"{listen.path}2")
        await server.start(bind(other))
        clients = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for each in clients:
            each.connect(other.path)
            each.sendall(head("GET", "/hang"))
        for _ in range(loop_steps):
            await asyncio.sleep(0)
        await server.close()
        for each in clients:
            each.settimeout(WITHIN_S)
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(each.recv, 1) == b""
            each.close()


@given(
    st.lists(
        st.binary(max_size=300)
        | st.sampled_from(
            [b"GET ", b"POST ", b"/echo", b" HTTP/1.1\r\n", b"Host: a\r\n", b"Content-Length: 3\r\n", b"\r\n", b":"]
        )
    )
)
def test_any_bytes_are_answered_or_the_connection_is_closed(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    async def run() -> None:
        async with serving(tmp_path_factory.mktemp("any"), deadlines=Deadlines(0.05, 1, 1)) as listen:
            assert (await exchange(listen, b"".join(parts)))[0] in {0, 200, 400, 404, 405, 413, 431, 501}
            assert (await exchange(listen, head("GET", "/echo")))[0] == 200

    asyncio.run(run())
