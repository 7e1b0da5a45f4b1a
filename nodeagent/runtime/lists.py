"""Lists of the runtime: their decoded values are kept for the next list, and long lists are read in parts.

The comparison with the previous listing ignores the order of map entries, which differs between two answers of a
runtime written in Go. First the whole answer is compared, then each item, since containerd lists its objects in the
random order of a hash table. The size of a listing determines the data that is kept for the comparison:

- Small listing: digests of the answers and items. The messages, with the objects of their items, would take several
  times the memory of the values.
- Medium listing: the messages, since a comparison of messages takes a third of the time of computing digests.
- Large listing: digests of the items, since the messages would take too much memory.

A listing without any change returns the previous tuple of values, so that results computed from the tuple are reused
(``nodeagent.last_result``). Rejected: the encoded bytes of an item as its key, since the encoding depends on the order
of map entries.

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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from functools import lru_cache
from itertools import repeat
from operator import attrgetter, eq
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError, RuntimeUnsupportedError
from nodeagent.guarded_call import compute
from nodeagent.runtime.connection import MAX_ANSWER_BYTES, Metadata, Method, RuntimeConnection, run_bounded

_DIGEST_BYTES = 16


def message_digest(message: Message) -> str:
    """Return the digest of a message, which does not depend on the order of map entries."""
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which one-shot commands do not need

    encoded = message.SerializeToString(deterministic=True)
    return hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest()


Answer = TypeVar("Answer", bound=Message)
Item = TypeVar("Item", bound=Message)
Value = TypeVar("Value")

CACHED_FROM_ITEMS: Final = 10
"""Minimum number of items in a listing whose decoded values are kept for the next listing."""

MESSAGES_FROM_BYTES: Final = 1 << 20
"""Minimum encoded size of a listing whose messages are kept."""

MESSAGES_UP_TO_BYTES: Final = 32 << 20
"""Maximum encoded size of a listing whose messages are kept; the messages take about 1.5 times that size in memory.

