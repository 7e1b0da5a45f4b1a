"""Disk usage of writable layers of exited containers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeUnavailableError
from nodeagent.model.pods import ContainerTraits, PodReading, RuntimePod
from nodeagent.model.pressure import Footprint, LayerUsage
from nodeagent.model.runtime import ContainerState, Sandbox, Space
from nodeagent.pods.usage import ExitedLayers, with_further_layers
from nodeagent.record import replace
from nodeagent.runtime.connection import MAX_CALLS
from nodeagent.runtime.cri import ContainerUsage
from tests.unit.builders import container

if TYPE_CHECKING:
    from nodeagent.model.runtime import Container

RUNNING, EXITED = ContainerState.RUNNING, ContainerState.EXITED


def pod_of(*containers: Container) -> RuntimePod:
    traits = {each.id: ContainerTraits(snapshotter="overlayfs") for each in containers if each.id != "without-traits"}
    sandbox = Sandbox("sb-web", "web", "shop", "u", ready=True)
    return RuntimePod("u", sandbox, ("sb-web",), containers, traits=traits)


class Store:
    """A fake snapshotter with the usage or error of each snapshot."""

    def __init__(self, answers: dict[str, Space | Exception | None]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def measure(self, snapshotter: str, key: str) -> Space | None:
        assert snapshotter == "overlayfs"
        self.asked.append(key)
        answer = self.answers[key]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_layer_of_an_exited_container_is_measured_once() -> None:
    store = Store({"ended": Space(9, 3)})
    layers = ExitedLayers(store.measure)
    pod = pod_of(
        container("ended", state=EXITED),
        container("running", state=RUNNING),
        container("reported", state=EXITED),
        container("without-traits", state=EXITED),
        container("of-an-older-sandbox", state=EXITED, sandbox_id="sb-older"),
    )
    stats = {"reported": ContainerUsage("reported", 7)}
    expected = {"u": (LayerUsage(Footprint(9, 3), None, "overlayfs"),)}
    assert await layers.read([pod], stats) == expected
    assert await layers.read([pod], stats) == expected
    assert store.asked == ["ended"]


@pytest.mark.parametrize("answer", [None, RuntimeUnavailableError("down")], ids=["unmeasurable", "unavailable"])
async def test_layer_that_the_runtime_cannot_measure_is_omitted(answer: Exception | None) -> None:
    store = Store({"ended": answer})
    assert await ExitedLayers(store.measure).read([pod_of(container("ended", state=EXITED))], {}) == {"u": ()}


async def test_layer_that_takes_too_long_is_a_lower_bound_and_delays_no_further_reading() -> None:
    asked = []

    async def measure(_: str, key: str) -> Space | None:
        asked.append(key)
        await asyncio.Event().wait()
        raise AssertionError

    layers, pod = ExitedLayers(measure, within_s=0.01), pod_of(container("ended", state=EXITED))
    for _ in range(2):
        found = await layers.read([pod], {})
        assert found == {"u": (LayerUsage(Footprint(0, 0, is_lower_bound=True), None, "overlayfs"),)}
    assert asked == ["ended"]


async def test_slow_layers_of_one_pod_make_no_layer_of_another_pod_a_lower_bound() -> None:
    async def measure(_: str, key: str) -> Space | None:
        if key.startswith("slow"):
            await asyncio.Event().wait()
        return Space(9, 3)

    slow = pod_of(*(container(f"slow-{number}", state=EXITED) for number in range(3 * MAX_CALLS)))
    quick = replace(pod_of(container("quick", state=EXITED)), uid="other")
    layers, seen = ExitedLayers(measure, within_s=0.01), []
    for _ in range(4):
        found = await layers.read([slow, quick], {})
        seen.append([each.used for each in found["other"]])
        assert all(each.used.is_lower_bound for each in found["u"])
    assert seen[-1] == [Footprint(9, 3)]
    assert not any(each.is_lower_bound for reading in seen for each in reading)


@pytest.mark.difference("exited-layers")
@pytest.mark.parametrize("is_lower_bound", [False, True])
def test_exited_layers_count_for_the_ranking_and_not_for_the_storage_limit(is_lower_bound: bool) -> None:
    layer = LayerUsage(Footprint(9, 3, is_lower_bound=is_lower_bound))
    found = with_further_layers(PodReading(writable=Footprint(5, 1), ephemeral_bytes=5), [layer])
    assert found.writable == Footprint(14, 4, is_lower_bound=is_lower_bound)
    assert (found.ephemeral_bytes, found.layers) == (5, (layer,))
    assert with_further_layers(PodReading(), [layer]) == PodReading()
