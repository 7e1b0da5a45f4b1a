"""Examples of every command: printed in help and manual page, and accepted by the parser."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from typer.core import TyperGroup

from nodeagent.cli.help import EXAMPLES
from nodeagent.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATORS = frozenset({"|", ">", ">/dev/null", "||", "&&", ";", "<"})


def root() -> typer.Context:
    command = typer.main.get_command(app)
    settings = {**command.context_settings, "terminal_width": 78, "max_content_width": 78}
    return typer.Context(command, info_name="nodeagent", **settings)


def commands(context: typer.Context) -> Iterator[tuple[str, typer.Context]]:
    group = context.command
    assert isinstance(group, TyperGroup)
    for name in group.list_commands(context):
        command: Any = group.get_command(context, name)
        if command.hidden:
            continue
        child = typer.Context(command, info_name=name, parent=context, terminal_width=78, max_content_width=78)
        if not isinstance(command, TyperGroup) or command.invoke_without_command:
            yield " ".join(child.command_path.split()[1:]), child
        if isinstance(command, TyperGroup):
            yield from commands(child)


def test_every_command_has_two_or_three_examples() -> None:
    assert {name for name, _ in commands(root())} == EXAMPLES.keys()
    assert {len(each) for each in EXAMPLES.values()} <= {2, 3}


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_has_the_examples_uncut(name: str) -> None:
    text = dict(commands(root()))[name].get_help()
    for title, line in EXAMPLES[name]:
        assert f"# {title}\n" in text
        assert f"    {line}\n" in f"{text}\n"


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, each in EXAMPLES.items() for _, line in each])
def test_example_is_accepted_by_the_parser(name: str, line: str) -> None:
    given = shlex.split(line.replace("<(", "").replace(")", "").replace(";", " ;").removeprefix("until "))
    starts = [number + 1 for number, each in enumerate(given) if each == "nodeagent"]
    start = next(each for each in starts if given[each : each + len(name.split())] == name.split()) + len(name.split())
    end = next((number for number, each in enumerate(given) if number >= start and each in OPERATORS), len(given))
    context = dict(commands(root()))[name]
    arguments = ["1"] if "xargs" in given else given[start:end]
    context.command.make_context(name, arguments, parent=context.parent)


def test_summaries_of_all_groups_are_on_one_line_at_80_columns() -> None:
    groups = {"": root()} | {name: each.parent for name, each in commands(root()) if each.parent is not None}
    for context in groups.values():
        group = context.command
        assert isinstance(group, TyperGroup)
        lines = {line.strip() for line in context.get_help().splitlines()}
        for name in group.list_commands(context):
            command: Any = group.get_command(context, name)
            if not command.hidden:
                summary = command.help.partition("\n")[0].removesuffix(".")
                assert any(line.startswith(f"{name} ") and line.endswith(summary) for line in lines), (
                    f"{context.command_path} {name}: {summary}"
                )
