"""Reclaim of the page cache of pods, through their cgroups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from nodeagent.eviction.plan.cache_reclaim import PodCache
from nodeagent.guarded_call import call_kernel
from nodeagent.host.cgroups import is_writable, read_cache, reclaim_cache
from nodeagent.model.pressure import QosClass

if TYPE_CHECKING:
    from nodeagent.host.cgroups import CgroupCache
    from nodeagent.model.pods import PodHandle, PodInventory
    from nodeagent.model.pressure import PodFacts


class CacheReclaimer(Protocol):
    """Access to the page cache of pods: readings and reclaim."""

    async def read(self, pods: PodInventory) -> tuple[PodCache, ...]:
        """Return the page cache of each pod; pods with an unknown memory request or unreadable cgroups are omitted."""

    async def read_one(self, handle: PodHandle) -> CgroupCache | None:
        """Return page cache, working set and stall time of a pod; ``None`` if its cgroups are unreadable."""

    async def is_permitted(self, handle: PodHandle) -> bool:
        """Return whether the page cache of a pod can be reclaimed."""

    async def reclaim(self, handle: PodHandle, size_bytes: int, *, swap: bool) -> str:
        """Reclaim up to ``size_bytes`` of a pod's page cache; return the error text, empty on success.

        ``swap`` states whether the node has swap.
        """


class CgroupCacheReclaimer:
    """Reclaimer through ``memory.reclaim`` of the pods' cgroups; see :class:`CacheReclaimer`."""

    async def read(self, pods: PodInventory) -> tuple[PodCache, ...]:
        """Return the page cache of each pod; pods with an unknown memory request or unreadable cgroups are omitted."""
        return await call_kernel(_read_all, pods)

    async def read_one(self, handle: PodHandle) -> CgroupCache | None:
        """Return page cache, working set and stall time of a pod; ``None`` if its cgroups are unreadable."""
        return await call_kernel(read_cache, handle.cgroups)

    async def is_permitted(self, handle: PodHandle) -> bool:
        """Return whether the page cache of a pod can be reclaimed."""
        return await call_kernel(lambda: bool(handle.cgroups) and all(map(is_writable, handle.cgroups)))

    async def reclaim(self, handle: PodHandle, size_bytes: int, *, swap: bool) -> str:
        """Reclaim up to ``size_bytes`` of a pod's page cache; return the error text, empty on success.

        ``swap`` states whether the node has swap.
        """
        share = size_bytes // max(1, len(handle.cgroups))
        errors = [
            await asyncio.to_thread(reclaim_cache, each, share, swap=swap) for each in handle.cgroups if share > 0
        ]
        return next(filter(None, errors), "")


def _read_all(pods: PodInventory) -> tuple[PodCache, ...]:
    found = []
    for pod in pods.facts:
        request_bytes = _request_bytes(pod)
        cache = read_cache(pods.handles[pod.uid].cgroups)
        if cache is not None and request_bytes is not None:
            protected = max(cache.low_bytes, request_bytes)
            found.append(
                PodCache(pod.uid, cache.active_bytes, cache.inactive_bytes, cache.working_set_bytes, protected)
            )
    return tuple(found)


def _request_bytes(pod: PodFacts) -> int | None:
    """Return the memory request of a pod in bytes: 0 for a best-effort pod, ``None`` if unknown."""
    return 0 if pod.qos.value is QosClass.BEST_EFFORT else pod.memory_request_bytes.value
