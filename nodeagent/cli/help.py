"""The top-level help, rendered from the command tree when the package is made.

The text is in ``help.txt``, since the import of the command tree takes longer than printing. ``make docs`` renders it
again; ``make check`` compares.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import typer

from nodeagent.cli.main import app

HELP: Final = Path(__file__).with_name("help.txt")
_WIDTH: Final = 78  # the parser's text width on a terminal with 80 columns


def rendered() -> str:
    """Return the help of the command tree at 80 columns."""
    command = typer.main.get_command(app)
    settings = {**command.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = typer.Context(command, info_name="nodeagent", **settings)
    return command.get_help(context) + "\n"


def main() -> int:
    """Write ``help.txt``; with ``--check`` only compare. Return the exit code."""
    text = rendered()
    if "--check" not in sys.argv[1:]:
        HELP.write_text(text)
    elif HELP.read_text() != text:
        sys.stderr.write(f"{HELP} does not match the command tree: run make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
