"""Writable layers of exited containers and of layers that no other reading measures.

Neither containerd's statistics nor the mounts include these layers. A pod could otherwise hide usage in an exited
container, because container garbage collection keeps the newest instance of each container, also under pressure.

Writable layers without a size in the runtime's statistics and without a visible mount, measured by the runtime.

containerd 2.1 reports no layer usage for a snapshotter that is configured only for a runtime handler.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError
from nodeagent.model import ContainerState
from nodeagent.model.pressure import Footprint, LayerUsage
from nodeagent.record import replace
from nodeagent.runtime.connection import run_bounded
from nodeagent.runtime.cri_messages import ContainerUsage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nodeagent.model import Container
    from nodeagent.model.pods import PodReading, RuntimePod
    from nodeagent.runtime.containerd_records import SnapshotUsage

    MeasureLayer = Callable[[str, str], Awaitable[SnapshotUsage | None]]

WITHIN_S: Final = 10.0


async def measure_missing(
    pods: Sequence[RuntimePod], stats: Mapping[str, ContainerUsage], measure: MeasureLayer
) -> dict[str, ContainerUsage]:
    """Return statistics with a measured layer size for running containers without a layer size in ``stats``.

    Each measurement has a time limit of ten seconds; a container without a result is omitted.
    """
    missing = {
        each.id: store
        for pod in pods
        for each, store in with_snapshotters(pod, pod.running)
        if not is_measured(each.id, stats)
    }

    async def read(container_id: str) -> SnapshotUsage | None:
        try:
            async with asyncio.timeout(WITHIN_S):
                return await measure(missing[container_id], container_id)
        except (NodeAgentError, TimeoutError):
            return None

    found = await run_bounded(read, list(missing))
    return {
        key: replace(stats.get(key, ContainerUsage(key)), writable_bytes=used.size_bytes, writable_inodes=used.inodes)
        for key, used in zip(missing, found, strict=True)
        if used is not None
    }


def with_snapshotters(pod: RuntimePod, containers: Iterable[Container]) -> list[tuple[Container, str]]:
    """Return the containers of a pod with a known snapshotter, each with its snapshotter."""
    return [
        (each, traits.snapshotter)
        for each in containers
        if (traits := pod.traits.get(each.id)) is not None and traits.snapshotter
    ]


def is_measured(container_id: str, stats: Mapping[str, ContainerUsage]) -> bool:
    """Return whether the statistics include the size of a container's writable layer."""
    return container_id in stats and stats[container_id].writable_bytes is not None


_SLOW_FOR_S: Final = 120.0
"""Seconds after a timeout during which the layer is not measured again, so that slow layers delay few readings."""

AT_LEAST_ZERO: Final = Footprint(0, 0, is_lower_bound=True)


class ExitedLayers:
    """Reader of the writable layers of exited containers; a layer is measured once, since exited layers do not change.

    Attributes:
        measure: returns the usage of a layer by snapshotter and container id.
    """

    def __init__(self, measure: MeasureLayer, *, within_s: float = WITHIN_S) -> None:
        """Create a reader.

        Args:
            measure: returns the usage of a layer by snapshotter and container id.
            within_s: timeout of each measurement in seconds, and time in a reading after which no measurement starts.
        """
        self.measure = measure
        self._within_s = within_s
        self._known: dict[str, Footprint] = {}
        self._slow_until_s: dict[str, float] = {}

    async def read(
        self, pods: Sequence[RuntimePod], stats: Mapping[str, ContainerUsage]
    ) -> dict[str, tuple[LayerUsage, ...]]:
        """Return the layers of exited containers by pod UID, except the layers with a size in ``stats``.

        A layer counts as a lower bound of 0 after a timeout. A layer is omitted if the runtime cannot measure the
        layer, or if the measurements of other layers delayed the start of its measurement too long.
        """
        stores = {each.id: store for pod in pods for each, store in _exited(pod) if not is_measured(each.id, stats)}
        self._known = {key: each for key, each in self._known.items() if key in stores}
        now_s = asyncio.get_running_loop().time()
        self._slow_until_s = {key: at for key, at in self._slow_until_s.items() if key in stores and at > now_s}
        missing = [each for each in stores if each not in self._known and each not in self._slow_until_s]

        async def read(container_id: str) -> Footprint | None:
            began_s = asyncio.get_running_loop().time()
            if began_s > now_s + self._within_s:
                return None
            try:
                async with asyncio.timeout(self._within_s):
                    used = await self.measure(stores[container_id], container_id)
            except TimeoutError:
                self._slow_until_s[container_id] = began_s + _SLOW_FOR_S
                return AT_LEAST_ZERO
            except NodeAgentError:
                return None
            if used is None:
                return None
            self._known[container_id] = Footprint(used.size_bytes, used.inodes)
            return self._known[container_id]

        measured: dict[str, Footprint | None] = {
            **dict.fromkeys(self._slow_until_s, AT_LEAST_ZERO),
            **self._known,
            **dict(zip(missing, await run_bounded(read, missing), strict=True)),
        }
        return {
            pod.uid: tuple(
                LayerUsage(used, None, store)
                for each, store in _exited(pod)
                if (used := measured.get(each.id)) is not None
            )
            for pod in pods
        }


def with_further_layers(reading: PodReading, layers: Iterable[LayerUsage]) -> PodReading:
    """Return a reading with further layers in its usage, but not in the usage compared with the pod's storage limit.

    Further layers are the layers of exited containers and the volumes declared by images. The kubelet compares only the
    layers of running containers with the limit, so that restarts of a container do not accumulate usage.
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
    exited = (each for each in pod.containers if each.state is ContainerState.EXITED)
    return with_snapshotters(pod, (each for each in exited if each.sandbox_id in pod.sandbox_ids))
