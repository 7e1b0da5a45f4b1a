"""Table output of ``nodeagent report --merge``: totals, groups, nodes with removals, and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.cli.display import Line
from nodeagent.cli.table import Heading, Table
from nodeagent.cli.values import size_cell
from nodeagent.text import Cut, escape, fit
from nodeagent.units import format_bytes, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.api.fleet import Fleet, FleetGroup, FleetNode
    from nodeagent.api.node_report import PlannedRemovals

_WIDE: Final = 100
_WARNINGS: Final = 3
"""Maximum number of warnings shown per node; ``-o json`` lists all warnings."""


def fleet_lines(fleet: Fleet, columns: int | None, *, most: int) -> Iterator[Line]:
    """Yield the summary of a fleet, ``columns`` wide, with ``most`` nodes in each of its lists."""
    yield from _head(fleet)
    yield Line()
    yield from _group_table("VERSION", fleet.by_version, columns)
    yield Line()
    yield from _group_table("ROLE", fleet.by_role, columns)
    freeing = [each for each in fleet.nodes if each.removals]
    if freeing:
        yield Line()
        yield from _node_table(freeing[:most], columns)
        if len(freeing) > most:
            yield Line(f"and {len(freeing) - most} more nodes with removals", "dim")
    yield from _warnings([each for each in fleet.nodes if each.warnings], columns, most)


def _head(fleet: Fleet) -> Iterator[Line]:
    total = fleet.total
    line = Line(_counted(total.nodes, "node"), "bold")
    if fleet.observed_from is not None and fleet.observed_until is not None:
        line.append(f", observed {format_time(fleet.observed_from)} to {format_time(fleet.observed_until)}", "dim")
    yield line
    if fleet.superseded:
        yield Line(f"{_counted(fleet.superseded, 'older report')} of the same nodes not counted", "dim")
    if fleet.malformed:
        yield Line(f"{_counted(fleet.malformed, 'line')} of {fleet.lines} not counted: no report", "bold red")
    mark = "at most " if any(each.upper_bound for each in fleet.nodes) else ""
    kinds = f": {', '.join(map(_kind, fleet.by_kind))}" if fleet.by_kind else ""
    yield Line(
        f"{_counted(total.removals, 'removal')} on {_counted(total.with_removals, 'node')}{kinds}; "
        f"frees {mark}{format_bytes(total.bytes)}",
        "bold",
    )
    if total.pending_bytes:
        yield Line(f"{format_bytes(total.pending_bytes)} more are freed by the runtime's own garbage collection", "dim")
    if total.dry_run:
        yield Line(f"{_counted(total.dry_run, 'node')} in dry run: nothing is removed there", "yellow")
    if total.not_running:
        yield Line(f"{_counted(total.not_running, 'node')} without a daemon", "yellow")
    if total.short:
        short = format_bytes(total.shortfall_bytes)
        yield Line(f"{_counted(total.short, 'node')} short of the target by {short} together", "yellow")
    if total.unobserved:
        yield Line(f"{_counted(total.unobserved, 'node')} without a plan: removals unknown", "bold red")


def _kind(removals: PlannedRemovals) -> str:
    noun = escape(removals.kind).replace("-", " ")
    unknown = f" ({removals.without_size} of unknown size)" if removals.without_size else ""
    return f"{_counted(removals.count, noun)}{unknown}"


def _counted(count: int, noun: str) -> str:
    ending = "" if count == 1 else "ies" if noun.endswith("y") else "es" if noun.endswith("x") else "s"
    return f"{count} {noun.removesuffix('y') if ending == 'ies' else noun}{ending}"


def _group_table(title: str, groups: tuple[FleetGroup, ...], columns: int | None) -> list[Line]:
    numbers = ("NODES", "DRY RUN", "UNKNOWN", "REMOVALS", "FREES")
    table = Table(
        Heading(title, cut=Cut.MIDDLE, name=True, at_least=14), *(Heading(each, right=True) for each in numbers)
    )
    for each in groups:
        table.add(
            each.name, *map(str, (each.nodes, each.dry_run, each.unobserved, each.removals)), size_cell(each.bytes)
        )
    return table.lines(columns)


def _node_table(nodes: list[FleetNode], columns: int | None) -> list[Line]:
    """Return the nodes as a table; names are cut at the end, since node names in a fleet differ at the start."""
    wide = columns is None or columns >= _WIDE
    table = Table(
        Heading("NODE", cut=Cut.END, name=True, at_least=16),
        *(Heading(each, right=True) for each in ("REMOVALS", "FREES", "IMAGEFS")),
        *(("DRY RUN", Heading("ROLE", cut=Cut.END)) if wide else ()),
        Heading("VERSION", cut=Cut.END, at_least=7),
    )
    for each in nodes:
        percent = each.image_filesystem_percent
        table.add(
            each.node,
            str(each.removals),
            ("\u2264" if each.upper_bound else "") + size_cell(each.bytes),
            "?" if percent is None else f"{percent}%",
            *(("yes" if each.dry_run else "no", each.role or "") if wide else ()),
            each.version,
        )
    return table.lines(columns)


def _warnings(nodes: list[FleetNode], columns: int | None, most: int) -> Iterator[Line]:
    if not nodes:
        return
    yield Line()
    yield Line(f"{_counted(len(nodes), 'node')} with warnings", "bold yellow")
    shown = sorted(nodes, key=lambda each: (each.removals is not None, each.node))[:most]
    for each in shown:
        name = escape(each.node)
        name = name if columns is None else fit(name, columns // 2, Cut.END)
        for warning in each.warnings[:_WARNINGS]:
            yield Line(f"{name}: {warning}", hang=2)
        if len(each.warnings) > _WARNINGS:
            yield Line(f"{name}: and {len(each.warnings) - _WARNINGS} more", "dim", hang=2)
    if len(nodes) > most:
        yield Line(f"and {len(nodes) - most} more nodes with warnings", "dim")
