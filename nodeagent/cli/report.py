"""``nodeagent report``: the state of this node as one line of JSON, or the summary of many such lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

from msgspec import structs

from nodeagent.api.client import DaemonAbsentError
from nodeagent.api.common import Document, DocumentError, decode, encode_line
from nodeagent.cli.control_client import connected
from nodeagent.cli.display import Line, warn
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.reading import ask, load_settings, print_document, run_with_agent, show_document
from nodeagent.cli.table import Heading, Table, size_cell
from nodeagent.daemon.control_documents import FindingDocument
from nodeagent.daemon.documents import Status
from nodeagent.daemon.report_document import (
    Fleet,
    FleetGroup,
    FleetNode,
    NodeDetails,
    NodeReport,
    PlannedRemovals,
    ReportedPass,
    newest_reports,
)
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.gc.documents.passes import DiskUsageDocument
from nodeagent.model.outlook import Outlook
from nodeagent.text import Cut, escape, fit
from nodeagent.trend.shortage import NEAR_S, is_near
from nodeagent.trend.words import duration_range, short_resource
from nodeagent.units import format_bytes, format_duration, format_local_time, localize_times

if TYPE_CHECKING:
    from nodeagent.api.outlook import ForecastDocument
    from nodeagent.cli.options import Source
    from nodeagent.gc.agent import Agent

D = TypeVar("D", bound=Document)

_WIDE: Final = 100
_WARNINGS: Final = 3
"""Maximum number of warnings shown per node; ``-o json`` lists all warnings."""


def fleet_lines(fleet: Fleet, columns: int | None, *, most: int) -> Iterator[Line]:
    """Yield the summary of a fleet, ``columns`` wide, with ``most`` nodes in each of its lists."""
    yield from fleet_summary(fleet)
    yield Line()
    yield from _group_table("VERSION", fleet.by_version, columns)
    yield Line()
    yield from _group_table("ROLE", fleet.by_role, columns)
    listed = [each for each in fleet.nodes if each.removals or each.short_at_s is not None]
    if listed:
        yield Line()
        yield from _node_table(listed[:most], columns)
        if len(listed) > most:
            yield Line(f"and {len(listed) - most} more nodes with removals or an expected shortage", "dim")
    yield from _warnings([each for each in fleet.nodes if each.warnings], columns, most)


def fleet_summary(fleet: Fleet) -> Iterator[Line]:
    """Yield the numbers of nodes and planned removals of a fleet."""
    total = fleet.total
    line = Line(_counted(total.nodes, "node"), "bold")
    if fleet.observed_from is not None and fleet.observed_until is not None:
        line.append(
            f", observed {format_local_time(fleet.observed_from)} to {format_local_time(fleet.observed_until)}", "dim"
        )
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
    near = sum(each.shortage is not None and is_near(each.shortage) for each in fleet.nodes)
    if near:
        yield Line(f"{_counted(near, 'node')} short of a resource within {format_duration(NEAR_S)}", "bold red")
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
    """Return the nodes as a table; names are cut at the end, since node names in a fleet differ at the start.

    SHORT IN is the time until the first hard eviction threshold, or the end of a resource, from the report on.
    """
    wide = columns is None or columns >= _WIDE
    table = Table(
        Heading("NODE", cut=Cut.END, name=True, at_least=16),
        "SHORT IN",
        *(("OF",) if wide else ()),
        *(Heading(each, right=True) for each in ("REMOVALS", "FREES", "IMAGEFS")),
        *(("DRY RUN", Heading("ROLE", cut=Cut.END)) if wide else ()),
        Heading("VERSION", cut=Cut.END, at_least=7),
    )
    for each in nodes:
        percent = each.image_filesystem_percent
        table.add(
            each.node,
            _short_in(each.shortage),
            *((short_resource(each.shortage_resource) if each.short_at_s is not None else "",) if wide else ()),
            "?" if each.removals is None else str(each.removals),
            ("\u2264" if each.upper_bound else "") + size_cell(each.bytes),
            "?" if percent is None else f"{percent}%",
            *(("yes" if each.dry_run else "no", each.role or "") if wide else ()),
            each.version,
        )
    return table.lines(columns)


def _short_in(shortage: ForecastDocument | None) -> str:
    kind = Outlook.UNKNOWN if shortage is None else shortage.outlook
    if shortage is not None and kind is Outlook.RANGE:
        return duration_range(shortage)
    return {Outlook.REACHED: "now", Outlook.NO_TREND: "none"}.get(kind, "unknown")


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
            yield Line(f"{name}: {localize_times(warning)}", hang=2)
        if len(each.warnings) > _WARNINGS:
            yield Line(f"{name}: and {len(each.warnings) - _WARNINGS} more", "dim", hang=2)
    if len(nodes) > most:
        yield Line(f"and {len(nodes) - most} more nodes with warnings", "dim")


_MAX_LINE_BYTES: Final = 4 << 20
"""Maximum length of a report line; a report has a few kilobytes, with many warnings some tens of kilobytes."""
_MAX_REPORTED: Final = 20
_MOST_PASSES: Final = 200
_MOST_ITEMS: Final = 20
_DAY_S: Final = 86_400.0
_USAGE_WITHIN_S: Final = 20.0
_ROOT: Final = Path("/")


def show_report(source: Source, form: str, page: Path | None, *, doctor: bool, details: bool) -> None:
    """Print the report of this node; exit with code 1 if the report has no plan because the observation failed.

    Args:
        source: configuration and options that select the daemon or the node.
        form: ``json`` (one line), ``yaml``, or ``table`` for the summary of this node alone.
        page: file for the report as a page, with checks and details, instead of the output.
        doctor: whether the checks of ``doctor`` are included; they run in this process, never in the daemon.
        details: whether the documents of other commands are included.

    Raises:
        UsageError: the page cannot be rendered or written.
        NodeAgentError: the daemon refuses the request or returns an error, or no runtime is found without a daemon.
    """
    write = None if page is None else _page_writer(page)
    document, status = ask("NodeReport", NodeReport, {}, source), None
    if document is None:
        document, status = run_with_agent(load_settings(source.config, source.overrides), _read_report)
        document = _with_daemon(document, source.config)
    if doctor or page is not None:
        document = structs.replace(document, checks=_checks(source))
    if details or page is not None:
        document = structs.replace(document, details=_details(source, status))
    if write is not None:
        write([document], ())
    elif form == "table":
        _show_fleet(Fleet.of([document]), form, most=1)
    elif form == "json":
        sys.stdout.write(encode_line(document))
    else:
        print_document(document, form)
    sys.exit(ExitCode.DONE if document.planned is not None else ExitCode.FAILED)


def merge_reports(files: Sequence[Path], form: str, page: Path | None, *, most: int) -> None:
    """Print the summary of the reports in files, or on standard input without files.

    The exit code is 3 if some lines are not reports; these lines are listed on standard error.

    Args:
        files: files of reports.
        form: ``table``, ``json`` or ``yaml``.
        page: file for the summary as a page, instead of the output; of one node, the page of this node.
        most: maximum number of nodes in each list of the table.

    Raises:
        UsageError: a file cannot be read, or the page cannot be rendered or written; nothing is printed.
        NodeAgentError: no line is a report.
    """
    write = None if page is None else _page_writer(page)
    reports, faults = _merge(files)
    for each in faults[:_MAX_REPORTED]:
        warn(f"nodeagent: {each}")
    if len(faults) > _MAX_REPORTED:
        warn(f"nodeagent: and {len(faults) - _MAX_REPORTED} more lines that are not reports")
    if not reports:
        count = len(faults)
        raise NodeAgentError(f"no report in {count} line{'' if count == 1 else 's'}; nothing to merge")
    fleet = Fleet.of(reports, malformed=len(faults))
    if write is None:
        _show_fleet(fleet, form, most=most)
    else:
        newest = {each.node: each for each in newest_reports(reports)}
        write([newest[each.node] for each in fleet.nodes], fleet_summary(fleet))
    sys.exit(ExitCode.PARTIAL if faults else ExitCode.DONE)


def _page_writer(path: Path) -> Callable[[Sequence[NodeReport], Iterable[Line]], None]:
    """Return a function that writes reports with their summary as a page.

    Raises:
        UsageError: the page cannot be rendered or written; checked before the node is read.
    """
    from nodeagent.cli.page import prepare_page, render_page, write_page  # noqa: PLC0415 - needed only with --html

    prepare_page(path)
    return lambda reports, summary: write_page(path, render_page(reports, summary))


def _show_fleet(fleet: Fleet, form: str, *, most: int) -> None:
    show_document(fleet, form, lambda fleet, columns: fleet_lines(fleet, columns, most=most))


async def _read_report(agent: Agent) -> tuple[NodeReport, Status]:
    from nodeagent.daemon.status import (  # noqa: PLC0415 - not needed if the daemon responds
        StatusReader,
        report_document,
        status_document,
    )

    status = await status_document(agent, StatusReader(agent), None)
    return await report_document(agent, status), status


def _with_daemon(document: NodeReport, config: Path | None) -> NodeReport:
    """Return the report of a node that this process read, with the state of the daemon that runs meanwhile."""
    try:
        status = connected(config).call("Status", Status)
    except DaemonAbsentError:
        return document
    except NodeAgentError as error:  # the state of a daemon that refuses the user or does not answer is unknown
        return structs.replace(document, warnings=(str(error), *document.warnings))
    return structs.replace(document, agent=status.agent, paused=status.paused)


def _checks(source: Source) -> tuple[FindingDocument, ...]:
    """Run the checks of ``doctor`` and return the problems and warnings."""
    from nodeagent.cli.doctor import run_checks  # noqa: PLC0415 - needed only with --doctor
    from nodeagent.doctor.plan.node import Grade  # noqa: PLC0415

    settings = load_settings(source.config, source.overrides)
    return tuple(
        FindingDocument.from_value(each)
        for each in run_checks(settings, _ROOT, is_root=os.geteuid() == 0)
        if each.verdict in (Grade.PROBLEM, Grade.WARNING)
    )


def _details(source: Source, status: Status | None) -> NodeDetails:
    """Return the documents of other commands on this node; a part that cannot be read is ``None``.

    ``status`` is the status of the report if this process read it.

    Raises:
        NodeAgentError: the status cannot be read.
    """
    from nodeagent.cli.du import read_usage  # noqa: PLC0415 - needed only with --details
    from nodeagent.cli.history import HistorySelection, read_history  # noqa: PLC0415
    from nodeagent.cli.trend import read_trend  # noqa: PLC0415

    unread: list[str] = []

    def attempt(part: str, read_part: Callable[[], D]) -> D | None:
        try:
            return read_part()
        except NodeAgentError as error:
            unread.append(f"{part}: {error}")
            return None

    week = HistorySelection(None, "7d", "", _MOST_PASSES, idle=False, details=False)
    history = attempt("history", lambda: read_history(source.config, week, direct=source.direct)[0])
    usage = attempt("disk usage", lambda: read_usage(source, _USAGE_WITHIN_S))
    return NodeDetails(
        status=_status(source, status),
        usage=None if usage is None else DiskUsageDocument.of(usage.to_model(), _MOST_ITEMS),
        day=attempt("record of 24 hours", lambda: read_trend(source, "", _DAY_S)),
        week=attempt("record of 7 days", lambda: read_trend(source, "", 7 * _DAY_S)),
        passes=() if history is None else tuple(map(ReportedPass.of_past, history.passes)),
        unread=tuple(unread),
    )


def _status(source: Source, own: Status | None) -> Status:
    """Return the status of the running daemon, as in the report; without its answer that of this process.

    Raises:
        NodeAgentError: the daemon that made the report does not answer.
    """
    try:
        return connected(source.config).call("Status", Status)
    except NodeAgentError:  # the report has the cause
        if own is None:
            raise
        return own


def _merge(files: Sequence[Path]) -> tuple[list[NodeReport], list[str]]:
    """Return the report in each line of the files, and the faults of the others; blank lines are skipped.

    Raises:
        UsageError: a file cannot be read.
    """
    reports: list[NodeReport] = []
    faults: list[str] = []
    for name, lines in _inputs(files):
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                reports.append(_report(line))
            except DocumentError as error:
                faults.append(f"{name}: line {number}: {error}")
    return reports, faults


def _report(line: bytes) -> NodeReport:
    """Parse the report in one line.

    Raises:
        DocumentError: the line is too long or not a report.
    """
    if len(line) > _MAX_LINE_BYTES:
        raise DocumentError(f"longer than {_MAX_LINE_BYTES} bytes")
    return decode(line, NodeReport)


def _inputs(files: Iterable[Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
    names = list(files)
    if not names:
        yield "standard input", _lines(sys.stdin.buffer)
    for each in names:
        if str(each) == "-":
            yield "standard input", _lines(sys.stdin.buffer)
            continue
        try:
            with each.open("rb") as file:
                yield str(each), _lines(file)
        except OSError as error:
            raise UsageError(f"cannot read {each}: {error.strerror or error}; nothing was merged") from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; a line that is too long is truncated to one byte more than the maximum."""
    while line := file.readline(_MAX_LINE_BYTES + 1):
        rest = line
        while len(rest) > _MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(_MAX_LINE_BYTES + 1)
        yield line
