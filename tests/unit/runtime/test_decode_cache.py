"""Reuse of decoded values: changed objects are decoded again, for any order of objects and map entries."""

from __future__ import annotations

import sys
import threading
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings, strategies as st

from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.model.runtime import Container
from nodeagent.runtime.cri import decode_container, decode_image
from nodeagent.runtime.lists import DecodeCache

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


IMAGE: Final = f"sha256:{'5' * 64}"


def listed(number: int, **fields: object) -> api.Container:
    container = api.Container(
        id=f"{number:064x}",
        pod_sandbox_id="5a" * 32,
        image=api.ImageSpec(image="registry.example/app:1"),
        image_ref=IMAGE,
        state=api.CONTAINER_RUNNING,
        created_at=10**18,
        labels={"io.kubernetes.pod.uid": "uid-1", "app": "web"},
        annotations={"note": "x"},
        metadata=api.ContainerMetadata(name="app"),
    )
    container.MergeFrom(api.Container(**fields))  # type: ignore[arg-type]  # fields of the message
    return container


def as_answer(*containers: api.Container) -> api.ListContainersResponse:
    """Return a new response message with these containers."""
    answer = api.ListContainersResponse(containers=containers)
    return api.ListContainersResponse.FromString(answer.SerializeToString())


Cache = DecodeCache[api.ListContainersResponse, api.Container, Container]


def new_cache() -> Cache:
    return Cache(attrgetter("containers"), decode_container)


def read(made: Cache, *answers: api.ListContainersResponse) -> tuple[Container, ...]:
    """Return the decoded values of a listing received in these parts."""
    listing = made.start()
    for each in answers:
        listing.add(each)
    return listing.finish()


def cache() -> Cache:
    """Return a cache after two listings, so that the next listing is compared with the cached listing."""
    made = new_cache()
    for _ in range(2):
        read(made, as_answer(*map(listed, range(4))))
    return made


CHANGES: Final[dict[str, api.Container]] = {
    "value of a label": listed(2, labels={"app": "wed"}),
    "added label": listed(2, labels={"tier": ""}),
    "value of an annotation": listed(2, annotations={"note": "y"}),
    "image": listed(2, image_ref=f"sha256:{'6' * 64}"),
    "image id": listed(2, image_id=IMAGE),
    "image name": listed(2, image=api.ImageSpec(image="registry.example/app:2")),
    "state": listed(2, state=api.CONTAINER_EXITED),
    "creation time": listed(2, created_at=10**18 + 1000),
    "attempt": listed(2, metadata=api.ContainerMetadata(attempt=1)),
    "name": listed(2, metadata=api.ContainerMetadata(name="apq")),
    "sandbox": listed(2, pod_sandbox_id="5b" * 32),
    "id": listed(5),
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES.keys())
def test_changed_container_is_decoded_again_and_the_others_are_not(changed: api.Container) -> None:
    made = cache()
    before = read(made, as_answer(*map(listed, range(4))))
    after = read(made, as_answer(listed(0), listed(1), changed, listed(3)))
    assert after == tuple(decode_container(each) for each in (listed(0), listed(1), changed, listed(3)))
    assert after[2] != before[2]
    assert [after[number] is before[number] for number in (0, 1, 3)] == [True] * 3


def test_removed_label_is_noticed() -> None:
    made, without = cache(), listed(1)
    del without.labels["app"]
    after = read(made, as_answer(listed(0), without))
    assert [dict(each.labels) for each in after] == [dict(listed(0).labels), {"io.kubernetes.pod.uid": "uid-1"}]


def test_label_moved_to_the_annotations_is_noticed() -> None:
    made, moved = cache(), listed(1, annotations={"app": "web"})
    del moved.labels["app"]
    assert read(made, as_answer(moved)) == (decode_container(moved),)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)], ids=["same", "other"])
def test_values_of_an_unchanged_listing_are_the_previous_tuple_in_any_order(order: tuple[int, ...]) -> None:
    made = cache()
    before = read(made, as_answer(*map(listed, range(4))))
    assert read(made, as_answer(*map(listed, order))) is before
    assert read(made, *(as_answer(listed(number)) for number in order)) is before


