"""Streamed documents, and clients that disconnect during a stream."""

from __future__ import annotations

import asyncio
import gc
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from nodeagent.daemon.control.requests import DocumentLines
from nodeagent.daemon.http.connection import problem
from nodeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def test_error_of_a_stream_that_is_closed_unread_is_not_logged() -> None:
    unread: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))
    ready, raised = asyncio.Event(), asyncio.Event()

    async def refuse() -> AsyncGenerator[str, None]:
        await ready.wait()
        raised.set()
        for scope in ("",):
            if not scope:
                raise UsageError("scope, plan: exactly one of them is required")
            yield scope

    lines = DocumentLines(refuse(), lambda error: problem(HTTPStatus.BAD_REQUEST, str(error)))
    await lines.start(0)
    ready.set()
    await raised.wait()
    await lines.aclose()
    del lines
    gc.collect()
    assert unread == []
