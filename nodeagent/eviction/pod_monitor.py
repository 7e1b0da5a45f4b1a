"""Cache of the node's pods for the eviction loop, refreshed while no threshold is met; OOM kills of pods."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final

from nodeagent.eviction.plan.effects import pod_fields
from nodeagent.eviction.plan.preview import SOONEST_S
from nodeagent.eviction.plan.ranking import has_limit
from nodeagent.guarded_call import call_kernel
from nodeagent.host.cgroups import read_oom_kills
from nodeagent.model.pods import ContainerHandle, PodInventory

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.eviction.reporting import EvictionReporter
    from nodeagent.model.pressure import PodFacts
    from nodeagent.units import Clock

_WARM_NEAR_S: Final = 2.0
_WARM_FAR_S: Final = 30.0
_LIMITS_EVERY_S: Final = 60.0
_RECENT_S: Final = 2.5
_EVICTING_S: Final = 2.5
LISTED_WITHIN_S: Final = 0.5


@dataclass(eq=False)
class PodMonitor:
    """Reads the pods of the node and logs their OOM kills.

    Attributes:
        read_pods: returns the pods of the node; with ``True`` their disk usage is measured.
        oom_kills: logs OOM kills.
        reporter: logs warnings.
        clock: clock that measures the age of the last read.
        read_usage: returns the pods of the last list with their current memory and PIDs, without a runtime call;
            ``None`` without a recent list.
        listed_within_s: time limit of a list under memory pressure, in seconds.
    """

    read_pods: Callable[[bool], Awaitable[PodInventory]]
    oom_kills: OomKillMonitor
    reporter: EvictionReporter
    clock: Clock
    _: KW_ONLY
    read_usage: Callable[[], Awaitable[PodInventory | None]]
    listed_within_s: float = LISTED_WITHIN_S
    _pods: PodInventory | None = field(default=None, init=False)
    _read_s: float | None = field(default=None, init=False)
    _evicting_s: float = field(default=0.0, init=False)
    _expired: int = field(default=0, init=False)
    _limits_s: float | None = field(default=None, init=False)
    _listing: asyncio.Future[PodInventory] | None = field(default=None, init=False)
    _listing_s: float = field(default=0.0, init=False)

    async def read(self, *, with_disk: bool) -> PodInventory:
        """Read the pods of the node, log new OOM kills, and return the pods.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            RuntimeRequestError: the runtime refused to list sandboxes or containers.
        """
        self.close()
        return await self._read(with_disk=with_disk)

    def close(self) -> None:
        """Cancel a list in progress."""
        if self._listing is not None:
            self._listing.cancel()
            self._listing = None

    def _list(self) -> asyncio.Future[PodInventory]:
        """Start a list without disk usage unless one is in progress; return it."""
        if self._listing is None or self._listing.done():
            self._listing = asyncio.ensure_future(self._read(with_disk=False))
            self._listing_s = self.clock.monotonic_s()
            self._listing.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        return self._listing

    async def _read(self, *, with_disk: bool) -> PodInventory:
        expired = self._expired
        pods = await self.read_pods(with_disk)
        self.reporter.end("pods_not_listed")
        self.reporter.logger.debug("pods_gathered", pods=len(pods.facts))
        self.reporter.log_warnings(pods.warnings)
        self._pods, self._read_s = pods, pods.observed_at.monotonic_s if expired == self._expired else None
        self._evicting_s = 0.0
        await self.oom_kills.check(pods)
        return pods

    async def read_urgently(self) -> PodInventory:
        """Return the pods without disk usage: of a list at most ``_RECENT_S`` old, otherwise of a new list.

        The durations passed to :meth:`evicted` do not count, up to ``_EVICTING_S``.
        If the runtime does not list its pods in time, the pods are those of the last list, with a warning: under memory
        pressure the runtime may answer only after the kernel's OOM killer has killed a process of any pod. The time
        counts from the start of a list in progress, so that a runtime that hangs is not waited for again. Memory and
        PIDs are always read now.

        Raises:
            RuntimeUnavailableError: the runtime does not answer, and no recent list exists.
            RuntimeRequestError: the runtime refused to list sandboxes or containers.
        """
        age_s = self._age_s() - min(self._evicting_s, _EVICTING_S)
        if age_s <= _RECENT_S and (recent := await self.read_usage()) is not None:
            return recent
        work = self._list()
        waited_s = self.clock.monotonic_s() - self._listing_s
        done, _ = await asyncio.wait({work}, timeout=max(0.0, self.listed_within_s - waited_s))
        if not done and (known := await self.read_usage()) is not None:
            now_s = self.clock.monotonic_s()
            waited_s, age_s = now_s - self._listing_s, now_s - known.observed_at.monotonic_s
            fields = {"waited_s": round(waited_s, 1), "age_s": round(age_s, 1), "pods": len(known.facts)}
            self.reporter.log_once("pods_not_listed", fields)
            return known
        try:
            return await work
        finally:
            self.close()

    async def await_list(self) -> bool:
        """Wait for the end of a list in progress; return whether one was in progress.

        A plan without a victim from the last list says nothing of the pods that were started since.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            RuntimeRequestError: the runtime refused to list sandboxes or containers.
        """
        work = self._listing
        if work is None or work.done():
            return False
        await asyncio.wait({work})
        work.result()
        return True

    async def refresh_if_due(self, *, near_threshold: bool) -> None:
        """Check for OOM kills, and read the pods again if the last read is older than 30 s, or 2 s near a threshold.

        With a current cache an eviction reads little, and the code pages of the agent and the runtime remain in memory.
        A cancellation does not end the list, which :meth:`read_urgently` then waits for.
        """
        if self._pods is not None and (self._listing is None or self._listing.done()):
            await self.oom_kills.check(self._pods)
            if self._age_s() < (_WARM_NEAR_S if near_threshold else _WARM_FAR_S) - SOONEST_S:
                return
        work = self._list()
        await asyncio.wait({work})
        work.result()

    def evicted(self, took_s: float) -> None:
        """Exclude the duration of an eviction for memory or PIDs from the age of the cached pods.

        Directly after it a list takes longest, and the next eviction is the most urgent.
        """
        self._evicting_s += took_s

    def expire(self) -> None:
        """Expire the cache, so that the pods are listed before their next use."""
        self._read_s = None
        self._expired += 1

    def _age_s(self) -> float:
        """Return the age in seconds of the cached pods; infinite if there are none or the cache is expired."""
        return math.inf if self._read_s is None else self.clock.monotonic_s() - self._read_s

    def is_limit_check_due(self) -> bool:
        """Return whether to check pods against their storage limits: once a minute, since it walks directories.

        Pods that were not listed within this minute may have limits: no pass lists them while the eviction limit is
        reached.
        """
        now_s = self.clock.monotonic_s()
        if self._limits_s is not None and now_s - self._limits_s < _LIMITS_EVERY_S:
            return False
        if self._pods is not None and self._age_s() < _LIMITS_EVERY_S and not any(map(has_limit, self._pods.facts)):
            return False
        self._limits_s = now_s
        return True


class OomKillMonitor:
    """Compares the OOM kill counts of cgroups between checks.

    The first check records the counts only; the count of a cgroup created later started at 0.

    The cgroup of a container is removed with the container, so that the count of the pod cgroup is compared too. A kill
    counted only by the pod cgroup is logged for the container with a removed cgroup, if exactly one was removed.

    Source: kernel cgroup-v2.rst, ``oom_kill`` of ``memory.events``, which counts descendants as well.
    """

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._counts: dict[str, int] | None = None

    async def check(self, pods: PodInventory) -> None:
        """Log every OOM kill in these pods since the last check."""
        directories = _directories(pods)
        counts = await call_kernel(_read, directories)
        if self._counts is None or counts == self._counts:
            self._counts = counts
            return
        for pod in pods.facts:
            handle = pods.handles[pod.uid]
            increases = [(each, self._increase(each.cgroup, counts)) for each in handle.containers]
            by_container = [(each, count) for each, count in increases if count]
            in_pod = self._increase(handle.cgroup, counts)
            if not by_container and in_pod:
                removed = [each for each in handle.containers if each.cgroup is not None and each.cgroup not in counts]
                by_container = [(removed[0], in_pod)] if len(removed) == 1 else []
                if not by_container:
                    self._log(pod, ContainerHandle("", ""), in_pod)
            for container, count in by_container:
                self._log(pod, container, count)
        kept = {
            key: count for key, count in self._counts.items() if key in directories
        }  # counts of cgroups of listed pods that were unreadable in this check
        self._counts = kept | counts

    def _increase(self, cgroup: str | None, counts: dict[str, int]) -> int:
        if cgroup is None or cgroup not in counts or self._counts is None:
            return 0
        return max(0, counts[cgroup] - self._counts.get(cgroup, 0))

    def _log(self, pod: PodFacts, container: ContainerHandle, count: int) -> None:
        self._logger.error(
            "oom_kill", **pod_fields(pod), container=container.name, container_id=container.id, processes=count
        )


def _directories(pods: PodInventory) -> frozenset[str]:
    return frozenset(
        each
        for handle in pods.handles.values()
        for each in (handle.cgroup, *(container.cgroup for container in handle.containers))
        if each is not None
    )


def _read(directories: frozenset[str]) -> dict[str, int]:
    found = ((directory, read_oom_kills(directory)) for directory in directories)
    return {directory: count for directory, count in found if count is not None}
