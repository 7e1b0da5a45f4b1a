"""Details of containers and sandboxes that the lists of CRI lack, read for the items on which a decision depends."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

from nodeagent.errors import ObservationError, RuntimeNotFoundError, RuntimeRequestError
from nodeagent.model import ContainerState
from nodeagent.plan.gc.scope import Scope
from nodeagent.record import replace
from nodeagent.runtime.features import mounts_images

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nodeagent.model import Container, RuntimeInfo, Sandbox
    from nodeagent.runtime.containerd_records import StoredContainer
    from nodeagent.runtime.cri import CriClient

_EXITED: Final = ContainerState.EXITED  # a module constant, since a lookup in the enum class takes ten times as long
_ID: Final = attrgetter("id")
T = TypeVar("T")

_CONCURRENCY: Final = 16


class ItemDetails:
    """Reader and cache of immutable details by id: status of exited containers, and images of sandboxes."""

    def __init__(self, cri: CriClient) -> None:
        self._cri = cri
        self._containers: dict[str, Container] = {}
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


def _merged(container: Container, detail: Container) -> Container:
    """Return a listed container with the fields of its status; the finish time only if the list has it as exited."""
    ended = container.state is _EXITED and detail.state is _EXITED
    return replace(
        container,
        finished_at=detail.finished_at if ended else None,
        exit_code=detail.exit_code if ended else None,
        log_path=detail.log_path,
        volume_images=detail.volume_images,
    )
