"""Stops of the node, planned and unclean, recorded across restarts of the agent and the node."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.model.shutdown import PodOutcome, PodProgress
from nodeagent.record import KeyedRecord, Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class StopKind(StrEnum):
    """Cause of a stop. The values are part of the state on disk and of the JSON output."""

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
        """Return the member for a value of version 0.1, so that its files are readable."""
        former = {"under-way": cls.IN_PROGRESS, "cut-short": cls.INCOMPLETE}
        return former.get(value) if isinstance(value, str) else None


class SentTerm(Record):
    """A confirmed delivery of TERM to a container.

    Attributes:
        at_ms: time in milliseconds since the shutdown began.
        direct: whether the agent signalled the process itself, so that no other TERM is needed.
    """

    at_ms: int
    direct: bool = False


class StoppedPod(KeyedRecord):
    """One pod of a shutdown; equal without the attributes for its resumption, the last four.

    Attributes:
        phase: the name of its phase; ``why`` is the reason for the phase.
        outcome: ``None`` before its stop request.
        requested_at_ms: time of the stop request, in milliseconds since the shutdown began.
        took_ms: milliseconds from the stop request until it had no processes left; ``None`` until then.
        detail: reason for a failure or an unusual exit, empty otherwise.
        container_ids: containers with a stop request. Only in the state file, for the process that resumes the
            shutdown, as the next three.
        terms: confirmed deliveries of TERM by container id.
        observed: whether the processes of all its containers were seen, so that absent ones have ended.
        kill_sent: whether KILL was sent to one of its containers.
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
    container_ids: tuple[str, ...] = ()
    terms: Mapping[str, SentTerm] = field(default_factory=dict)
    observed: bool = False
    kill_sent: bool = False

    @property
    def equality_key(self) -> tuple[object, ...]:
        """The attributes that the record of a shutdown keeps."""
        pod, phase = (self.uid, self.namespace, self.name), (self.phase, self.why)
        return *pod, *phase, self.outcome, self.requested_at_ms, self.took_ms, self.detail

    @property
    def ended_at_ms(self) -> int | None:
        """The end of its last process in milliseconds since the shutdown began; ``None`` before."""
        return None if self.took_ms is None else self.requested_at_ms + self.took_ms

    @property
    def progress(self) -> PodProgress | None:
        """The progress for the planner; ``None`` before the stop request."""
        return None if self.outcome is None else PodProgress(self.outcome, self.requested_at_ms, self.detail)


class NodeStop(Record):
    """One stop of the node, or the attempt of one.

    Attributes:
        boot_id: id of the ended boot.
        started_at: its start; for an unclean stop the last record of the running node.
        started_s: its start in seconds since boot; not affected by restarts of the agent.
        granted_ms: time granted to all pods.
        ended_at: ``None`` while in progress, and for an end without a record.
        pods: pods of the shutdown, or the running pods in the last record of the node.
        operation: the requested operation in logind's words, such as ``poweroff`` or ``soft-reboot``; empty where not
            known.
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
    operation: str = ""

    @property
    def id(self) -> str:
        """The key of the stop in the history."""
        return f"{self.boot_id[:8]}-{self.started_at:%Y%m%dT%H%M%S}"


class LastActivity(StrEnum):
    """The agent's last recorded activity on a boot. The values are part of the state on disk."""

    WATCHING = "watching"
    AGENT_STOPPED = "agent-stopped"
    GOING_DOWN = "going-down"


class BootRecord(Record):
    """Last record of a boot; a boot with ``WATCHING`` as its last activity ended without a shutdown.

    Attributes:
        recorded_at: time of the record.
        pods: the running pods at that time.
    """

    boot_id: str
    activity: LastActivity
    recorded_at: datetime
    pods: tuple[StoppedPod, ...] = ()