@pytest.mark.parametrize("numbers", [(3, 1, 0), (3, 1, 0, 2, 4), (3, 1, 0, 0), (0, 1, 2, 3, 3), (0, 1, 2)], ids=str)
def test_unchanged_containers_of_a_changed_listing_are_reused(numbers: tuple[int, ...]) -> None:
    made = cache()
    before = read(made, as_answer(*map(listed, range(4))))
    after = read(made, as_answer(*map(listed, numbers)))
    assert after == tuple(decode_container(listed(number)) for number in numbers)
    old = [(each, number) for each, number in zip(after, numbers, strict=True) if number < len(before)]
    assert all(each is before[number] for each, number in old)


def test_listing_that_is_not_finished_changes_nothing() -> None:
    made = cache()
    before = read(made, as_answer(*map(listed, range(4))))
    made.start().add(as_answer(listed(0), listed(1, state=api.CONTAINER_EXITED)))
    assert read(made, as_answer(*map(listed, range(4)))) is before


def test_changed_container_in_one_of_several_parts_is_noticed() -> None:
    made, changed = cache(), listed(1, state=api.CONTAINER_EXITED)
    before = read(made, as_answer(listed(0), listed(1)), as_answer(listed(2), listed(3)))
    after = read(made, as_answer(listed(0), changed), as_answer(listed(2), listed(3)))
    assert after == (before[0], decode_container(changed), before[2], before[3])
    assert read(made, as_answer(listed(0), listed(1)), as_answer(listed(2), listed(3))) == before


def test_part_listed_twice_is_not_the_previous_listing() -> None:
    made, half = cache(), as_answer(listed(0), listed(1))
    read(made, half, as_answer(listed(2), listed(3)))
    assert read(made, half, half) == tuple(decode_container(listed(number)) for number in (0, 1, 0, 1))


def test_other_order_of_map_entries_is_no_change() -> None:
    one = listed(1, labels={each: each for each in "abcdefgh"})
    other = listed(1)
    for each in "hgfedcba":
        other.labels[each] = each
    made = cache()
    before = read(made, as_answer(one))
    assert read(made, as_answer(other)) is before


def test_content_of_two_containers_exchanged_under_their_ids_is_noticed() -> None:
    made = cache()
    first, second = listed(1, labels={"app": "one"}), listed(2, labels={"app": "two"})
    read(made, as_answer(first, second))
    first.id, second.id = second.id, first.id
    after = read(made, as_answer(first, second))
    assert [(each.id, each.labels["app"]) for each in after] == [(first.id, "one"), (second.id, "two")]


def test_listings_that_alternate_are_decoded_each_time() -> None:
    made = cache()
    odd, even = as_answer(listed(1), listed(2, labels={"app": "b"})), as_answer(listed(2), listed(3))
    for _ in range(3):
        assert read(made, odd) == tuple(map(decode_container, odd.containers))
        assert read(made, even) == tuple(map(decode_container, even.containers))


def test_container_listed_twice_with_different_content_has_both_values() -> None:
    made = cache()
    twice = as_answer(listed(1), listed(1, state=api.CONTAINER_EXITED), listed(1))
    for _ in range(3):
        assert read(made, twice) == tuple(map(decode_container, twice.containers))


def test_changed_size_of_an_image_is_noticed() -> None:
    made = DecodeCache(attrgetter("images"), decode_image)
    image = api.Image(id=IMAGE, repo_tags=["registry.example/app:1"], size=5)
    for size, tag, pinned in ((5, "1", False), (6, "1", False), (6, "2", False), (6, "2", True), (0, "2", True)):
        changed = api.Image(id=image.id, repo_tags=[f"registry.example/app:{tag}"], size=size, pinned=pinned)
        listing = made.start()
        listing.add(api.ListImagesResponse(images=[changed]))
        assert listing.finish() == (decode_image(changed),)


