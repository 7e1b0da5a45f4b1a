"""Lists of large nodes, which are streamed or read object by object if an answer is too large for one message.

A runtime limits the size of a message (containerd and CRI-O to 16 MiB unless configured), and newer runtimes stream
their lists in parts. A part and a single answer have the same message type. A single answer is preferred for small
lists, since some runtimes stream one item per message, which takes longer.

Tenants control the size of a list: the annotations of 64 pods, with the 256 KiB that the API server allows for each,
exceed the limit. A runtime without streams would then stop collection and eviction, so that such a list is read object
by object (``PrefixList``).

Source: CRI ``StreamContainers``, ``StreamPodSandboxes``, ``StreamImages`` (KEP-5825); containerd
``Containers.ListStream``.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from google.protobuf.message import Message

from nodeagent.errors import RuntimeRequestError, RuntimeUnsupportedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from nodeagent.runtime.connection import Metadata, Method, RuntimeConnection

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

STREAM_FROM_BYTES: Final = 8 << 20
"""Minimum size of an answer after which the next listing is streamed, if the runtime supports streaming."""

_TOO_LARGE: Final = "RESOURCE_EXHAUSTED"


class LongList(Generic[Request, Response]):
    """One list of a runtime, in one message, streamed, or object by object."""

    def __init__(
        self,
        connection: RuntimeConnection,
        single: Method[Request, Response],
        streamed: Method[Request, Response],
        read_objects: Callable[[], Awaitable[Sequence[Response]]] | None = None,
    ) -> None:
        """Create a list.

        Args:
            connection: connection to the runtime.
            single: method with a single answer.
            streamed: method that streams the answer.
            read_objects: returns the complete list in answers of one object each, for runtimes that do not stream a
                list beyond the message limit; ``None`` if impossible.
        """
        self._connection = connection
        self._single = single
        self._streamed = streamed
        self._read_objects = read_objects
        self._is_large = False
        self._offers_stream = True

    async def read(self, request: Request, *, metadata: Metadata | None = None) -> AsyncGenerator[Response, None]:
        """Yield the parts of the answer; after an error the yielded parts are incomplete and must not be used.

        Raises:
            RuntimeUnavailableError: no connection to the runtime.
            RuntimeRequestError: the call failed; status RESOURCE_EXHAUSTED if the answer exceeds the message limit, the
                runtime does not support streaming, and the list cannot be read object by object before its deadline.
        """
        if self._is_large:
            async for part in self._stream(request, metadata):
                yield part
            if self._offers_stream:
                return
        try:
            answer = await self._connection.unary(self._single, request, metadata=metadata)
        except RuntimeRequestError as error:
            if error.status != _TOO_LARGE:
                raise
            too_large = error
        else:
            self._is_large = self._connection.answer_bytes(self._single) >= STREAM_FROM_BYTES
            yield answer
            return
        self._is_large = True
        async for part in self._stream(request, metadata):
            yield part
        if not self._offers_stream:
            for part in await self._objects(too_large):
                yield part

    async def _objects(self, too_large: RuntimeRequestError) -> Sequence[Response]:
        """Return the list object by object; raise ``too_large`` if the list is not complete before its deadline."""
        if self._read_objects is None or not is_too_large(too_large):
            raise too_large
        try:
            async with asyncio.timeout(self._connection.deadline_s(self._single)):
                return await self._read_objects()
        except TimeoutError:
            raise too_large from None
        except RuntimeRequestError as error:
            raise too_large from error

    async def _stream(self, request: Request, metadata: Metadata | None) -> AsyncGenerator[Response, None]:
        """Yield the parts of a streamed answer; none if the runtime does not stream, which is remembered."""
        if not self._offers_stream:
            return
        try:
            async for part in self._parts(request, metadata):
                yield part
        except _NotOfferedError:
            self._offers_stream = False

    async def _parts(self, request: Request, metadata: Metadata | None) -> AsyncGenerator[Response, None]:
        """Yield the parts of a streamed answer. Raises _NotOfferedError before the first part."""
        is_first = True
        stream = self._connection.stream(self._streamed, request, metadata=metadata)
        try:
            async with aclosing(stream) as parts:
                async for part in parts:
                    is_first = False
                    yield part
        except RuntimeUnsupportedError as error:
            if is_first:
                raise _NotOfferedError from error
            raise


def is_too_large(error: RuntimeRequestError) -> bool:
    """Return whether an answer exceeds the message limit, by status and text: overload also is RESOURCE_EXHAUSTED."""
    return error.status == _TOO_LARGE and "message larger than max" in error.detail


class _NotOfferedError(Exception):
    """The runtime does not stream this list."""
