"""Cache of the node's pods for the eviction loop, refreshed while no threshold is met."""

from __future__ import annotations

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


class PodMonitor:
    """Reads the pods and logs OOM kills among them."""

    def __init__(
        self,
        read_pods: Callable[[bool], Awaitable[PodInventory]],
        oom_kills: OomKillMonitor,
        reporter: EvictionReporter,
        clock: Clock,
    ) -> None:
        """Create a monitor with an empty cache.

        Args:
            read_pods: returns the pods of the node; with ``True`` their disk usage is measured.
            oom_kills: logs OOM kills.
            reporter: logs warnings.
            clock: for the age of the last read.
        """
        self._read_pods = read_pods
        self._oom_kills = oom_kills
        self._reporter = reporter
        self._clock = clock
        self._pods: PodInventory | None = None
        self._read_s = 0.0
        self._limits_s: float | None = None

    async def read(self, *, with_disk: bool) -> PodInventory:
        """Return the pods, read now.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            RuntimeRequestError: the runtime refused one of its two lists.
        """
        pods = await self._read_pods(with_disk)
        self._reporter.logger.debug("pods_gathered", pods=len(pods.facts))
        self._reporter.log_warnings(pods.warnings)
        self._pods, self._read_s = pods, self._clock.monotonic_s()
        await self._oom_kills.check(pods)
        return pods

    async def refresh_if_due(self, *, near_threshold: bool) -> None:
        """Check for OOM kills, and read the pods again if the last read is old: 2 s near a threshold, else 30 s.

        With a current cache an eviction reads little, and the pages of the agent and the runtime are in memory.
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
        """Return whether to check pods against their storage limits, which walks directories; once a minute."""
        if self._pods is None or not any(map(has_limit, self._pods.facts)):
            return False
        now_s = self._clock.monotonic_s()
        if self._limits_s is not None and now_s - self._limits_s < _LIMITS_EVERY_S:
            return False
        self._limits_s = now_s
        return True
