"""Lists of large nodes, which are streamed if an answer is too large for one message.

A runtime limits the size of a message (containerd and CRI-O to 16 MiB unless configured), and newer runtimes stream
their lists in parts. A part and a single answer have the same message type. A single answer is preferred for small
lists, since some runtimes stream one item per message, which takes longer.

Source: CRI ``StreamContainers``, ``StreamPodSandboxes``, ``StreamImages`` (KEP-5825); containerd
``Containers.ListStream``.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from google.protobuf.message import Message

from nodeagent.errors import RuntimeRequestError, RuntimeUnsupportedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nodeagent.runtime.connection import Metadata, Method, RuntimeConnection

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

STREAM_FROM_BYTES: Final = 8 << 20
"""Minimum size of an answer after which the next listing is streamed, if the runtime supports streaming."""

_TOO_LARGE: Final = "RESOURCE_EXHAUSTED"


class LongList(Generic[Request, Response]):
    """One list of a runtime, in one message or streamed."""

    def __init__(
        self, connection: RuntimeConnection, single: Method[Request, Response], streamed: Method[Request, Response]
    ) -> None:
        """Create a list from the method with a single answer, and the method that streams the answer."""
        self._connection = connection
        self._single = single
        self._streamed = streamed
        self._is_large = False
        self._offers_stream = True

    async def read(self, request: Request, *, metadata: Metadata | None = None) -> AsyncGenerator[Response, None]:
        """Yield the parts of the answer; after an error the yielded parts are incomplete and must not be used.

        Raises:
            RuntimeUnavailableError: no connection to the runtime.
            RuntimeRequestError: the call failed; status RESOURCE_EXHAUSTED if the answer exceeds the message limit and
                the runtime does not support streaming.
        """
        if self._is_large and self._offers_stream:
            try:
                async for part in self._parts(request, metadata):
                    yield part
            except _NotOfferedError:
                self._offers_stream = False
            else:
                return
        try:
            answer = await self._connection.unary(self._single, request, metadata=metadata)
        except RuntimeRequestError as error:
            if error.status != _TOO_LARGE or not self._offers_stream:
                raise
            too_large = error
        else:
            self._is_large = self._offers_stream and self._connection.answer_bytes(self._single) >= STREAM_FROM_BYTES
            yield answer
            return
        self._is_large = True
        try:
            async for part in self._parts(request, metadata):
                yield part
        except _NotOfferedError:
            self._offers_stream = False
            raise too_large from None

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
