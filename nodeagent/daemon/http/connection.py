"""HTTP/1.1 server side: routes, requests, responses, probes, and one connection with one request. Framing by h11.

The order of checks bounds the input read from a client: the request line and headers (8 KiB, within a
deadline), then route, method and access, and only then the body, up to the limit of the route. A connection ends after
its response: clients of a local socket do not benefit from persistent connections, and limits apply per connection.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import h11

from nodeagent.daemon.health import not_alive, not_ready
from nodeagent.record import Record, field, replace
from nodeagent.text import escape_lines

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.host.sockets import Peer
    from nodeagent.settings.settings import Listen

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"


class Request(Record):
    """An HTTP request with its body.

    Attributes:
        method: HTTP method in upper case.
        path: request path, percent-encoded as received, without query.
        query: parameters of the query; the last value of a repeated parameter.
        headers: headers by lower-case name; values of a repeated header are joined by commas. Source: RFC 9110, 5.3.
        body: the whole body.
        peer: credentials of the client; ``None`` over TCP.
        variables: values of the route's variables, such as ``name`` of ``/v1/loops/{name}``.
        route: template of the route.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    peer: Peer | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    route: str = ""


class Response(Record):
    """One response; ``body`` is a whole body, or an iterator of parts that are sent as they arrive."""

    status: HTTPStatus
    body: bytes | AsyncIterator[bytes] = b""
    media_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


class RefusedRequestError(Exception):
    """A request that is refused with an error response, by a handler or before its call."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


Handler = Callable[[Request], Awaitable[Response]]
"""Answers a request.

Raises:
    RefusedRequestError: the request cannot be carried out.
