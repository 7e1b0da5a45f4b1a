"""Matching of common command lines without the typer parser.

Importing typer takes longer than a request to the daemon. This module matches simple command lines: a known command,
unabbreviated options without repetition, and values of the declared types. All other command lines are left to the
typer parser: errors, help, abbreviations, repeated options, ``--``.

``grammar.json`` lists the options of each command, derived from the typer declarations. ``make docs`` writes the file;
``make check`` verifies that it is up to date.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GRAMMAR: Final = f"{__file__.rpartition('/')[0]}/grammar.json"
_LONGEST_NUMBER: Final = 15
_LIST: Final = "list"
_FLAG: Final = "flag"


def read_grammar() -> dict[str, Any]:
    """Return the grammar of each command by name, read from ``grammar.json``."""
    with open(GRAMMAR, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
        found: dict[str, Any] = json.load(file)
    return found


def match(words: Sequence[str], grammar: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the command in a command line and its parameter values by name; ``None`` for other command lines.

    Values of enumerations are text. Parameters that are not in ``grammar`` are omitted.
    """
    name = next((each for each in (" ".join(words[:2]), words[0] if words else "") if each in grammar), None)
    if name is None:
        return None
    command = grammar[name]
    given: dict[str, Any] = {}
    arguments = list(command["arguments"])
    rest = list(words[name.count(" ") + 1 :])
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if not arguments or not word:
                return None
            given[arguments.pop(0)] = word
            continue
        option, equals, text = word.partition("=")
        parameter = command["options"].get(option)
        if parameter is None or (equals and not option.startswith("--")):
            return None
        if parameter["kind"] == _FLAG:
            value: object = None if equals else True
        else:
            value = _value(parameter, text if equals else rest.pop(0) if rest else "")
        key = parameter["name"]
        if value is None or (key in given and parameter["kind"] != _LIST):
            return None
        given[key] = [*given.get(key, ()), value] if parameter["kind"] == _LIST else value
    values = {**command["defaults"], **given}
    return None if any(each not in values for each in arguments) else (name, values)


def _value(parameter: Mapping[str, Any], text: str) -> object:
    """Return the value of an option; ``None`` if only the typer parser can parse the text."""
    if not text or text.startswith("-") or not text.isprintable():
        return None
    kind = parameter["kind"]
    if kind == "choice":
        return text if text in parameter["choices"] else None
    if kind in ("text", _LIST):
        return text
    whole, _, fraction = text.partition(".")
    digits = whole + fraction
    if not (digits.isascii() and digits.isdigit() and whole) or len(text) > _LONGEST_NUMBER:
        return None
    if kind == "int" and whole != text:
        return None
    number = int(text) if kind == "int" else float(text)
    least, most = parameter["min"], parameter["max"]
    in_range = (least is None or number >= least) and (most is None or number <= most)
    return number if in_range else None
