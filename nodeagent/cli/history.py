"""``nodeagent history``: past passes and node stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import UnsetType, structs

from nodeagent.cli import table as values
from nodeagent.cli.display import Display, Line, standard_output
from nodeagent.cli.listing import NODE_STOPS, PASSES, counted_kinds
from nodeagent.cli.lists import ListRequest
from nodeagent.cli.options import Source
from nodeagent.cli.reading import ask, load_settings
from nodeagent.cli.table import Heading, Table
from nodeagent.errors import UsageError
from nodeagent.eviction.documents import RecordedEviction
from nodeagent.eviction.plan.thresholds import Unit, unit_of
from nodeagent.gc.documents.history import HistoryDocument, NodeStopDocument, PastPassDocument
from nodeagent.text import Cut, escape, fit
from nodeagent.trend.words import quantity
from nodeagent.units import SystemClock, format_bytes, format_duration, format_local_time, localize_times, parse_since

if TYPE_CHECKING:
    from nodeagent.cli.listing import ListOptions


class HistorySelection(NamedTuple):
    """Selection of the passes to print.

    Attributes:
        pass_id: id of one pass, or the beginning of its id; ``None`` for all passes.
        since: earliest start of a pass, as in :func:`~nodeagent.units.parse_since`; empty for no limit.
        image: part of an image name or id; passes without an action on a matching image are omitted; empty for all.
        limit: maximum number of passes.
        idle: whether passes without actions are listed.
        details: whether the table output lists the actions of each pass.
    """

    pass_id: str | None
    since: str
    image: str
    limit: int
    idle: bool
    details: bool


_MINIMUM_SINCE_S: Final = 1e-6
"""Minimum of ``--since`` in seconds: the daemon interprets 0 s as no limit."""
_BAD_ENDS: Final = ("shortfall", "refused", "runtime-lost", "interrupted")
EVERY_PASS: Final = 2**32 - 1
"""Maximum of the field ``limit``, an unsigned integer of 32 bits."""


def show_history(config: Path | None, request: HistorySelection, listing: ListOptions, *, direct: bool) -> None:
    """Print past passes, newest first; with ``direct`` or without a daemon they are read from the state directory.

    Raises:
        UsageError: the id is empty, ``since`` is not a time, an option of the list is invalid, no pass has the id,
            or the id is combined with a selection of passes.
        StoreError: the history cannot be read.
    """
    listed = ListRequest.of(PASSES, listing)
    if request.pass_id is not None and not request.pass_id.strip():
        raise UsageError("PASS is empty: add the id of a pass or its beginning, or omit PASS to list all passes")
    if request.pass_id and (request.since or request.image or listing.filters):
        raise UsageError("PASS is one pass: omit --since, --image and --filter")
    if listing.watch_s is not None and (request.pass_id or request.details):
        raise UsageError("--watch prints the list of passes: omit PASS and --details")
    document, source = read_history(config, request, direct=direct)
    if request.pass_id:
        passes = tuple(each for each in document.passes if each.id.startswith(request.pass_id))
        if not passes:
            raise UsageError(f"no pass {request.pass_id} in {source}; 'nodeagent history --all' lists every pass")
        document = structs.replace(document, passes=passes, node_stops=())
    if listing.is_table and (request.pass_id or request.details):
        stops = () if listing.filters else document.node_stops
        document = structs.replace(document, passes=listed.selected(document.passes), node_stops=stops)
        _print_details(document, _empty(request, listing, source), listing)
        return
    empty, display = _empty(request, listing, source), standard_output()

    def below(shown: HistoryDocument) -> Iterator[Line]:
        return _lines_below(shown, listed, request.limit, display)

    if listing.watch_s is not None:
        listed.watch(
            document,
            lambda: read_history(config, request, direct=direct)[0],
            empty=empty,
            now_of=lambda _: SystemClock().now(),
            below=below,
        )
        return
    listed.print(document, empty=empty, now=SystemClock().now())
    if listing.is_table:
        display.write_fitted(below(document))


def _lines_below(
    document: HistoryDocument, listed: ListRequest[PastPassDocument], limit: int, display: Display
) -> Iterator[Line]:
    """Yield the lines below the list of passes: on a terminal their summary, and the node stops."""
    shown = listed.selected(document.passes)
    if display.columns is not None and shown:
        yield from Line(summary(shown, limit), "dim").wrapped(display.columns)
    if document.node_stops and not listed.conditions:
        if document.passes:
            yield Line()
        stops = ListRequest.of(NODE_STOPS, listed.options._replace(sort_by=""))
        yield from stops.table(document.node_stops, SystemClock().now(), display)


def read_history(config: Path | None, request: HistorySelection, *, direct: bool) -> tuple[HistoryDocument, str]:
    """Return the history document of the daemon, or else of the state directory, and its source for display.

    Raises:
        UsageError: ``since`` is not a time.
        StoreError: the history cannot be read.
    """
    now = SystemClock().now()
    oldest = _oldest(request.since, now)
    seconds = 0.0 if oldest is None else max(_MINIMUM_SINCE_S, (now - oldest).total_seconds())
    limit = min(request.limit, EVERY_PASS)
    fields = {"seconds": seconds, "image": request.image, "limit": limit, "quiet": request.idle}
    document = ask("History", HistoryDocument, fields, Source(config, {}, direct))
    return (document, "the agent's history") if document is not None else _read_store(config, request, oldest)


def _oldest(since: str, now: datetime) -> datetime | None:
    try:
        return parse_since(since, now) if since else None
    except ValueError as error:
        raise UsageError(f"--since: {error}") from error


def summary(passes: Sequence[PastPassDocument], limit: int = EVERY_PASS) -> str:
    """Return the passes in one line: number, period, removed items by kind, freed bytes, and failures.

    ``passes`` is not empty; if there are ``limit`` of them, older ones may not be listed. Dry runs are counted as
    passes only.
    """
    starts = [each.started_at for each in passes]
    first, last = format_local_time(min(starts)), format_local_time(max(starts))
    count = "1 pass" if len(passes) == 1 else f"{len(passes)} passes"
    count += " (--limit)" if len(passes) >= limit else ""
    period = f" from {first} to {last}" if first != last else ""
    real = [each for each in passes if not each.dry_run]
    undone = counted_kinds(each for each in real if each.trigger == "undo")
    removed = counted_kinds(each for each in real if each.trigger != "undo")
    freed = sum(each.freed_bytes or 0 for each in real if each.done)
    outcomes = Counter(each.outcome for past in real for each in past.actions)
    ends = Counter(each.end for each in real)
    return ", ".join(
        [
            f"{count}{period}: {f'removed {removed}' if removed else 'nothing removed'}",
            *([f"restored {undone}"] if undone else []),
            *([f"freed {format_bytes(freed)}"] if freed > 0 else []),
            *(f"{outcomes[each]} {each}" for each in ("failed", "unknown") if outcomes[each]),
            *(f"{ends[each]} with end {each}" for each in _BAD_ENDS if ends[each]),
        ]
    )


def _empty(request: HistorySelection, listing: ListOptions, source: str) -> str:
    """Return the message for an empty list of passes."""
    matching = "matching " if request.since or request.image or listing.filters else ""
    if request.idle:
        return f"no {matching}passes in {source}"
    return f"no {matching}passes with removals in {source}; 'nodeagent history --all' lists the other passes"


def _read_store(config: Path | None, request: HistorySelection, oldest: datetime | None) -> tuple[HistoryDocument, str]:
    """Return the history document read from the state directory, and the path of the directory."""
    from nodeagent.host.processes import is_running  # noqa: PLC0415 - not needed if the daemon responds
    from nodeagent.store.history import History as Store  # noqa: PLC0415

    directory = load_settings(config, {}).state_directory
    records = Store(directory, is_running=is_running)
    passes = records.read(since=oldest, image=request.image, limit=request.limit, quiet=request.idle)
    stops = () if request.image else records.read_stops(since=oldest, limit=request.limit)
    return HistoryDocument.of(passes, stops), str(directory)


def _print_details(history: HistoryDocument, empty: str, listing: ListOptions) -> None:
    display = standard_output()
    columns = display.columns if listing.truncate else None
    lines = [Line(f"{stop_headline(stop)}; see nodeagent shutdown status") for stop in history.node_stops]
    if not history.passes:
        lines.append(Line(empty))
    for past in history.passes:
        lines += _pass_lines(past, columns, wide=listing.form == "wide")
    display.write(lines)


def _pass_lines(past: PastPassDocument, columns: int | None, *, wide: bool) -> Iterator[Line]:
    """Yield a pass with its actions and the ranking of an eviction; ``wide`` adds the sentences of reasons."""
    yield Line(f"{format_local_time(past.started_at)}  {_headline(past)}", "bold")
    if past.end_detail:
        yield Line(f"  {past.end}: {localize_times(past.end_detail)}", "yellow")
    if past.actions:
        heading = Heading("NAME", cut=Cut.PATH, name=True, at_least=16)
        message = [Heading("MESSAGE", cut=Cut.END, at_least=24)] if wide else []
        table = Table("OUTCOME", "KIND", heading, Heading("FREES", right=True), "REASON", *message)
        for each in past.actions:
            frees = "" if each.frees_bytes is None else values.size_cell(each.frees_bytes)
            cells = (each.outcome, each.kind, values.short_reference(each.name), frees, each.reason.code)
            style = "red" if each.outcome in ("failed", "unknown") else ""
            table.add(*cells, *([localize_times(each.reason.sentence)] if wide else []), style=style)
        yield from table.lines(columns)
    details: dict[tuple[str, str], list[str]] = {}
    for each in past.actions:
        if each.detail:
            details.setdefault((each.outcome, each.detail), []).append(values.short_reference(each.name))
    for (outcome, detail), names in details.items():
        name = escape(names[0]) if columns is None else fit(escape(names[0]), columns * 2 // 3, Cut.PATH)
        of = name if len(names) == 1 else f"{len(names)} items"
        yield Line(f"  {outcome}: {of}: {localize_times(detail)}", "yellow")
    if not isinstance(past.eviction, UnsetType):
        yield from _ranking_lines(RecordedEviction.of(past.eviction), columns)


def _ranking_lines(eviction: RecordedEviction, columns: int | None) -> Iterator[Line]:
    """Yield the readings and the ranking of an eviction decision."""
    if eviction.threshold is not None:
        yield Line(f"  {reading_words(eviction)}")
    table = Table(
        Heading("RANK", right=True),
        Heading("POD", cut=Cut.MIDDLE, name=True, at_least=16),
        *(Heading(title, right=True) for title in ("USES", "REQUESTS", "PRIORITY")),
        "REASON",
    )
    for each in eviction.ranking:
        table.add(
            str(each.rank),
            each.name,
            usage_words(eviction, each.usage),
            usage_words(eviction, each.request),
            str(each.priority),
            each.reason,
        )
    yield from table.lines(columns)


def reading_words(eviction: RecordedEviction) -> str:
    """Return a threshold with its readings, such as ``pid.available<500: 40 available of 4,096, 90 afterwards``.

    It is empty for an eviction without a threshold.
    """
    threshold = eviction.threshold
    if threshold is None:
        return ""
    signal = threshold.threshold
    before, after = _quantity(signal, eviction.available_before), _quantity(signal, eviction.available_after)
    if unit_of(signal) is Unit.STALL_PERCENT:
        return f"{signal}: {before} stalled, {after} afterwards"
    of = "" if threshold.capacity is None else f" of {quantity(signal, threshold.capacity)}"
    return f"{signal}: {before} available{of}, {after} afterwards"


def usage_words(eviction: RecordedEviction, value: float | None) -> str:
    """Return an amount that a ranked pod uses or requests; for stalls and storage limits in bytes."""
    signal = "" if eviction.threshold is None else eviction.threshold.threshold
    return _quantity("" if unit_of(signal) is Unit.STALL_PERCENT else signal, value)


def stop_headline(stop: NodeStopDocument) -> str:
    """Return the summary line of a node stop: start time, kind, result and number of pods."""
    operation = f" ({escape(stop.operation)})" if stop.operation else ""
    return f"{format_local_time(stop.started_at)}  node stop, {stop.kind}{operation}: {stop.end}, {len(stop.pods)} pods"


def _quantity(signal: str, value: float | None) -> str:
    return "?" if value is None else quantity(signal, value)


def _headline(past: PastPassDocument) -> str:
    done = past.done
    words = [f"{past.id}  {past.trigger}, {past.scope}: {past.end}"]
    if past.dry_run:
        words.append("dry run")
    verb = "restored" if past.trigger == "undo" else "removed"
    words.append(f"{done} of {len(past.actions)} {verb} in {format_duration(past.duration_s)}")
    if past.settled_s:
        words[-1] += f" ({format_duration(past.settled_s)} waiting for container creations)"
    if past.freed_bytes is not None and done:
        words.append(f"predicted {format_bytes(past.predicted_bytes)}, measured {format_bytes(past.freed_bytes)}")
    if past.imagefs_percent_before is not None and past.imagefs_percent_after is not None:
        words.append(f"imagefs {past.imagefs_percent_before}% → {past.imagefs_percent_after}%")
    return ", ".join(words)
