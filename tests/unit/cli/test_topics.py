"""``nodeagent help``: installed documents as topics, and the help of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from nodeagent.cli.help import READERS, topics
from tests.support.command import nodeagent
from tests.support.terminal import on_terminal

DOCUMENTS: Final = Path(__file__).parents[3] / "nodeagent" / "docs"


def test_every_document_is_a_listed_topic() -> None:
    listed = nodeagent("help").stdout
    for document in DOCUMENTS.glob("*.md"):
        title = document.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert any(line.split(maxsplit=1) == [document.stem, title] for line in listed.splitlines()), document.name
    assert len(list(DOCUMENTS.glob("*.md"))) == len(topics())
    assert [line for line in listed.splitlines() if len(line) > 80] == []


def test_topic_is_printed_as_it_is_in_a_pipe() -> None:
    assert nodeagent("help", "eviction").stdout == (DOCUMENTS / "eviction.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [("images",), ("gc", "images"), ("hold",)])
def test_command_has_the_help_of_its_option(words: tuple[str, ...]) -> None:
    assert nodeagent("help", *words).stdout == nodeagent(*words, "--help").stdout != ""


@pytest.mark.parametrize(
    ("words", "hint"), [(("evicton",), "did you mean 'eviction'"), (("gc", "nothing"), "lists the topics")]
)
def test_unknown_topic_is_an_error_with_a_hint(words: tuple[str, ...], hint: str) -> None:
    done = nodeagent("help", *words)
    assert done.returncode == 2
    assert not done.stdout
    assert f"no topic or command '{' '.join(words)}'" in done.stderr
    assert hint in done.stderr


@pytest.mark.parametrize("name", ["../../README", "/etc/passwd", "", "eviction.md"])
def test_topic_is_a_name_and_never_a_path(name: str) -> None:
    done = nodeagent("help", name)
    assert (done.returncode, done.stdout) == (2, "")


def test_every_document_is_listed_for_one_reader() -> None:
    assert sorted(name for names in READERS.values() for name in names) == sorted(topics())
    listed = nodeagent("help").stdout.splitlines()
    for reader, names in READERS.items():
        place = listed.index(f"For {reader}:")
        assert [line.split()[0] for line in listed[place + 1 : place + 1 + len(names)]] == list(names)


@pytest.fixture
def pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a program ``less`` that prints its environment, its arguments and its input."""
    path = tmp_path / "bin" / "less"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\nprintf "%s\\n" "pager $PWD $LESS $LESSSECURE" "$@"\ncat\n')
    path.chmod(0o755)
    for name in ("NODEAGENT_PAGER", "PAGER", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


@pytest.mark.parametrize("words", [(), ("eviction",), ("gc", "images")])
def test_help_on_a_terminal_is_shown_by_less(pager: Path, words: tuple[str, ...]) -> None:
    shown = on_terminal(80, "help", *words)
    assert (shown.code, shown.out.splitlines()[0]) == (0, "pager / FRX 1"), pager
    assert len(shown.out.splitlines()) > 20


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({"PAGER": "less -i 'a b'"}, ["pager / FRX 1", "-i", "a b"]),
        ({"PAGER": "less x", "NODEAGENT_PAGER": "less y"}, ["pager / FRX 1", "y"]),
        ({"PAGER": "less x; touch /x $(id)"}, ["pager / FRX 1", "x;", "touch", "/x", "$(id)"]),
        ({"PAGER": "less x", "SUDO_UID": "1000"}, ["pager / FRX 1", "Topics of"]),
    ],
    ids=["arguments", "own", "no shell", "sudo"],
)
@pytest.mark.usefixtures("pager")
def test_pager_of_the_user_is_started_without_a_shell(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], first: list[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    lines = on_terminal(80, "help").out.splitlines()
    assert all(line.startswith(start) for line, start in zip(lines, first, strict=False)), lines[:6]


@pytest.mark.parametrize(
    "variables",
    [
        {"PAGER": ""},
        {"PAGER": "cat"},
        {"PAGER": "'"},
        {"PAGER": "no-such-pager"},
        {"PAGER": "./less"},
        {"NODEAGENT_PAGER": "", "PAGER": "less"},
        {"TERM": "dumb"},
    ],
    ids=["empty", "cat", "quote", "missing", "relative", "own", "dumb"],
)
def test_help_without_a_pager_is_written_to_the_terminal(
    pager: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(pager.parent)
    shown = on_terminal(80, "help")
    assert (shown.code, shown.out.startswith("Topics of")) == (0, True)


def test_pager_that_cannot_be_started_is_replaced_by_direct_output(pager: Path) -> None:
    pager.write_text("#!/no/such/interpreter\n")
    shown = on_terminal(80, "help")
    assert (shown.code, shown.out.startswith("Topics of")) == (0, True)


def test_pager_that_ends_before_the_text_is_no_error(pager: Path) -> None:
    pager.write_text("#!/bin/sh\nexit 0\n")
    assert on_terminal(80, "help", "commands").code == 0


def test_variable_of_the_pager_is_no_setting(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEAGENT_PAGER", "less")
    assert nodeagent("config", "show", "--config", str(config)).returncode == 0


def test_help_in_a_pipe_has_no_pager(pager: Path) -> None:
    assert nodeagent("help").stdout.startswith("Topics of"), pager
