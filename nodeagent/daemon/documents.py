"""Documents of the status of node and daemon, of ``top``, which adds the pods, and of single operations.

The operations are pause, resume, trigger, reload, version, doctor and configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType, structs

from nodeagent import __version__
from nodeagent.api.common import Document, Number, Part, ReasonDocument, RuntimeVersion
from nodeagent.eviction.documents import PodUsageDocument, SignalDocument
from nodeagent.gc.documents.lists import HoldFields
from nodeagent.gc.documents.passes import DecisionDocument
from nodeagent.model.decision import ItemKind
from nodeagent.model.runtime import GapCause, ObservationGap
from nodeagent.record import Time
from nodeagent.schemas import SchemaId
from nodeagent.settings.settings import DEFAULT_SOURCE

if TYPE_CHECKING:
    from nodeagent.model.clock import ClockTrust
    from nodeagent.model.node import RuntimeInfo
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
    """A filesystem with its thresholds.

    Attributes:
        high_percent: usage at which image removal starts; ``None`` for filesystems without image GC.
        low_percent: usage at which image removal stops; ``None`` as for ``high_percent``.
        capacity_bytes: capacity; absent, like all readings, if the filesystem could not be read.
        problem: cause of the failed reading; absent otherwise.
    """

    name: str
    high_percent: int | None
    low_percent: int | None
    path: str
    capacity_bytes: int | UnsetType = UNSET
    available_bytes: int | UnsetType = UNSET
    used_percent: int | UnsetType = UNSET
    inodes: int | UnsetType = UNSET
    inodes_free: int | UnsetType = UNSET
    observed_at: Time | UnsetType = UNSET
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
    warnings: tuple[str, ...]


class Top(Status, frozen=True, kw_only=True, tag=SchemaId.TOP.value):
    """The status with the usage of the pods."""

    pods: PodUsageDocument

    @classmethod
    def of(cls, status: Status, pods: PodUsageDocument) -> Top:
        """Return the document of a status and of the pods' usage."""
        return cls.from_value(status, pods=pods)


class Paused(Document, frozen=True, kw_only=True, tag=SchemaId.PAUSED.value):
    """Confirmation of a pause, with its end."""

    paused: bool = True
    until: Time


class Resumed(Document, frozen=True, kw_only=True, tag=SchemaId.RESUMED.value):
    """Confirmation of a resume; ``was_paused`` states whether a pause was in force."""

    paused: bool = False
    was_paused: bool


class Triggered(Document, frozen=True, kw_only=True, tag=SchemaId.TRIGGER.value):
    """Result of the trigger of a loop.

    Attributes:
        ended: whether its run is finished; ``result`` and ``detail`` are empty otherwise.
        dry_run: whether the run removed nothing; ``None`` if the configuration changed during the run.
    """

    loop: str
    ended: bool
    result: str
    detail: str
    dry_run: bool | None = None


class SettingDocument(Part, frozen=True, kw_only=True):
    """A value in TOML and its source: a file, an environment variable or ``default``."""

    value: str
    source: str


class EffectiveConfig(Document, frozen=True, kw_only=True, tag=SchemaId.CONFIG.value):
    """All settings by key, such as ``image_gc.high_threshold_percent``."""

    settings: dict[str, SettingDocument]

    @classmethod
    def of(cls, values: Iterable[tuple[str, str]], sources: Mapping[str, str]) -> EffectiveConfig:
        """Return the document of all settings; a setting without a source has its default."""
        return cls(
            settings={
                key: SettingDocument(value=value, source=sources.get(key, DEFAULT_SOURCE)) for key, value in values
            }
        )


class Version(Document, frozen=True, kw_only=True, tag=SchemaId.VERSION.value):
    """The versions of nodeagent and of the container runtime."""

    nodeagent: str
    runtime: RuntimeVersion

    @classmethod
    def of(cls, info: RuntimeInfo) -> Version:
        """Return the document of the agent's version and a runtime's version."""
        return cls(nodeagent=__version__, runtime=RuntimeVersion(**structs.asdict(info)))


class FindingDocument(Part, frozen=True, kw_only=True):
    """The result of one check; ``fix`` is empty if no action is required."""

    check: str
    verdict: str
    evidence: str
    fix: str


class Doctor(Document, frozen=True, kw_only=True, tag=SchemaId.DOCTOR.value):
    """The findings of all checks."""

    findings: tuple[FindingDocument, ...]


class KindCount(Part, frozen=True, kw_only=True):
    """Number and predicted bytes of the removals of one kind of item."""

    kind: ItemKind
    items: int
    frees_bytes: int


class MetThreshold(Part, frozen=True, kw_only=True):
    """A threshold that is met and acted on after the reload."""

    text: str
    hard: bool
    grace_s: Number


class EvictedPod(Part, frozen=True, kw_only=True):
    """A pod that is evicted after the reload."""

    uid: str
    namespace: str
    name: str
    reason: ReasonDocument


class ReloadEffectDocument(Part, frozen=True, kw_only=True):
    """The removals and evictions caused by a reload.

    Attributes:
        known: whether the complete effect is known; otherwise ``problem`` is the cause.
        first: the first removals, in order of execution; ``items`` is the number of all removals.
        pods: the pods evicted first.
    """

    known: bool
    problem: str
    items: int
    frees_bytes: int
    kinds: tuple[KindCount, ...]
    first: tuple[DecisionDocument, ...]
    thresholds: tuple[MetThreshold, ...]
    pods: tuple[EvictedPod, ...]


class Grace(Part, frozen=True, kw_only=True):
    """The reload grace period; ``until`` is ``None`` while a pause suspends it."""

    seconds: Number
    until: Time | None


class Reload(Document, frozen=True, kw_only=True, tag=SchemaId.RELOAD.value):
    """The outcome of a reload, or of its preview.

    Attributes:
        applied: whether the settings are in force.
        changes: changed settings, one line each.
        effect: removals and evictions caused by the changes; ``None`` without a change.
        grace: the reload grace period; ``None`` outside a grace period.
    """

    applied: bool
    changes: tuple[str, ...]
    dry_run: bool
    effect: ReloadEffectDocument | None = None
    grace: Grace | None = None
