"""Page of one or many node reports: one HTML file without scripts, links and requests to the network.

Every sentence and every bar is that of the commands on the terminal, from the same documents. Texts of tenants are
escaped twice: ``text.escape`` makes every character visible, and the template engine escapes for HTML whatever is not
a drawing of ``page_charts``. The policy in the page forbids scripts and requests to the browser, in case an escape is
missing.

The libraries are the extra ``html`` of the package and are imported only here: nodes do not need them.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import UNSET, structs

from nodeagent.cli.display import MarkKind, warn
from nodeagent.cli.du import UsageRow, byte_rows
from nodeagent.cli.gauges import Gauge, given, resource_gauges
from nodeagent.cli.history import reading_words, usage_words
from nodeagent.cli.status import state_line
from nodeagent.cli.table import done_cell, short_reference
from nodeagent.errors import UsageError
from nodeagent.files import replace_file
from nodeagent.model.outlook import Outlook
from nodeagent.text import Cut, escape, fit
from nodeagent.trend.shortage import SHORTAGE, first_threshold
from nodeagent.trend.words import forecast_words, next_words, rate_words, short_name, used_words
from nodeagent.units import format_bytes, format_duration, format_local_time, localize_times

if TYPE_CHECKING:
    from jinja2 import Environment, Template

    from nodeagent.api.outlook import ForecastDocument, OutlookDocument
    from nodeagent.cli.display import Line
    from nodeagent.daemon.control_documents import FindingDocument
    from nodeagent.daemon.report_document import NodeDetails, NodeReport, ReportedPass
    from nodeagent.trend.documents import Trend

_LIBRARIES: Final = ("jinja2", "matplotlib")
_LARGEST_PAGE_BYTES: Final = 1_000_000
_LARGEST_ROW_BYTES: Final = 100_000
"""Maximum size of a node of a fleet with details; those of a usual report have 15 KB."""
_LARGEST_DETAILS_BYTES: Final = 600_000
_LARGEST_ROWS_BYTES: Final = 950_000
"""Maximum size of the nodes of a fleet: with the style sheet, the page is below 1 MB."""
_MOST_CHARTED: Final = 8
_MOST_ITEMS: Final = 15
_MOST_PASSES: Final = 25
_MOST_EVICTIONS: Final = 20
_MOST_SENTENCES: Final = 20
_MOST_FINDINGS: Final = 40
_MOST_NAMES: Final = 3
_LONGEST_TEXT: Final = 600
_GRADES: Final = {"problem": "bad", "warning": "warn"}
_FAILED_ENDS: Final = ("failed", "interrupted", "refused", "runtime-lost", "shortfall")


def prepare_page(path: Path) -> None:
    """Check that a page can be rendered and written, before the node is read.

    Raises:
        UsageError: a library is missing, or the path is not a regular file in a directory.
    """
    missing = [each for each in _LIBRARIES if find_spec(each) is None]
    if missing:
        raise UsageError(
            f"--html: {' and '.join(missing)} not installed; nothing was written; pip install 'nodeagent[html]', or "
            "print 'nodeagent report --details --doctor' here and render it elsewhere with --merge --html"
        )
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise UsageError(f"--html: {path.parent} is not a directory; nothing was written") from None
    except OSError as error:
        raise UsageError(f"--html: {path}: {error.strerror or error}; nothing was written") from error
    else:  # a device would be replaced, and a link may be of another user
        if not stat.S_ISREG(mode):
            raise UsageError(f"--html: {path} is not a regular file; nothing was written")


def write_page(path: Path, text: str) -> None:
    """Write a page, readable by its owner only, and print its size.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        replace_file(path, text)
    except OSError as error:
        raise UsageError(f"--html: {path}: cannot be written: {error.strerror or error}") from error
    warn(f"{path}: {format_bytes(len(text.encode()))}")


