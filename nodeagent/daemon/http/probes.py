"""Probes of liveness and readiness, on the metrics listener and on the control socket."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.health import not_alive, not_ready
from nodeagent.daemon.http.messages import Response, Route, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.http.messages import Request

PROBES: Final[Mapping[str, Callable[[DaemonContext], tuple[str, ...]]]] = {"/healthz": not_alive, "/readyz": not_ready}
"""Function that returns the reasons for status 503, by path."""


def probe_routes(context: DaemonContext) -> dict[str, Route]:
    """Return the routes of the probes."""
    return {path: Route({"GET": partial(_answer, path, context)}) for path in PROBES}


async def _answer(path: str, context: DaemonContext, _: Request) -> Response:
    reasons = PROBES[path](context)
    return text(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(reasons)) if reasons else text(HTTPStatus.OK, "ok")
