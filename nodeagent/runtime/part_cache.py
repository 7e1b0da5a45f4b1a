"""Cache of the decoded entries of the previous streamed list, by part.

containerd streams the records of a store in the order of their keys, a hundred in each message, and most messages equal
those of the previous list. Computing the digest of a message takes a tenth of the time of decoding its items. The
message itself is not kept: with the objects of its visited items, a message takes several times the memory of its
entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from nodeagent.runtime.message_digest import message_digest

if TYPE_CHECKING:
    from collections.abc import Callable

Part = TypeVar("Part", bound=Message)
Entry = TypeVar("Entry")


class _DecodedPart(NamedTuple, Generic[Entry]):
    digest: str
    entries: dict[str, Entry]


class PartCache(Generic[Part, Entry]):
    """Cache of the message digests and decoded entries of one list. Entries and returned mappings are immutable."""

    def __init__(self, *, reuses: bool = True) -> None:
        """Create an empty cache; with ``reuses`` false, for a process that lists once, the cache remains empty."""
        self._reuses = reuses
        self._parts: list[_DecodedPart[Entry]] = []
        self._entries: dict[str, Entry] = {}

    def start(self) -> PartListing[Part, Entry]:
        """Return a new list without parts, for comparison with the last finished list."""
        return PartListing(self._parts, self._entries, self._keep if self._reuses else None)

    def _keep(self, parts: list[_DecodedPart[Entry]], entries: dict[str, Entry]) -> None:
        self._parts, self._entries = parts, entries


class PartListing(Generic[Part, Entry]):
    """One list, decoded part by part; an unfinished list does not change the cache."""

    def __init__(
        self,
        previous: list[_DecodedPart[Entry]],
        entries: dict[str, Entry],
        keep: Callable[[list[_DecodedPart[Entry]], dict[str, Entry]], None] | None,
    ) -> None:
        """Start without parts; ``keep`` receives the finished list; ``None`` to discard the list."""
        self._previous = previous
        self._previous_entries = entries
        self._keep = keep
        self._parts: list[_DecodedPart[Entry]] = []
        self._is_same = True

    def add(self, part: Part, decode: Callable[[Part], dict[str, Entry]]) -> None:
        """Add a part; ``decode`` returns entries by key, and is called unless the previous part here is equal."""
        number = len(self._parts)
        digest = "" if self._keep is None else message_digest(part)
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
        if self._keep is not None:
            self._keep(self._parts, entries)
        return entries
