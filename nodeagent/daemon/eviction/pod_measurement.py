"""Measurement of the disk usage of all pods in an eviction pass, begun during reclaim if space runs out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from nodeagent.daemon.eviction.pass_actions import Monitors
    from nodeagent.model.pods import PodInventory
    from nodeagent.plan.eviction.thresholds import Threshold

_USABLE_FOR_S: Final = 1.0
"""Age in seconds up to which a measurement is used for the choice of a pod, as for readings of the signals."""


class PodMeasurement:
    """Measures the disk usage of the pods, at most once at a time."""

    def __init__(self, monitors: Monitors) -> None:
        self._signals = monitors.signals
        self._pods = monitors.pods
        self._begun: asyncio.Future[PodInventory] | None = None

    def begin(self) -> None:
        """Start a measurement for the next :meth:`read`, unless one was started."""
        if self._begun is None:
            self._begun = self._start()

    async def read(self, ignored: AbstractSet[Threshold]) -> PodInventory | None:
        """Return the pods with their disk usage; ``None`` if a hard memory or PID threshold was met first.

        Thresholds in ``ignored`` do not count: no pod can be evicted for them.

        Raises:
            NodeAgentError: the pods cannot be listed.
        """
        begun, self._begun = self._begun, None
        work = begun if begun is not None and self._is_usable(begun) else self._start()
        try:
            return None if await self._signals.shortage_before(work, ignored) else await work
        finally:
            work.cancel()

    def cancel(self) -> None:
        """Cancel a measurement that was not read."""
        if self._begun is not None:
            self._begun.cancel()
            self._begun = None

    def _is_usable(self, work: asyncio.Future[PodInventory]) -> bool:
        """Return whether a measurement is running or recent."""
        if not work.done():
            return True
        if work.cancelled() or work.exception() is not None:
            return False
        return self._signals.now().monotonic_s - work.result().observed_at.monotonic_s <= _USABLE_FOR_S

    def _start(self) -> asyncio.Future[PodInventory]:
        work = asyncio.ensure_future(self._pods.read(with_disk=True))
        work.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        return work
