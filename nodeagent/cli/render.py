"""Tables with cells of several lines, printed by rich."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from nodeagent.cli.terminal import SafeConsole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

_PIPE_WIDTH = 180


def make_console(*, stderr: bool = False) -> Console:
    """Return a console with colours only on a terminal, and with sufficient width for whole ids in a pipe."""
    probe = SafeConsole(stderr=stderr)
    if probe.is_terminal or os.environ.get("COLUMNS"):
        return probe
    return SafeConsole(stderr=stderr, width=_PIPE_WIDTH)


def table(*columns: str, right: Iterable[str] = (), wrap: Iterable[str] = ()) -> Table:
    """Return an empty table; columns in ``right`` are aligned right, columns in ``wrap`` may use several lines."""
    empty_table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        empty_table.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold",
            no_wrap=name not in wrap,
            ratio=None,
        )
    return empty_table
