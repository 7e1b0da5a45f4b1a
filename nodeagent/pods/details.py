"""CRI status of sandboxes and containers, read once for each object.

The cgroup parent and the log directory of a sandbox never change. The traits of a container change only by a resize,
after which :meth:`RuntimeDetails.expire` causes another read. A pass on an idle node therefore requires only two list
calls of the runtime.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError
from nodeagent.model import ContainerState
from nodeagent.pods.plan.inference import qos_of_cgroup
from nodeagent.record import replace
from nodeagent.runtime.long_lists import is_too_large

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nodeagent.model import Container, Sandbox
    from nodeagent.model.pods import ContainerTraits
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.cri_messages import ContainerDetails, SandboxDetails

_CONCURRENCY: Final = 16
_WITHIN_S: Final = 10.0
_MAYBE_RUNNING: Final = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})


class RuntimeDetails:
    """Cache of the status of active sandboxes and their containers, by id."""

    def __init__(self, cri: CriClient) -> None:
        self._cri = cri
        self._sandboxes: dict[str, SandboxDetails] = {}
        self._traits: dict[str, ContainerTraits] = {}

    @property
    def traits(self) -> Mapping[str, ContainerTraits]:
        """Traits of the containers whose status was read, by container id."""
        return self._traits

    @property
    def cgroup_parents(self) -> dict[str, str]:
        """Cgroup of the pod by sandbox id; an empty string if unknown."""
        return {sandbox_id: _cgroup_parent(details) for sandbox_id, details in self._sandboxes.items()}

    @property
    def log_directories(self) -> dict[str, str | None]:
        """Log directory of the pod by sandbox id; ``None`` if unknown."""
        return {sandbox_id: details.sandbox.log_directory for sandbox_id, details in self._sandboxes.items()}

    def expire(self, container_ids: Iterable[str]) -> None:
        """Discard the status of these containers, so that the next :meth:`read_missing` reads their status again."""
        for container_id in container_ids:
            self._traits.pop(container_id, None)

    async def read_missing(
        self, sandboxes: Sequence[Sandbox], containers: Sequence[Container], warnings: list[str]
    ) -> None:
        """Read the unknown status of active sandboxes and their containers; drop the status of removed objects.

        Args:
            sandboxes: all sandboxes of the node.
            containers: all containers of the node.
            warnings: receives a sentence if a status could not be read; the facts of its pod remain unknown.
        """
        self._drop_removed({each.id for each in sandboxes} | {each.id for each in containers})
        active = active_sandboxes(sandboxes, containers)
        slots = asyncio.Semaphore(_CONCURRENCY)
        failed: list[str] = []

        async def attempt(read: Callable[[], Awaitable[None]]) -> None:
            async with slots:
                try:
                    await read()
                except RuntimeNotFoundError:
                    return
                except RuntimeRequestError as error:
                    failed.append(str(error))

        missing = [
            *(self._sandbox_reader(each) for each in sandboxes if each.id in active and each.id not in self._sandboxes),
            *(
                self._container_reader(each)
                for each in containers
                if each.sandbox_id in active and each.id not in self._traits
            ),
        ]
        if not missing:
            return
        try:
            async with asyncio.timeout(_WITHIN_S):
                await asyncio.gather(*map(attempt, missing))
        except TimeoutError:
            failed.append(f"no answer in {_WITHIN_S:g} s")
        if failed:
            warnings.append(
                f"cannot read {len(failed)} of {len(missing)} sandboxes and containers: {min(failed)}; "
                "their pods are kept"
            )

    def _drop_removed(self, listed: set[str]) -> None:
        for removed in self._sandboxes.keys() - listed:
            del self._sandboxes[removed]
        for removed in self._traits.keys() - listed:
            del self._traits[removed]

    def _sandbox_reader(self, sandbox: Sandbox) -> Callable[[], Awaitable[None]]:
        async def read() -> None:
            self._sandboxes[sandbox.id] = await self._cri.sandbox_details(sandbox.id)

        return read

    def _container_reader(self, container: Container) -> Callable[[], Awaitable[None]]:
        async def read() -> None:
            details = await self._container_details(container.id)
            # A created container has no process and no PID yet; a reading now would be cached for its lifetime.
            if details.container.state in (ContainerState.RUNNING, ContainerState.EXITED):
                self._traits[container.id] = details.traits

        return read

    async def _container_details(self, container_id: str) -> ContainerDetails:
        """Return the verbose status; the plain status if the verbose status exceeds the message limit.

        Otherwise a pod could prevent its eviction: an environment of several megabytes makes the status unreadable.
        """
        try:
            return await self._cri.container_details(container_id, verbose=True)
        except RuntimeRequestError as error:
            if not is_too_large(error):
                raise
        plain = await self._cri.container_details(container_id)
        return replace(plain, traits=replace(plain.traits, is_oversized=True))


def active_sandboxes(sandboxes: Iterable[Sandbox], containers: Iterable[Container]) -> frozenset[str]:
    """Return the ids of the sandboxes that are ready or have a container that may be running."""
    return frozenset(
        (
            *(each.id for each in sandboxes if each.ready),
            *(each.sandbox_id for each in containers if each.state in _MAYBE_RUNNING),
        )
    )


def _cgroup_parent(details: SandboxDetails) -> str:
    """Return the pod's cgroup: the configured parent, else the parent of the sandbox's cgroup; empty if unknown."""
    if details.cgroup_parent:
        return details.cgroup_parent
    path = details.cgroups_path
    parent = path.partition(":")[0] if path.count(":") == 2 else path.rpartition("/")[0]
    return parent if qos_of_cgroup(parent)[0] is not None else ""