"""


class Route(Record):
    """Handlers and limits of one path, by method.

    Attributes:
        handlers: by method; ``HEAD`` is answered by the handler of ``GET``.
        body_bytes: limit of a request body in bytes, by method; 0 (no body) by default.
        watched: methods whose handler is cancelled when the client closes the connection. With other methods a client
            may close its side after the request, as ``socat`` does.
    """

    handlers: Mapping[str, Handler]
    body_bytes: Mapping[str, int] = field(default_factory=dict)
    watched: frozenset[str] = frozenset()

    @property
    def allow(self) -> str:
        """Value of the ``Allow`` header."""
        methods = set(self.handlers) | ({"HEAD"} if "GET" in self.handlers else set())
        return ", ".join(sorted(methods))


def text(status: HTTPStatus, sentence: str) -> Response:
    """Return a response of escaped plain text, with a final line break."""
    return Response(status, f"{escape_lines(sentence)}\n".encode())


def problem(status: HTTPStatus, detail: str, *, kind: str = "about:blank", **members: object) -> Response:
    """Return an error as a problem document. Source: RFC 9457.

    Args:
        status: an error status.
        detail: the failure, its cause and the fix.
        kind: URI of the problem type; with ``about:blank`` the status is the type.
        members: further members of the document.
    """
    document = {"type": kind, "title": status.phrase, "status": status.value, "detail": detail, **members}
    return Response(status, json.dumps(document).encode() + b"\n", PROBLEM)


def is_own_host(host: str, listen: Listen) -> bool:
    """Return whether a ``Host`` header is valid for a request to the agent's own address.

    A web page can resolve a name of its own to 127.0.0.1 and read the responses through a local browser (DNS
    rebinding); the header then contains that name. At a loopback address the header must be an IP address,
    ``localhost``, or the name of the node. Unix sockets and other addresses accept every host: clients reach these by
    any name.

    Source: RFC 9110, 7.2.
    """
    if not listen.is_loopback:
        return True
    name = host.removesuffix(f":{host.rpartition(':')[2]}") if _has_port(host) else host
    if name.startswith("[") and name.endswith("]"):
        return _is_address(name[1:-1], socket.AF_INET6)
    node = os.uname().nodename.lower()
    names = {"localhost", node, node.partition(".")[0]}
    return name.lower().rstrip(".") in names or _is_address(name, socket.AF_INET)


def _has_port(host: str) -> bool:
    rest, _, port = host.rpartition(":")
    return bool(rest) and port.isdecimal() and (":" not in rest or rest.endswith("]"))


def _is_address(text: str, family: socket.AddressFamily) -> bool:
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):
        return False
    return True


PROBES: Final[Mapping[str, Callable[[DaemonContext], tuple[str, ...]]]] = {"/healthz": not_alive, "/readyz": not_ready}
"""Function that returns the reasons for status 503, by path."""


def probe_routes(context: DaemonContext) -> dict[str, Route]:
    """Return the routes of the probes."""
    return {path: Route({"GET": partial(_answer, path, context)}) for path in PROBES}


async def _answer(path: str, context: DaemonContext, _: Request) -> Response:
    reasons = PROBES[path](context)
    return text(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(reasons)) if reasons else text(HTTPStatus.OK, "ok")


HEAD_BYTES: Final = 8192
T = TypeVar("T")
_CHUNK_BYTES: Final = 8192
_VERSIONS: Final = (b"1.0", b"1.1")
_LINGER_S: Final = 1.0
_LINGER_BYTES: Final = 1 << 20
_PART_BYTES: Final = 1 << 16
_FEW_CHUNKS: Final = 64
_MEAN_CHUNK_BYTES: Final = 256
"""Minimum mean size of the chunks of a body after the first chunks: each chunk uses about 15 us of CPU time."""
_VARIABLE: Final = re.compile(r"\{(\w+)\}")


class ClientDisconnectedError(OSError):
    """The client closed the connection before its response."""


class Deadlines(Record):
    """Time limits of one connection, in seconds.

    Attributes:
        read_s: limit for reading the request head, and again for reading the body.
        answer_s: limit for a handler until its response; the parts of a streamed body have no limit.
        write_s: limit for sending each part.
    """

    read_s: float = 5.0
    answer_s: float = 10.0
    write_s: float = 10.0


class Router:
    """Routes by path template, such as ``/v1/loops/{name}``; a variable matches one segment, which may be empty."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        """Compile the templates, which are matched in the given order."""
        self.paths = tuple(routes)
        self._routes = [
            (re.compile(_VARIABLE.sub(r"(?P<\1>[^/]*)", each)), each, route) for each, route in routes.items()
        ]

    def find(self, path: str) -> tuple[str, Route, Mapping[str, str]] | None:
        """Return the template and route of an encoded path, and its decoded variables, which may contain slashes."""
        for pattern, template, route in self._routes:
            if (found := pattern.fullmatch(path)) is not None:
                return template, route, {name: unquote(value) for name, value in found.groupdict().items()}
        return None


Authorise = Callable[[Request], Awaitable[None]]
"""Checks the access of a request by its head alone.

Raises:
    RefusedRequestError: the client may not make this request.
