"""Actions and observations that the passes of one eviction loop share, and the result of a pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set as AbstractSet
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nodeagent.eviction.evictor import EvictionOutcome, EvictionResult, Evictor
from nodeagent.eviction.reclaimer import ImageObservation, InAdvance, Reclaimable, Reclaimed
from nodeagent.model.pods import PodInventory
from nodeagent.record import Record

if TYPE_CHECKING:
    import asyncio

    from nodeagent.eviction.api_evictor import RoleEvictor
    from nodeagent.eviction.effects import OutstandingEffects
    from nodeagent.eviction.plan.planner import EvictionPlan
    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.eviction.plan.reclaim import ReclaimStep
    from nodeagent.eviction.plan.thresholds import Threshold, ThresholdStatus
    from nodeagent.eviction.pod_monitor import PodMonitor
    from nodeagent.eviction.reporting import EvictionReporter
    from nodeagent.eviction.signals import SignalMonitor
    from nodeagent.gc.plan.image_targets import SpaceNeeded
    from nodeagent.model.pressure import Signal

SETTLE_STEP_S: Final = 0.1


class ReclaimRunner(Protocol):
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
        relieve_with_cache: reclaims page cache before evictions for memory, and returns whether the threshold was
            cleared; ``None`` if disabled, and in a dry run.
        admission: admission of evictions through the API server; ``None`` where the agent evicts without it.
        images: observation of the images for reclaim; ``None`` if it cannot be begun in advance.
        removes_volumes: returns whether an eviction also removes the volumes of the pod, as a kubelet does.
        find_consumers: returns the largest consumers outside of pods, for display.
    """

    refused: Callable[[], Awaitable[str]]
    evictor: Evictor
    reclaimer: ReclaimRunner
    effects: OutstandingEffects
    history: EvictionHistory
    dry_run: bool
    settle_step_s: float = SETTLE_STEP_S
    relieve_with_cache: Callable[[ThresholdStatus], Awaitable[bool]] | None = None
    admission: RoleEvictor | None = None
    images: ImageObservation | None = None
    removes_volumes: Callable[[], bool] = lambda: False
    find_consumers: Callable[[Signal, PodInventory], Awaitable[tuple[str, ...]]] | None = None


class Monitors(NamedTuple):
    """Monitors and reporter of an eviction loop."""

    signals: SignalMonitor
    pods: PodMonitor
    reporter: EvictionReporter


class PassResult(StrEnum):
    """Result of an eviction pass. The values are part of the JSON output: values are added, never changed."""

    NO_PRESSURE = "no-pressure"
    PRESSURE = "pressure"
    """A threshold is met and not acted on: its grace period runs, evictions are paused, or image reclaim failed."""
    RECLAIMED = "reclaimed"
    """Node-level reclaim cleared the threshold."""
    RECLAIMING = "reclaiming"
    """Reclaim steps remain for the next pass."""
    WAITING = "waiting"
    """The effect of an earlier action is outstanding."""
    INEFFECTIVE = "ineffective"
    """Evictions are withheld because the last eviction freed too little."""
    LIMITED = "limited"
    """The limit of evictions is reached."""
    SLOWED = "slowed"
    """The limit of evictions is reached; evictions for a hard memory threshold are spaced out."""
    POSTPONED = "postponed"
    """The API server refused the eviction, or does not answer; the eviction is retried."""
    NO_POD = "no-pod"
    URGENT = "urgent"
    """A hard memory or PID threshold was met during the disk usage measurement."""
    CALLED_OFF = "called-off"
    """The agent stops, evictions are paused, or a kubelet manages the node now."""
    EVICTED = EvictionOutcome.EVICTED.value
    GONE = EvictionOutcome.GONE.value
    DRY_RUN = EvictionOutcome.DRY_RUN.value
    FAILED = "failed"
    RUNTIME_UNAVAILABLE = "runtime-unavailable"
    CRASHED = "crashed"

    @property
    def repeats(self) -> bool:
        """Whether an immediate next pass would have an equal result."""
        return self in _REPEATING

    @property
    def ended_a_pod(self) -> bool:
        """Whether a pod ended in the pass, so that its readings are outdated."""
        return self in _ENDED_A_POD


NO_VICTIM: Final = frozenset({PassResult.NO_POD, PassResult.LIMITED, PassResult.POSTPONED})
"""Results for a threshold without an evictable pod; the next threshold is acted on."""
_REPEATING: Final = frozenset(
    {
        PassResult.NO_POD,
        PassResult.LIMITED,
        PassResult.POSTPONED,
        PassResult.FAILED,
        PassResult.DRY_RUN,
        PassResult.INEFFECTIVE,
    }
)
_ENDED_A_POD: Final = frozenset({PassResult.EVICTED, PassResult.GONE})


class EvictionRecord(Record):
    """One eviction, for the history.

    Attributes:
        id: id of the record.
        plan: the plan that selected the pod.
        result: result of the eviction; ``None`` before its end.
        before: available amount of its signal before the eviction; ``None`` for a storage limit or if unread.
        after: available amount of its signal after the eviction; ``None`` as for ``before``.
    """

    id: str
    started_at: datetime
    plan: EvictionPlan
    eviction: Eviction
    before: float | None
    result: EvictionResult | None = None
    after: float | None = None
    dry_run: bool = False


class PodMeasurement(InAdvance[PodInventory]):
    """Measures the disk usage of the pods, at most once at a time."""

    def __init__(self, monitors: Monitors) -> None:
        super().__init__(lambda: monitors.pods.read(with_disk=True), lambda: monitors.signals.now().monotonic_s)
        self._signals = monitors.signals

    async def read(self, ignored: AbstractSet[Threshold]) -> PodInventory | None:
        """Return the pods with their disk usage; ``None`` if a hard memory or PID threshold was met first.

        Thresholds in ``ignored`` do not count: no pod can be evicted for them.

        Raises:
            NodeAgentError: the pods cannot be listed.
        """
        work = self.begin()
        try:
            return None if await self._signals.shortage_before(work, ignored) else await work
        finally:
            self.discard()
