"""Size of the writable layers of dead containers, as reported by CRI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nodeagent.errors import RuntimeRequestError
from nodeagent.model import ContainerState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nodeagent.model import Container
    from nodeagent.runtime.cri_messages import ContainerUsage


class StatsReader(Protocol):
    """Source of container statistics."""

    async def list_container_stats(self, only: Collection[str] | None = None, /) -> tuple[ContainerUsage, ...]:
        """Return the usage of the containers in ``only``; ``None`` for all. Raises RuntimeRequestError on failure."""


class DeadLayers:
    """Sizes of the writable layers of dead containers, read once per container and state.

    Only a running container changes its layer, and the statistics of all containers are expensive for the runtime. A
    size that is not reported is read twice: containerd reports no size in the first seconds, and later omits containers
    that are not running.
    """

    def __init__(self, runtime: StatsReader) -> None:
        self._runtime = runtime
        self._settled: dict[str, tuple[ContainerState, int | None]] = {}
        self._read_once: frozenset[str] = frozenset()
        self._all: tuple[Iterable[Container], dict[str, int]] = (), {}

    async def read(self, containers: Iterable[Container], warnings: list[str]) -> dict[str, int]:
        """Return the layer sizes in bytes by container id, where known; add a warning if the statistics are unreadable.

        Source: CRI ``ContainerStats.writable_layer``.
        """
        before, all_sizes = self._all
        if containers is before:  # unchanged since the previous listing, with all sizes read
            return dict(all_sizes)
        running = ContainerState.RUNNING
        dead = {each.id: each.state for each in containers if each.state is not running}
        settled = {key: entry for key, entry in self._settled.items() if dead.get(key) is entry[0]}
        sizes = {
            container_id: size_bytes for container_id, (_, size_bytes) in settled.items() if size_bytes is not None
        }
        missing = dead.keys() - settled.keys()
        if missing:
            try:
                stats = await self._runtime.list_container_stats(missing)
            except RuntimeRequestError as error:
                warnings.append(f"size of writable layers unknown: {error}")
                return sizes
            found = {each.container_id: each.writable_bytes for each in stats if each.writable_bytes is not None}
            sizes |= found
            for each in missing:
                if dead[each] is not ContainerState.UNKNOWN and (each in found or each in self._read_once):
                    settled[each] = dead[each], found.get(each)
        self._settled, self._read_once = settled, frozenset(missing)
        self._all = (
            (containers, dict(sizes)) if isinstance(containers, tuple) and len(settled) == len(dead) else ((), {})
        )
        return sizes
