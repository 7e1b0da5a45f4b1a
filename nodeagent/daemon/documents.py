"""Documents of the node's and the daemon's status, and of ``top``, which adds the pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from nodeagent.api.common import Document, Number, Part
from nodeagent.api.outlook import OutlookDocument
from nodeagent.eviction.documents import PodUsageDocument, SignalDocument
from nodeagent.gc.documents.holds import HoldFields
from nodeagent.model.runtime import GapCause, ObservationGap
from nodeagent.record import Time
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.model.clock import ClockTrust
    from nodeagent.model.pods import PodListReading
    from nodeagent.store.history import CountedPass


class AgentStatus(Part, frozen=True, kw_only=True):
    """The daemon, or the command in place of a daemon.

    Attributes:
        running: whether a daemon responded; otherwise the fields from ``pid`` to ``config_problem`` are absent.
        config_problem: reason that the configuration on disk is not in force; empty if it is in force.
        role: whether a kubelet manages the node; ``None`` before the first evaluation.
    """

    running: bool
    version: str
    pid: int | UnsetType = UNSET
    started_at: Time | UnsetType = UNSET
    ready: bool | UnsetType = UNSET
    not_ready_because: tuple[str, ...] | UnsetType = UNSET
    config: str | UnsetType | None = UNSET
    config_problem: str | UnsetType = UNSET
    dry_run: bool
    role: str | None
    role_because: str

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons that the daemon is not ready; empty if it is ready or not running."""
        return self.not_ready_because if isinstance(self.not_ready_because, tuple) else ()


class PauseStatus(Part, frozen=True, kw_only=True):
    """The pause in force; ``seconds_left`` is ``None`` without an end."""

    who: str
    why: str
    seconds_left: int | None


class WaitStatus(Part, frozen=True, kw_only=True, rename={"for_": "for"}):
    """Waiting period before destructive passes.

    Attributes:
        for_: kind of the period: ``reload-grace``.
        until: end of the period; ``None`` while a pause suspends it.
    """

    for_: str
    why: str
    period_s: Number
    seconds_left: int
    until: Time | None


class RuntimeStatusDocument(Part, frozen=True, kw_only=True):
    """The container runtime.

    Attributes:
        up: whether it answers; ``None`` if it is not queried, as while the daemon starts.
        problem: cause if it is unavailable; empty otherwise.
    """

    up: bool | None
    name: str | None
    version: str | None
    endpoint: str | None
    problem: str


class PodListStatus(Part, frozen=True, kw_only=True):
    """A list of the pods bound to this node, from the API server or the kubelet.

    Attributes:
        source: ``API server`` or ``kubelet``.
        observed_at: time of the last successful reading; ``None`` before the first reading.
        pods: number of pods in the list.
        completeness: for a watch of the API server, ``synced`` (a missing pod is deleted) or ``outdated``. For the
            kubelet's list, which never proves a deletion, ``source-listed``, ``unconfirmed`` or ``partial``. Otherwise
            ``unknown``.
        detail: evidence against completeness; empty without evidence.
        problem: cause of the last failure; empty after a success.
    """

    source: str
    address: str
    observed_at: Time | None
    pods: int
    completeness: str
    detail: str
    problem: str

    @classmethod
    def of(cls, value: PodListReading) -> PodListStatus:
        """Return the document form of the state of a pod list."""
        source, completeness = value.source.value, value.completeness.value
        return cls.from_value(value, source=source, completeness=completeness, problem=value.error)


class FilesystemStatus(Part, frozen=True, kw_only=True):
    """A filesystem that the runtime, the pods or the agent need, with the thresholds of image GC.

    Attributes:
        roles: all its roles; empty in the response of an older daemon.
        high_percent: usage at which image removal starts; ``None`` for filesystems without image GC.
        low_percent: usage at which image removal stops; ``None`` as for ``high_percent``.
        high_inodes_percent: usage of inodes at which image removal starts; ``None`` as for ``high_percent``.
        low_inodes_percent: usage of inodes at which image removal stops; ``None`` as for ``high_percent``.
        capacity_bytes: capacity; absent, like all readings, if the filesystem could not be read.
        nearly_full: sentence with the consequences if less than 5 % of its bytes or inodes are available.
        problem: cause of the failed reading; absent otherwise.
    """

    name: str
    roles: tuple[str, ...] = ()
    high_percent: int | None
    low_percent: int | None
    high_inodes_percent: int | None = None
    low_inodes_percent: int | None = None
    path: str
    capacity_bytes: int | UnsetType = UNSET
    available_bytes: int | UnsetType = UNSET
    used_percent: int | UnsetType = UNSET
    inodes: int | UnsetType = UNSET
    inodes_free: int | UnsetType = UNSET
    observed_at: Time | UnsetType = UNSET
    nearly_full: str = ""
    problem: str | UnsetType = UNSET


