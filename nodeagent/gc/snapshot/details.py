"""Details of containers and sandboxes that the lists of CRI lack, and the writable layers of dead containers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from nodeagent.errors import (
    NodeAgentError,
    ObservationError,
    RuntimeNotFoundError,
    RuntimeRequestError,
    RuntimeUnavailableError,
)
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.runtime import Container, ContainerState, Sandbox, Space
from nodeagent.record import replace
from nodeagent.runtime.connection import run_bounded
from nodeagent.runtime.cri import ContainerUsage, CriClient, mounts_images

if TYPE_CHECKING:
    from nodeagent.model.node import RuntimeInfo
    from nodeagent.runtime.containerd import StoredContainer

_EXITED: Final = ContainerState.EXITED  # a module constant, since a lookup in the enum class takes ten times as long
_ID: Final = attrgetter("id")
T = TypeVar("T")

_CONCURRENCY: Final = 16


class ItemDetails:
    """Reader and cache of immutable details by id: status of exited containers, and images of sandboxes."""

    def __init__(self, cri: CriClient) -> None:
        self._cri = cri
        self._containers: dict[str, Container] = {}
        self._exits: dict[str, Container] = {}
        self._sandboxes: dict[str, Sandbox] = {}
        self._completed: dict[str, tuple[Sandbox, Sandbox]] = {}
        self._all_containers: tuple[tuple[Container, ...], Mapping[str, Container], tuple[Container, ...]] = (), {}, ()
        self._all_sandboxes: tuple[Sequence[Sandbox], tuple[Sandbox, ...]] = (), ()
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def with_images(
        self, sandboxes: Sequence[Sandbox], stored: Sequence[StoredContainer], scope: Scope
    ) -> tuple[tuple[Sandbox, ...], frozenset[str]]:
        """Return the sandboxes with their own images, and the ids of sandboxes whose image could not be read."""
        if scope is Scope.CONTAINERS:
            return tuple(sandboxes), frozenset()
        earlier_listed, earlier_completed = self._all_sandboxes
        if sandboxes is earlier_listed:  # unchanged since the previous listing, with all images read
            return earlier_completed, frozenset()
        listed = frozenset(map(_ID, sandboxes))
        known = self._sandboxes = _only(self._sandboxes, listed)
        if listed - known.keys():
            # one list replaces a status call per sandbox; source: containerd ``containers.v1.Container.image``
            images = {each.id: each.image for each in stored}
            known.update(
                {each.id: replace(each, image=images[each.id]) for each in sandboxes if images.get(each.id, "")}
            )
        unread: set[str] = set()

        async def read(sandbox_id: str) -> None:
            async with self._slots:
                try:
                    known[sandbox_id] = await self._cri.sandbox_status(sandbox_id)
                except RuntimeNotFoundError:
                    return
                except RuntimeRequestError:
                    unread.add(sandbox_id)

        await asyncio.gather(*(read(sandbox_id) for sandbox_id in sorted(listed - known.keys())))
        before, filled = self._completed, {}
        for sandbox in sandboxes:
            details = known.get(sandbox.id)
            earlier = before.get(sandbox.id)
            if earlier is not None and earlier[0] is sandbox:  # unchanged since the previous listing
                filled[sandbox.id] = earlier
            elif details is not None:
                complete = replace(sandbox, image=details.image, log_directory=details.log_directory)
                filled[sandbox.id] = sandbox, complete
        self._completed = filled
        completed = tuple(filled.get(each.id, (each, each))[1] for each in sandboxes)
        is_complete = isinstance(sandboxes, tuple) and len(filled) == len(sandboxes)
        self._all_sandboxes = (sandboxes, completed) if is_complete else ((), ())
        return completed, frozenset(unread)

    async def with_details(
        self, containers: Sequence[Container], sandboxes: Sequence[Sandbox], info: RuntimeInfo, scope: Scope
    ) -> tuple[Container, ...]:
        """Return the containers, with finish time and mounted images where a decision depends on them.

        Finish times are read only for pods without a ready sandbox, mounted images only on runtimes with image volumes.
        """
        before = self._containers
        known = self._containers = _only(before, frozenset(map(_ID, containers))) if before else {}
        ready = {sandbox.uid for sandbox in sandboxes if sandbox.ready}
        mounting = scope is not Scope.CONTAINERS and mounts_images(info)
        ending = scope is not Scope.IMAGES

        def must_read(container: Container) -> bool:
            cached = known.get(container.id)
            if cached is not None and (cached.state is _EXITED or not ending):
                return False
            ended = container.state is _EXITED and container.pod_uid not in ready
            return (mounting and cached is None) or (ending and ended)

        async def read(container_id: str) -> None:
            async with self._slots:
                try:
                    known[container_id] = await self._cri.container_status(container_id)
                except RuntimeNotFoundError:
                    return
                except RuntimeRequestError as error:
                    if mounting:
                        raise ObservationError(f"cannot read the image volumes of containers: {error}") from error

        may_need = containers
        if not mounting:  # saves time: most exited containers of a large node are in ready pods
            may_need = [each for each in containers if each.state is _EXITED and each.pod_uid not in ready]
        await asyncio.gather(*(read(container.id) for container in may_need if must_read(container)))
        return self._with_known(tuple(containers), known)

    async def with_exits(self, containers: Sequence[Container]) -> tuple[Container, ...]:
        """Return the containers with exit code, reason and finish time of every exited one, for display only.

        Decisions must not use the result: they depend on which finish times ``with_details`` reads. An exit that cannot
        be read within two seconds remains unknown.
        """
        known = self._exits = _only({**self._containers, **self._exits}, frozenset(map(_ID, containers)))
        missing = [each.id for each in containers if each.state is _EXITED and not _has_ended(known.get(each.id))]

        async def read(container_id: str) -> None:
            with suppress(RuntimeRequestError):
                known[container_id] = await self._cri.container_status(container_id)

        with suppress(TimeoutError, RuntimeUnavailableError):
            async with asyncio.timeout(_WITHIN_S):
                await run_bounded(read, missing)
        return tuple(
            _merged(each, known[each.id]) if each.exit_code is None and _has_ended(known.get(each.id)) else each
            for each in containers
        )

    def _with_known(self, containers: tuple[Container, ...], known: Mapping[str, Container]) -> tuple[Container, ...]:
        """Return the containers with the details in ``known``; the previous tuple if both arguments are unchanged."""
        if not known:
            return containers
        earlier_listed, earlier_known, earlier_merged = self._all_containers
        if containers is earlier_listed and known == earlier_known:
            return earlier_merged
        merged = tuple([_merged(each, known[each.id]) if each.id in known else each for each in containers])
        self._all_containers = containers, known, merged
        return merged


def _only(known: Mapping[str, T], listed: Collection[str]) -> dict[str, T]:
    """Return the cached entries of listed ids as a new dictionary, since a concurrent observation may use ``known``."""
    return {each: value for each, value in known.items() if each in listed}


def _has_ended(detail: Container | None) -> bool:
    return detail is not None and detail.state is _EXITED


def _merged(container: Container, detail: Container) -> Container:
    """Return a listed container with the fields of its status; the finish time only if the list has it as exited."""
    ended = container.state is _EXITED and detail.state is _EXITED
    return replace(
        container,
        finished_at=detail.finished_at if ended else None,
        exit_code=detail.exit_code if ended else None,
        exit_reason=detail.exit_reason if ended else "",
        log_path=detail.log_path,
        volume_images=detail.volume_images,
    )


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


@dataclass(eq=False)
class DeadLayers:
    """Sizes of the writable layers of dead containers, read once per container and state.

    Only a running container changes its layer, and the statistics of all containers are expensive for the runtime. A
    size that is not reported is read twice: containerd reports no size in the first seconds, and later omits containers
    that are not running. The snapshotter measures the layer of an exited container then.

    Attributes:
        measure: returns the usage of a layer by snapshotter and container id.
    """

    runtime: StatsReader
    measure: Callable[[str, str], Awaitable[Space | None]] | None = None
    _: KW_ONLY
    within_s: float = _WITHIN_S
    _settled: dict[str, tuple[ContainerState, LayerSize | None]] = field(default_factory=dict, init=False)
    _read_once: frozenset[str] = field(default_factory=frozenset, init=False)
    _all: tuple[Iterable[Container], dict[str, LayerSize]] = field(default_factory=lambda: ((), {}), init=False)

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
                stats = await self.runtime.list_container_stats(missing)
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
        measure, found = self.measure, dict[str, LayerSize]()
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
            async with asyncio.timeout(self.within_s):
                await run_bounded(read, list(snapshotters))
        except TimeoutError:
            pass
        return found
