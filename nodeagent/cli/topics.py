"""``nodeagent help``: the installed documents and the help of commands."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.cli.command_help import command_help
from nodeagent.cli.output import say
from nodeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_DOCUMENTS: Final = Path(__file__).parents[1] / "docs"


def topics() -> dict[str, Path]:
    """Return the installed documents by topic, in alphabetical order."""
    return {each.stem: each for each in sorted(_DOCUMENTS.glob("*.md"))}


def show_help(tree: object, words: Sequence[str]) -> None:
    """Print the list of topics, the document of a topic, or the help of a command.

    Args:
        tree: the whole command tree.
        words: a topic, or the names of a command and its subcommand; empty for the list of topics.

    Raises:
        UsageError: the words are neither a topic nor a command.
    """
    documents = topics()
    if not words:
        _list(documents)
    elif len(words) == 1 and words[0] in documents:
        _show(documents[words[0]])
    elif text := command_help("nodeagent", tree, words):
        sys.stdout.write(text)
        sys.stdout.write("\n")
    else:
        name = " ".join(words)
        near = difflib.get_close_matches(name, documents, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"no topic or command {name!r}{hint}; 'nodeagent help' lists the topics")


def _list(documents: dict[str, Path]) -> None:
    say("Topics of 'nodeagent help TOPIC' and, where manual pages are installed, of")
    say("'man nodeagent-TOPIC':")
    width = max(map(len, documents), default=0)
    for name, path in documents.items():
        title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        say(f"  {name:<{width}}  {title}")
    say("'nodeagent --help' lists the commands.")


def _show(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from nodeagent.cli.terminal import print_markdown  # noqa: PLC0415 - needed only on a terminal

    print_markdown(text)