class ObservationGapDocument(Part, frozen=True, kw_only=True):
    """A gap after which the observation of image use restarted.

    Attributes:
        started_at: last detection before the gap; ``None`` if it is not recorded.
        ended_at: first detection after the gap.
    """

    started_at: Time | None
    ended_at: Time
    cause: GapCause

    @classmethod
    def of(cls, value: ObservationGap) -> ObservationGapDocument:
        """Return the document form of a gap."""
        return cls(started_at=value.started_at, ended_at=value.ended_at, cause=value.cause)


class ImageUse(Part, frozen=True, kw_only=True):
    """The observation of image use.

    Attributes:
        observed_since: start of the observation; ``None`` if image use is not observed.
        maximum_unused_age_s: age from which unused images are removed; ``None`` if removal by age is disabled.
        gaps: the latest gaps in the observation, newest first.
    """

    observed_since: Time | None = None
    maximum_unused_age_s: Number | None = None
    gaps: tuple[ObservationGapDocument, ...] = ()


class ClockStatus(Part, frozen=True, kw_only=True):
    """Trust in the wall clock.

    Attributes:
        jumped_at: time of detection of the last jump in this boot; ``None`` without a jump.
        jump_s: size of that jump in seconds; negative if the clock was set back.
        untrusted_until: end of the grace period after the jump, in which no item is removed by age; otherwise ``None``.
        problem: reason that the wall clock is implausible; empty normally.
        detail: description of the last jump; empty without a jump.
    """

    jumped_at: Time | None = None
    jump_s: Number = 0.0
    untrusted_until: Time | None = None
    problem: str = ""
    detail: str = ""

    @classmethod
    def of(cls, value: ClockTrust) -> ClockStatus:
        """Return the document form of the trust in the wall clock."""
        return cls.from_value(value, detail=value.jump_text)


class LoopStatusDocument(Part, frozen=True, kw_only=True):
    """One loop of the daemon.

    Attributes:
        why: reason for a disabled or paused loop, or for a dry run; empty otherwise.
        result: result of its last run; empty before the first run.
        due_in_s: seconds to its next run; ``None`` if no run is due.
        stuck: whether its progress report is overdue.
        collects_ahead: whether the last plan collects ahead of the threshold, and was not carried out: in dry run, or
            postponed until the disk is idle.
    """

    name: str
    activity: str
    why: str
    started_at: Time | None
    ended_at: Time | None
    result: str
    detail: str
    runs: int
    failures: int
    due_in_s: int | None
    stuck: bool
    collects_ahead: bool = False


class PassSummary(Part, frozen=True, kw_only=True):
    """One past pass with its counts.

    Attributes:
        removed: number of removed items; of an undo, of the restored images.
    """

    id: str
    started_at: Time
    trigger: str
    scope: str
    dry_run: bool
    end: str
    removed: int
    planned: int
    freed_bytes: int | None

    @classmethod
    def of(cls, counted: CountedPass) -> PassSummary:
        """Return the summary of a pass of the history."""
        past = counted.past
        removed, planned = counted.removed, counted.planned
        return cls.from_value(past, end=past.result, removed=removed, planned=planned)


class ShutdownSummary(Part, frozen=True, kw_only=True):
    """Graceful shutdown; ``lock_held`` is ``None`` if no daemon responded."""

    off_because: str
    lock_held: bool | None


class Status(Document, frozen=True, kw_only=True, tag=SchemaId.STATUS.value):
    """The status of the node and of the daemon.

    Attributes:
        paused: the pause in force; ``None`` if not paused.
        waiting: the reload grace period; ``None`` outside a grace period.
        pod_lists: lists of pods bound to this node; absent in the response of an older daemon.
        unrelieved: statements on shortages that no eviction ends.
        image_use: observation of image use; absent in the response of an older daemon.
        clock: trust in the wall clock; absent in the response of an older daemon.
        outlook: outlook of each resource; empty without a daemon, and in the response of an older one.
    """

    observed_at: Time
    agent: AgentStatus
    paused: PauseStatus | None
    waiting: WaitStatus | None = None
    runtime: RuntimeStatusDocument
    pod_lists: tuple[PodListStatus, ...] = ()
    filesystems: tuple[FilesystemStatus, ...]
    conditions: tuple[str, ...]
    unrelieved: tuple[str, ...] = ()
    signals: tuple[SignalDocument, ...]
    image_use: ImageUse = ImageUse()
    clock: ClockStatus = ClockStatus()
    loops: tuple[LoopStatusDocument, ...]
    last_passes: tuple[PassSummary, ...]
    shutdown: ShutdownSummary
    holds: tuple[HoldFields, ...]
    outlook: tuple[OutlookDocument, ...] = ()
    warnings: tuple[str, ...]


class Top(Status, frozen=True, kw_only=True, tag=SchemaId.TOP.value):
    """The status with the usage of the pods."""

    pods: PodUsageDocument

    @classmethod
    def of(cls, status: Status, pods: PodUsageDocument) -> Top:
        """Return the document of a status and of the pods' usage."""
        return cls.from_value(status, pods=pods)