"""
Fail = Callable[[Request, Exception], Response]
"""Logs an exception of a handler and returns the response for it."""


class Service(Record):
    """Routes of a connection, and the checks and limits of its requests.

    Attributes:
        authorise: decides on access before a body is read.
        fail: called with an exception of a handler.
        deadlines: time limits.
    """

    router: Router
    authorise: Authorise
    fail: Fail
    deadlines: Deadlines = Deadlines()


@dataclasses.dataclass(slots=True)
class _Current:
    """Request of a connection, as far as it is read.

    Attributes:
        without_body: whether the response has no body, such as a response to ``HEAD``.
        watch_client: whether the handler is cancelled when the client disconnects.
    """

    request: Request = dataclasses.field(default_factory=lambda: Request("", ""))
    without_body: bool = False
    watch_client: bool = False


class Receipt(NamedTuple):
    """Callbacks of a connection while it receives a request.

    Attributes:
        finish_request: called when the request was received completely.
        receive_body: called with the size of each part of a body; returns whether to receive the rest of the body.
    """

    finish_request: Callable[[], None]
    receive_body: Callable[[int], bool]


class HttpConnection:
    """One connection of a client."""

    def __init__(
        self,
        service: Service,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Peer | None,
        receipt: Receipt,
    ) -> None:
        """Create a connection without reading a request.

        Args:
            service: routes, access and deadlines.
            reader: stream from the client.
            writer: stream to the client.
            peer: credentials; ``None`` over TCP.
            receipt: notified of the received request.
        """
        self._service = service
        self._reader = reader
        self._writer = writer
        self._peer = peer
        self._receipt = receipt
        self._wire = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._current = _Current()
        self._end: asyncio.Future[None] | None = None

    async def serve(self) -> None:
        """Read one request and send its response.

        Raises:
            OSError: the client disconnected.
            TimeoutError: the client was too slow.
        """
        self._writer.transport.set_write_buffer_limits(high=1, low=0)  # with 0, TLS of asyncio pauses an empty buffer
        try:
            response = await self._response()
            if response is not None:
                await self.send(response)
        finally:
            if self._end is not None:
                self._end.cancel()  # prevents asyncio from logging the exception of a failed read

    async def _response(self) -> Response | None:
        """Return the response to the next request; ``None`` if the client closed the connection instead.

        Raises:
            OSError: the client disconnected.
            TimeoutError: the client was too slow.
        """
        try:
            received = await self._read_request()
            if received is None:
                return None
            self._receipt.finish_request()
            return await self._answer(*received)
        except RefusedRequestError as refused:
            return refused.response
        except h11.RemoteProtocolError as error:
            return problem(HTTPStatus(error.error_status_hint), f"malformed HTTP/1.1 request: {error}")
        except (OSError, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - reported by the service, as an error of a handler
            return self._service.fail(self._current.request, error)

    async def _read_request(self) -> tuple[Request, Handler] | None:
        """Return the next request with its body, and its handler; ``None`` if the client closed the connection instead.

        Raises:
            RefusedRequestError: no such path or method, access denied, or the body is too long.
        """
        async with asyncio.timeout(self._service.deadlines.read_s):
            head = await self._next_event()
        if not isinstance(head, h11.Request):
            return None
        self._current.without_body = (
            head.method == b"HEAD"
        )  # set before any refusal, since h11 rejects a response body after HEAD
        if head.http_version not in _VERSIONS:
            raise RefusedRequestError(problem(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 only"))
        request = _request(head, self._peer)
        found = self._service.router.find(request.path)
        if found is None:
            paths = ", ".join(self._service.router.paths)
            raise RefusedRequestError(problem(HTTPStatus.NOT_FOUND, f"no such path; available: {paths}"))
        template, route, variables = found
        request = self._current.request = replace(request, variables=variables, route=template)
        method = "GET" if self._current.without_body else request.method
        handler = route.handlers.get(method)
        if handler is None:
            refusal = problem(HTTPStatus.METHOD_NOT_ALLOWED, f"{route.allow} only")
            raise RefusedRequestError(replace(refusal, headers={"Allow": route.allow}))
        await self._service.authorise(request)
        self._current.watch_client = method in route.watched
        return replace(request, body=await self._read_body(request, route.body_bytes.get(method, 0))), handler

    async def _answer(self, request: Request, handler: Handler) -> Response:
        limit_s = self._service.deadlines.answer_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                if self._current.watch_client:
                    return await self._while_connected(handler(request))
                return await handler(request)
        except (RefusedRequestError, ClientDisconnectedError):
            raise
        except Exception as error:  # noqa: BLE001 - reported by the service; a handler must not end the server
            if limit.expired():
                return problem(HTTPStatus.SERVICE_UNAVAILABLE, f"no answer within {limit_s:g} s")
            return self._service.fail(request, error)

    async def _read_body(self, request: Request, limit: int) -> bytes:
        """Return the body of a request.

        Raises:
            RefusedRequestError: the body is too long, has too many chunks, or exceeds the limit of all bodies; the rest
                is not read.
        """
        too_long = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"request body larger than {limit} bytes")
        if int(request.headers.get("content-length", "0")) > limit:
            raise RefusedRequestError(too_long)
        if self._wire.they_are_waiting_for_100_continue:
            await self._write(self._wire.send(h11.InformationalResponse(status_code=100, headers=[])))
        parts, size = [], 0
        async with asyncio.timeout(self._service.deadlines.read_s):
            while isinstance(event := await self._next_event(), h11.Data):
                size += len(event.data)
                if size > limit:
                    raise RefusedRequestError(too_long)
                if not self._receipt.receive_body(len(event.data)):
                    busy = "request bodies in progress are too large; try again later"
                    raise RefusedRequestError(problem(HTTPStatus.TOO_MANY_REQUESTS, busy))
                parts.append(bytes(event.data))
                if len(parts) > _FEW_CHUNKS + size // _MEAN_CHUNK_BYTES:
                    raise RefusedRequestError(problem(HTTPStatus.BAD_REQUEST, "request body in too many chunks"))
        if not isinstance(event, h11.EndOfMessage):
            raise ClientDisconnectedError("client disconnected before the end of the body")
        return b"".join(parts)

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self._wire.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value] # NEED_DATA is the only other sentinel here
            self._wire.receive_data(await self._reader.read(_CHUNK_BYTES))
            await asyncio.sleep(0)  # yields to other connections, since a read of buffered input does not suspend

    async def send(self, response: Response) -> None:
        """Send a response, and close the connection.

        Raises:
            OSError: the client disconnected.
            TimeoutError: the client was too slow.
        """
        try:
            await self._send_parts(response)
        finally:
            close = getattr(response.body, "aclose", None)
            if close is not None:
                await close()
        async with asyncio.timeout(self._service.deadlines.write_s):
            self._writer.close()
            await self._writer.wait_closed()

    async def _send_parts(self, response: Response) -> None:
        length = [("Content-Length", str(len(response.body)))] if isinstance(response.body, bytes) else []
        head = h11.Response(
            status_code=response.status,
            reason=response.status.phrase,
            headers=[
                ("Content-Type", response.media_type),
                *length,
                ("Cache-Control", "no-store"),
                *response.headers.items(),
                ("Connection", "close"),
            ],
        )
        await self._write(self._wire.send(head))
        if not self._current.without_body:
            if isinstance(response.body, bytes):
                await self._write_body(response.body)
            else:
                while (data := await self._while_connected(_next_part(response.body))) is not None:
                    await self._write(self._wire.send(h11.Data(data=data)))
        await self._write(self._wire.send(h11.EndOfMessage()))
        is_read = self._wire.their_state in (h11.DONE, h11.MUST_CLOSE)
        if not is_read and self._end is None:
            await self._linger()

    async def _linger(self) -> None:
        """Discard the rest of a request for a short time: closing with unread bytes discards the response.

        Source: RFC 9112, 9.6.
        """
        if self._writer.can_write_eof():  # not over TLS
            self._writer.write_eof()
        left = _LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while left > 0 and (data := await self._reader.read(_CHUNK_BYTES)):
                    left -= len(data)

    async def _while_connected(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``, which is cancelled when the client disconnects.

        Raises:
            ClientDisconnectedError: the client disconnected.
        """
        if self._end is None:
            self._end = asyncio.ensure_future(self._read_to_end())
        task = asyncio.ensure_future(work)
        try:
            both: set[asyncio.Future[Any]] = {self._end, task}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnectedError("client disconnected")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})  # the caller closes the generator, which must not be running then
                if not task.cancelled() and isinstance(error := task.exception(), Exception):
                    self._service.fail(self._current.request, error)

    async def _read_to_end(self) -> None:
        """Discard input until the client has closed its side of the connection."""
        while await self._reader.read(_CHUNK_BYTES):
            pass

    async def _write_body(self, body: bytes) -> None:
        """Send a whole body in parts, so that a slow client causes no second copy of the body in memory."""
        async with asyncio.timeout(self._service.deadlines.write_s):
            for start in range(0, len(body), _PART_BYTES):
                self._writer.write(self._wire.send(h11.Data(data=body[start : start + _PART_BYTES])) or b"")
                await self._writer.drain()

    async def _write(self, data: bytes | None) -> None:
        if data:
            async with asyncio.timeout(self._service.deadlines.write_s):
                self._writer.write(data)
                await self._writer.drain()


async def _next_part(parts: AsyncIterator[bytes]) -> bytes | None:
    return await anext(parts, None)


def _request(head: h11.Request, peer: Peer | None) -> Request:
    path, _, query = head.target.decode("latin-1").partition("?")
    headers: dict[str, str] = {}
    for raw_name, raw_value in head.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    return Request(head.method.decode("latin-1"), path, parameters, headers, peer=peer)
