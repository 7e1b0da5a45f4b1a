"""``nodeagent help``: installed documents as topics, and the help of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from nodeagent.cli.help import topics
from tests.support.command import nodeagent

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
