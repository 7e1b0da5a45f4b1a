"""Documents of the state of a node, one line of JSON, and of a fleet: the reports of many nodes, merged.

Every figure of a fleet is computed from the same reports, the newest report of each node, so that the sums of the
groups equal the totals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import UNSET, Meta, UnsetType, structs

from nodeagent.api.common import Document, DocumentError, Part
from nodeagent.api.outlook import ForecastDocument, OutlookDocument
from nodeagent.daemon.control_documents import FindingDocument
from nodeagent.daemon.documents import (
    AgentStatus,
    FilesystemStatus,
    PassSummary,
    PauseStatus,
    RuntimeStatusDocument,
    Status,
)
from nodeagent.eviction.documents import RecordedEviction
from nodeagent.gc.documents.history import PastActionDocument, PastPassDocument
from nodeagent.gc.documents.passes import DiskUsageDocument
from nodeagent.model.decision import Accounting, Verdict
from nodeagent.model.outlook import Outlook
from nodeagent.record import Time
from nodeagent.schemas import SchemaId
from nodeagent.trend.documents import Trend
from nodeagent.trend.shortage import SHORTAGE, first_shortages, first_threshold
from nodeagent.trend.words import shortage_words

if TYPE_CHECKING:
    from nodeagent.gc.documents.passes import PreviewDocument

Count = Annotated[int, Meta(ge=0, le=1 << 62)]
"""A number of items or bytes, limited so that sums over many nodes can be formatted."""
NodeName = Annotated[str, Meta(min_length=1, max_length=253)]
_MOST_SHOWN: Final = 10
"""Maximum number of actions of a pass and of ranks of an eviction in a report."""
_FAILURES: Final = ("failed", "unknown")


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
    def of(cls, preview: PreviewDocument | None) -> PlannedPass:
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


class ReportedPass(PassSummary, frozen=True, kw_only=True):
    """A past pass with its counts, and its most important actions.

    Attributes:
        actions: at most 10 actions, failed actions first.
        eviction: the record of an eviction with the first ranks and the rank of the evicted pod; ``None`` for other
            passes, and for a record of an unknown form.
        ranked: number of the ranked pods.
    """

    end_detail: str
    actions: tuple[PastActionDocument, ...]
    eviction: RecordedEviction | None = None
    ranked: int = 0

    @classmethod
    def of_past(cls, past: PastPassDocument) -> ReportedPass:
        """Return the shortened form of a pass."""
        try:
            eviction = None if isinstance(past.eviction, UnsetType) else RecordedEviction.of(past.eviction)
        except DocumentError:  # written by another version
            eviction = None
        ranking = () if eviction is None else eviction.ranking
        victims = {each.name for each in past.actions}
        shown = tuple(each for each in ranking if each.rank <= _MOST_SHOWN or each.name in victims)
        return cls.from_value(
            past,
            removed=past.done,
            planned=len(past.actions),
            actions=tuple(sorted(past.actions, key=lambda each: each.outcome not in _FAILURES))[:_MOST_SHOWN],
            eviction=None if eviction is None else structs.replace(eviction, ranking=shown),
            ranked=len(ranking),
        )


class NodeDetails(Part, frozen=True, kw_only=True):
    """The documents of other commands, from which a page is rendered; about 500 KiB.

    Attributes:
        usage: usage of the image filesystem with the largest items of each share; ``None``, as for ``day`` and
            ``week``, if it could not be read, with the cause in ``unread``.
        day: record of the last 24 hours.
        week: record of the last 7 days.
        passes: passes of the last 7 days with removals, newest first; at most 200.
    """

    status: Status
    usage: DiskUsageDocument | None
    day: Trend | None
    week: Trend | None
    passes: tuple[ReportedPass, ...]
    unread: tuple[str, ...]


class NodeReport(Document, frozen=True, kw_only=True, tag=SchemaId.NODE_REPORT.value):
    """The state of one node for the summary of a fleet.

    Attributes:
        node: name of the node: ``kubelet.node_name``, else the host name in lower case.
        agent: the daemon, or the command in place of a daemon; ``role`` is whether a kubelet manages the node.
        planned: ``None`` if the node could not be observed, with the cause in ``unplanned_because``.
        conditions: pressure conditions of the node, such as ``DiskPressure``.
        exceeded: eviction thresholds that are exceeded.
        outlook: outlook of each resource; absent in a report of an older version.
        checks: problems and warnings of ``doctor``; absent unless requested.
        details: documents of other commands; absent unless requested.
    """

    observed_at: Time
    node: NodeName
    agent: AgentStatus
    runtime: RuntimeStatusDocument
    paused: PauseStatus | None
    planned: PlannedPass | None
    unplanned_because: str
    filesystems: tuple[FilesystemStatus, ...]
    conditions: tuple[str, ...]
    exceeded: tuple[str, ...]
    outlook: tuple[OutlookDocument, ...] = ()
    warnings: tuple[str, ...]
    checks: tuple[FindingDocument, ...] | UnsetType = UNSET
    details: NodeDetails | UnsetType = UNSET

    @classmethod
    def of(cls, node: str, status: Status, preview: PreviewDocument | None, unplanned: str = "") -> NodeReport:
        """Return the report from a status and a preview; ``unplanned`` is the cause if the node is unobserved."""
        plans = () if preview is None else preview.plans
        warnings = [*status.warnings, *(() if preview is None else preview.warnings)]
        warnings += [each for plan in plans for each in plan.warnings]
        exceeded = [threshold.text for signal in status.signals for threshold in signal.thresholds if threshold.met]
        return cls.from_value(
            status,
            node=node,
            planned=None if unplanned else PlannedPass.of(preview),
            unplanned_because=unplanned,
            exceeded=tuple(exceeded),
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
        shortages = first_shortages(self.outlook)
        yield from (f"shortage expected: {shortage_words(each)}" for each in shortages if each.is_near)
        yield from self.warnings
        checks = self.checks if isinstance(self.checks, tuple) else ()
        yield from (f"{each.verdict} {each.check}: {each.evidence}" for each in checks)


class FleetGroup(Part, frozen=True, kw_only=True):
    """The nodes with the same value of a field, and the sums over their plans.

    Attributes:
        name: value of the field; empty for reports without a value.
        dry_run: number of nodes that remove nothing because of their configuration.
        not_running: number of nodes on which no daemon responded.
        unobserved: number of nodes without a plan; their removals are unknown, not 0.
        with_removals: number of nodes with planned removals.
        short: number of nodes whose removals are not predicted to reach the target.
    """

    name: str
    nodes: int
    dry_run: int
    not_running: int
    unobserved: int
    with_removals: int
    short: int
    removals: int
    bytes: int
    pending_bytes: int
    shortfall_bytes: int

    @classmethod
    def of(cls, name: str, reports: Sequence[NodeReport]) -> FleetGroup:
        """Return the sums over reports, as the group ``name``."""
        plans = [each.planned for each in reports if each.planned is not None]
        return cls(
            name=name,
            nodes=len(reports),
            dry_run=sum(each.agent.dry_run for each in reports),
            not_running=sum(not each.agent.running for each in reports),
            unobserved=len(reports) - len(plans),
            with_removals=sum(each.count > 0 for each in plans),
            short=sum(each.shortfall_bytes > 0 for each in plans),
            removals=sum(each.count for each in plans),
            bytes=sum(each.bytes for each in plans),
            pending_bytes=sum(each.pending_bytes for each in plans),
            shortfall_bytes=sum(each.shortfall_bytes for each in plans),
        )


class FleetNode(Part, frozen=True, kw_only=True):
    """The summary of one node.

    Attributes:
        removals: number of planned removals; ``None``, as ``bytes``, if the node could not be observed.
        upper_bound: whether ``bytes`` is an upper bound.
        image_filesystem_percent: the highest usage of an image filesystem; ``None`` without a reading.
        shortage: the hard eviction threshold, or end of a resource, that is met first; its times count from
            ``observed_at``. ``None`` without an outlook.
        shortage_resource: resource of ``shortage``; empty without one.
        warnings: conditions that require an operator's attention, including the warnings of the report.
    """

    node: str
    observed_at: Time
    version: str
    role: str | None
    dry_run: bool
    removals: int | None
    bytes: int | None
    upper_bound: bool
    image_filesystem_percent: int | None
    shortage: ForecastDocument | None = None
    shortage_resource: str = ""
    warnings: tuple[str, ...]

    @property
    def short_at_s(self) -> float | None:
        """Expected time of the shortage in seconds of Unix time; ``None`` if no time is expected."""
        if self.shortage is None or self.shortage.outlook not in (Outlook.REACHED, Outlook.RANGE):
            return None
        return self.observed_at.timestamp() + (self.shortage.expected_s or 0.0)

    @classmethod
    def of(cls, report: NodeReport) -> FleetNode:
        """Return the summary of a report."""
        planned, first = report.planned, first_threshold(report.outlook, SHORTAGE)
        return cls(
            node=report.node,
            observed_at=report.observed_at,
            version=report.agent.version,
            role=report.agent.role,
            dry_run=report.agent.dry_run,
            removals=None if planned is None else planned.count,
            bytes=None if planned is None else planned.bytes,
            upper_bound=planned is not None and planned.upper_bound,
            image_filesystem_percent=report.image_filesystem_percent,
            shortage=None if first is None else first.forecast,
            shortage_resource="" if first is None else first.outlook.resource,
            warnings=report.attention,
        )


class Fleet(Document, frozen=True, kw_only=True, tag=SchemaId.FLEET.value):
    """The merged reports of a fleet.

    Attributes:
        lines: number of input lines: the sum of ``malformed`` lines (not reports), ``superseded`` lines (a newer report
            of the node exists) and ``total.nodes``.
        observed_from: time of the oldest merged report; ``observed_until`` is the time of the newest merged report.
        by_kind: planned removals of all nodes, by kind of item.
        nodes: the nodes with an expected shortage, soonest first; then the others by predicted bytes, largest first,
            then by name; nodes without a plan last.
    """

    lines: int
    malformed: int
    superseded: int
    observed_from: Time | None
    observed_until: Time | None
    total: FleetGroup
    by_kind: tuple[PlannedRemovals, ...]
    by_version: tuple[FleetGroup, ...]
    by_role: tuple[FleetGroup, ...]
    nodes: tuple[FleetNode, ...]

    @classmethod
    def of(cls, reports: Iterable[NodeReport], *, malformed: int = 0) -> Fleet:
        """Merge the newest report of each node; of several reports with the same time, the last report is merged.

        Args:
            reports: reports in the order of their input lines.
            malformed: number of lines that are not reports.
        """
        given = tuple(reports)
        found = newest_reports(given)
        times = [each.observed_at for each in found]
        return cls(
            lines=len(given) + malformed,
            malformed=malformed,
            superseded=len(given) - len(found),
            observed_from=min(times, default=None),
            observed_until=max(times, default=None),
            total=FleetGroup.of("", found),
            by_kind=_by_kind(found),
            by_version=_groups(found, lambda each: each.agent.version),
            by_role=_groups(found, lambda each: each.agent.role or ""),
            nodes=tuple(sorted(map(FleetNode.of, found), key=_order)),
        )


def newest_reports(reports: Iterable[NodeReport]) -> tuple[NodeReport, ...]:
    """Return the newest report of each node; of several reports with the same time, the last report."""
    newest: dict[str, NodeReport] = {}
    for each in reports:
        known = newest.get(each.node)
        if known is None or each.observed_at >= known.observed_at:
            newest[each.node] = each
    return tuple(newest.values())


def _order(node: FleetNode) -> tuple[bool, float, bool, int, str]:
    at_s = node.short_at_s
    return at_s is None, at_s or 0.0, node.bytes is None, -(node.bytes or 0), node.node


def _groups(reports: Iterable[NodeReport], value: Callable[[NodeReport], str]) -> tuple[FleetGroup, ...]:
    """Return the groups of reports with the same value, largest group first, then by value."""
    found: defaultdict[str, list[NodeReport]] = defaultdict(list)
    for each in reports:
        found[value(each)].append(each)
    groups = [FleetGroup.of(name, members) for name, members in found.items()]
    return tuple(sorted(groups, key=lambda each: (-each.nodes, each.name)))


def _by_kind(reports: Iterable[NodeReport]) -> tuple[PlannedRemovals, ...]:
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for report in reports:
        for each in report.planned.removals if report.planned is not None else ():
            for index, amount in enumerate((each.count, each.bytes, each.without_size)):
                sums[each.kind][index] += amount
    return tuple(
        PlannedRemovals(kind=kind, count=count, bytes=size_bytes, without_size=without_size)
        for kind, (count, size_bytes, without_size) in sorted(sums.items())
    )
