"""Cache of the node's pods for the eviction loop, refreshed while no threshold is met."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.plan.eviction.local_storage import has_limit
from nodeagent.plan.eviction.poll_interval import SOONEST_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodeagent.clock import Clock
    from nodeagent.daemon.eviction.oom_kills import OomKillMonitor
    from nodeagent.daemon.eviction.reporting import EvictionReporter
    from nodeagent.model.pods import PodInventory

_WARM_NEAR_S: Final = 2.0
_WARM_FAR_S: Final = 30.0
_LIMITS_EVERY_S: Final = 60.0
LISTED_WITHIN_S: Final = 0.5


class PodMonitor:
    """Reads the pods of the node and logs their OOM kills."""

    def __init__(  # noqa: PLR0913 - each argument is a dependency
        self,
        read_pods: Callable[[bool], Awaitable[PodInventory]],
        oom_kills: OomKillMonitor,
        reporter: EvictionReporter,
        clock: Clock,
        *,
        read_usage: Callable[[], Awaitable[PodInventory | None]],
        listed_within_s: float = LISTED_WITHIN_S,
    ) -> None:
        """Create a monitor with an empty cache.

        Args:
            read_pods: returns the pods of the node; with ``True`` their disk usage is measured.
            oom_kills: logs OOM kills.
            reporter: logs warnings.
            clock: clock that measures the age of the last read.
            read_usage: returns the pods of the last list with their current memory and PIDs, without a runtime call;
                ``None`` without a recent list.
            listed_within_s: time limit of a list under memory pressure, in seconds.
        """
        self._read_pods = read_pods
        self._oom_kills = oom_kills
        self._reporter = reporter
        self._clock = clock
        self._read_usage = read_usage
        self._listed_within_s = listed_within_s
        self._pods: PodInventory | None = None
        self._read_s = 0.0
        self._limits_s: float | None = None

    async def read(self, *, with_disk: bool) -> PodInventory:
        """Read the pods of the node, log new OOM kills, and return the pods.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            RuntimeRequestError: the runtime refused to list sandboxes or containers.
        """
        pods = await self._read_pods(with_disk)
        self._reporter.logger.debug("pods_gathered", pods=len(pods.facts))
        self._reporter.log_warnings(pods.warnings)
        self._pods, self._read_s = pods, self._clock.monotonic_s()
        await self._oom_kills.check(pods)
        return pods

    async def read_urgently(self) -> PodInventory:
        """Return the pods without disk usage; if the runtime is slow, the pods of the last list, with a warning.

        Under memory pressure the runtime may answer only after the kernel's OOM killer has killed a process of any pod.

        Raises:
            RuntimeUnavailableError: the runtime does not answer, and no recent list exists.
            RuntimeRequestError: the runtime refused to list sandboxes or containers.
        """
        work = asyncio.ensure_future(self.read(with_disk=False))
        try:
            done, _ = await asyncio.wait({work}, timeout=self._listed_within_s)
            if not done and (known := await self._read_usage()) is not None:
                self._reporter.logger.warning(
                    "pods_not_listed",
                    waited_s=self._listed_within_s,
                    age_s=round(self._clock.monotonic_s() - known.observed_at.monotonic_s, 1),
                    pods=len(known.facts),
                )
                return known
            return await work
        finally:
            work.cancel()

    async def refresh_if_due(self, *, near_threshold: bool) -> None:
        """Check for OOM kills, and read the pods again if the last read is older than 30 s, or 2 s near a threshold.

        With a current cache an eviction reads little, and the code pages of the agent and the runtime remain in memory.
        """
        if self._pods is not None:
            await self._oom_kills.check(self._pods)
            age_s = self._clock.monotonic_s() - self._read_s
            if age_s < (_WARM_NEAR_S if near_threshold else _WARM_FAR_S) - SOONEST_S:
                return
        await self.read(with_disk=False)

    def expire(self) -> None:
        """Expire the cache, so that the next :meth:`refresh_if_due` reads the pods again."""
        self._read_s = -_WARM_FAR_S

    def is_limit_check_due(self) -> bool:
        """Return whether to check pods against their storage limits: once a minute, since it walks directories."""
        if self._pods is None or not any(map(has_limit, self._pods.facts)):
            return False
        now_s = self._clock.monotonic_s()
        if self._limits_s is not None and now_s - self._limits_s < _LIMITS_EVERY_S:
            return False
        self._limits_s = now_s
        return True