def render_page(reports: Sequence[NodeReport], summary: Iterable[Line]) -> str:
    """Return the page of a node, or of a fleet with its summary and its nodes in this order; below 1 MB.

    A report that is too large is shown without its values. In a fleet, a node with too large details has none, nor
    have the last nodes if the page would be too large; the very last have no row.
    """
    from markupsafe import Markup  # noqa: PLC0415 - optional library

    templates = _templates()
    if len(reports) == 1:
        template = templates.get_template("node.html")
        page = _rendered(template, reports[0], draw=_draw)
        if len(page.encode()) <= _LARGEST_PAGE_BYTES:
            return page
        plain = _without_values(
            reports[0], "the values of this report are not shown: the page would be larger than 1 MB"
        )
        return _rendered(template, plain, draw=_draw)
    row_template = templates.get_template("fleet_node.html")
    rows: list[str] = []
    size_bytes = 0
    for each in reports:
        row = _rendered(row_template, each, is_detailed=size_bytes < _LARGEST_DETAILS_BYTES)
        if len(row.encode()) > _LARGEST_ROW_BYTES:
            row = _rendered(row_template, each, is_detailed=False)
        size_bytes += len(row.encode())
        if size_bytes > _LARGEST_ROWS_BYTES:
            break
        rows.append(row)
    return templates.get_template("fleet.html").render(
        rows=Markup("".join(rows)),  # noqa: S704 - rendered by a template
        omitted=len(reports) - len(rows),
        count=len(reports),
        summary=[line.text for line in summary],
        observed_at=max(each.observed_at for each in reports),
    )


def _rendered(template: Template, report: NodeReport, **values: object) -> str:
    """Return a report in a template; a report with a number that is too large is shown without its values.

    A merged report is not authenticated: one of them does not prevent the page of the others. Matplotlib raises
    ``ValueError`` for a time outside of its years.
    """
    try:
        return template.render(node=_node_view(report), **values)
    except (ArithmeticError, ValueError):
        plain = _without_values(report, "a value of this report is out of range")
        return template.render(node=_node_view(plain), **values)


def _without_values(report: NodeReport, warning: str) -> NodeReport:
    return structs.replace(report, filesystems=(), outlook=(), details=UNSET, warnings=(warning, *report.warnings))


def _next_s(outlook: OutlookDocument) -> float:
    return min(map(_expected_s, outlook.forecasts))


def _expected_s(forecast: ForecastDocument) -> float:
    if forecast.outlook is Outlook.REACHED:
        return 0.0
    return inf if forecast.expected_s is None else forecast.expected_s


def _outlooks(report: NodeReport) -> tuple[OutlookDocument, ...]:
    """Return the outlook of each resource with thresholds: of the report, or without a daemon of its record."""
    details, found = given(report.details), report.outlook
    if not found and details is not None and details.day is not None:
        found = tuple(each.outlook for each in details.day.resources)
    return tuple(each for each in found if each.forecasts)


class Statement(NamedTuple):
    """A sentence with its grade: ``bad``, ``warn``, ``muted`` if it is unknown, or empty."""

    text: str
    grade: str = ""


class Action(NamedTuple):
    """Something that happened: kind of its mark in the charts, and what it was."""

    at: datetime
    kind: str
    trigger: str
    result: str
    done: str
    freed: str
    names: str
    is_bad: bool


class NodeView(NamedTuple):
    """The parts of a page of one node.

    Attributes:
        headline: the most important sentence.
        sentences: further sentences on pressure and outlook.
        fullest: name, used share and grade of the filesystem with the highest usage; ``None`` without a reading.
        usage: categories of the image filesystem with their largest items.
        largest: the largest items of all categories.
        actions: passes and reboots of the last 7 days, newest first.
    """

    report: NodeReport
    details: NodeDetails | None
    state: str
    headline: Statement
    sentences: tuple[Statement, ...]
    fullest: tuple[str, float, str] | None
    gauges: tuple[Gauge, ...]
    usage: tuple[UsageRow, ...]
    largest: tuple[UsageRow, ...]
    outlooks: tuple[OutlookDocument, ...]
    actions: tuple[Action, ...]
    evictions: tuple[ReportedPass, ...]
    findings: tuple[FindingDocument, ...] | None