def test_listing_is_reused_again_after_it_shrank() -> None:
    made = new_cache()
    for numbers in (range(20), range(20), range(5), range(5), range(2), range(2), range(20), range(20)):
        assert read(made, as_answer(*map(listed, numbers))) == tuple(decode_container(listed(each)) for each in numbers)
    last = read(made, as_answer(*map(listed, range(20))))
    assert read(made, as_answer(*map(listed, range(20)))) is last


def test_messages_of_a_listing_are_not_kept() -> None:
    made, answer = new_cache(), as_answer(*map(listed, range(4)))
    references = sys.getrefcount(answer)
    read(made, answer)
    assert sys.getrefcount(answer) == references


_CHANGES: Final[dict[str, Callable[[int], api.Container]]] = {
    "none": listed,
    "exited": lambda number: listed(number, state=api.CONTAINER_EXITED),
    "label": lambda number: listed(number, labels={"app": "b"}),
    "large": lambda number: listed(number, labels={"app": "b" * 400}),
}
_LISTS = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(sorted(_CHANGES))), max_size=8), min_size=1, max_size=6
)


@settings(max_examples=60)
@given(_LISTS, st.integers(1, 4))
def test_values_are_those_of_the_decoder_for_all_sequences_of_listings(
    listings: list[list[tuple[int, str]]], parts: int
) -> None:
    made, previous = new_cache(), tuple[Container, ...]()
    for each in listings:
        items, size = [_CHANGES[change](number) for number, change in each], max(1, len(each) // parts)
        values = read(made, *(as_answer(*items[at : at + size]) for at in range(0, len(items), size)))
        expected = tuple(map(decode_container, items))
        assert values == expected or (values is previous and sorted(map(repr, values)) == sorted(map(repr, expected)))
        previous = values


def test_short_values_are_shared_and_long_ones_are_not_kept() -> None:
    short, long = "common", "".join(map(chr, range(97, 123))) * 40
    first, second = (
        decode_container(each)
        for each in as_answer(
            *(listed(number, labels={"short": short}, annotations={"long": long}) for number in range(2))
        ).containers
    )
    assert first.labels["short"] is second.labels["short"]
    assert first.annotations["long"] is not second.annotations["long"]


def test_listing_of_a_cache_without_reuse_is_decoded_again() -> None:
    made = Cache(attrgetter("containers"), decode_container, reuses=False)
    first = read(made, as_answer(listed(1), listed(2)), as_answer(listed(3)))
    second = read(made, as_answer(listed(1), listed(2)), as_answer(listed(3)))
    assert second == first
    assert all(one is not other for one, other in zip(first, second, strict=True))


@given(before=st.integers(0, 3), first=st.integers(0, 3), second=st.integers(0, 3), last=st.integers(0, 3))
def test_interleaved_listings_of_two_readers_have_the_values_of_their_own_answers(
    before: int, first: int, second: int, last: int
) -> None:
    answers = [
        as_answer(*(listed(each, labels={"version": str(version)}) for each in range(4))) for version in range(4)
    ]
    made = new_cache()
    read(made, answers[before])
    one, other = made.start(), made.start()
    one.add(answers[first])
    other.add(answers[second])
    versions = [{each.labels["version"] for each in listing.finish()} for listing in (one, other)]
    assert versions == [{str(first)}, {str(second)}]
    assert {each.labels["version"] for each in read(made, answers[last])} == {str(last)}


@pytest.mark.parametrize(("count", "in_thread"), [(1_000, False), (2_000, True)])
async def test_long_list_is_decoded_off_the_event_loop(count: int, in_thread: bool) -> None:
    decoded_in: set[int] = set()

    def decode(message: api.Container) -> Container:
        decoded_in.add(threading.get_ident())
        return decode_container(message)

    async def parts() -> AsyncIterator[api.ListContainersResponse]:
        yield as_answer(*map(listed, range(count)))

    made = Cache(attrgetter("containers"), decode)
    assert len(await made.read(parts())) == count
    assert (threading.get_ident() not in decoded_in) is in_thread
