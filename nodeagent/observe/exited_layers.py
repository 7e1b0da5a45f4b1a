"""Writable layers of exited containers of active pods, measured by the runtime.

Neither the statistics of containerd nor a mount show them. A pod could hide its usage in a container that ends, and
container garbage collection keeps the newest instance of each container, also under pressure.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError
from nodeagent.model import ContainerState
from nodeagent.model.pressure import Footprint, LayerUsage
from nodeagent.record import replace
from nodeagent.runtime.bounded_calls import run_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodeagent.model import Container
    from nodeagent.model.pods import PodReading, RuntimePod
    from nodeagent.observe.unmeasured_layers import MeasureLayer
    from nodeagent.runtime.cri_messages import ContainerUsage

WITHIN_S: Final = 5.0
_AT_LEAST_ZERO: Final = Footprint(0, 0, is_lower_bound=True)


class ExitedLayers:
    """Measures the layers of exited containers, each once, since they do not change.

    Attributes:
        measure: returns the usage of a layer by snapshotter and container id.
    """

    def __init__(self, measure: MeasureLayer, *, within_s: float = WITHIN_S) -> None:
        """Measure layers by snapshotter and container id, all layers of a reading within some seconds."""
        self.measure = measure
        self._within_s = within_s
        self._known: dict[str, Footprint] = {}

    async def read(
        self, pods: Sequence[RuntimePod], stats: Mapping[str, ContainerUsage]
    ) -> dict[str, tuple[LayerUsage, ...]]:
        """Return the layers of exited containers by pod UID, without those in the statistics.

        A layer that is not measured in time is a lower bound of 0. One that the runtime cannot measure is omitted.
        """
        stores = {each.id: store for pod in pods for each, store in _exited(pod) if not _is_measured(each.id, stats)}
        self._known = {key: each for key, each in self._known.items() if key in stores}
        missing = [each for each in stores if each not in self._known]
        ends_s = asyncio.get_running_loop().time() + self._within_s

        async def read(container_id: str) -> Footprint | None:
            try:
                async with asyncio.timeout_at(ends_s):
                    used = await self.measure(stores[container_id], container_id)
            except TimeoutError:
                return _AT_LEAST_ZERO
            except NodeAgentError:
                return None
            if used is None:
                return None
            self._known[container_id] = Footprint(used.size_bytes, used.inodes)
            return self._known[container_id]

        measured = dict(zip(missing, await run_bounded(read, missing), strict=True)) | self._known
        return {
            pod.uid: tuple(
                LayerUsage(used, None, store)
                for each, store in _exited(pod)
                if (used := measured.get(each.id)) is not None
            )
            for pod in pods
        }


def with_exited_layers(reading: PodReading, layers: Iterable[LayerUsage]) -> PodReading:
    """Return a reading with further layers in its usage, but not in the usage compared with the pod's storage limit.

    The kubelet compares running containers only: a restart of a container must not add up to an excess.
    """
    writable, found = reading.writable, tuple(layers)
    if writable is None or not found:
        return reading
    parts = (writable, *(each.used for each in found))
    total = Footprint(
        sum(each.used_bytes or 0 for each in parts),
        sum(each.used_inodes or 0 for each in parts),
        any(each.is_lower_bound for each in parts),
    )
    return replace(reading, writable=total, layers=(*reading.layers, *found))


def _exited(pod: RuntimePod) -> list[tuple[Container, str]]:
    """Return the exited containers in ready sandboxes with their snapshotters, where known."""
    return [
        (each, traits.snapshotter)
        for each in pod.containers
        if each.state is ContainerState.EXITED and each.sandbox_id in pod.sandbox_ids
        if (traits := pod.traits.get(each.id)) is not None and traits.snapshotter
    ]


def _is_measured(container_id: str, stats: Mapping[str, ContainerUsage]) -> bool:
    return container_id in stats and stats[container_id].writable_bytes is not None
