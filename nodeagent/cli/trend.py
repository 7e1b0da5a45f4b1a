"""``nodeagent trend``: the record of the node's resources as a table or a chart, and the outlook in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.cli.display import Line, warning_lines
from nodeagent.cli.reading import read, show_document
from nodeagent.model.outlook import Outlook
from nodeagent.text import Cut, fit
from nodeagent.trend.documents import ResourceTrend, Trend, TrendMark
from nodeagent.trend.words import forecast_words, next_words, rate_words, short_name, used_words
from nodeagent.units import format_local_time

if TYPE_CHECKING:
    from nodeagent.api.outlook import OutlookDocument
    from nodeagent.cli.options import Source
    from nodeagent.gc.agent import Agent

LEVELS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ROWS: Final = 10
_AXIS: Final = 5
_NARROWEST_CHART: Final = 20
_DEFAULT_COLUMNS: Final = 80
_MARKS: Final[Mapping[str, str]] = {"collection": "c", "eviction": "E", "reboot": "R"}
_MOST_GROWING: Final = 5


def show_trend(source: Source, resource: str, since_s: float, form: str) -> None:
    """Print the outlook of all resources, or the record of those with a name; errors as ``read_trend``."""
    show_document(read_trend(source, resource, since_s), form, partial(trend_view, chart=bool(resource)))


def read_trend(source: Source, resource: str, since_s: float) -> Trend:
    """Return the record of the resources with a name, of all for an empty name.

    Raises:
        UsageError: no resource has this name.
        NodeAgentError: the record cannot be read.
    """

    async def local(agent: Agent) -> Trend:
        from nodeagent.daemon.status import StatusReader  # noqa: PLC0415 - not needed if the daemon responds
        from nodeagent.eviction.plan.state import EvictionState  # noqa: PLC0415
        from nodeagent.trend.document_readings import trend_document  # noqa: PLC0415

        layout, *_ = await StatusReader(agent).read(EvictionState())
        return await trend_document(agent, layout, resource, since_s)

    return read("Trend", Trend, {"resource": resource, "seconds": since_s}, source, local)


def trend_view(trend: Trend, columns: int | None, *, chart: bool) -> Iterator[Line]:
    """Yield the outlook of each resource in two lines; with ``chart`` the record of each and its outlook in detail."""
    if chart:
        for number, each in enumerate(trend.resources):
            if number:
                yield Line()
            yield from chart_lines(each, trend, columns)
    elif trend.resources:
        yield from outlook_lines([each.outlook for each in trend.resources])
    yield from warning_lines(trend.warnings)


def outlook_lines(outlooks: Iterable[OutlookDocument]) -> Iterator[Line]:
    """Yield two lines for each resource with thresholds: its use in the last 24 hours, and what happens next."""
    found = [each for each in outlooks if each.forecasts]
    label = max((len(short_name(each)) for each in found), default=0)
    for each in found:
        line = Line(f"{short_name(each):<{label}} {each.used / each.capacity:>4.0%} used ")
        yield line.append(sparkline(each.hours), "cyan")
        is_coming = any(one.outlook in (Outlook.RANGE, Outlook.REACHED) for one in each.forecasts)
        yield Line(f"  {next_words(each)}", "" if is_coming else "dim", hang=4)


def chart_lines(trend: ResourceTrend, document: Trend, columns: int | None) -> Iterator[Line]:
    """Yield the record of one resource as a chart with its events below, and its forecasts."""
    outlook = trend.outlook
    share = outlook.used / outlook.capacity
    yield Line(short_name(outlook), "bold").append(f"  {share:.0%} used, {used_words(outlook)}")
    width = max(_NARROWEST_CHART, (columns or _DEFAULT_COLUMNS) - _AXIS)
    cells = _cells(trend, document.since, document.observed_at, width)
    known = [each for each in cells if each is not None]
    if known:
        low, high = _bounds(known)
        for row in reversed(range(_ROWS)):
            label = f"{high:.0%}" if row == _ROWS - 1 else f"{low:.0%}" if row == 0 else ""
            yield Line(f"{label:>{_AXIS - 1}} ").append("".join(_cell(each, row, low, high) for each in cells))
        marks = _mark_row(document.marks, document.since, document.observed_at, width)
        if marks.strip():
            yield Line(" " * _AXIS).append(marks, "cyan")
        yield _time_axis(document.since, document.observed_at, width)
        if marks.strip():
            used = [name for name, mark in _MARKS.items() if mark in marks]
            yield Line(", ".join(f"{_MARKS[name]} {name}" for name in used), "dim")
    for each in outlook.forecasts:
        yield Line(forecast_words(outlook, each))
    for growing in outlook.growth[:_MOST_GROWING]:
        name = growing.part or "other"
        name = name if columns is None else fit(name, columns // 2, Cut.MIDDLE)
        yield Line(f"{growing.share:>4.0%} {name}: {rate_words(outlook, growing.rate_per_s)}")
    others = outlook.growth[_MOST_GROWING:]
    if others:
        rate = rate_words(outlook, sum(each.rate_per_s for each in others))
        yield Line(f"{sum(each.share for each in others):>4.0%} {len(others)} more: {rate}")


def _cells(trend: ResourceTrend, since: datetime, until: datetime, width: int) -> list[float | None]:
    """Return the highest used share for each column; ``None`` without a reading, which is not interpolated."""
    found: list[float | None] = [None] * width
    span_s = (until - since).total_seconds()
    for each in trend.points:
        index = min(width - 1, int(width * (each.at - since).total_seconds() / span_s))
        found[index] = max(found[index] or 0.0, each.used / trend.outlook.capacity)
    return found


def _bounds(shares: Sequence[float]) -> tuple[float, float]:
    """Return the range of the axis: that of the readings, at least two percent wide."""
    low, high = min(shares), max(shares)
    return max(0.0, min(low, high - 0.02)), high if high > 0 else 0.02


def _cell(share: float | None, row: int, low: float, high: float) -> str:
    if share is None:
        return " "
    eighths = round((_ROWS * len(LEVELS) - 1) * (share - low) / (high - low)) + 1 - row * len(LEVELS)
    return " " if eighths <= 0 else LEVELS[min(len(LEVELS), eighths) - 1]


def _mark_row(marks: Iterable[TrendMark], since: datetime, until: datetime, width: int) -> str:
    """Return the row of events; of several in one column, an eviction or a reboot is shown."""
    cells = [" "] * width
    for each in marks:
        index = int(width * (each.at - since).total_seconds() / (until - since).total_seconds())
        if 0 <= index < width:
            mark = _MARKS.get(each.kind, "?")
            cells[index] = mark if cells[index] in " c" else cells[index]
    return "".join(cells).rstrip()


def _time_axis(since: datetime, until: datetime, width: int) -> Line:
    first, last = format_local_time(since), format_local_time(until)
    if len(first) + len(last) >= width:
        return Line(" " * _AXIS + last.rjust(width), "dim")
    return Line(" " * _AXIS + first + last.rjust(max(len(last) + 1, width - len(first))), "dim")


def sparkline(hours: Iterable[float | int | None]) -> str:
    """Return a bar for each hour, in eighths of the full height; a dot for an hour without a reading."""
    top = len(LEVELS) - 1
    return "".join("\u00b7" if each is None else LEVELS[min(top, int(each * len(LEVELS)))] for each in hours)