def _node_view(report: NodeReport) -> NodeView:
    details, checks = given(report.details), given(report.checks)
    sentences = tuple(_sentences(report, details))
    usage = () if details is None or details.usage is None else tuple(byte_rows(details.usage.to_model()))
    passes = () if details is None else details.passes
    return NodeView(
        report=report,
        details=details,
        state="" if details is None else state_line(details.status).text,
        headline=sentences[0],
        sentences=_capped(sentences[1:]),
        fullest=_fullest(report),
        gauges=() if details is None else tuple(resource_gauges(details.status)),
        usage=usage,
        largest=tuple(sorted(_items(usage), key=lambda each: -each.amount)[:_MOST_ITEMS]),
        outlooks=_outlooks(report),
        actions=() if details is None else tuple(_actions(details)),
        evictions=tuple(each for each in passes if each.eviction is not None)[:_MOST_EVICTIONS],
        findings=None if checks is None else tuple(sorted(checks, key=lambda each: each.verdict != "problem")),
    )


def _capped(sentences: tuple[Statement, ...]) -> tuple[Statement, ...]:
    more = len(sentences) - _MOST_SENTENCES
    return (*sentences[:_MOST_SENTENCES], Statement(f"{more} more", "warn")) if more > 0 else sentences


def _items(usage: Iterable[UsageRow]) -> Iterator[UsageRow]:
    """Yield the items of all categories, in the style of their category."""
    style = ""
    for each in usage:
        if not each.is_item:
            style = each.style
        elif not each.is_rest:
            yield each._replace(style=style)


def _sentences(report: NodeReport, details: NodeDetails | None) -> Iterator[Statement]:
    """Yield what is full, and what will be met when, soonest first; at least one sentence."""
    if report.conditions or report.exceeded:
        yield Statement(": ".join(filter(None, (", ".join(report.conditions), ", ".join(report.exceeded)))), "bad")
    if report.unplanned_because:
        yield Statement(report.unplanned_because, "bad")
    if details is not None:
        yield from (Statement(each, "bad") for each in details.status.unrelieved)
    yield from (Statement(each.nearly_full, "bad") for each in report.filesystems if each.nearly_full)
    outlooks = _outlooks(report)
    coming = sorted((each for each in outlooks if _next_s(each) < inf), key=_next_s)
    for each in coming:
        first = first_threshold([each], SHORTAGE)
        is_near = _next_s(each) == 0 or (first is not None and first.is_near)  # met already, or a shortage is near
        yield Statement(f"{short_name(each)}: {next_words(each)}", "warn" if is_near else "")
    if not (report.conditions or report.exceeded):
        yield from _no_pressure(report, details, outlooks, is_coming=bool(coming))
    if not report.agent.running:
        yield Statement("no daemon answered", "warn")
    if report.paused is not None:
        yield Statement(f"paused: {report.paused.why}", "warn")
    yield from (Statement(each, "warn") for each in report.warnings)
    yield from (Statement(f"not read: {each}", "warn") for each in (details.unread if details else ()))


def _no_pressure(
    report: NodeReport, details: NodeDetails | None, outlooks: Sequence[OutlookDocument], *, is_coming: bool
) -> Iterator[Statement]:
    """Yield what is known of a node without conditions, as ``gauge_lines``; nothing beside a full disk or a forecast.

    A report without details has no signals: those of a node with a filesystem were read.
    """
    unknown = [short_name(each) for each in outlooks if any(one.outlook is Outlook.UNKNOWN for one in each.forecasts)]
    outlook = (
        f"outlook of {', '.join(unknown)} unknown"
        if unknown
        else "no threshold is expected to be met"
        if outlooks
        else "outlook unknown"
    )
    if not (report.filesystems if details is None else details.status.signals):
        pressure = "pressure unknown: no signal was read"
        yield Statement(pressure if is_coming else f"{pressure}; {outlook}", "warn")
    elif not (is_coming or any(each.nearly_full for each in report.filesystems)):
        yield Statement(f"no pressure; {outlook}", "muted" if unknown or not outlooks else "")


