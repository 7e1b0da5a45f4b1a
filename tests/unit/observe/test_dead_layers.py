"""Sizes of writable layers: container stats are listed only for new dead containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.errors import RuntimeRequestError
from nodeagent.model import ContainerState
from nodeagent.observe.dead_layers import DeadLayers
from nodeagent.runtime.cri_messages import ContainerUsage
from tests.unit.builders import container

if TYPE_CHECKING:
    from collections.abc import Collection


class Runtime:
    """A fake runtime that reports these layer sizes and counts the container stats calls."""

    def __init__(self, sizes: dict[str, int | None]) -> None:
        self.sizes = sizes
        self.listings = 0
        self.error: RuntimeRequestError | None = None

    async def list_container_stats(self, only: Collection[str] | None = None, /) -> tuple[ContainerUsage, ...]:
        self.listings += 1
        if self.error is not None:
            raise self.error
        return tuple(ContainerUsage(each, size) for each, size in self.sizes.items() if only is None or each in only)


async def test_size_of_an_exited_container_is_read_once() -> None:
    runtime = Runtime({"a": 5, "b": 0})
    layers = DeadLayers(runtime)
    for _ in range(3):
        assert await layers.read([container("a"), container("b")], []) == {"a": 5, "b": 0}
    assert runtime.listings == 1
    runtime.sizes["c"] = 7
    assert await layers.read([container("b"), container("c")], []) == {"b": 0, "c": 7}
    assert runtime.listings == 2


async def test_size_that_is_not_reported_is_read_twice() -> None:
    runtime = Runtime({"a": None})
    layers = DeadLayers(runtime)
    for expected in (1, 2, 2):
        assert await layers.read([container("a")], []) == {}
        assert runtime.listings == expected


async def test_size_of_a_container_that_may_be_running_is_read_every_time() -> None:
    runtime = Runtime({"a": 5})
    layers = DeadLayers(runtime)
    for _ in range(2):
        assert await layers.read([container("a", state=ContainerState.UNKNOWN)], []) == {"a": 5}
    assert runtime.listings == 2


async def test_size_is_read_again_after_a_change_of_state() -> None:
    runtime = Runtime({"a": 5})
    layers = DeadLayers(runtime)
    for _ in range(2):
        assert await layers.read([container("a", state=ContainerState.CREATED)], []) == {"a": 5}
    runtime.sizes["a"] = 9
    assert await layers.read([container("a")], []) == {"a": 9}
    assert runtime.listings == 2


async def test_running_containers_need_no_listing() -> None:
    runtime = Runtime({"a": 5})
    assert await DeadLayers(runtime).read([container("a", state=ContainerState.RUNNING)], []) == {}
    assert runtime.listings == 0


async def test_failed_listing_is_a_warning_and_known_sizes_remain() -> None:
    runtime, warnings = Runtime({"a": 5}), list[str]()
    layers = DeadLayers(runtime)
    await layers.read([container("a")], warnings)
    runtime.error = RuntimeRequestError("ListContainerStats", "", "UNKNOWN", "simulated")
    assert await layers.read([container("a"), container("b")], warnings) == {"a": 5}
    assert warnings == ["size of writable layers unknown: ListContainerStats failed: UNKNOWN: simulated"]


async def test_sizes_of_the_same_tuple_are_independent_results() -> None:
    layers, listed = DeadLayers(Runtime({"a": 5})), (container("a"),)
    for _ in range(3):
        sizes = await layers.read(listed, [])
        assert sizes == {"a": 5}
        sizes.clear()


async def test_unsettled_sizes_of_the_same_tuple_are_read_again() -> None:
    runtime = Runtime({"a": 5, "b": None, "c": 1})
    layers, listed = DeadLayers(runtime), (container("a", state=ContainerState.UNKNOWN), container("b"), container("c"))
    assert await layers.read(listed, []) == {"a": 5, "c": 1}
    runtime.sizes |= {"a": 6, "b": 7}
    assert await layers.read(listed, []) == {"a": 6, "b": 7, "c": 1}
    assert runtime.listings == 2
