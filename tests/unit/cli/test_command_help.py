"""Help of every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer

from nodeagent.cli import main as command_line

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of a command and of all its subcommands and groups, as tuples of words."""
    yield words
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*words, name))


COMMANDS = sorted(commands(typer.main.get_command(command_line.app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_has_a_help(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/nodeagent", *words, "--help"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: {' '.join(('nodeagent', *words))} ")
    assert "[[" not in shown.partition("\n")[0]


def test_help_of_commands_and_options_is_one_short_line() -> None:
    tree: Any = typer.main.get_command(command_line.app)
    lines = {}
    for words in filter(None, COMMANDS):
        command = tree
        for word in words:
            command = command.commands[word]
        lines[words] = command.help.partition("\n")[0].removesuffix(".")
        lines |= {(*words, each.name): (each.help or "").partition(" [default")[0] for each in command.params}
    own = {words: line for words, line in lines.items() if "completion" not in words}
    assert {words: line for words, line in own.items() if len(line) >= 60 or line.endswith(".")} == {}
