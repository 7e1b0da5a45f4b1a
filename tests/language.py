"""Check the project's vocabulary: ``python -m tests.language [PATH...]``, part of ``make check``.

Names, comments and strings of Python files and the text of other files are searched for paraphrases of standard terms.
A banned word is an error (exit code 1); a discouraged word is a warning with its file and line. Text in double quotes
inside prose is a quotation and exempt. Names are split into words, so ``told_at`` and ``ToldAt`` contain ``told``.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BANNED: Final = {
    "tell": "report, log, list, return or state",
    "tells": "reports, logs, lists, returns or states",
    "told": "reported, logged, listed, returned or stated",
    "telling": "reporting, logging, listing, returning or stating",
}
DISCOURAGED: Final = {
    "a look": "a poll, a reading",
    "looks": "polls, reads, observes",
    "looked at": "observed, read",
    "duty": "loop or task",
    "duties": "loops or tasks",
    "tally": "counters",
    "anew": "again",
    "set aside": "excluded after failure; quarantined (files)",
    "nothing holds": "unreferenced",
    "to be asked": "control API, control socket, listening on",
    "is gone": "deleted, removed or missing",
    "are gone": "deleted, removed or missing",
    "may go": "may be removed or evicted",
    "to go": "to be removed or evicted",
    "goes first": "is removed or evicted first",
    "what goes": "removed items",
    "what stays": "kept items",
    "at ease": "no pressure",
    "given back": "released, returned",
    "gives back": "releases, returns",
    "to be paged out": "mlockall failed",
    "whoever": "name the caller or user",
    "nobody": "no user, no process",
    "stands to": "runs beside, manages",
    "is good": "is valid",
    "the node may go down": "inhibitor lock released",
    "not within": "timed out after",
    "no option": "unavailable, required",
    "what is": "name the thing",
    "what was": "name the thing",
    "what the": "name the thing",
    "what it": "name the thing",
    "what they": "name the thing",
    "what can": "name the thing",
    "what cannot": "name the thing",
    "whatever": "any, regardless of",
    "says": "states, contains, reports",
    "said": "reported, output",
    "stays": "remains, is kept",
    "stays up": "continues to run",
    "stands in": "is in",
    "comes from": "is from, is derived from",
    "come from": "are from, are derived from",
    "left out": "omitted, skipped",
    "left behind": "abandoned, remaining",
    "any more": "no longer",
    "alike": "equally, in the same way",
    "for ever": "forever, without limit",
    "by hand": "manually",
    "in words": "as text",
    "in the way": "in place of",
    "goes off": "is powered off",
    "went off": "was powered off",
    "learns": "reads, receives",
    "gets lost": "is lost",
    "get lost": "are lost",
    "lies": "is",
    "likewise": "same for",
    "looser": "less strict",
    "judged": "checked",
    "judges": "checks",
}
_TEXT_SUFFIXES: Final = {".py", ".md", ".toml", ".yml", ".service", ".catalog", ".proto", ".conf", ".json", ""}
_EXCLUDED: Final = ("nodeagent/_proto/", "tests/data/", "tests/language.py", "tests/unit/test_language.py", "LICENSE")
_QUOTATION: Final = re.compile(r'"[^"\n]*"')
_WORDS_OF_A_NAME: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_STRING_START: Final = re.compile(r"^[A-Za-z]*(\"\"\"|'''|\"|')")


class Finding(NamedTuple):
    """Word or phrase that the vocabulary replaces.

    Attributes:
        line: line number, starting at 1.
        term: the found word or phrase.
        advice: standard terms for the word or phrase.
        banned: whether the finding is an error, not a warning.
    """

    line: int
    term: str
    advice: str
    banned: bool


def _pattern(terms: Iterable[str]) -> re.Pattern[str]:
    return re.compile(r"(?<![\w-])(" + "|".join(sorted(terms, key=len, reverse=True)) + r")(?![\w-])", re.IGNORECASE)


_PHRASES: Final = _pattern([*BANNED, *DISCOURAGED])
_NAMES: Final = frozenset(BANNED) | {each for each in DISCOURAGED if " " not in each}


def find_in_prose(text: str, first_line: int = 1) -> Iterator[Finding]:
    """Yield the findings in prose, except in quotations."""
    for number, line in enumerate(_QUOTATION.sub('""', text).splitlines(), start=first_line):
        yield from _find(line, number)


def find_in_python(source: str) -> Iterator[Finding]:
    """Yield the findings in the names, comments and strings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.NAME:
            words = {each.lower() for each in _WORDS_OF_A_NAME.findall(token.string)}
            for term in sorted(words & _NAMES):
                yield Finding(line, term, _advice(term), term in BANNED)
        elif token.type == tokenize.COMMENT:
            yield from find_in_prose(token.string, line)
        elif token.type == tokenize.STRING:
            start = _STRING_START.match(token.string)
            if start is not None and len(start[1]) > 1:
                yield from find_in_prose(token.string.removeprefix(start[0]).removesuffix(start[1]), line)
            else:
                for number, text in enumerate(token.string.splitlines(), start=line):
                    yield from _find(text.replace("_", " "), number)


def _find(text: str, line: int) -> Iterator[Finding]:
    for match in _PHRASES.finditer(text):
        term = match[1].lower()
        yield Finding(line, term, _advice(term), term in BANNED)


def _advice(term: str) -> str:
    return BANNED.get(term) or DISCOURAGED[term]


def _tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    return [each for each in listed.split("\0") if each]


def main(paths: list[str]) -> int:
    """Print the findings of files, by default of all tracked files; return 1 if there is a banned word."""
    failed = False
    for name in paths or _tracked():
        path = Path(name)
        if name.startswith(_EXCLUDED) or path.suffix not in _TEXT_SUFFIXES or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        for each in find_in_python(text) if path.suffix == ".py" else find_in_prose(text):
            failed |= each.banned
            print(f"{name}:{each.line}: {'error' if each.banned else 'warning'}: {each.term!r}: use {each.advice}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
