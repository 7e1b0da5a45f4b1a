"""``nodeagent du``: usage of the image filesystem by category."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.cli.display import Line, filled_cells, standard_output, warning_lines
from nodeagent.cli.options import Source, duration_s
from nodeagent.cli.reading import OBSERVED_WITHIN_S, load_settings, read, show_document
from nodeagent.cli.table import Heading, Table, short_reference, size_cell
from nodeagent.errors import ObservationError, RuntimeUnavailableError
from nodeagent.gc.documents.passes import DiskUsageDocument
from nodeagent.gc.plan.breakdown import Breakdown, Member, Share, UsageCategory
from nodeagent.text import Cut
from nodeagent.units import format_bytes, localize_times

if TYPE_CHECKING:
    from nodeagent.gc.agent import Agent
    from nodeagent.gc.plan.policy import ImageGCPolicy
    from nodeagent.model.runtime import FsObservation

_BAR: Final = 80
_INDENT: Final = "  "
_USAGE_BAR: Final = 30
_SHORT_USAGE_BAR: Final = 16
_WIDE: Final = 120
_SHORTEST_S: Final = 1e-3
"""Minimum of ``--timeout`` in seconds: the daemon replaces a requested timeout of 0 s by its default."""
_TITLES: Final = {
    UsageCategory.IMAGES_IN_USE: "images in use",
    UsageCategory.IMAGES_UNUSED: "unused images",
    UsageCategory.IMAGES_UNLISTED: "images not listed by CRI",
    UsageCategory.LEASED: "kept by leases and labels",
    UsageCategory.BEING_WRITTEN: "downloads",
    UsageCategory.OTHER_NAMESPACES: "other namespaces",
    UsageCategory.UNREFERENCED: "unreferenced",
    UsageCategory.WRITABLE_RUNNING: "writable layers, running",
    UsageCategory.WRITABLE_DEAD: "writable layers, dead",
    UsageCategory.POD_LOGS: "pod logs",
    UsageCategory.POD_VOLUMES: "pod volumes",
    UsageCategory.RUNTIME_DATA: "images and layers",
    UsageCategory.RUNTIME_METADATA: "runtime metadata",
    UsageCategory.DELETED_FILES: "deleted files that are open",
    UsageCategory.HOST_FILES: "host files",
    UsageCategory.RESERVED: "reserved for root",
    UsageCategory.UNEXPLAINED: "unexplained",
}
_STYLES: Final = {
    UsageCategory.IMAGES_IN_USE: "green",
    UsageCategory.IMAGES_UNUSED: "yellow",
    UsageCategory.IMAGES_UNLISTED: "red",
    UsageCategory.LEASED: "magenta",
    UsageCategory.BEING_WRITTEN: "magenta",
    UsageCategory.OTHER_NAMESPACES: "magenta",
    UsageCategory.UNREFERENCED: "red",
    UsageCategory.WRITABLE_RUNNING: "cyan",
    UsageCategory.WRITABLE_DEAD: "blue",
    UsageCategory.POD_LOGS: "blue",
    UsageCategory.POD_VOLUMES: "magenta",
    UsageCategory.RUNTIME_DATA: "green",
    UsageCategory.RUNTIME_METADATA: "white",
    UsageCategory.DELETED_FILES: "red",
    UsageCategory.HOST_FILES: "white",
    UsageCategory.RESERVED: "dim",
    UsageCategory.UNEXPLAINED: "dim",
}


_ALWAYS_LISTED: Final = frozenset(
    {
        UsageCategory.IMAGES_UNLISTED,
        UsageCategory.LEASED,
        UsageCategory.OTHER_NAMESPACES,
        UsageCategory.DELETED_FILES,
    }
)
"""Categories that no pass of the agent frees; their largest items are always listed."""
_LISTED: Final = 3
_LISTED_WITH_DETAILS: Final = 10
_LISTED_FROM_PERCENT: Final = 1
"""Minimum share of the filesystem in percent of a listed item, without ``--details``."""


def show(source: Source, form: str, *, details: bool, inodes: bool, timeout: str) -> None:
    """Measure and print the usage of the image filesystem.

    Raises:
        UsageError: the timeout is not a duration.
        ObservationError: the image filesystem cannot be read, or ``inodes`` are wanted and have no fixed number.
        NodeAgentError: the daemon or the node cannot be read, other than the runtime.
    """
    document = read_usage(source, max(_SHORTEST_S, duration_s("--timeout", timeout)))
    if inodes and not document.imagefs.inodes:
        raise ObservationError(f"{document.imagefs.path}: the filesystem has no fixed number of inodes: omit --inodes")
    coloured = standard_output().colour
    show_document(
        document,
        form,
        lambda found, columns: breakdown_lines(
            found.to_model(), columns, details=details, inodes=inodes, coloured=coloured
        ),
    )


def read_usage(source: Source, within_s: float) -> DiskUsageDocument:
    """Return the usage of the image filesystem; directories are measured for ``within_s`` s at most.

    Raises:
        ObservationError: the image filesystem cannot be read.
        NodeAgentError: the daemon or the node cannot be read, other than the runtime.
    """

    async def measure(agent: Agent) -> DiskUsageDocument:
        from nodeagent.gc.documents.readings import (  # noqa: PLC0415 - not needed if the daemon responds
            measure_disk_usage,
        )

        return await measure_disk_usage(agent, within_s)

    fields = {"within_seconds": within_s}
    try:
        return read("DiskUsage", DiskUsageDocument, fields, source, measure, within_s=within_s + OBSERVED_WITHIN_S)
    except RuntimeUnavailableError as error:
        return _without_runtime(source, within_s, str(error))


def _without_runtime(source: Source, within_s: float, why: str) -> DiskUsageDocument:
    """Return the usage as read from directories, with the permissions of the user of the command."""
    from nodeagent.gc.snapshot.usage import read_directories  # noqa: PLC0415 - not needed if the runtime responds

    settings = load_settings(source.config, source.overrides)
    found = read_directories(settings.imagefs_path, settings.pod_log_root, within_s=within_s, why=why)
    return DiskUsageDocument.of(found)


class _Resource(NamedTuple):
    """The resource that a table shows, bytes or inodes: total, free amount, and how to read and print amounts."""

    title: str
    total: int
    free: int
    of: Callable[[Share | Member], int]
    form: Callable[[int], str]


def breakdown_lines(
    value: Breakdown, columns: int | None, *, details: bool, inodes: bool = False, coloured: bool = False
) -> Iterator[Line]:
    """Yield the usage of a filesystem as a table of categories with their largest items, with colours also as a bar.

    ``details`` lists more items of each category, and ``inodes`` shows inodes instead of bytes.
    """
    filesystem = value.filesystem
    if inodes:
        resource = _Resource("INODES", filesystem.inodes, filesystem.inodes_free, attrgetter("inodes"), str)
    else:
        total, free = filesystem.capacity_bytes, filesystem.available_bytes
        resource = _Resource("SIZE", total, free, attrgetter("size_bytes"), size_cell)
    width, start, total = min(_BAR, columns or _BAR), 0, 0
    bar = Line()
    for share in value.shares:
        total += resource.of(share)
        end = filled_cells(total / resource.total, width) if resource.total else 0
        bar.append("\u2588" * (end - start), _STYLES[share.part])
        start = max(start, end)
    rows = [row for share in value.shares for row in _rows_of(share, resource, details=details)]
    rows.append(UsageRow("free", resource.form(resource.free), resource.free))
    has_pods = any(each.pod for each in rows)
    heading = Heading("CATEGORY", cut=Cut.MIDDLE, name=True, at_least=24)
    pod = (Heading("POD", cut=Cut.MIDDLE, at_least=16),) if has_pods else ()
    table = Table(heading, Heading(resource.title, right=True), Heading("SHARE", right=True), *pod)
    for row in rows:
        share_cell = f"{100 * row.amount / resource.total:.1f}%" if resource.total else ""
        name = f"{_INDENT * row.is_item}{row.name}"
        table.add(name, row.cell, share_cell, *([row.pod] if has_pods else ()), style=row.style)
    yield from usage_lines(filesystem, columns, inodes=inodes)
    if coloured:  # without colours the parts of the bar are indistinguishable
        yield bar.append("\u2591" * (width - start), "dim")
    yield Line()
    yield from table.lines(columns)
    yield from warning_lines(value.warnings)
    if not value.exact and all(share.part is not UsageCategory.RUNTIME_DATA for share in value.shares):
        yield Line("image sizes as reported by the runtime: shared layers are counted once per image", "yellow")


class UsageRow(NamedTuple):
    """A category, or with ``is_item`` an item of the category above, with its usage as text and as amount.

    With ``is_rest`` it is the sum of the items that are not listed.
    """

    name: str
    cell: str
    amount: int
    pod: str = ""
    style: str = ""
    is_item: bool = False
    is_rest: bool = False


def byte_rows(value: Breakdown) -> Iterator[UsageRow]:
    """Yield each category with its largest items."""
    filesystem = value.filesystem
    resource = _Resource(
        "SIZE", filesystem.capacity_bytes, filesystem.available_bytes, attrgetter("size_bytes"), format_bytes
    )
    for share in value.shares:
        yield from _rows_of(share, resource, details=False)


def _rows_of(share: Share, resource: _Resource, *, details: bool) -> Iterator[UsageRow]:
    """Yield a category, its largest items, and the sum of its other items if any is listed."""
    amount, is_rest = resource.of(share), share.part is UsageCategory.UNEXPLAINED
    if not amount and not is_rest:
        return
    title = "not measured" if is_rest and not share.exact else _TITLES[share.part]
    mark = "" if share.exact or is_rest else "\u2265"
    yield UsageRow(title, mark + resource.form(amount), amount, style=_STYLES[share.part])
    least = 1 if details or share.part in _ALWAYS_LISTED else resource.total * _LISTED_FROM_PERCENT // 100
    members = sorted((each for each in share.members if resource.of(each)), key=resource.of, reverse=True)
    listed = [each for each in members if resource.of(each) >= least][: _LISTED_WITH_DETAILS if details else _LISTED]
    for each in listed:
        detail = f" ({localize_times(each.detail)})" if each.detail else ""
        name = f"{short_reference(each.name)}{detail}"
        yield UsageRow(name, resource.form(resource.of(each)), resource.of(each), each.pod, "dim", is_item=True)
    rest = amount - sum(map(resource.of, listed))
    if listed and rest > 0:  # some categories have only their largest parts as members
        is_whole = sum(map(resource.of, members)) == amount
        name = f"{len(members) - len(listed)} more" if is_whole else "others"
        yield UsageRow(name, resource.form(rest), rest, style="dim", is_item=True, is_rest=True)


def usage_lines(
    observed: FsObservation,
    columns: int | None,
    policy: ImageGCPolicy | None = None,
    *,
    label: str = "imagefs",
    inodes: bool = False,
) -> Iterator[Line]:
    """Yield the usage of a filesystem as bar, percentage and thresholds, if wide with its path.

    The usage of inodes is a second line with ``inodes``, and if it is at or above the low threshold of the policy.
    """
    wide = columns is None or columns >= _WIDE
    used_bytes = observed.capacity_bytes - observed.available_bytes
    amounts = f"{format_bytes(used_bytes)} of {format_bytes(observed.capacity_bytes)}"
    thresholds = None if policy is None else (policy.high_threshold_percent, policy.low_threshold_percent)
    line = _usage_line(label, observed.used_percent, amounts, thresholds, wide=wide)
    yield line.append(f" {observed.path}", "dim") if wide else line
    if policy is not None:
        thresholds = policy.high_threshold_inodes_percent, policy.low_threshold_inodes_percent
        inodes = inodes or observed.inodes_used_percent >= thresholds[1]
    if inodes:
        amounts = f"{observed.inodes - observed.inodes_free} of {observed.inodes} inodes"
        yield _usage_line(label, observed.inodes_used_percent, amounts, thresholds, wide=wide)


def _usage_line(label: str, used: int, amounts: str, thresholds: tuple[int, int] | None, *, wide: bool) -> Line:
    over = thresholds is not None and used >= thresholds[0]
    line = Line(f"{label} ").append_bar(used / 100, _USAGE_BAR if wide else _SHORT_USAGE_BAR, bad=over)
    line.append(f" {used}%", "bold").append(f" {amounts}")
    if thresholds is not None:
        line.append(f" (high {thresholds[0]}%, low {thresholds[1]}%)", "dim")
    return line
