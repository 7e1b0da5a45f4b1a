"""Help of every command, printed without option parsing, compared with the help of the parser."""

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


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_of_a_command_equals_that_of_the_parser(
    words: tuple[str, ...], columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.argv", ["/usr/bin/nodeagent", *words, "--help"])
    command_line.main()
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit):
        command_line.app(prog_name="nodeagent")
    assert shown == capsys.readouterr().out
    assert shown.startswith(f"Usage: {' '.join(('nodeagent', *words))} ")
    assert "[[" not in shown.partition("\n")[0]


@pytest.mark.parametrize("words", ["images --tree --help", "nothing --help", "images nothing --help", "--nothing -h"])
def test_help_beside_other_words_is_left_to_the_parser(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["nodeagent", *words.split()])
    codes, shown = [], []
    for run in (command_line.main, command_line.app):
        with pytest.raises(SystemExit) as ended:
            run()
        codes.append(ended.value.code)
        shown.append(capsys.readouterr())
    assert codes[0] == codes[1]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("words", COMMANDS[1:], ids=" ".join)
def test_part_of_the_tree_has_the_command(words: tuple[str, ...]) -> None:
    part: Any = typer.main.get_command(command_line.part_for(list(words)))
    if words in {("help",), ("install",)}:
        assert len(part.commands) > 1
    else:
        assert list(part.commands) == [words[0]]
