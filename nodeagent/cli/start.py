"""Where the command line begins.

``status`` is asked often, by scripts as well, and the library that parses the command line takes as long as all else
of it. So the forms in which it has no options of its own are known here; everything else is parsed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN: Final[Mapping[tuple[str, ...], str]] = {
    ("status",): "table",
    ("status", "-o", "json"): "json",
    ("status", "--output", "json"): "json",
    ("status", "--output=json"): "json",
}
"""What needs no parser, and the form of its answer."""


def main() -> None:
    """Run the command line; every expected error becomes one message and an exit code."""
    if sys.argv[1:2] == ["run"]:  # before anything heavy is imported: a reload may be asked for at any moment
        from nodeagent.daemon.unix_signals import hold_signals  # noqa: PLC0415 - only for the daemon

        hold_signals()
    form = PLAIN.get(tuple(sys.argv[1:]))
    if form is None:
        from nodeagent.cli.main import main as whole  # noqa: PLC0415 - with the parser

        whole()
        return
    from nodeagent.cli.exit_codes import guarded  # noqa: PLC0415 - not for the parser
    from nodeagent.cli.status import show_status  # noqa: PLC0415

    with guarded():
        show_status(None, form, watch_s=None)