def _fullest(report: NodeReport) -> tuple[str, float, str] | None:
    found = [(percent, each) for each in report.filesystems if (percent := given(each.used_percent)) is not None]
    if not found:
        return None
    percent, disk = max(found, key=lambda each: each[0])
    is_met = disk.high_percent is not None and percent >= disk.high_percent
    return disk.name, percent / 100, "bad" if disk.nearly_full else "warn" if is_met else ""


def _actions(details: NodeDetails) -> Iterator[Action]:
    """Yield passes and reboots, newest first."""
    reboots = [each for each in (details.week.marks if details.week else ()) if each.kind == "reboot"]
    found = [*map(_pass_action, details.passes), *(_reboot(each.at, each.text) for each in reboots)]
    yield from sorted(found, key=lambda each: each.at, reverse=True)


def _reboot(at: datetime, text: str) -> Action:
    return Action(at, "reboot", "", "", "", "", text, is_bad=False)


def _pass_action(past: ReportedPass) -> Action:
    names = ", ".join(short_reference(each.name) for each in past.actions[:_MOST_NAMES])
    more = past.planned - _MOST_NAMES
    is_failed = any(each.outcome in ("failed", "unknown") for each in past.actions)
    return Action(
        past.started_at,
        "eviction" if past.scope == "pods" else "collection",
        f"{past.trigger}, {past.scope}",
        "dry-run" if past.dry_run else f"{past.end} with failures" if is_failed else past.end,
        done_cell(past.trigger, past.removed, past.planned),
        "" if past.freed_bytes is None else format_bytes(past.freed_bytes),
        f"{names} and {more} more" if more > 0 else names,
        is_failed or past.end in _FAILED_ENDS,
    )


def _draw(record: Trend | None, resource: str) -> str:
    """Return the chart of a resource as markup; empty without a record."""
    from markupsafe import Markup  # noqa: PLC0415 - optional library

    from nodeagent.cli.page_charts import chart  # noqa: PLC0415 - imports an optional library

    found = next((each for each in record.resources if each.outlook.resource == resource), None) if record else None
    return Markup() if record is None or found is None else Markup(chart(found, record))  # noqa: S704 - has no text of others


def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - optional library

    found = Environment(
        loader=PackageLoader("nodeagent.cli"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        bytes=format_bytes,
        duration=format_duration,
        time=format_local_time,
        sentence=localize_times,
        percent=lambda share: f"{share:.0%}",
        share=lambda share: f"{_bounded(share):.3f}",
        across=lambda share: f"{100 * _bounded(share):.2f}%",
        short_name=short_name,
        growth=lambda outlook: [
            f"{each.share:.0%} {each.part or 'other'}: {rate_words(outlook, each.rate_per_s)}"
            for each in outlook.growth[:_MOST_NAMES]
        ],
        forecasts=lambda outlook: [forecast_words(outlook, each) for each in outlook.forecasts],
        readings=reading_words,
        usage=lambda value, eviction: usage_words(eviction, value),
        used=used_words,
    )
    found.globals.update(
        MarkKind=MarkKind,
        grades=_GRADES,
        most_charted=_MOST_CHARTED,
        most_passes=_MOST_PASSES,
        most_findings=_MOST_FINDINGS,
    )
    return found


def _bounded(share: float) -> float:
    return min(1.0, max(0.0, share))


def _shown(value: object) -> object:
    """Return the text of a value in which every character is visible; markup is unchanged."""
    if hasattr(value, "__html__"):
        return value
    return fit(escape(str(value)), _LONGEST_TEXT, Cut.MIDDLE)
