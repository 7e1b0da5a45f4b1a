"""Document of a fleet: the reports of many nodes, merged.

Every figure is computed from the same reports, the newest report of each node, so that the sums of the groups equal the
totals.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from nodeagent.api.codec import Document, Part, Time
from nodeagent.daemon.report_document import NodeReport, PlannedRemovals
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


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
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, report: NodeReport) -> FleetNode:
        """Return the summary of a report."""
        planned = report.planned
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
            warnings=report.attention,
        )


class Fleet(Document, frozen=True, kw_only=True, tag=SchemaId.FLEET.value):
    """The merged reports of a fleet.

    Attributes:
        lines: number of input lines: the sum of ``malformed`` lines (not reports), ``superseded`` lines (a newer report
            of the node exists) and ``total.nodes``.
        observed_from: time of the oldest merged report; ``observed_until`` is the time of the newest merged report.
        by_kind: planned removals of all nodes, by kind of item.
        nodes: the nodes by predicted bytes, largest first, then by name; nodes without a plan last.
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
        newest: dict[str, NodeReport] = {}
        count = 0
        for each in reports:
            count += 1
            known = newest.get(each.node)
            if known is None or each.observed_at >= known.observed_at:
                newest[each.node] = each
        found = tuple(newest.values())
        times = [each.observed_at for each in found]
        return cls(
            lines=count + malformed,
            malformed=malformed,
            superseded=count - len(found),
            observed_from=min(times, default=None),
            observed_until=max(times, default=None),
            total=FleetGroup.of("", found),
            by_kind=_by_kind(found),
            by_version=_groups(found, lambda each: each.agent.version),
            by_role=_groups(found, lambda each: each.agent.role or ""),
            nodes=tuple(sorted(map(FleetNode.of, found), key=_order)),
        )


def _order(node: FleetNode) -> tuple[bool, int, str]:
    return node.bytes is None, -(node.bytes or 0), node.node


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
