"""Evictions by the role of the agent: through the API server beside a kubelet, otherwise through the runtime.

The role can change while the eviction loop runs. Beside a kubelet, the agent never stops or removes the containers of
an evicted pod: the kubelet would restart stopped containers, and removes the containers of a deleted pod itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.act.eviction.container_removal import CleanupResult, present_layers
from nodeagent.act.freed_space import make_visible
from nodeagent.model import ContainerState

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Collection

    from nodeagent.act.eviction.api_evictor import ApiEvictor
    from nodeagent.act.eviction.container_removal import ContainerCleaner
    from nodeagent.act.eviction.evictor import EvictionResult, Evictor
    from nodeagent.model import Container
    from nodeagent.model.pods import PodHandle
    from nodeagent.observe.watched_pods import WatchedPods
    from nodeagent.plan.eviction.effects import Victim
    from nodeagent.plan.eviction.eviction import Eviction
    from nodeagent.plan.kubernetes.eviction import HeldBack

KUBELET_FREED_WITHIN_S: Final = 90.0
"""Maximum time until a kubelet has freed the space of an evicted pod: its container GC runs once a minute."""
_ACTIVE: Final = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})


class RoleEvictor:
    """Evictor for the current role: through the API server beside a kubelet, otherwise through the runtime."""

    def __init__(self, local: Evictor, api: ApiEvictor, is_beside_kubelet: Callable[[], bool]) -> None:
        self._local = local
        self._api = api
        self._is_beside_kubelet = is_beside_kubelet

    @property
    def freed_within_s(self) -> float | None:
        """Maximum seconds until an evicted pod's space is freed; ``None`` if the agent removes its containers."""
        return KUBELET_FREED_WITHIN_S if self._is_beside_kubelet() else None

    def held_back(self, eviction: Eviction) -> HeldBack | None:
        """Return the reason to postpone an eviction; ``None`` if the pod can be evicted now."""
        return self._api.held_back(eviction) if self._is_beside_kubelet() else None

    def permit_deletion(self, uids: Collection[str]) -> frozenset[str]:
        """Permit the deletion of pods whose eviction was refused by a budget; return the UIDs of permitted pods."""
        return self._api.permit_deletion(uids) if self._is_beside_kubelet() else frozenset()

    async def evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        """Evict a pod; see :class:`Evictor`."""
        evictor: Evictor = self._api if self._is_beside_kubelet() else self._local
        return await evictor.evict(eviction, handle, hurry)


class RoleCleaner:
    """Cleaner of the containers of evicted pods; beside a kubelet, it only observes their removal."""

    def __init__(
        self,
        local: ContainerCleaner,
        list_containers: Callable[[], Awaitable[tuple[Container, ...]]],
        is_beside_kubelet: Callable[[], bool],
        watched: WatchedPods,
    ) -> None:
        """Compose a cleaner.

        Args:
            local: removes containers.
            list_containers: returns all containers of the runtime.
            is_beside_kubelet: returns whether a kubelet manages this node.
            watched: pods of this node as watched at the API server.
        """
        self._local = local
        self._list_containers = list_containers
        self._is_beside_kubelet = is_beside_kubelet
        self._watched = watched

    async def clean_up(self, victim: Victim) -> CleanupResult:
        """Remove or observe the containers of an evicted pod; see :class:`ContainerCleaner`."""
        if not self._is_beside_kubelet():
            return await self._local.clean_up(victim)
        remaining = [each for each in await self._list_containers() if each.sandbox_id in victim.sandbox_ids]
        if remaining:
            active = not victim.verified and any(each.state in _ACTIVE for each in remaining)
            running = active and self._is_not_requested(victim.uid)
            return CleanupResult(confirmed=False, running=running)  # no failure: the kubelet removes them later
        if await present_layers(victim.layers):
            return CleanupResult(confirmed=False)
        await make_visible(victim.layers)
        return CleanupResult(confirmed=bool(victim.layers))

    def _is_not_requested(self, uid: str) -> bool:
        """Return whether the API server lists a pod without a deletion timestamp: its eviction had no effect."""
        spec = self._watched.state.pods.get(uid)
        return self._watched.is_current and spec is not None and not spec.deleting
