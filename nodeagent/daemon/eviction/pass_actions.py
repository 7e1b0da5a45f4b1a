"""Actions and observations that the passes of one eviction loop share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nodeagent.record import Record

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Collection

    from nodeagent.act.eviction.evictor import Evictor
    from nodeagent.act.eviction.reclaimer import Reclaimable, Reclaimed
    from nodeagent.daemon.eviction.image_observation import ImageObservation
    from nodeagent.daemon.eviction.outstanding_effects import OutstandingEffects
    from nodeagent.daemon.eviction.pass_result import EvictionRecord
    from nodeagent.daemon.eviction.pod_monitor import PodMonitor
    from nodeagent.daemon.eviction.reporting import EvictionReporter
    from nodeagent.daemon.eviction.signal_monitor import SignalMonitor
    from nodeagent.model.pods import PodInventory
    from nodeagent.model.pressure import Signal
    from nodeagent.plan.eviction.eviction import Eviction
    from nodeagent.plan.eviction.reclaim import ReclaimStep
    from nodeagent.plan.eviction.threshold_status import ThresholdStatus
    from nodeagent.plan.gc.accounting import SpaceNeeded
    from nodeagent.plan.kubernetes.eviction import HeldBack

SETTLE_STEP_S: Final = 0.1


class ReclaimAction(Protocol):
    """Node-level reclaim; see :class:`Reclaimer`."""

    async def run(
        self, step: ReclaimStep, needed: SpaceNeeded, stop: asyncio.Event, planned: Callable[[Reclaimable], None]
    ) -> Reclaimed:
        """Observe, plan and carry out the removals of one reclaim step that free the needed space.

        ``planned`` is called with the reclaimable amounts before the first removal.
        """


class EvictionHistory(Protocol):
    """Records each eviction, before its first action and after its end."""

    async def begin(self, record: EvictionRecord) -> None:
        """Record a chosen eviction, without a result."""

    async def finish(self, record: EvictionRecord) -> None:
        """Record a finished eviction."""

    def abandon(self, record: EvictionRecord, cause: str) -> None:
        """Record an unfinished eviction as interrupted, with a cause such as ``cancelled``."""


class CacheRelief(Protocol):
    """Reclaim of page cache; see :class:`PageCache`."""

    async def relieve(self, status: ThresholdStatus) -> bool:
        """Reclaim page cache for a met threshold; return whether the threshold was cleared."""


class ConsumerReader(Protocol):
    """Reader of the largest consumers outside of pods; see :func:`largest_consumers`."""

    async def __call__(self, signal: Signal, pods: PodInventory) -> tuple[str, ...]:
        """Return names and amounts of the largest consumers of the resource of a signal, largest first."""


class Admission(Protocol):
    """Admission of evictions that the API server may refuse; see :class:`RoleEvictor`."""

    @property
    def freed_within_s(self) -> float | None:
        """Time limit in seconds for freeing the space of an evicted pod; ``None`` for the default limit."""

    def held_back(self, eviction: Eviction) -> HeldBack | None:
        """Return the reason to postpone an eviction; ``None`` if it may start now."""

    def permit_deletion(self, uids: Collection[str]) -> frozenset[str]:
        """Permit the deletion of refused pods as a last resort; return the UIDs of the permitted pods."""


class PassActions(Record, kw_only=True):
    """Actions of the eviction passes.

    Attributes:
        refused: returns the reason for not evicting pods, such as a running kubelet; empty if evictions are enabled.
        evictor: evicts a pod.
        reclaimer: runs steps of node-level reclaim.
        effects: outstanding effects of evictions and reclaim.
        history: records evictions.
        dry_run: whether evictions are logged only.
        settle_step_s: interval of the readings after an action, in seconds.
        page_cache: reclaims page cache before evictions for memory; ``None`` if disabled, and in a dry run.
        admission: admission of evictions through the API server; ``None`` where the agent evicts without it.
        images: observation of the images for reclaim; ``None`` if it cannot be begun in advance.
        removes_volumes: returns whether an eviction also removes the volumes of the pod, as a kubelet does.
        find_consumers: returns the largest consumers outside of pods, for display.
    """

    refused: Callable[[], Awaitable[str]]
    evictor: Evictor
    reclaimer: ReclaimAction
    effects: OutstandingEffects
    history: EvictionHistory
    dry_run: bool
    settle_step_s: float = SETTLE_STEP_S
    page_cache: CacheRelief | None = None
    admission: Admission | None = None
    images: ImageObservation | None = None
    removes_volumes: Callable[[], bool] = lambda: False
    find_consumers: ConsumerReader | None = None


class Monitors(NamedTuple):
    """Monitors and reporter of an eviction loop."""

    signals: SignalMonitor
    pods: PodMonitor
    reporter: EvictionReporter
