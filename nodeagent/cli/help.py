"""Generator of the files derived from the command tree: ``help.txt``, ``grammar.json`` and ``completion.json``.

The files are stored since importing the command tree takes longer than printing the help, matching a command line in
``quick_parser``, or completing one. ``make docs`` writes the files; ``make check`` verifies that they are up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import typer

from nodeagent.cli import completion_grammar, grammar
from nodeagent.cli.completion_grammar import COMPLETION
from nodeagent.cli.main import app
from nodeagent.cli.quick_parser import GRAMMAR

HELP: Final = Path(__file__).with_name("help.txt")
_WIDTH: Final = 78  # the parser's text width on a terminal with 80 columns


def rendered() -> str:
    """Return the top-level help text, wrapped for a terminal of 80 columns."""
    command = typer.main.get_command(app)
    settings = {**command.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = typer.Context(command, info_name="nodeagent", **settings)
    return command.get_help(context) + "\n"


def main() -> int:
    """Write the generated files; with ``--check`` only compare them. Return 1 if a compared file is out of date."""
    code = 0
    for file, text in (
        (HELP, rendered()),
        (Path(GRAMMAR), grammar.rendered()),
        (COMPLETION, completion_grammar.rendered()),
    ):
        if "--check" not in sys.argv[1:]:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            sys.stderr.write(f"{file} does not match the command tree: run make docs\n")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
