"""Decoded entries of streamed lists, reused for parts that equal those of the previous list."""

from __future__ import annotations

import sys

from hypothesis import given, strategies as st

from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent.runtime.lists import PartCache, message_digest

Stores = list[list[tuple[str, str]]]


def part(entries: list[tuple[str, str]]) -> content_pb2.ListContentResponse:
    """Return a part of a list, with blobs of these digests and labels."""
    message = content_pb2.ListContentResponse()
    for digest, label in entries:
        info = message.info.add()
        info.digest = digest
        info.labels["first"] = label
        info.labels["second"] = label
    return message


class Reader:
    """A reader of lists with one part cache; counts the decoded parts."""

    def __init__(self) -> None:
        self.cache: PartCache[content_pb2.ListContentResponse, str] = PartCache()
        self.decoded = 0

    def read(self, parts: Stores) -> dict[str, str]:
        """Return the first label of each blob in the list, by digest."""
        listing = self.cache.start()
        for each in parts:
            listing.add(part(each), self._decode)
        return listing.finish()

    def _decode(self, message: content_pb2.ListContentResponse) -> dict[str, str]:
        self.decoded += 1
        return {info.digest: info.labels["first"] for info in message.info}


_PARTS = st.lists(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("12")), max_size=3), max_size=4)


@given(st.lists(_PARTS, max_size=6))
def test_lists_through_a_cache_have_the_entries_of_lists_without_one(lists: list[Stores]) -> None:
    reader = Reader()

    for each in lists:
        assert reader.read(each) == Reader().read(each)


def test_unchanged_list_is_the_previous_mapping_without_decoding() -> None:
    reader = Reader()
    parts = [[("a", "1"), ("b", "1")], [("c", "1")]]
    first = reader.read(parts)

    second = reader.read(parts)

    assert second is first
    assert reader.decoded == 2


def test_only_changed_parts_are_decoded() -> None:
    reader = Reader()
    reader.read([[("a", "1")], [("b", "1")], [("c", "1")]])

    changed = reader.read([[("a", "1")], [("b", "2")], [("c", "1")]])

    assert changed == {"a": "1", "b": "2", "c": "1"}
    assert reader.decoded == 4


def test_list_without_its_last_part_has_no_entry_of_it() -> None:
    reader = Reader()
    reader.read([[("a", "1")], [("b", "1")]])

    assert reader.read([[("a", "1")]]) == {"a": "1"}
    assert reader.read([]) == {}


def test_unfinished_list_leaves_the_cache_unchanged() -> None:
    reader = Reader()
    first = reader.read([[("a", "1")]])
    reader.cache.start().add(part([("b", "1")]), lambda _: {"b": "1"})

    assert reader.read([[("a", "1")]]) is first


def test_map_entries_in_another_order_do_not_change_the_digest() -> None:
    first, second = content_pb2.Info(), content_pb2.Info()
    for name in ("a", "b", "c"):
        first.labels[name] = name
    for name in ("c", "b", "a"):
        second.labels[name] = name

    assert message_digest(first) == message_digest(second)
    assert message_digest(first) != message_digest(content_pb2.Info())


def test_messages_of_a_list_are_not_kept() -> None:
    cache: PartCache[content_pb2.ListContentResponse, str] = PartCache()
    message = part([("a", "1")])
    references = sys.getrefcount(message)
    listing = cache.start()
    listing.add(message, lambda _: {"a": "1"})
    listing.finish()

    assert sys.getrefcount(message) == references


def test_list_of_a_cache_without_reuse_is_decoded_again() -> None:
    cache: PartCache[content_pb2.ListContentResponse, str] = PartCache(reuses=False)
    decoded: list[str] = []

    def decode(_: content_pb2.ListContentResponse) -> dict[str, str]:
        decoded.append("x")
        return {"a": str(len(decoded))}

    for expected in ("1", "2"):
        listing = cache.start()
        listing.add(part([("a", "x")]), decode)
        assert listing.finish() == {"a": expected}
