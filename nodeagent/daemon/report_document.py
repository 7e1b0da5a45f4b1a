"""Document of a node's state for a fleet: one line of JSON per node, merged by ``nodeagent.daemon.fleet``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, Meta, UnsetType

from nodeagent.api.codec import Document, Part, Time
from nodeagent.daemon.diagnostics import Finding
from nodeagent.daemon.documents import AgentStatus, FilesystemStatus, PauseStatus, RuntimeStatus, Status
from nodeagent.model.decision import Accounting, Verdict
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nodeagent.gc.documents.passes import Preview

Count = Annotated[int, Meta(ge=0, le=1 << 62)]
"""A number of items or bytes, limited so that sums over many nodes can be formatted."""
NodeName = Annotated[str, Meta(min_length=1, max_length=253)]


class PlannedRemovals(Part, frozen=True, kw_only=True):
    """The planned removals of one kind of item.

    Attributes:
        kind: kind of item, such as ``image``; text, since another version may have further kinds.
        bytes: predicted bytes of the items of known size.
        without_size: number of the items whose size is unknown.
    """

    kind: str
    count: Count
    bytes: Count
    without_size: Count


class PlannedPass(Part, frozen=True, kw_only=True):
    """The pass that the loops enabled by the configuration would run now, with ``dry_run = false`` and no pause.

    Attributes:
        scope: ``images``, ``containers`` or ``all``; ``none`` if the configuration disables both loops.
        removals: planned removals by kind; kinds without removals are omitted.
        upper_bound: whether sizes of images are upper bounds, because shared layers are unknown.
        pending_bytes: bytes freed by the runtime's own garbage collection, in addition to the removals.
        shortfall_bytes: bytes of the target that the removals are predicted not to free.
        blocked: reasons that items of a kind are not planned; empty normally.
    """

    scope: str
    removals: tuple[PlannedRemovals, ...]
    upper_bound: bool
    pending_bytes: Count
    shortfall_bytes: Count
    blocked: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of removals."""
        return sum(each.count for each in self.removals)

    @property
    def bytes(self) -> int:
        """Predicted bytes of the removals."""
        return sum(each.bytes for each in self.removals)

    @classmethod
    def of(cls, preview: Preview | None) -> PlannedPass:
        """Return the figures of a preview; ``preview`` is ``None`` if both loops are disabled."""
        plans = () if preview is None else preview.plans
        found: dict[str, list[int | None]] = {}
        upper_bound = False
        for plan in plans:
            removed = [each for each in plan.decisions if each.verdict is Verdict.REMOVE]
            upper_bound |= bool(removed) and plan.accounting is Accounting.UPPER_BOUND
            for each in removed:
                found.setdefault(each.kind.value, []).append(each.frees_bytes)
        return cls(
            scope="none" if preview is None else preview.scope,
            removals=tuple(
                PlannedRemovals(
                    kind=kind,
                    count=len(sizes),
                    bytes=sum(each or 0 for each in sizes),
                    without_size=sizes.count(None),
                )
                for kind, sizes in sorted(found.items())
            ),
            upper_bound=upper_bound,
            pending_bytes=sum(plan.pending_bytes for plan in plans),
            shortfall_bytes=sum(plan.shortfall_bytes for plan in plans),
            blocked=tuple(plan.blocked for plan in plans if plan.blocked),
        )


class NodeReport(Document, frozen=True, kw_only=True, tag=SchemaId.NODE_REPORT.value):
    """The state of one node for the summary of a fleet.

    Attributes:
        node: name of the node: ``kubelet.node_name``, else the host name in lower case.
        agent: the daemon, or the command in place of a daemon; ``role`` is whether a kubelet manages the node.
        planned: ``None`` if the node could not be observed, with the cause in ``unplanned_because``.
        conditions: pressure conditions of the node, such as ``DiskPressure``.
        exceeded: eviction thresholds that are exceeded.
        checks: problems and warnings of ``doctor``; absent unless requested.
    """

    observed_at: Time
    node: NodeName
    agent: AgentStatus
    runtime: RuntimeStatus
    paused: PauseStatus | None
    planned: PlannedPass | None
    unplanned_because: str
    filesystems: tuple[FilesystemStatus, ...]
    conditions: tuple[str, ...]
    exceeded: tuple[str, ...]
    warnings: tuple[str, ...]
    checks: tuple[Finding, ...] | UnsetType = UNSET

    @classmethod
    def of(cls, node: str, status: Status, preview: Preview | None, unplanned: str = "") -> NodeReport:
        """Return the report from a status and a preview; ``unplanned`` is the cause if the node is unobserved."""
        plans = () if preview is None else preview.plans
        warnings = [*status.warnings, *(() if preview is None else preview.warnings)]
        warnings += [each for plan in plans for each in plan.warnings]
        return cls(
            observed_at=status.observed_at,
            node=node,
            agent=status.agent,
            runtime=status.runtime,
            paused=status.paused,
            planned=None if unplanned else PlannedPass.of(preview),
            unplanned_because=unplanned,
            filesystems=status.filesystems,
            conditions=status.conditions,
            exceeded=tuple(
                threshold.text for signal in status.signals for threshold in signal.thresholds if threshold.met
            ),
            warnings=tuple(dict.fromkeys(warnings)),
        )

    @property
    def image_filesystem_percent(self) -> int | None:
        """The highest usage of an image filesystem in percent; ``None`` without a reading."""
        used = [each.used_percent for each in self.filesystems if each.name.startswith("imagefs")]
        return max((each for each in used if isinstance(each, int)), default=None)

    @property
    def attention(self) -> tuple[str, ...]:
        """Conditions of the node that require an operator's attention, as texts without duplicates."""
        return tuple(dict.fromkeys(each for each in self._attention() if each))

    def _attention(self) -> Iterator[str]:
        agent = self.agent
        yield self.unplanned_because
        if not agent.running:
            yield "no daemon answered"
        yield from (f"not ready: {each}" for each in agent.problems)
        if isinstance(agent.config_problem, str) and agent.config_problem:
            yield f"configuration file not in force: {agent.config_problem}"
        if self.runtime.up is False:
            yield f"runtime unavailable: {self.runtime.problem}"
        if self.paused is not None:
            yield f"paused: {self.paused.why}"
        if self.planned is not None:
            yield from (f"nothing planned: {each}" for each in self.planned.blocked)
        yield from self.conditions
        yield from (f"threshold exceeded: {each}" for each in self.exceeded)
        yield from self.warnings
        yield from self._findings()

    def _findings(self) -> Iterable[str]:
        checks = self.checks if isinstance(self.checks, tuple) else ()
        return (f"{each.verdict} {each.check}: {each.evidence}" for each in checks)
