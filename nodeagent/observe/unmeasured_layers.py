"""Writable layers without a size in the runtime's statistics and without a visible mount, measured by the runtime.

containerd 2.1 reports no layer usage for a snapshotter that is configured only for a runtime handler.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError
from nodeagent.record import replace
from nodeagent.runtime.bounded_calls import run_bounded
from nodeagent.runtime.cri_messages import ContainerUsage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nodeagent.model import Container
    from nodeagent.model.pods import RuntimePod
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
