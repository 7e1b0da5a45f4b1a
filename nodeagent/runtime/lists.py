"""Lists of the runtime: their decoded values are kept for the next list, and long lists are read in parts.

A value is kept under the digest of its message. The digest does not depend on the order of map entries, which differs
between two answers of a runtime written in Go; the order of the list does not matter either, since containerd lists its
objects in the random order of a hash table. A listing without any change returns the previous tuple of values, so that
results computed from the tuple are reused (``nodeagent.last_result``). Rejected: a comparison with the kept messages of
the previous listing. It takes a third of the time, but the messages take several times the memory of their values, and
old and new messages are in memory at the same time.

containerd streams the records of a store in the order of their keys, a hundred in each message, and most messages equal
those of the previous list. Computing the digest of a message takes a tenth of the time of decoding its items. The
message itself is not kept: with the objects of its visited items, a message takes several times the memory of its
entries.

A runtime limits the size of a message (containerd and CRI-O to 16 MiB unless configured), and newer runtimes stream
their lists in parts. A part and a single answer have the same message type. A single answer is preferred for small
lists, since some runtimes stream one item per message, which takes longer.

Tenants control the size of a list: the annotations of 64 pods, with the 256 KiB that the API server allows for each,
exceed the limit. A runtime without streams would then stop collection and eviction, so that such a list is read object
by object (``PrefixList``).

Source: CRI ``StreamContainers``, ``StreamPodSandboxes``, ``StreamImages`` (KEP-5825); containerd
``Containers.ListStream``.

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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from hashlib import sha256
from typing import Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError, RuntimeUnsupportedError
from nodeagent.guarded_call import compute
from nodeagent.runtime.connection import MAX_ANSWER_BYTES, Metadata, Method, RuntimeConnection, run_bounded


def message_digest(message: Message) -> bytes:
    """Return the digest of a message, which does not depend on the order of map entries."""
    return sha256(message.SerializeToString(deterministic=True)).digest()


Answer = TypeVar("Answer", bound=Message)
Item = TypeVar("Item", bound=Message)
Value = TypeVar("Value")


class DecodeCache(Generic[Answer, Item, Value]):
    """Cache of the decoded values of the previous listing, by the digests of their messages. Values are immutable.

    Attributes:
        items_of: returns the items of an answer.
        decode: decoder of one item.
        reuses: whether values are kept for the next listing; false for a process that lists once.
    """

    def __init__(
        self, items_of: Callable[[Answer], Collection[Item]], decode: Callable[[Item], Value], *, reuses: bool = True
    ) -> None:
        """Create an empty cache."""
        self.items_of = items_of
        self.decode = decode
        self.reuses = reuses
        self.known: _Decoded[Value] = _Decoded({}, ())

    def start(self) -> CachedList[Answer, Item, Value]:
        """Return a new listing without parts."""
        return CachedList(self)

    async def read(self, parts: AsyncIterator[Answer]) -> tuple[Value, ...]:
        """Return the values of a listing from its parts; see :meth:`CachedList.finish`."""
        listing = self.start()
        async for part in parts:
            await compute(len(self.items_of(part)), listing.add, part)
        return listing.finish()


class _Decoded(NamedTuple, Generic[Value]):
    """Values of a finished listing, by the digests of their messages and in the order of the listing."""

    by_digest: dict[bytes, Value]
    values: tuple[Value, ...]


class CachedList(Generic[Answer, Item, Value]):
    """One listing, decoded part by part; an unfinished listing does not change the cache."""

    def __init__(self, cache: DecodeCache[Answer, Item, Value]) -> None:
        """Start a listing without parts."""
        self._cache = cache
        self._previous = cache.known
        self._by_digest: dict[bytes, Value] = {}
        self._values: list[Value] = []

    def add(self, answer: Answer) -> None:
        """Decode the changed items of one part."""
        items, decode = list(self._cache.items_of(answer)), self._cache.decode
        if not self._cache.reuses:
            self._values += map(decode, items)
            return
        digests = list(map(message_digest, items))  # map takes half the time of a loop over the items
        values = list(map(self._previous.by_digest.get, digests))
        decoded = [decode(item) if value is None else value for item, value in zip(items, values, strict=True)]
        self._by_digest.update(zip(digests, decoded, strict=True))
        self._values += decoded

    def finish(self) -> tuple[Value, ...]:
        """Return the values of all parts; for an unchanged listing the previous tuple, in the previous order."""
        previous, count = self._previous, len(self._values)
        is_unchanged = count == len(previous.values) == len(self._by_digest)  # otherwise an item is listed twice
        if count and is_unchanged and self._by_digest.keys() == previous.by_digest.keys():
            return previous.values
        values = tuple(self._values)
        if self._cache.reuses:
            self._cache.known = _Decoded(self._by_digest, values)
        return values


Part = TypeVar("Part", bound=Message)
Entry = TypeVar("Entry")


class _DecodedPart(NamedTuple, Generic[Entry]):
    digest: bytes
    entries: dict[str, Entry]


class PartCache(Generic[Part, Entry]):
    """Cache of the message digests and decoded entries of one list. Entries and returned mappings are immutable."""

    def __init__(self, *, reuses: bool = True) -> None:
        """Create an empty cache; with ``reuses`` false, for a process that lists once, the cache remains empty."""
        self.reuses = reuses
        self.parts: list[_DecodedPart[Entry]] = []
        self.entries: dict[str, Entry] = {}

    def start(self) -> PartListing[Part, Entry]:
        """Return a new list without parts, for comparison with the last finished list."""
        return PartListing(self)


class PartListing(Generic[Part, Entry]):
    """One list, decoded part by part; an unfinished list does not change the cache."""

    def __init__(self, cache: PartCache[Part, Entry]) -> None:
        """Start without parts."""
        self._cache = cache
        self._previous, self._previous_entries = cache.parts, cache.entries
        self._parts: list[_DecodedPart[Entry]] = []
        self._is_same = True

    def add(self, part: Part, decode: Callable[[Part], dict[str, Entry]]) -> None:
        """Add a part; ``decode`` returns entries by key, and is called unless the previous part here is equal."""
        number = len(self._parts)
        digest = message_digest(part) if self._cache.reuses else b""
        if number < len(self._previous) and self._previous[number].digest == digest:
            self._parts.append(self._previous[number])
        else:
            self._is_same = False
            self._parts.append(_DecodedPart(digest, decode(part)))

    def finish(self) -> dict[str, Entry]:
        """Return the entries of all parts by key; the same mapping as before if all parts are unchanged."""
        if self._is_same and self._parts and len(self._parts) == len(self._previous):
            return self._previous_entries
        entries: dict[str, Entry] = {}
        for each in self._parts:
            entries.update(each.entries)
        if self._cache.reuses:
            self._cache.parts, self._cache.entries = self._parts, entries
        return entries


@lru_cache(maxsize=2048)
def shared_text(text: str) -> str:
    """Return the same object for equal texts, among the 2,048 most recently used texts.

    Rejected: ``sys.intern``, since Python 3.12 never releases an interned text, and tenants choose most of the texts.
    """
    return text


_SHARED_LENGTH: Final = 64
"""Maximum length of a shared value: long ones, which tenants choose, would remain in memory after their pods."""


def shared_texts(entries: Mapping[str, str]) -> dict[str, str]:
    """Return labels or annotations; equal short texts share one object: most values are equal in many containers."""
    return {
        shared_text(key): shared_text(value) if len(value) <= _SHARED_LENGTH else value
        for key, value in entries.items()
    }


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
