"""``nodeagent du``: usage of the image filesystem by category."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent.api.codec import encode
from nodeagent.api.gc import DiskUsage
from nodeagent.cli import values
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.errors import UsageError
from nodeagent.plan.gc.scope import Scope
from nodeagent.plan.gc.storage_breakdown import Part
from nodeagent.units import format_bytes, parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import RenderableType

    from nodeagent.plan.gc.storage_breakdown import Breakdown

_TITLES = {
    Part.IMAGES_IN_USE: "images in use",
    Part.IMAGES_UNUSED: "unused images",
    Part.HELD_OTHERWISE: "otherwise referenced (leases, namespaces)",
    Part.NOT_HELD: "unreferenced",
    Part.WRITABLE_RUNNING: "writable layers, running",
    Part.WRITABLE_DEAD: "writable layers, dead",
    Part.POD_LOGS: "pod logs",
    Part.POD_VOLUMES: "pod volumes",
    Part.OTHER: "not container data",
}
_STYLES = {
    Part.IMAGES_IN_USE: "green",
    Part.IMAGES_UNUSED: "yellow",
    Part.HELD_OTHERWISE: "magenta",
    Part.NOT_HELD: "red",
    Part.WRITABLE_RUNNING: "cyan",
    Part.WRITABLE_DEAD: "blue",
    Part.POD_LOGS: "bright_blue",
    Part.POD_VOLUMES: "bright_magenta",
    Part.OTHER: "white",
}


def show(config: Path | None, overrides: Mapping[str, str | int], form: str, *, details: bool, timeout: str) -> None:
    """Measure and print the usage of the image filesystem.

    Raises:
        UsageError: the timeout is not a duration.
        ObservationError: the image filesystem cannot be read.
    """
    try:
        within_s = parse_duration_s(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from error
    settings = load_settings(config, overrides)

    async def measure() -> Breakdown:
        async with open_for_command(settings, record=False) as agent:
            preview = await agent.collector.preview(Scope.ALL)
            return await agent.break_down(preview.snapshot, within_s=within_s)

    breakdown = run_async(measure())
    if form != "table":
        sys.stdout.write(encode(DiskUsage.of(breakdown), form))
        return
    from nodeagent.cli.render import make_console  # noqa: PLC0415 - only for tables

    make_console().print(breakdown_view(breakdown, details=details))


def breakdown_view(value: Breakdown, *, details: bool) -> RenderableType:
    """Return a breakdown as a bar and a table."""
    from rich.console import Group  # noqa: PLC0415 - only for tables

    from nodeagent.cli import render  # noqa: PLC0415
    from nodeagent.cli.terminal import Text  # noqa: PLC0415

    capacity = value.filesystem.capacity_bytes
    width, start = 80, 0
    bar = Text()
    total = 0
    for share in value.shares:
        total += share.size_bytes
        end = min(width, round(width * total / capacity)) if capacity else 0
        bar.append("█" * (end - start), style=_STYLES[share.part])
        start = max(start, end)
    bar.append("░" * (width - start), style="dim")
    table = render.table("", "category", "size", "share", right=("size", "share"), wrap=("category",))
    for share in value.shares:
        if not share.size_bytes and share.part is not Part.OTHER:
            continue
        mark = "" if share.exact else "≥ " if share.part is not Part.OTHER else ""
        percent = f"{100 * share.size_bytes / capacity:.1f}%" if capacity else ""
        table.add_row(
            Text("█", style=_STYLES[share.part]), _TITLES[share.part], mark + format_bytes(share.size_bytes), percent
        )
        shown = share.members[: 10 if details else 3] if details or share.part is Part.OTHER else ()
        for name, size in shown:
            table.add_row("", f"  {values.short_reference(name)}", format_bytes(size), "", style="dim")
    table.add_row("", "free", format_bytes(value.filesystem.available_bytes), "")
    lines: list[RenderableType] = [render.usage_line(value.filesystem), Text(), bar, table]
    if not value.exact:
        lines.append(Text("image sizes as reported by the runtime: shared layers are counted once per image", "yellow"))
    return Group(*lines)
