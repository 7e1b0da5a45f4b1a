"""Stops of the node, planned and unclean, with their pods; recorded across restarts of the agent and the node."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from nodeagent.record import KeyedRecord, Record, Time, field


class ShutdownPod(Record):
    """One pod that runs at the start of a node shutdown.

    Attributes:
        priority: priority of the pod; ``None`` if unknown.
        priority_source: source of the priority, such as ``kubelet /pods``; empty without a priority.
        static: whether the pod is a static pod or the mirror pod of a static pod; see ``static_source``.
        node_critical: whether the pod is critical to the node; see ``node_critical_source``.
        labels: the pod's own labels.
        termination_grace_s: termination grace period in seconds; ``None`` if unknown.
        container_ids: ids of the running containers, in the order of their stop requests.

    Source: Kubernetes ``PodSpec`` (``priority``, ``terminationGracePeriodSeconds``), annotations of the sandbox.
    """

    uid: str
    namespace: str
    name: str
    priority: int | None = None
    priority_source: str = ""
    static: bool = False
    static_source: str = ""
    node_critical: bool = False
    node_critical_source: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    termination_grace_s: float | None = None
    container_ids: tuple[str, ...] = ()


class PodOutcome(StrEnum):
    """Progress of the stop of one pod. The values are part of the state on disk and of the shutdown history."""

    STOPPING = "stopping"
    STOPPED = "stopped"
    KILLED = "killed"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the pod has stopped; a failed stop is retried while there is time."""
        return self in (PodOutcome.STOPPED, PodOutcome.KILLED)


class PodProgress(Record):
    """Recorded progress of one pod of a shutdown.

    Attributes:
        requested_at_ms: time of the stop request, in milliseconds since the shutdown began.
        detail: reason for a failure, empty otherwise.
    """

    outcome: PodOutcome
    requested_at_ms: int
    detail: str = ""


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
        """Return the member for a value written by agent version 0.1; ``None`` for an unknown value."""
        former = {"under-way": cls.IN_PROGRESS, "cut-short": cls.INCOMPLETE}
        return former.get(value) if isinstance(value, str) else None


class SentTerm(Record):
    """A confirmed delivery of SIGTERM to a container.

    Attributes:
        at_ms: time in milliseconds since the shutdown began.
        direct: whether the agent signalled the container's process directly, so that no further SIGTERM is needed.
    """

    at_ms: int = field(name="ms")
    direct: bool = False


class StoppedPod(KeyedRecord):
    """One pod of a shutdown; comparisons ignore the last four attributes, which only a resumed shutdown needs.

    Attributes:
        phase: name of the shutdown phase of the pod; ``why`` is the reason for the phase.
        outcome: progress of the pod; ``None`` before the stop request.
        requested_at_ms: time of the stop request, in milliseconds since the shutdown began.
        took_ms: milliseconds from the stop request until the pod's last process ended; ``None`` until that end.
        detail: reason for a failure or an unusual exit, empty otherwise.
        container_ids: ids of the containers with a stop request. This attribute and the next three are stored only in
            the state file, for the process that resumes the shutdown.
        terms: confirmed deliveries of SIGTERM by container id.
        observed: whether processes of all containers of the pod were observed, so that an absent process has ended.
        kill_sent: whether SIGKILL was sent to a container of the pod.
    """

    uid: str
    namespace: str
    name: str
    phase: str = ""
    why: str = ""
    outcome: PodOutcome | None = None
    requested_at_ms: int = field(default=0, name="asked_ms")
    took_ms: int | None = None
    detail: str = ""
    container_ids: tuple[str, ...] = field(default=(), name="containers")
    terms: Mapping[str, SentTerm] = field(default_factory=dict)
    observed: bool = False
    kill_sent: bool = False

    @property
    def equality_key(self) -> tuple[object, ...]:
        """The compared attributes, which the record of a shutdown contains."""
        pod, phase = (self.uid, self.namespace, self.name), (self.phase, self.why)
        return *pod, *phase, self.outcome, self.requested_at_ms, self.took_ms, self.detail

    @property
    def ended_at_ms(self) -> int | None:
        """End of the pod's last process in milliseconds since the shutdown began; ``None`` before that end."""
        return None if self.took_ms is None else self.requested_at_ms + self.took_ms

    @property
    def progress(self) -> PodProgress | None:
        """Progress of the pod for the shutdown planner; ``None`` before the stop request."""
        return None if self.outcome is None else PodProgress(self.outcome, self.requested_at_ms, self.detail)


class NodeStop(Record):
    """One completed, cancelled or incomplete stop of the node.

    Attributes:
        boot_id: id of the ended boot.
        started_at: start of the stop; for an unclean stop the time of the last record of the running node.
        started_s: start of the stop in seconds since boot; not affected by restarts of the agent.
        granted_ms: time granted for stopping all pods, in milliseconds.
        ended_at: end of the stop; ``None`` while in progress, and if the end was not recorded.
        pods: pods of the shutdown; for an unclean stop the running pods in the last record of the node.
        operation: requested operation as named by logind, such as ``poweroff`` or ``soft-reboot``; empty if unknown.
        progress_s: last sign of life of the process that stops the pods, in seconds since boot; only while in progress,
            ``None`` if unknown.
    """

    boot_id: str
    kind: StopKind
    started_at: Time
    started_s: float = 0.0
    granted_ms: int = 0
    end: StopEnd = StopEnd.IN_PROGRESS
    ended_at: Time | None = None
    dry_run: bool = False
    pods: tuple[StoppedPod, ...] = ()
    operation: str = ""
    progress_s: float | None = None

    @property
    def id(self) -> str:
        """Key of the stop in the shutdown history."""
        return f"{self.boot_id[:8]}-{self.started_at:%Y%m%dT%H%M%S}"


class LastActivity(StrEnum):
    """The agent's last recorded activity in a boot. The values are part of the state on disk."""

    WATCHING = "watching"
    AGENT_STOPPED = "agent-stopped"
    GOING_DOWN = "going-down"


class BootRecord(Record):
    """Last record of a boot; an earlier boot with the last activity ``WATCHING`` ended without a shutdown.

    Attributes:
        recorded_at: time of the record.
        pods: the running pods at that time.
    """

    boot_id: str
    activity: LastActivity = field(name="presence")
    recorded_at: Time = field(name="seen_at")
    pods: tuple[StoppedPod, ...] = ()


class ProcessIdentity(Record):
    """A process, distinguished from later processes with the same PID and from processes of other boots.

    Attributes:
        boot_id: id of the boot; empty if unknown.
        started_ticks: start time in clock ticks since boot; 0 if unknown.
    """

    pid: int
    boot_id: str
    started_ticks: int
