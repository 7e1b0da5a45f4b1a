"""Reclaim of active page cache within an eviction pass, before a pod is evicted for memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.eviction.plan.reclaim import (
    CacheStep,
    PodPageCache,
    StepReading,
    fault_of_step,
    missing_bytes,
    plan_cache_reclaim,
)
from nodeagent.guarded_call import call_kernel
from nodeagent.host.cgroups import CgroupCache, is_writable, read_cache, reclaim_cache
from nodeagent.model.pressure import PodFacts, QosClass, Signal, SignalReading

if TYPE_CHECKING:
    from nodeagent.eviction.actions import Monitors
    from nodeagent.eviction.plan.thresholds import Threshold, ThresholdStatus
    from nodeagent.model.pods import PodHandle, PodInventory
    from nodeagent.units import Clock

WITHIN_S: Final = 5.0
_WATCH_S: Final = 0.1
_NOT_PERMITTED: Final = (
    "page cache is not reclaimed before evictions: memory.reclaim is not writable; requires Linux 5.19 and the drop-in "
    "page-cache.conf of the unit"
)


class PageCache:
    """Reclaims active page cache of pods; used by one eviction loop."""

    def __init__(
        self, reclaimer: CacheReclaimer, monitors: Monitors, clock: Clock, *, watch_s: float = _WATCH_S
    ) -> None:
        """Create a reclaimer; ``watch_s`` is the interval of memory readings during a step, in seconds."""
        self._reclaimer = reclaimer
        self._signals = monitors.signals
        self._pods = monitors.pods
        self._reporter = monitors.reporter
        self._clock = clock
        self._watch_s = watch_s
        self._last_s: float | None = None

    async def relieve(self, status: ThresholdStatus) -> bool:
        """Reclaim page cache for a met threshold; return whether the threshold was cleared.

        Reclaim stops after a step that frees less than half of its prediction or after which the pod stalls on memory,
        when MemAvailable meets the threshold too, and after five seconds.
        """
        threshold = status.threshold
        reading = await self._memory() if threshold.signal is Signal.MEMORY_AVAILABLE else None
        if reading is None:
            return False
        since_last_s = None if self._last_s is None else self._clock.monotonic_s() - self._last_s
        if missing_bytes(threshold, reading, since_last_s=since_last_s) <= 0:
            return False
        pods = await self._pods.read_urgently()
        caches = await self._reclaimer.read(pods)
        steps = plan_cache_reclaim(threshold, reading, caches, since_last_s=since_last_s)
        if not steps:
            return False
        if not await self._reclaimer.is_permitted(pods.handles[steps[0].uid]):
            self._reporter.log_warnings([_NOT_PERMITTED])
            return False
        self._last_s = self._clock.monotonic_s()
        stopped, done = await self._run_all(threshold, steps, pods)
        after = await self._memory()
        cleared = after is not None and _is_cleared(threshold, after)
        names = {each.uid: f"{each.namespace}/{each.name}" for each in pods.facts}
        self._reporter.log_once(
            "page_cache_reclaimed",
            {
                "threshold": threshold.text,
                "pods": list(dict.fromkeys(names[each.uid] for each in done)),
                "requested_bytes": sum(each.size_bytes for each in done),
                "available_before": reading.available,
                "available_after": None if after is None else after.available,
                "cleared": cleared,
                "stopped": stopped,
                "took_s": round(self._clock.monotonic_s() - self._last_s, 2),
            },
            about=[threshold.text],
            state=stopped,
            counted=True,
        )
        return cleared

    async def _run_all(
        self, threshold: Threshold, steps: tuple[CacheStep, ...], pods: PodInventory
    ) -> tuple[str, list[CacheStep]]:
        """Run the steps until one fails; return the fault, empty if the threshold is cleared, and the started steps."""
        swap = await self._has_swap()
        ends_s = self._clock.monotonic_s() + WITHIN_S
        done: list[CacheStep] = []
        for step in steps:
            handle = pods.handles[step.uid]
            before = await self._read(handle)
            done.append(step)
            fault = await self._run(threshold, step, handle, ends_s, swap=swap)
            after = await self._read(handle)
            reading = await self._memory()
            if reading is not None and _is_cleared(threshold, reading):
                return "", done
            if fault or before is None or after is None or reading is None:
                return fault or "memory not readable", done
            if fault := fault_of_step(step, before, after):
                return fault, done
        return "threshold still met", done

    async def _run(self, threshold: Threshold, step: CacheStep, handle: PodHandle, ends_s: float, *, swap: bool) -> str:
        """Run one step; return the fault, empty on success. An unfinished step continues in its thread."""
        work = asyncio.ensure_future(self._reclaimer.reclaim(handle, step.size_bytes, swap=swap))
        while True:
            done, _ = await asyncio.wait({work}, timeout=self._watch_s)
            if done:
                error = work.result()
                if error:
                    self._reporter.log_warnings([f"page cache not reclaimed: {error}"])
                return error
            reading = await self._memory()
            if reading is None or _is_short(threshold, reading):
                return "the kernel's estimate meets the threshold"
            if self._clock.monotonic_s() > ends_s:
                return f"not finished within {WITHIN_S:g} s"

    async def _read(self, handle: PodHandle) -> StepReading | None:
        cache = await self._reclaimer.read_one(handle)
        now_s = self._clock.monotonic_s()
        return None if cache is None else StepReading(cache.working_set_bytes, cache.stall_us, now_s)

    async def _memory(self) -> SignalReading | None:
        readings = await self._signals.read(filesystems=False)
        return next((each for each in readings.observations if each.signal is Signal.MEMORY_AVAILABLE), None)

    async def _has_swap(self) -> bool:
        readings = await self._signals.read(filesystems=False)
        return any(each.signal is Signal.SWAP_FREE for each in readings.observations)


def _is_cleared(threshold: Threshold, reading: SignalReading) -> bool:
    return not threshold.met_by(reading.available, reading.capacity, with_reclaim=True)


def _is_short(threshold: Threshold, reading: SignalReading) -> bool:
    """Return whether MemAvailable, the kernel's estimate, meets a threshold too; true if the estimate is unknown."""
    kernel = reading.kernel_available
    return kernel is None or kernel < threshold.limit(reading.capacity, with_reclaim=True)


class CacheReclaimer(Protocol):
    """Access to the page cache of pods: readings and reclaim."""

    async def read(self, pods: PodInventory) -> tuple[PodPageCache, ...]:
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

    async def read(self, pods: PodInventory) -> tuple[PodPageCache, ...]:
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


def _read_all(pods: PodInventory) -> tuple[PodPageCache, ...]:
    found = []
    for pod in pods.facts:
        request_bytes = _request_bytes(pod)
        cache = read_cache(pods.handles[pod.uid].cgroups)
        if cache is not None and request_bytes is not None:
            protected = max(cache.low_bytes, request_bytes)
            found.append(
                PodPageCache(pod.uid, cache.active_bytes, cache.inactive_bytes, cache.working_set_bytes, protected)
            )
    return tuple(found)


def _request_bytes(pod: PodFacts) -> int | None:
    """Return the memory request of a pod in bytes: 0 for a best-effort pod, ``None`` if unknown."""
    return 0 if pod.qos.value is QosClass.BEST_EFFORT else pod.memory_request_bytes.value
