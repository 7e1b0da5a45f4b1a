"""Sizes of writable layers: container stats are listed only for new dead containers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeRequestError, RuntimeUnavailableError
from nodeagent.gc.snapshot.details import DeadLayers, LayerSize
from nodeagent.model.runtime import ContainerState, Space
from nodeagent.runtime.cri import ContainerUsage
from tests.unit.builders import container

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nodeagent.model.runtime import Container


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


async def sizes_of(layers: DeadLayers, containers: Iterable[Container], warnings: list[str]) -> dict[str, int]:
    return {key: each.size_bytes for key, each in (await layers.read(containers, warnings)).items()}


async def test_size_of_an_exited_container_is_read_once() -> None:
    runtime = Runtime({"a": 5, "b": 0})
    layers = DeadLayers(runtime)
    for _ in range(3):
        assert await sizes_of(layers, [container("a"), container("b")], []) == {"a": 5, "b": 0}
    assert runtime.listings == 1
    runtime.sizes["c"] = 7
    assert await sizes_of(layers, [container("b"), container("c")], []) == {"b": 0, "c": 7}
    assert runtime.listings == 2


async def test_size_that_is_not_reported_is_read_twice() -> None:
    runtime = Runtime({"a": None})
    layers = DeadLayers(runtime)
    for expected in (1, 2, 2):
        assert await sizes_of(layers, [container("a")], []) == {}
        assert runtime.listings == expected


async def test_size_of_a_container_that_may_be_running_is_read_every_time() -> None:
    runtime = Runtime({"a": 5})
    layers = DeadLayers(runtime)
    for _ in range(2):
        assert await sizes_of(layers, [container("a", state=ContainerState.UNKNOWN)], []) == {"a": 5}
    assert runtime.listings == 2


async def test_size_is_read_again_after_a_change_of_state() -> None:
    runtime = Runtime({"a": 5})
    layers = DeadLayers(runtime)
    for _ in range(2):
        assert await sizes_of(layers, [container("a", state=ContainerState.CREATED)], []) == {"a": 5}
    runtime.sizes["a"] = 9
    assert await sizes_of(layers, [container("a")], []) == {"a": 9}
    assert runtime.listings == 2


async def test_running_containers_need_no_listing() -> None:
    runtime = Runtime({"a": 5})
    assert await sizes_of(DeadLayers(runtime), [container("a", state=ContainerState.RUNNING)], []) == {}
    assert runtime.listings == 0


async def test_failed_listing_is_a_warning_and_known_sizes_remain() -> None:
    runtime, warnings = Runtime({"a": 5}), list[str]()
    layers = DeadLayers(runtime)
    await layers.read([container("a")], warnings)
    runtime.error = RuntimeRequestError("ListContainerStats", "", "UNKNOWN", "simulated")
    assert await sizes_of(layers, [container("a"), container("b")], warnings) == {"a": 5}
    assert warnings == ["size of writable layers unknown: ListContainerStats failed: UNKNOWN: simulated"]


async def test_sizes_of_the_same_tuple_are_independent_results() -> None:
    layers, listed = DeadLayers(Runtime({"a": 5})), (container("a"),)
    for _ in range(3):
        sizes = await layers.read(listed, [])
        assert sizes == {"a": LayerSize(5)}
        sizes.clear()


async def test_unsettled_sizes_of_the_same_tuple_are_read_again() -> None:
    runtime = Runtime({"a": 5, "b": None, "c": 1})
    layers, listed = DeadLayers(runtime), (container("a", state=ContainerState.UNKNOWN), container("b"), container("c"))
    assert await sizes_of(layers, listed, []) == {"a": 5, "c": 1}
    runtime.sizes |= {"a": 6, "b": 7}
    assert await sizes_of(layers, listed, []) == {"a": 6, "b": 7, "c": 1}
    assert runtime.listings == 2


SNAPSHOTTERS = {"a": "overlayfs", "b": "overlayfs", "c": "zfs", "created": "overlayfs"}


async def test_layer_without_a_reported_size_is_measured_once_by_its_snapshotter() -> None:
    measured: list[tuple[str, str]] = []

    async def measure(snapshotter: str, key: str) -> Space | None:
        measured.append((snapshotter, key))
        return Space(9, 3) if snapshotter == "overlayfs" else None

    layers = DeadLayers(Runtime({"a": 5}), measure)
    created = container("created", state=ContainerState.CREATED)
    listed = [container("a"), container("b"), container("c"), container("unknown"), created]
    for _ in range(3):
        assert await layers.read(listed, [], SNAPSHOTTERS) == {"a": LayerSize(5), "b": LayerSize(9, 3)}
    assert sorted(measured) == [("overlayfs", "b"), ("zfs", "c"), ("zfs", "c")]


@pytest.mark.parametrize("hangs", [False, True])
async def test_layer_that_cannot_be_measured_has_an_unknown_size(hangs: bool) -> None:
    async def measure(snapshotter: str, key: str) -> Space | None:
        del snapshotter
        if key == "a":
            return Space(9, 3)
        if hangs:
            await asyncio.Event().wait()
        raise RuntimeRequestError("Snapshots.Usage", key, "INTERNAL", "simulated")

    layers = DeadLayers(Runtime({}), measure, within_s=0.01)
    assert await layers.read([container("a"), container("b")], [], SNAPSHOTTERS) == {"a": LayerSize(9, 3)}


async def test_unavailable_runtime_ends_the_measurement() -> None:
    async def measure(snapshotter: str, key: str) -> Space | None:
        raise RuntimeUnavailableError(f"{snapshotter} {key}")

    with pytest.raises(RuntimeUnavailableError):
        await DeadLayers(Runtime({}), measure).read([container("a")], [], SNAPSHOTTERS)
