"""Entry point of the command line.

``status`` runs often, also from scripts, and the import of the command-line parser takes as long as the rest of the
command. Its common forms are therefore matched here without the parser, as are ``--version`` and ``--help``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from nodeagent import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

STATUS_FORMS: Final[Mapping[tuple[str, ...], str]] = {
    ("status",): "table",
    ("status", "-o", "json"): "json",
    ("status", "--output", "json"): "json",
    ("status", "--output=json"): "json",
}
"""Output format by arguments, for the commands that run without the parser."""


def main() -> None:
    """Run the command; an expected error becomes one message and an exit code."""
    if sys.argv[1:2] == ["run"]:  # before slow imports: a SIGHUP can arrive at any moment
        from nodeagent.daemon.unix_signals import block_signals  # noqa: PLC0415 - only for the daemon

        block_signals()
    if _answered(sys.argv[1:]):
        return
    form = STATUS_FORMS.get(tuple(sys.argv[1:]))
    if form is None:
        from nodeagent.cli.main import main as run_parsed  # noqa: PLC0415 - with the parser

        run_parsed()
        return
    from nodeagent.cli.exit_codes import guarded  # noqa: PLC0415 - the parser imports it itself
    from nodeagent.cli.status import show_status  # noqa: PLC0415

    with guarded():
        show_status(None, form, watch_s=None)


def _answered(arguments: list[str]) -> bool:
    """Print version or top-level help if it is the only option; return whether it was printed."""
    if arguments == ["--version"]:
        sys.stdout.write(f"nodeagent {__version__}\n")
        return True
    if arguments not in (["--help"], ["-h"]):
        return False
    with open(f"{__file__.rpartition('/')[0]}/help.txt", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow
        sys.stdout.write(file.read())
    return True
