"""Lists of large nodes, which are streamed or read object by object if an answer is too large for one message.

A runtime limits the size of a message (containerd and CRI-O to 16 MiB unless configured), and newer runtimes stream
their lists in parts. A part and a single answer have the same message type. A single answer is preferred for small
lists, since some runtimes stream one item per message, which takes longer.

Tenants control the size of a list: the annotations of 64 pods, with the 256 KiB that the API server allows for each,
exceed the limit. A runtime without streams would then stop collection and eviction, so that such a list is read object
by object (``PrefixList``).

Source: CRI ``StreamContainers``, ``StreamPodSandboxes``, ``StreamImages`` (KEP-5825); containerd
``Containers.ListStream``.

Complete list of a runtime, read object by object, for a list that is too large for one message.

containerd 1.6 does not stream the lists of CRI, and a filter does not divide a list, since the ids are unknown. All
ids are found by their prefixes: containerd accepts a unique prefix instead of an id, and reports an ambiguous prefix
and a prefix without an object by different errors. An object that exists from the start to the end of the search is
found. If an answer has another form, the search fails, since an object that is missing in a list counts as deleted.

The search takes about seven calls per object. Rejected: the ids of containerd's container records. A sandbox without a
record, which is in the list of CRI, would be missing: the sandbox of another sandbox controller (containerd 2), of a
failed creation with a failed cleanup, or of a record deleted by an operator.

Source: containerd ``truncindex.TruncIndex.Get``, by which ``PodSandboxStatus``, ``ContainerStatus`` and the id filters
of the lists find an object; ``RunPodSandbox`` on a failed cleanup; ``util.GenerateID``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError, RuntimeUnsupportedError
from nodeagent.runtime.connection import MAX_ANSWER_BYTES, Metadata, Method, RuntimeConnection, run_bounded

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
        is_first = True
        stream = self._connection.stream(self._streamed, request, metadata=metadata)
        try:
            async with aclosing(stream) as parts:
                async for part in parts:
                    is_first = False
                    yield part
        except RuntimeUnsupportedError:
            if not is_first:
                raise
            self._offers_stream = False


def is_too_large(error: RuntimeRequestError) -> bool:
    """Return whether an answer exceeds the message limit, by status and text: overload also is RESOURCE_EXHAUSTED."""
    return error.status == _TOO_LARGE and "message larger than max" in error.detail


_SEARCH: Final = "search by prefixes"
_DIGITS: Final = "0123456789abcdef"
_ID_DIGITS: Final = 64
_ABSENT: Final = "error occurred when try to find"
"""Text of the error for an unknown id. Other errors with the status NOT_FOUND are about parts of an existing object."""

_AMBIGUOUS: Final = "multiple ids found with provided prefix"


class PrefixList(Generic[Response]):
    """List of all objects of one kind, one answer per object."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[str]],
        list_one: Callable[[str], Awaitable[Response]],
        ids_of: Callable[[Response], Iterable[str]],
    ) -> None:
        """Create a list.

        Args:
            find: returns the id of the only object with a prefix, by the status of the object.
            list_one: lists the only object with a prefix, without objects if there is none or several.
            ids_of: returns the ids in an answer of ``list_one``.
        """
        self._find = find
        self._list_one = list_one
        self._ids_of = ids_of

    async def read(self) -> list[Response]:
        """Return the answers, ordered by the lengths of the unique prefixes, then by id.

        Raises:
            RuntimeUnavailableError: no connection to the runtime.
            RuntimeRequestError: the list cannot be completed, or exceeds ``MAX_ANSWER_BYTES``.
        """
        found: list[Response] = []
        prefixes: Sequence[str] = _DIGITS
        size_bytes = 0
        while prefixes:
            longer: list[str] = []
            for answer, ambiguous in await run_bounded(self._visit, prefixes):
                longer += [ambiguous + digit for digit in _DIGITS] if ambiguous else []
                if answer is not None:
                    found.append(answer)
                    size_bytes += answer.ByteSize()
            if size_bytes > MAX_ANSWER_BYTES:
                raise RuntimeRequestError(
                    _SEARCH, "", "RESOURCE_EXHAUSTED", f"list larger than {MAX_ANSWER_BYTES} bytes"
                )
            prefixes = longer
        return found

    async def _visit(self, prefix: str) -> tuple[Response | None, str]:
        """Return the answer of the only object with a prefix, and the prefix if it is ambiguous, empty otherwise."""
        try:
            found = await self._find(prefix)
        except RuntimeRequestError as error:
            if isinstance(error, RuntimeNotFoundError) and _ABSENT in error.detail:
                return None, ""
            if _AMBIGUOUS in error.detail.lower() and len(prefix) < _ID_DIGITS:
                return None, prefix
            answer = await self._list_one(prefix)  # an object without a readable status
            if not self._has_one(answer, prefix):
                raise
            return answer, ""
        answer = await self._list_one(found)
        is_removed = not any(self._ids_of(answer))
        if not found.startswith(prefix) or not (is_removed or self._has_one(answer, found)):
            raise RuntimeRequestError(_SEARCH, prefix, "INTERNAL", f"the answer contains other objects than {prefix}")
        return answer, ""

    def _has_one(self, answer: Response, prefix: str) -> bool:
        ids = list(self._ids_of(answer))
        return len(ids) == 1 and ids[0].startswith(prefix)
