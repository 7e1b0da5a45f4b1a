"""The duty that serves metrics and health: ``/metrics``, ``/healthz`` and ``/readyz``, over HTTP.

One request is answered on each connection, which is then closed: that is all a scrape needs, and leaves nothing to
count but connections. What a client sends or leaves out costs the daemon a bounded while and a few KiB.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.daemon.health import not_alive, not_ready
from nodeagent.daemon.loops import wait_for_any
from nodeagent.host.peer import is_stale_socket
from nodeagent.text import escape_lines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodeagent.config.metrics import Listen
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.http.metrics import Exposition

NAME: Final = "metrics"
MOST_CLIENTS: Final = 16
_HEAD_BYTES: Final = 8192
_READ_WITHIN_S: Final = 5.0
_ANSWER_WITHIN_S: Final = 10.0
_WRITE_WITHIN_S: Final = 10.0
_LOOK_S: Final = 5.0
_SWAP_S: Final = 0.2
_SLACK_S: Final = 60.0
_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 60.0
_BACKLOG: Final = 16
_SOCKET_MODE: Final = 0o660
_TEXT: Final = "text/plain; charset=utf-8"
_REQUEST: Final = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,2000}) HTTP/1\.[01]")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")


class Status(StrEnum):
    """How a request went. The standard library's own list is ten times as long. Source: RFC 9110."""

    OK = "200 OK"
    BAD_REQUEST = "400 Bad Request"
    NOT_FOUND = "404 Not Found"
    METHOD_NOT_ALLOWED = "405 Method Not Allowed"
    HEAD_TOO_LARGE = "431 Request Header Fields Too Large"
    BUG = "500 Internal Server Error"
    UNAVAILABLE = "503 Service Unavailable"


class Request(NamedTuple):
    """What was asked for.

    Attributes:
        method: ``GET``, ``HEAD`` or any other word.
        path: without a query.
        accepts: the header ``Accept``; empty where there is none.
    """

    method: str
    path: str
    accepts: str = ""


class Answer(NamedTuple):
    """What is answered."""

    status: Status
    body: bytes
    kind: str = _TEXT


