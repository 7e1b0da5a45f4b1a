"""Shell completion: the hidden command ``nodeagent __complete WORD...``, called by the shell completion scripts.

The last word is completed. Each line of the output is a value, followed by a tab and a description if the value has a
description; the single line ``:files`` requests file name completion by the shell. Commands and options are read from
the command tree; image names, ids and pods are read from the running daemon.
Completion must not disturb the shell prompt: the process prints no error and exits after at most 1.5 seconds with the
values found so far.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

COMMAND: Final = "__complete"
FILES: Final = ":files"
_WITHIN_S: Final = 1.5
_MOST_VALUES: Final = 2000
_MOST_PASSES: Final = 200
_HARMLESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,511}")
"""Form of values without shell metacharacters; only these are offered, since they are inserted into a command line."""


def main(words: list[str]) -> None:
    """Print the completions of the last word and exit with code 0, even after an error or a timeout."""
    found: list[str] = []

    def end(*_: object) -> None:
        os.write(1, "".join(f"{each}\n" for each in dict.fromkeys(found)).encode("utf-8", "replace"))
        os._exit(0)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, _WITHIN_S)
    try:
        from nodeagent.cli.completion_grammar import program  # noqa: PLC0415 - within the time limit

        for each in completions(program(), words or [""]):
            found.append(each)
            if len(found) >= _MOST_VALUES:
                break
    except Exception:  # noqa: BLE001, S110 - an error message would disturb the prompt
        pass
    end()


class _Line:
    """Parsed command line before the word to complete.

    Attributes:
        command: grammar of the named command or command group.
        arguments: number of arguments after the command name.
        waiting: grammar of the option that expects the next word as its value; ``None`` if no value is expected.
        config: configuration file set by ``--config``; ``None`` without the option.
        is_ended: whether ``--`` ended the options.
    """

    def __init__(self, grammar: dict[str, Any]) -> None:
        self.command = grammar
        self.arguments = 0
        self.waiting: dict[str, Any] | None = None
        self.config: str | None = None
        self.is_ended = False

    def add(self, word: str) -> None:
        """Parse one word: a command, an option, an option value or an argument."""
        if self.waiting is not None:
            self.config = word if self.waiting.get("config") else self.config
            self.waiting = None
        elif self.is_ended or not word.startswith("-") or word == "-":
            found = None if self.is_ended or self.arguments else self.command.get("commands", {}).get(word)
            self.command, self.arguments = (self.command, self.arguments + 1) if found is None else (found, 0)
        elif word == "--":
            self.is_ended = True
        else:
            name, equals, value = word.partition("=")
            option = self.command["options"].get(name, {})
            if equals:
                self.config = value if option.get("config") else self.config
            elif "value" in option:
                self.waiting = option


def completions(grammar: dict[str, Any], words: list[str]) -> Iterator[str]:
    """Yield the completions of the last word."""
    line, last = _Line(grammar), words[-1]
    for word in words[:-1]:
        line.add(word)
    if line.waiting is not None:
        yield from _values(line.waiting["value"], last, line.config)
    elif last.startswith("-") and not line.is_ended:
        name, equals, value = last.partition("=")
        options = line.command["options"]
        if not equals:
            yield from _described(options, last)
        elif "value" in options.get(name, {}):
            found = _values(options[name]["value"], value, line.config)
            yield from (f"{name}={each}" for each in found if each != FILES)
    else:
        if line.arguments == 0:
            yield from _described(line.command.get("commands", {}), last)
        kinds = line.command.get("arguments", [])
        if line.arguments < len(kinds):
            yield from _values(kinds[line.arguments], last, line.config)


def _described(choices: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name in choices:
        if name.startswith(prefix):
            text = choices[name]["help"]
            yield f"{name}\t{text}" if text else name


def _values(kind: Any, prefix: str, config: str | None) -> Iterator[str]:  # noqa: ANN401 - a JSON value
    """Yield the values of an option or argument that start with ``prefix``."""
    if isinstance(kind, list):
        yield from (each for each in kind if each.startswith(prefix))
    elif kind == "setting":
        from nodeagent.cli.completion_grammar import settings  # noqa: PLC0415 - slow to import

        yield from (each for each in settings() if each.startswith(prefix))
    elif kind == "file":
        yield FILES
    else:
        for value in _asked(str(kind), config):
            if value.startswith(prefix) and _HARMLESS.fullmatch(value):
                yield value


def _asked(kind: str, config: str | None) -> Iterator[str]:
    """Yield all values of a kind, such as ``image``, from the daemon; nothing if the control API is disabled."""
    for operation, fields, values_of in _QUESTIONS.get(kind, ()):
        from nodeagent.api.client import ControlClient  # noqa: PLC0415 - needed only for values listed by the daemon
        from nodeagent.config.socket_path import read_socket_path  # noqa: PLC0415

        path = read_socket_path(config)
        if path is not None:
            yield from values_of(json.loads(ControlClient(path).call(operation, fields, within_s=_WITHIN_S)))


def _image_names(document: dict[str, Any]) -> Iterator[str]:
    for each in document["images"]:
        yield from each["repo_tags"] or each["repo_digests"] or [each["id"]]


def _container_ids(document: dict[str, Any]) -> Iterator[str]:
    for each in document["containers"]:
        yield each["id"][:12]


def _pod_names(document: dict[str, Any]) -> Iterator[str]:
    for each in document["pods"]:
        yield f"{each['namespace']}/{each['name']}"


def _ids(field: str) -> Callable[[dict[str, Any]], Iterator[str]]:
    return lambda document: (each["id"] for each in document[field])


_Question = tuple[str, dict[str, object], "Callable[[dict[str, Any]], Iterator[str]]"]
_IMAGES: Final[_Question] = ("Images", {}, _image_names)
_PODS: Final[_Question] = ("PodList", {}, _pod_names)
_CONTAINERS: Final[_Question] = ("Containers", {}, _container_ids)
_QUESTIONS: Final[dict[str, tuple[_Question, ...]]] = {
    "image": (_IMAGES,),
    "item": (_IMAGES, _PODS, _CONTAINERS),
    "hold": (("Holds", {}, _ids("holds")),),
    "pass": (("History", {"limit": _MOST_PASSES, "quiet": True}, _ids("passes")),),
}


if __name__ == "__main__":
    main(sys.argv[1:])
