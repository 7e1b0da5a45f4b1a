"""Help text of a command, found by name in the command tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Sequence


def command_help(program: str, tree: Any, words: Sequence[str]) -> str | None:  # noqa: ANN401 - typer has no public type for commands
    """Return the help text of a command; ``None`` for an unknown command.

    Args:
        program: name of the program in the usage line.
        tree: root of the command tree of the parser.
        words: names of the command and its subcommand, such as ``gc`` and ``images``; empty for the program itself.
    """
    command = tree
    context = typer.Context(command, info_name=program, **command.context_settings)
    for name in words:
        command = command.get_command(context, name) if isinstance(command, TyperGroup) else None
        if command is None:
            return None
        context = typer.Context(command, info_name=name, parent=context, **command.context_settings)
    return str(command.get_help(context))
