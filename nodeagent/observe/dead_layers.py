"""Size of the writable layers of dead containers, as reported by CRI, otherwise as measured by the snapshotter."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nodeagent.errors import NodeAgentError, RuntimeRequestError, RuntimeUnavailableError
from nodeagent.model import ContainerState
from nodeagent.runtime.bounded_calls import run_bounded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from nodeagent.model import Container
    from nodeagent.runtime.containerd_records import SnapshotUsage
    from nodeagent.runtime.cri_messages import ContainerUsage

_NO_SNAPSHOTTERS: Final[Mapping[str, str]] = MappingProxyType({})
_WITHIN_S: Final = 2.0
"""Time limit in seconds for all measurements of one observation; other layers are measured by the next."""


class StatsReader(Protocol):
    """Source of container statistics."""

    async def list_container_stats(self, only: Collection[str] | None = None, /) -> tuple[ContainerUsage, ...]:
        """Return the usage of the containers in ``only``; ``None`` for all. Raises RuntimeRequestError on failure."""


class LayerSize(NamedTuple):
    """Size of a writable layer; ``inodes`` is ``None`` if not reported."""

    size_bytes: int
    inodes: int | None = None


class DeadLayers:
    """Sizes of the writable layers of dead containers, read once per container and state.

    Only a running container changes its layer, and the statistics of all containers are expensive for the runtime. A
    size that is not reported is read twice: containerd reports no size in the first seconds, and later omits containers
    that are not running. The snapshotter measures the layer of an exited container then.
    """

    def __init__(
        self,
        runtime: StatsReader,
        measure: Callable[[str, str], Awaitable[SnapshotUsage | None]] | None = None,
        *,
        within_s: float = _WITHIN_S,
    ) -> None:
        """Create a reader; ``measure`` returns the usage of a layer by snapshotter and container id."""
        self._runtime = runtime
        self._measure = measure
        self._within_s = within_s
        self._settled: dict[str, tuple[ContainerState, LayerSize | None]] = {}
        self._read_once: frozenset[str] = frozenset()
        self._all: tuple[Iterable[Container], dict[str, LayerSize]] = (), {}

    async def read(
        self, containers: Iterable[Container], warnings: list[str], snapshotters: Mapping[str, str] = _NO_SNAPSHOTTERS
    ) -> dict[str, LayerSize]:
        """Return the layer sizes by container id, where known; add a warning if the statistics are unreadable.

        ``snapshotters`` are the snapshotters of the layers by container id, where known.

        Source: CRI ``ContainerStats.writable_layer``, containerd ``snapshots.v1.Usage``.
        """
        before, all_sizes = self._all
        if containers is before:  # unchanged since the previous listing, with all sizes read
            return dict(all_sizes)
        running = ContainerState.RUNNING
        dead = {each.id: each.state for each in containers if each.state is not running}
        settled = {key: entry for key, entry in self._settled.items() if dead.get(key) is entry[0]}
        sizes = {container_id: size for container_id, (_, size) in settled.items() if size is not None}
        missing = dead.keys() - settled.keys()
        if missing:
            try:
                stats = await self._runtime.list_container_stats(missing)
            except RuntimeRequestError as error:
                warnings.append(f"size of writable layers unknown: {error}")
                return sizes
            found = {
                each.container_id: LayerSize(each.writable_bytes, each.writable_inodes)
                for each in stats
                if each.writable_bytes is not None
            }
            exited = [each for each in sorted(missing - found.keys()) if dead[each] is ContainerState.EXITED]
            found |= await self._measured({each: snapshotters[each] for each in exited if snapshotters.get(each)})
            sizes |= found
            for each in missing:
                if dead[each] is not ContainerState.UNKNOWN and (each in found or each in self._read_once):
                    settled[each] = dead[each], found.get(each)
        self._settled, self._read_once = settled, frozenset(missing)
        self._all = (
            (containers, dict(sizes)) if isinstance(containers, tuple) and len(settled) == len(dead) else ((), {})
        )
        return sizes

    async def _measured(self, snapshotters: Mapping[str, str]) -> dict[str, LayerSize]:
        """Return the sizes measured by the snapshotters, by container id; layers without a result are omitted."""
        measure, found = self._measure, dict[str, LayerSize]()
        if measure is None or not snapshotters:
            return found

        async def read(container_id: str) -> None:
            try:
                used = await measure(snapshotters[container_id], container_id)
            except RuntimeUnavailableError:
                raise
            except NodeAgentError:
                return
            if used is not None:
                found[container_id] = LayerSize(used.size_bytes, used.inodes)

        try:
            async with asyncio.timeout(self._within_s):
                await run_bounded(read, list(snapshotters))
        except TimeoutError:
            pass
        return found