class MetricsServer:
    """Listens where the settings in force say, from reload to reload; a place that cannot be had is tried again."""

    def __init__(self, context: DaemonContext, *, read_within_s: float = _READ_WITHIN_S) -> None:
        """Prepare the duty; nothing is opened yet.

        Args:
            context: what the duties share.
            read_within_s: how long a client may take for its request.
        """
        self._context = context
        self._loop_statuses = context.loop_statuses
        self._logger = context.logger.bind(duty=NAME)
        self._read_within_s = read_within_s
        self._clients: set[asyncio.Task[None]] = set()
        self._exposition: Exposition | None = None
        self._loading = asyncio.Lock()
        self._retry_s = _FIRST_RETRY_S
        self._told = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until told to stop."""
        while not stop.is_set():
            listen = self._wanted
            if listen is None:
                self._loop_statuses.disabled(NAME, "not enabled")
                self._logger.info("loop_disabled", loop=NAME, because="not enabled")
                await self._while_wanted(None, stop)
                continue
            try:
                server = await self._open(listen)
            except OSError as error:
                await self._unavailable(listen, error, stop)
                continue
            self._retry_s, self._told = _FIRST_RETRY_S, ""
            self._logger.info("metrics_listening", listen=listen.text)
            try:
                await self._while_wanted(listen, stop)
            finally:
                await self._close(server, listen)

    @property
    def _wanted(self) -> Listen | None:
        return self._context.settings.metrics.listen

    async def _while_wanted(self, listen: Listen | None, stop: asyncio.Event) -> None:
        """Return once told to stop, or other settings are in force."""
        if listen is not None:
            self._loop_statuses.running(NAME, _SLACK_S)
        while not stop.is_set() and self._wanted == listen:
            if listen is not None:
                self._loop_statuses.beat(NAME, _SLACK_S)
            await self._wait(_LOOK_S, listen, stop)

    async def _wait(self, seconds: float, listen: Listen | None, stop: asyncio.Event) -> None:
        """Wait for so long as ``listen`` is what is wanted."""
        if self._wanted == listen:
            await wait_for_any(seconds, stop, self._context.renew)
        while self._context.renew.is_set() and self._wanted == listen and not stop.is_set():
            await wait_for_any(_SWAP_S, stop)  # until the pass under way has ended

    async def _unavailable(self, listen: Listen, error: OSError, stop: asyncio.Event) -> None:
        """Tell that a place cannot be had, once per place and reason, and wait before it is tried again."""
        why = _sentence(listen, error)
        if (told := f"{listen.text} {why}") != self._told:
            self._logger.warning("metrics_unavailable", listen=listen.text, error=why, hint="set metrics.listen")
            self._told, self._retry_s = told, _FIRST_RETRY_S
        self._loop_statuses.paused(NAME, why, self._retry_s + _SLACK_S)
        wait_s, self._retry_s = self._retry_s, min(_LAST_RETRY_S, self._retry_s * 2)
        await self._wait(wait_s, listen, stop)

    # ---- the socket

    async def _open(self, listen: Listen) -> asyncio.Server:
        made = await asyncio.to_thread(_bound, listen)
        try:
            if listen.path:
                return await asyncio.start_unix_server(self._client, sock=made, limit=_HEAD_BYTES, backlog=_BACKLOG)
            return await asyncio.start_server(self._client, sock=made, limit=_HEAD_BYTES, backlog=_BACKLOG)
        except OSError:
            made.close()
            raise

    async def _close(self, server: asyncio.Server, listen: Listen) -> None:
        server.close()
        for each in tuple(self._clients):
            each.cancel()
        if self._clients:
            await asyncio.wait(self._clients)
        if listen.path:
            await asyncio.to_thread(_take_away, listen.path)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client; nothing that goes wrong with it gets out of here."""
        task = asyncio.current_task()
        if task is None or len(self._clients) >= MOST_CLIENTS:
            writer.transport.abort()
            return
        self._clients.add(task)
        try:
            await self._converse(reader, writer)
        except asyncio.CancelledError:
            if not task.cancelling():
                raise
        except (OSError, TimeoutError, EOFError):
            pass  # the client left or is too slow: its own affair
        finally:
            self._clients.discard(task)
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)
        method = "GET"
        try:
            async with asyncio.timeout(self._read_within_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            answer = _plain(Status.HEAD_TOO_LARGE, f"at most {_HEAD_BYTES} bytes are read")
        else:
            request = parse_request(head)
            if request is None:
                answer = _plain(Status.BAD_REQUEST, "not a request of HTTP/1.1")
            else:
                method = request.method
                answer = await self.answer(request)
        async with asyncio.timeout(_WRITE_WITHIN_S):
            writer.write(_on_the_wire(answer, with_body=method != "HEAD"))
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    # ---- what is answered

    async def answer(self, request: Request) -> Answer:
        """Return the answer to a request."""
        page = self._pages.get(request.path)
        if page is None:
            return _plain(Status.NOT_FOUND, f"here are {', '.join(self._pages)}")
        if request.method not in ("GET", "HEAD"):
            return _plain(Status.METHOD_NOT_ALLOWED, "GET and HEAD only")
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                return await page(request)
        except TimeoutError:
            return _plain(Status.UNAVAILABLE, f"not gathered within {_ANSWER_WITHIN_S:g} s")
        except Exception:  # a bug here must not end the daemon's other duties
            self._logger.exception("metrics_crashed", path=request.path)
            return _plain(Status.BUG, "this is a bug; the agent's log has more")

    @property
    def _pages(self) -> dict[str, Callable[[Request], Awaitable[Answer]]]:
        return {"/metrics": self._metrics, "/healthz": self._alive, "/readyz": self._ready}

    async def _metrics(self, request: Request) -> Answer:
        async with self._loading:
            if self._exposition is None:
                self._exposition = (await asyncio.to_thread(_load))(self._context)
        kind, body = await self._exposition.render(request.accepts)
        return Answer(Status.OK, body, kind)

    async def _alive(self, _: Request) -> Answer:
        return _verdict(not_alive(self._context))

    async def _ready(self, _: Request) -> Answer:
        return _verdict(not_ready(self._context))


def parse_request(head: bytes) -> Request | None:
    """Return what the first line and the headers ask for, ``None`` if they are malformed. Source: RFC 9112."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    found = _REQUEST.fullmatch(first)
    if found is None:
        return None
    accepts = []
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            return None
        if header[1].lower() == b"accept":
            accepts.append(header[2].decode("latin-1"))
    return Request(found[1].decode(), found[2].decode().partition("?")[0], ", ".join(accepts))


def _load() -> type[Exposition]:
    from nodeagent.daemon.http.metrics import Exposition  # noqa: PLC0415 - not before somebody asks

    return Exposition


def _verdict(reasons: tuple[str, ...]) -> Answer:
    if not reasons:
        return _plain(Status.OK, "ok")
    return _plain(Status.UNAVAILABLE, "\n".join(reasons))


def _plain(status: Status, text: str) -> Answer:
    return Answer(status, f"{escape_lines(text)}\n".encode())


def _on_the_wire(answer: Answer, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        *(["Allow: GET, HEAD"] if answer.status is Status.METHOD_NOT_ALLOWED else []),
        "Connection: close",
    ]
    head = "".join(f"{line}\r\n" for line in lines) + "\r\n"
    return head.encode("latin-1") + (answer.body if with_body else b"")


def _bound(listen: Listen) -> socket.socket:
    """Return a socket that is bound there.

    Raises:
        OSError: it cannot be.
    """
    if listen.path:
        return _bound_below(listen.path)
    made = socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((listen.host, listen.port))
    except OSError:
        made.close()
        raise
    return made


def _bound_below(path: str) -> socket.socket:
    """Return a socket bound to a path, in place of one that a process left when it died."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(made.fileno(), _SOCKET_MODE)  # it is never there with more than that
        try:
            made.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_over(path):
                raise
            Path(path).unlink()
            made.bind(path)
        Path(path).chmod(_SOCKET_MODE)  # nor with less, whatever the umask
    except OSError:
        made.close()
        raise
    return made


def _take_away(path: str) -> None:
    with suppress(OSError):
        Path(path).unlink()


def _is_left_over(path: str) -> bool:
    """Return whether a path is a socket at which nobody listens."""
    try:
        return Path(path).is_socket() and is_stale_socket(path)
    except OSError:
        return False


def _sentence(listen: Listen, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "something is there already" if listen.path else "something else listens there"
    return error.strerror or str(error)
