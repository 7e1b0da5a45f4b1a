"""Requests, responses and probes of the HTTP server, independent of their encoding; check of the Host header."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.health import not_alive, not_ready
from nodeagent.record import Record, field
from nodeagent.text import escape_lines

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.host.sockets import Peer
    from nodeagent.settings.endpoints import Listen

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