After a listing compared by digests, the minimum is doubled and the maximum halved. Otherwise a listing with a size near
a limit would switch between digests and messages, and each switch decodes all items again.
"""

_ID: Final[Callable[[Any], str]] = attrgetter("id")


class _Known(Generic[Answer, Item, Value]):
    """Values of a listing, with the messages or the digests for the comparison with the next listing.

    Attributes:
        by_digest: whether the listing was compared by digests.
        size_bytes: encoded size of the listing.
        values: the decoded values, in the order of the listing.
        parts: the message of each part with the position of its first item; with ``by_digest`` the digest of the part
            instead of the message, empty if the previous listing was not small.
        ids: ids of the items; with ``by_digest`` digests of the items.
        items: the items; empty with ``by_digest``.
        sizes: encoded sizes of the items.
    """

    def __init__(self, *, by_digest: bool) -> None:
        self.by_digest = by_digest
        self.size_bytes = 0
        self.values: list[Value] = []
        self.parts: list[tuple[Answer | str, int]] = []
        self.ids: list[str] = []
        self.items: list[Item] = []
        self.sizes: list[int] = []
        self._positions: dict[str, int] | None = None
        self._result: tuple[Value, ...] | None = None

    @property
    def is_small(self) -> bool:
        """Whether the listing is too small for a comparison by messages."""
        return self.size_bytes < (2 * MESSAGES_FROM_BYTES if self.by_digest else MESSAGES_FROM_BYTES)

    @property
    def is_large(self) -> bool:
        """Whether the listing is too large for a comparison by messages, which would take too much memory."""
        return self.size_bytes > (MESSAGES_UP_TO_BYTES // 2 if self.by_digest else MESSAGES_UP_TO_BYTES)

    @property
    def positions(self) -> dict[str, int]:
        """Position by id; the last position of a repeated id."""
        if self._positions is None:
            self._positions = dict(zip(self.ids, range(len(self.ids)), strict=True))
        return self._positions

    @property
    def result(self) -> tuple[Value, ...]:
        """The values as a tuple, the same object at each access."""
        if self._result is None:
            self._result = tuple(self.values)
        return self._result

    def end_of(self, part: int) -> int:
        """Return the position after the last item of a part."""
        return self.parts[part + 1][1] if part + 1 < len(self.parts) else len(self.values)

    def drop_messages(self) -> None:
        """Release the memory of the messages; the next listing is compared by digests."""
        self.parts.clear()
        self.items.clear()


class DecodeCache(Generic[Answer, Item, Value]):
    """Cache of the decoded values of the previous listing, by message content. Values are immutable."""

    def __init__(
        self,
        items_of: Callable[[Answer], Collection[Item]],
        decode: Callable[[Item], Value],
        key: Callable[[Item], str] = _ID,
        from_items: int | None = None,
        *,
        reuses: bool = True,
    ) -> None:
        """Create an empty cache.

        Args:
            items_of: returns the items of an answer.
            decode: decoder of one item.
            key: returns the unique id of an item.
            from_items: minimum number of items for which values are kept; ``None`` for :data:`CACHED_FROM_ITEMS`.
            reuses: whether values are kept for the next listing; false for a process that lists once.
        """
        self.items_of = items_of
        self.decode = decode
        self.key = key
        self.from_items = from_items
        self.reuses = reuses
        self.known: _Known[Answer, Item, Value] = _Known(by_digest=True)

    def start(self) -> CachedList[Answer, Item, Value]:
        """Return a new listing without parts."""
        return CachedList(self)

    async def read(self, parts: AsyncIterator[Answer]) -> tuple[Value, ...]:
        """Return the values of a listing from its parts; see :meth:`Listing.finish`."""
        listing = self.start()
        async for part in parts:
            await compute(len(self.items_of(part)), listing.add, part)
        return await compute(listing.count, listing.finish)


class CachedList(Generic[Answer, Item, Value]):
    """One listing, decoded part by part; an unfinished listing does not change the cache."""

    def __init__(self, cache: DecodeCache[Answer, Item, Value]) -> None:
        """Start a listing without parts."""
        self._cache = cache
        by_digest = cache.known.is_small or cache.known.is_large
        is_comparable = cache.known.by_digest is by_digest
        self._previous = cache.known if is_comparable else _Known[Answer, Item, Value](by_digest=by_digest)
        self._listed = _Known[Answer, Item, Value](by_digest=by_digest)
        self._all_unchanged = True
        self._same_order = True

    @property
    def count(self) -> int:
        """Number of items so far."""
        return len(self._listed.values)

    def add(self, answer: Answer) -> None:
        """Decode the changed items of one part."""
        if not self._cache.reuses:
            self._listed.values += map(self._cache.decode, self._cache.items_of(answer))
            return
        if self._listed.by_digest:
            self._add_by_digest(answer)
            return
        if not self._add_same_part(answer):
            self._add_items(answer)
        if self._listed.is_large:
            self._listed.drop_messages()

    def finish(self) -> tuple[Value, ...]:
        """Return the values of all parts; for an unchanged listing the previous tuple, in the previous order."""
        previous, listed = self._previous, self._listed
        if not self._cache.reuses:
            return listed.result
        fewest = self._cache.from_items
        if len(listed.values) < (CACHED_FROM_ITEMS if fewest is None else fewest):
            self._cache.known = _Known(by_digest=True)
        elif self._all_unchanged and len(listed.values) == len(previous.values) and self._has_same_items():
            self._cache.known = previous
            return previous.result
        else:
            self._cache.known = listed
        return listed.result

    def _has_same_items(self) -> bool:
        """Return whether the listing has exactly the previous items.

        The caller has checked that every item equals a previous item, and that the number of items is equal.
        """
        listed, previous = self._listed, self._previous
        if self._same_order and (not listed.by_digest or listed.ids == previous.ids):
            return True
        return len(set(listed.ids)) == len(previous.positions) == len(listed.values)

    def _add_same_part(self, part: Answer | str) -> bool:
        """Reuse the items of the previous part at this position if the parts are equal; return whether they are equal.

        The previous message replaces the equal new message, so that only one message takes memory.
        """
        previous, start, number = self._previous, len(self._listed.values), len(self._listed.parts)
        if number >= len(previous.parts):
            return False
        before, position = previous.parts[number]
        if position != start or before != part:
            return False
        end = previous.end_of(number)
        self._extend(
            before,
            previous.ids[start:end],
            previous.items[start:end],
            previous.values[start:end],
            previous.sizes[start:end],
        )
        return True

    def _add_items(self, answer: Answer) -> None:
        """Add a part; decode each item that differs from the previous item with its id."""
        previous, start = self._previous, len(self._listed.values)
        items = list(self._cache.items_of(answer))
        # map takes a third of the time of a loop over the items
        ids: list[str] = list(map(self._cache.key, items))
        if ids == previous.ids[start : start + len(ids)]:
            positions = list(range(start, start + len(ids)))
        else:
            positions = list(map(previous.positions.get, ids, repeat(-1)))
            self._same_order = False
        earlier: list[Item | None] = [*previous.items, None]  # index -1 is for a new id
        unchanged = list(map(eq, items, map(earlier.__getitem__, positions)))
        if all(unchanged):
            values = list(map(previous.values.__getitem__, positions))
            sizes = list(map(previous.sizes.__getitem__, positions))
        else:
            self._all_unchanged = False
            decode, rows = self._cache.decode, list(zip(items, positions, unchanged, strict=True))
            values = [previous.values[at] if is_kept else decode(item) for item, at, is_kept in rows]
            sizes = [previous.sizes[at] if is_kept else item.ByteSize() for item, at, is_kept in rows]
        # new items replace equal previous items, since an item prevents the release of its whole answer from memory
        self._extend(answer, ids, items, values, sizes)

    def _extend(
        self, answer: Answer | str, ids: list[str], items: list[Item], values: list[Value], sizes: list[int]
    ) -> None:
        listed = self._listed
        listed.parts.append((answer, len(listed.values)))
        listed.ids += ids
        listed.items += items
        listed.values += values
        listed.sizes += sizes
        listed.size_bytes += sum(sizes)

    def _add_by_digest(self, answer: Answer) -> None:
        """Add a part; decode each item with a digest that is not in the previous listing."""
        previous = self._previous
        part = message_digest(answer) if previous.is_small else ""
        if part and self._add_same_part(part):
            return
        items = list(self._cache.items_of(answer))
        ids = list(map(message_digest, items))
        positions = list(map(previous.positions.get, ids))
        values = [
            self._cache.decode(item) if at is None else previous.values[at]
            for item, at in zip(items, positions, strict=True)
        ]
        self._all_unchanged = self._all_unchanged and None not in positions
        self._extend(part, ids, [], values, [item.ByteSize() for item in items])


Part = TypeVar("Part", bound=Message)
Entry = TypeVar("Entry")


class _DecodedPart(NamedTuple, Generic[Entry]):
    digest: str
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
        digest = message_digest(part) if self._cache.reuses else ""
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
