"""Console of the library rich, for progress bars."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nodeagent.cli.terminal import SafeConsole

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 180


def make_console(*, stderr: bool = False) -> Console:
    """Return a console with colours only on a terminal, and with sufficient width for whole ids in a pipe."""
    probe = SafeConsole(stderr=stderr)
    if probe.is_terminal or os.environ.get("COLUMNS"):
        return probe
    return SafeConsole(stderr=stderr, width=_PIPE_WIDTH)
