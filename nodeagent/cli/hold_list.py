"""``nodeagent hold list``: the active image holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.cli.list_views import HOLDS
from nodeagent.cli.lists import ListRequest
from nodeagent.cli.options import Source
from nodeagent.cli.reading import ask
from nodeagent.clock import SystemClock
from nodeagent.gc.documents.holds import HoldList

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.cli.listing import ListOptions


def show(config: Path | None, options: ListOptions, *, direct: bool) -> None:
    """Print the active holds; with ``direct`` or without a daemon they are read from the state directory.

    Raises:
        UsageError: a list option is invalid.
        StoreError: the hold file cannot be read.
    """
    request = ListRequest.of(HOLDS, options)
    document = ask("Holds", HoldList, {}, Source(config, {}, direct)) or _read_file(config)
    now = SystemClock().now()
    request.print(document, empty="no holds", now=now)


def _read_file(config: Path | None) -> HoldList:
    from nodeagent.cli.session import load_settings  # noqa: PLC0415 - not needed if the daemon responds
    from nodeagent.gc.hold_file import HoldFile  # noqa: PLC0415
    from nodeagent.loops.clock_reading import read_clocks, stored_trust  # noqa: PLC0415

    directory = load_settings(config, {}).state_directory
    at = read_clocks(SystemClock())
    return HoldList.of(HoldFile(directory).read(), at.wall, stored_trust(directory, at))
