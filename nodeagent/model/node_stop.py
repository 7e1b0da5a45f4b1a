"""How the node went down, or did not: what is remembered of each time over restarts of agent and node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.model.shutdown import PodOutcome, PodProgress

if TYPE_CHECKING:
    from datetime import datetime


class StopKind(StrEnum):
    """How a stop of the node came about. The values are part of the state on disk and of the JSON output."""

    SIGNAL = "signal"
    UNIT_STOP = "unit-stop"
    UNCLEAN = "unclean"


class StopEnd(StrEnum):
    """Result of a stop of the node. The values are part of the state on disk and of the JSON output."""

    IN_PROGRESS = "in-progress"
    COMPLETE = "complete"
    CANCELLED = "cancelled"
    INCOMPLETE = "incomplete"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> StopEnd | None:
        """Return the member that version 0.1 stored under another value; its files and history stay readable."""
        former = {"under-way": cls.IN_PROGRESS, "cut-short": cls.INCOMPLETE}
        return former.get(value) if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class StoppedPod:
    """One pod of a shutdown.

    Attributes:
        phase: the name of its phase; ``why`` says in words why it was there.
        outcome: ``None`` where it was not told to stop yet.
        requested_at_ms: when it was told, in milliseconds since the shutdown began.
        took_ms: how long it took from then; ``None`` as long as it has not ended.
        detail: what went wrong, empty otherwise.
    """

    uid: str
    namespace: str
    name: str
    phase: str = ""
    why: str = ""
    outcome: PodOutcome | None = None
    requested_at_ms: int = 0
    took_ms: int | None = None
    detail: str = ""

    @property
    def progress(self) -> PodProgress | None:
        """What a plan has to know of it; ``None`` before it was told to stop."""
        return None if self.outcome is None else PodProgress(self.outcome, self.requested_at_ms, self.detail)


@dataclass(frozen=True, slots=True)
class NodeStop:
    """One time that the node went down, or was about to.

    Attributes:
        boot_id: of the boot that it ended.
        started_at: when it began; for an unclean one when the node was last seen up.
        started_s: the same on the clock that counts from boot; outlives a restart of the agent.
        granted_ms: how long it might take in all.
        ended_at: ``None`` as long as it is under way, and where nobody saw the end.
        pods: those that were told to stop, or that ran when the node was last seen.
    """

    boot_id: str
    kind: StopKind
    started_at: datetime
    started_s: float = 0.0
    granted_ms: int = 0
    end: StopEnd = StopEnd.IN_PROGRESS
    ended_at: datetime | None = None
    dry_run: bool = False
    pods: tuple[StoppedPod, ...] = ()

    @property
    def id(self) -> str:
        """Its name in the history."""
        return f"{self.boot_id[:8]}-{self.started_at:%Y%m%dT%H%M%S}"


class LastActivity(StrEnum):
    """What the agent was last doing on a boot. The values are part of the state on disk."""

    WATCHING = "watching"
    AGENT_STOPPED = "agent-stopped"
    GOING_DOWN = "going-down"


@dataclass(frozen=True, slots=True)
class BootRecord:
    """What was last seen of a boot; one that ends with ``WATCHING`` ended without a word.

    Attributes:
        seen_at: when it was last written.
        pods: what ran then.
    """

    boot_id: str
    activity: LastActivity
    recorded_at: datetime
    pods: tuple[StoppedPod, ...] = ()
