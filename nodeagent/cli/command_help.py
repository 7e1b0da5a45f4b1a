"""The help of a command, found by its words in the command tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Sequence


def command_help(program: str, tree: Any, words: Sequence[str]) -> str | None:  # noqa: ANN401 - no public types
    """Return the help of a command; ``None`` for an unknown one.

    Args:
        program: name of the program in the usage line.
        tree: the parser's command of the program.
        words: the words of the command; none for the program itself.
    """
    command = tree
    context = typer.Context(command, info_name=program, **command.context_settings)
    for name in words:
        command = command.get_command(context, name) if isinstance(command, TyperGroup) else None
        if command is None:
            return None
        context = typer.Context(command, info_name=name, parent=context, **command.context_settings)
    return str(command.get_help(context))
