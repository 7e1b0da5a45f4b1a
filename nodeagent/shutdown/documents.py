"""Documents of graceful shutdown: the plan of a shutdown that starts now, and the status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.api.common import Document, Number, Part
from nodeagent.gc.documents.history import NodeStopDocument
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.shutdown.plan import planner


class DelayLimitDocument(Part, frozen=True, kw_only=True):
    """logind's limit on the shutdown delay (``InhibitDelayMaxSec``).

    Attributes:
        seconds: the limit in seconds; ``None`` for no limit, as for ``in_files_s``.
        reported_by: source of ``seconds``: ``logind`` or ``files``.
        set_by: the file with the setting; ``None`` for systemd's default.
        in_files_s: the limit in the configuration files, which logind may not have reloaded.
        overridden: files with a value that another file overrides.
    """

    seconds: Number | None
    reported_by: str
    set_by: str | None
    in_files_s: Number | None
    overridden: tuple[str, ...]


class PodStopDocument(Part, frozen=True, kw_only=True):
    """A pod in its phase; ``capped`` states whether its termination grace period exceeds the phase."""

    uid: str
    namespace: str
    name: str
    priority: int | None
    priority_source: str
    placed_by: str
    why: str
    grace_s: Number
    own_grace_s: Number | None
    capped: bool
    containers: int

    @classmethod
    def of(cls, stop: planner.PodStop) -> PodStopDocument:
        """Return the document form of a planned pod stop."""
        pod = stop.pod
        return cls.from_value(
            pod,
            placed_by=stop.placement.by.value,
            why=stop.placement.why,
            grace_s=stop.grace_ms / 1000,
            own_grace_s=pod.termination_grace_s,
            capped=stop.capped,
            containers=len(pod.container_ids),
        )


class PhaseDocument(Part, frozen=True, kw_only=True):
    """A phase with its budget; times are seconds from the beginning of the shutdown."""

    name: str
    min_priority: int | None
    wanted_s: Number
    granted_s: Number
    deadline_s: Number
    starts_s: Number
    ends_s: Number
    pods: tuple[PodStopDocument, ...]

    @classmethod
    def of(cls, phase: planner.PlannedPhase) -> PhaseDocument:
        """Return the document form of a planned phase."""
        share = phase.budget
        return cls(
            name=share.phase.name,
            min_priority=share.phase.min_priority,
            wanted_s=share.phase.seconds,
            granted_s=share.granted_ms / 1000,
            deadline_s=share.deadline_ms / 1000,
            starts_s=phase.starts_ms / 1000,
            ends_s=phase.ends_ms / 1000,
            pods=tuple(map(PodStopDocument.of, phase.stops)),
        )


class ShutdownPlanDocument(Document, frozen=True, kw_only=True, tag=SchemaId.SHUTDOWN.value):
    """The timeline of a shutdown that starts now.

    Attributes:
        off_because: reason that graceful shutdown is disabled; empty if it is enabled.
        scaled: whether the phases were shortened to fit logind's limit.
        stops_at_signal: whether pods are stopped before the inhibitor lock is released; otherwise by the stop hook.
    """

    enabled: bool
    off_because: str
    dry_run: bool
    limit: DelayLimitDocument
    wanted_s: Number
    granted_s: Number
    scaled: bool
    stops_at_signal: bool
    ends_s: Number
    warnings: tuple[str, ...]
    phases: tuple[PhaseDocument, ...]


class Inhibitor(Part, frozen=True, kw_only=True):
    """The inhibitor lock; ``preparing`` is ``None`` without an answer of logind."""

    held: bool
    because: str
    preparing: bool | None


class AttachedVolumes(Part, frozen=True, kw_only=True):
    """A pod that ended with the node, so that its persistent volumes may still be attached to the node.

    Attributes:
        claims: names of its persistent volume claims; ``None`` if unknown.
    """

    uid: str
    namespace: str
    name: str
    claims: tuple[str, ...] | None


class ShutdownStatus(Document, frozen=True, kw_only=True, tag=SchemaId.SHUTDOWN_STATUS.value):
    """Whether graceful shutdown is ready on this node, and the last node stops.

    Attributes:
        attached_volumes: pods that were running at the end of the last stop, if it was unclean or incomplete, without
            pods that have no claims or are known to be deleted or ended.
    """

    enabled: bool
    off_because: str
    inhibitor: Inhibitor
    limit: DelayLimitDocument
    stops_at_signal: bool
    warnings: tuple[str, ...]
    attached_volumes: tuple[AttachedVolumes, ...] = ()
    stops: tuple[NodeStopDocument, ...]
