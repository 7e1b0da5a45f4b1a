"""Result of an eviction pass, and the record of an eviction for the history."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.act.eviction.evictor import EvictionOutcome
from nodeagent.record import Record

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.act.eviction.evictor import EvictionResult
    from nodeagent.plan.eviction.eviction import Eviction
    from nodeagent.plan.eviction.planner import EvictionPlan


class PassResult(StrEnum):
    """Result of an eviction pass. The values are part of the JSON output: values are added, never changed."""

    NO_PRESSURE = "no-pressure"
    PRESSURE = "pressure"
    """A threshold is met and not acted on: its grace period runs, or evictions are paused."""
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
