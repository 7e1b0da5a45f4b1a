"""``nodeagent du``: usage of the image filesystem by category."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from nodeagent.cli.display import Line, filled_cells, standard_output, warning_lines
from nodeagent.cli.options import Source, duration_s
from nodeagent.cli.reading import OBSERVED_WITHIN_S, load_settings, read, show_document
from nodeagent.cli.table import Heading, Table, short_reference, size_cell
from nodeagent.errors import RuntimeUnavailableError
from nodeagent.gc.documents.passes import DiskUsageDocument
from nodeagent.gc.plan.breakdown import Breakdown, UsageCategory
from nodeagent.text import Cut
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from nodeagent.gc.agent import Agent
    from nodeagent.gc.plan.policy import ImageGCPolicy
    from nodeagent.model.runtime import FsObservation

_BAR: Final = 80
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


_SHOWN_WITH_MEMBERS: Final = frozenset(
    {
        UsageCategory.IMAGES_UNLISTED,
        UsageCategory.LEASED,
        UsageCategory.OTHER_NAMESPACES,
        UsageCategory.DELETED_FILES,
        UsageCategory.HOST_FILES,
    }
)
"""Categories that no pass of the agent frees; their largest members are always shown."""


def show(source: Source, form: str, *, details: bool, timeout: str) -> None:
    """Measure and print the usage of the image filesystem.

    Raises:
        UsageError: the timeout is not a duration.
        ObservationError: the image filesystem cannot be read.
        NodeAgentError: the daemon or the node cannot be read, other than the runtime.
    """
    within_s = max(_SHORTEST_S, duration_s("--timeout", timeout))

    async def measure(agent: Agent) -> DiskUsageDocument:
        from nodeagent.gc.documents.readings import (  # noqa: PLC0415 - not needed if the daemon responds
            measure_disk_usage,
        )

        return await measure_disk_usage(agent, within_s)

    fields = {"within_seconds": within_s}
    try:
        document = read("DiskUsage", DiskUsageDocument, fields, source, measure, within_s=within_s + OBSERVED_WITHIN_S)
    except RuntimeUnavailableError as error:
        document = _without_runtime(source, within_s, str(error))
    coloured = standard_output().colour
    show_document(
        document,
        form,
        lambda found, columns: breakdown_lines(found.to_model(), columns, details=details, coloured=coloured),
    )


def _without_runtime(source: Source, within_s: float, why: str) -> DiskUsageDocument:
    """Return the usage as read from directories, with the permissions of the user of the command."""
    from nodeagent.gc.snapshot.usage import read_directories  # noqa: PLC0415 - not needed if the runtime responds

    settings = load_settings(source.config, source.overrides)
    found = read_directories(settings.imagefs_path, settings.pod_log_root, within_s=within_s, why=why)
    return DiskUsageDocument.of(found)


def breakdown_lines(value: Breakdown, columns: int | None, *, details: bool, coloured: bool = False) -> Iterator[Line]:
    """Yield a disk usage breakdown as a table, with colours also as a bar; ``details`` lists all category members."""
    capacity = value.filesystem.capacity_bytes
    width, start, total = min(_BAR, columns or _BAR), 0, 0
    shares = Line()
    for share in value.shares:
        total += share.size_bytes
        end = filled_cells(total / capacity, width) if capacity else 0
        shares.append("\u2588" * (end - start), _STYLES[share.part])
        start = max(start, end)
    table = Table(
        Heading("CATEGORY", cut=Cut.MIDDLE, name=True, at_least=16),
        Heading("SIZE", right=True),
        Heading("SHARE", right=True),
    )
    for share in value.shares:
        if not share.size_bytes and share.part is not UsageCategory.UNEXPLAINED:
            continue
        is_rest = share.part is UsageCategory.UNEXPLAINED
        mark = "" if share.exact or is_rest else "\u2265"
        table.add(
            "not measured" if is_rest and not share.exact else _TITLES[share.part],
            mark + size_cell(share.size_bytes),
            f"{100 * share.size_bytes / capacity:.1f}%" if capacity else "",
            style=_STYLES[share.part],
        )
        for name, size_bytes in (
            share.members[: 10 if details else 3] if details or share.part in _SHOWN_WITH_MEMBERS else ()
        ):
            table.add(f"  {short_reference(name)}", size_cell(size_bytes), "", style="dim")
    table.add("free", size_cell(value.filesystem.available_bytes), "")
    yield from usage_lines(value.filesystem, columns)
    if coloured:  # without colours the parts of the bar are indistinguishable
        yield shares.append("\u2591" * (width - start), "dim")
    yield Line()
    yield from table.lines(columns)
    yield from warning_lines(value.warnings)
    if not value.exact and all(share.part is not UsageCategory.RUNTIME_DATA for share in value.shares):
        yield Line("image sizes as reported by the runtime: shared layers are counted once per image", "yellow")


def usage_lines(
    observed: FsObservation, columns: int | None, policy: ImageGCPolicy | None = None, *, label: str = "imagefs"
) -> Iterator[Line]:
    """Yield the usage of a filesystem as bar, percentage and thresholds, if wide with its path.

    The usage of inodes is a second line if it is at or above the low threshold of the policy.
    """
    wide = columns is None or columns >= _WIDE
    used_bytes = observed.capacity_bytes - observed.available_bytes
    amounts = f"{format_bytes(used_bytes)} of {format_bytes(observed.capacity_bytes)}"
    thresholds = None if policy is None else (policy.high_threshold_percent, policy.low_threshold_percent)
    line = _usage_line(label, observed.used_percent, amounts, thresholds, wide=wide)
    yield line.append(f" {observed.path}", "dim") if wide else line
    if policy is not None and observed.inodes_used_percent >= policy.low_threshold_inodes_percent:
        amounts = f"{observed.inodes - observed.inodes_free} of {observed.inodes} inodes"
        thresholds = policy.high_threshold_inodes_percent, policy.low_threshold_inodes_percent
        yield _usage_line(label, observed.inodes_used_percent, amounts, thresholds, wide=wide)


def _usage_line(label: str, used: int, amounts: str, thresholds: tuple[int, int] | None, *, wide: bool) -> Line:
    over = thresholds is not None and used >= thresholds[0]
    line = Line(f"{label} ").append_bar(used / 100, _USAGE_BAR if wide else _SHORT_USAGE_BAR, bad=over)
    line.append(f" {used}%", "bold").append(f" {amounts}")
    if thresholds is not None:
        line.append(f" (high {thresholds[0]}%, low {thresholds[1]}%)", "dim")
    return line
