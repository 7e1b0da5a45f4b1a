"""Decoded values of the previous listing, since most objects of a large node are unchanged between two listings.

The messages of the previous listing are kept and compared, field by field and without regard to the order of map
entries, which differs between two answers of a runtime written in Go. Messages of a large listing would take too much
memory; of those only digests are kept, whose computation takes three times as long. Rejected: the encoded bytes of an
item as its key, as they depend on the order of map entries.
"""

from __future__ import annotations

import hashlib
from operator import attrgetter, eq
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from google.protobuf.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Item = TypeVar("Item", bound=Message)
Value = TypeVar("Value")

CACHED_FROM_ITEMS: Final = 1000
"""Number of items from which the decoded values are kept for the next listing."""

MESSAGES_UP_TO_BYTES: Final = 32 << 20
"""Encoded size of a listing up to which its messages are kept; the same listing takes about 1.5 times as much memory.

The digests of a larger listing are kept until it has half of this size, so that a listing of about this size is not
decoded again and again.
"""

_ID: Final = attrgetter("id")


class _Listing(Generic[Item, Value]):
    """Decoded values of one listing.

    Attributes:
        by_digest: whether ``values`` is by the digest of the message; otherwise it is by its id.
        values: the decoded values.
        messages: the messages by id; none with digests.
        sizes: their encoded sizes by id.
        size_bytes: encoded size of the whole listing.
    """

    def __init__(self, *, by_digest: bool) -> None:
        self.by_digest = by_digest
        self.values: dict[bytes | str, Value] = {}
        self.messages: dict[str, Item] = {}
        self.sizes: dict[str, int] = {}
        self.size_bytes = 0

    @property
    def is_large(self) -> bool:
        """Whether the next listing is compared by digests."""
        return self.size_bytes > (MESSAGES_UP_TO_BYTES // 2 if self.by_digest else MESSAGES_UP_TO_BYTES)


class DecodeCache(Generic[Item, Value]):
    """Decoded values of the previous listing, by the content of the message. Values are immutable."""

    def __init__(self, decode: Callable[[Item], Value]) -> None:
        """Take the decoder of one item; the messages have an ``id``."""
        self._decode = decode
        self._known: _Listing[Item, Value] = _Listing(by_digest=False)

    def start(self) -> Callable[[Iterable[Item]], list[Value]]:
        """Return the decoder of one listing, called for each of its parts.

        Its values replace those of the previous listing with the last part decoded so far.
        """
        previous = self._known
        by_digest = previous.is_large
        if previous.by_digest is not by_digest:
            previous = _Listing(by_digest=by_digest)
        listing: _Listing[Item, Value] = _Listing(by_digest=by_digest)
        add = self._add_by_digest if by_digest else self._add_messages
        count = 0

        def decode_part(items: Iterable[Item]) -> list[Value]:
            nonlocal count
            values = add(listing, previous, items)
            count += len(values)
            self._known = listing if count >= CACHED_FROM_ITEMS else _Listing(by_digest=False)
            if listing.is_large:  # the next listing is compared by digests
                listing.messages.clear()
            return values

        return decode_part

    def _add_messages(
        self, listing: _Listing[Item, Value], previous: _Listing[Item, Value], items: Iterable[Item]
    ) -> list[Value]:
        """Add a part to a listing; return its values."""
        part = list(items)
        ids: list[str] = list(map(_ID, part))
        # in the interpreter's own loops, which take a third of the time of a loop over the items
        unchanged = list(map(eq, part, map(previous.messages.get, ids)))
        if all(unchanged):
            values = list(map(previous.values.__getitem__, ids))
            sizes = list(map(previous.sizes.__getitem__, ids))
        else:
            each_kept = list(zip(part, ids, unchanged, strict=True))
            values = [previous.values[key] if kept else self._decode(item) for item, key, kept in each_kept]
            sizes = [previous.sizes[key] if kept else item.ByteSize() for item, key, kept in each_kept]
        # of equal messages the new one is kept: a message keeps the memory of its whole answer
        listing.messages.update(zip(ids, part, strict=True))
        listing.values.update(zip(ids, values, strict=True))
        listing.sizes.update(zip(ids, sizes, strict=True))
        listing.size_bytes += sum(sizes)
        return values

    def _add_by_digest(
        self, listing: _Listing[Item, Value], previous: _Listing[Item, Value], items: Iterable[Item]
    ) -> list[Value]:
        """Add a part to a listing; return its values."""
        values = []
        for item in items:
            encoded = item.SerializeToString(deterministic=True)  # with the map entries in a fixed order
            key = hashlib.blake2b(encoded, digest_size=16).digest()
            value = previous.values.get(key)
            if value is None:
                value = self._decode(item)
            listing.values[key] = value
            listing.size_bytes += len(encoded)
            values.append(value)
        return values
