"""The body of a streamed response: documents as JSON lines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from nodeagent.daemon.http.messages import Response


class DocumentLines:
    """JSON lines of a stream of documents; an error after the start of the response becomes the last line.

    Not a generator: ``aclose`` of a generator that was never iterated would not close the source of its documents.
    """

    def __init__(self, documents: AsyncGenerator[str, None], problem: Callable[[Exception], Response]) -> None:
        """Create a stream without reading documents.

        Args:
            documents: JSON documents, each with its line break.
            problem: returns the problem document of an error.
        """
        self._documents = documents
        self._problem = problem
        self._first: asyncio.Future[str | None] | None = None
        self._failed = False

    async def start(self, within_s: float | None) -> None:
        """Wait up to ``within_s`` seconds for the first document; ``None`` waits without a limit.

        Raises:
            Exception: the source of the documents failed before the first document.
        """
        self._first = asyncio.ensure_future(self._next())
        try:
            await asyncio.wait({self._first}, timeout=within_s)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if self._first.done() and (error := self._first.exception()) is not None:
            raise error

    def __aiter__(self) -> DocumentLines:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next JSON line; an error of the source becomes the last line."""
        if self._failed:
            raise StopAsyncIteration
        try:
            if self._first is None:
                document = await self._next()
            else:
                document = await self._first
                self._first = None
        except Exception as error:  # noqa: BLE001 - reported to the client and logged
            self._failed = True
            body = self._problem(error).body
            return b'{"problem": ' + (body if isinstance(body, bytes) else b"null").strip() + b"}\n"
        if document is None:
            raise StopAsyncIteration
        return document.encode()

    async def aclose(self) -> None:
        """Close the stream and the source of its documents."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.wait({self._first})
            if not self._first.cancelled():
                self._first.exception()  # retrieved here, since asyncio logs an exception that no caller has retrieved
        await self._documents.aclose()

    async def _next(self) -> str | None:
        return await anext(self._documents, None)
