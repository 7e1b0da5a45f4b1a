"""Patterns and regular expressions of operators and group members, matched in linear time by RE2.

Python's ``re`` backtracks: an expression with nested repetitions can run for hours on an image name of 30 characters,
and tenants choose image names. The run time of RE2 is proportional to the length of the text and to the size of the
expression, which is limited. RE2 supports no look-around and no back references. Rejected alternative: a custom syntax,
which operators would have to learn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Protocol

MAX_CHARACTERS: Final = 512
MAX_GLOB_CHARACTERS: Final = 256
MAX_PROGRAM_SIZE: Final = 300
"""Maximum number of RE2 instructions of an expression.

On a name of 180 characters, the slowest tested expression of this size takes 0.2 ms, a typical expression 1 µs.
"""
_SET_SIZE: Final = 100
"""Number of expressions compiled together; RE2 refuses a set of 2,000 image names."""
NO_MATCH: Final = r"[^\x{0}-\x{10ffff}]"


class Search(Protocol):
    """Function that matches a text with a compiled pattern."""

    def __call__(self, text: str, /) -> bool:
        """Return whether the pattern matches the text."""


class _Expression(Protocol):
    """Compiled expression of the library, which has no types."""

    programsize: int

    def search(self, text: bytes, /) -> object | None: ...


class _Set(Protocol):
    """Compiled set of expressions of the library."""

    def Add(self, expression: bytes, /) -> int: ...  # noqa: N802 - name of the library

    def Compile(self) -> None: ...  # noqa: N802 - name of the library

    def Match(self, text: bytes, /) -> list[int] | None: ...  # noqa: N802 - name of the library


class ExpressionError(ValueError):
    """The expression is invalid, too large, or contains a construct that RE2 does not support."""


def check_expression(expression: str) -> None:
    """Check a regular expression.

    Raises:
        ExpressionError: the expression is invalid, unsupported or too large; the message states the cause.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ExpressionError(f"{len(expression)} characters, more than {MAX_CHARACTERS}")
    size = _compile(expression).programsize
    if size > MAX_PROGRAM_SIZE:
        raise ExpressionError(f"too large ({size} instructions, at most {MAX_PROGRAM_SIZE}): use fewer repetitions")


def expression_of_glob(glob: str) -> str:
    """Return the expression of a case-sensitive glob with ``*``, ``?`` and ``[...]``, without anchors.

    Raises:
        ExpressionError: the glob is too long, or not valid text.
    """
    if len(glob) > MAX_GLOB_CHARACTERS:
        raise ExpressionError(f"{len(glob)} characters, more than {MAX_GLOB_CHARACTERS}")
    expression = _GLOB_PART.sub(_expression_of_part, glob)
    _compile(expression)
    return expression


@lru_cache(maxsize=1024)
def glob_search(glob: str) -> Search:
    """Return the function that matches a glob with a complete text; ``ExpressionError`` as ``expression_of_glob``."""
    search = _compile(rf"\A{expression_of_glob(glob)}\z").search
    return lambda text, /: search(text.encode("utf-8", "surrogatepass")) is not None


class ExpressionSet:
    """Valid expressions compiled together, so that a text is read once for each hundred of them."""

    def __init__(self, expressions: Sequence[str]) -> None:
        """Compile the expressions."""
        self._sets = [
            (first, expressions[first : first + _SET_SIZE]) for first in range(0, len(expressions), _SET_SIZE)
        ]
        self._compiled = [_compile_set(some) for _, some in self._sets]

    def matches(self, text: str) -> list[int]:
        """Return the positions of the expressions that match anywhere in the text, in any order."""
        encoded = text.encode("utf-8", "surrogatepass")
        places: list[int] = []
        for (first, some), compiled in zip(self._sets, self._compiled, strict=True):
            found = (compiled and compiled.Match(encoded)) or ()
            if len(some) not in found:  # too large together
                found = [place for place, each in enumerate(some) if _compile(each).search(encoded) is not None]
            places += [first + place for place in found if place < len(some)]
        return places


def _compile_set(expressions: Sequence[str]) -> _Set | None:
    """Return the set of the expressions and of one that matches every text; ``None`` if they are too large together."""
    import re2  # noqa: PLC0415 - loaded only for patterns and expressions

    compiled: _Set = re2.Set.SearchSet(_options())
    try:
        for each in (*expressions, ""):  # a match of a set that exceeds its memory is empty, and no error
            compiled.Add(_encoded(each))
        compiled.Compile()
    except re2.error:
        return None
    return compiled


@lru_cache(maxsize=1024)
def _compile(expression: str) -> _Expression:
    """Return a compiled expression.

    Raises:
        ExpressionError: the expression is invalid or unsupported.
    """
    import re2  # noqa: PLC0415 - loaded only for patterns and expressions

    try:
        compiled: _Expression = re2.compile(_encoded(expression), _options())
    except (re2.error, UnicodeEncodeError) as error:
        raise ExpressionError(_cause(error)) from error
    return compiled


def _options() -> object:
    import re2  # noqa: PLC0415 - loaded only for patterns and expressions

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    return options


def _encoded(expression: str) -> bytes:
    """Return an expression as bytes, so that an image name that is not valid UTF-8 is matched without an error."""
    return expression.encode("utf-8", "surrogateescape")


_GLOB_PART: Final = re.compile(r"\*+|\?|\[(!?+)(\]?+[^\]]*)\]|.", re.DOTALL)
_CLASS_PART: Final = re.compile(r"(.)-(.)|(.)", re.DOTALL)


def _expression_of_part(part: re.Match[str]) -> str:
    text = part[0]
    if text == "?":
        return "(?s:.)"
    if text[0] == "*":
        return r"(?s:.*)"
    if len(text) == 1:
        return re.escape(text)
    ranges = [(one or first, one or last) for first, last, one in _CLASS_PART.findall(part[2])]
    members = "".join(rf"\x{{{ord(first):x}}}-\x{{{ord(last):x}}}" for first, last in ranges if first <= last)
    if not members:  # only reversed ranges: no character, or with an exclamation mark any character
        return "(?s:.)" if part[1] else NO_MATCH
    return f"[{'^' if part[1] else ''}{members}]"


def _cause(error: Exception) -> str:
    """Return the cause of a compilation error as text; RE2 reports bytes."""
    first = error.args[0] if error.args else ""
    text = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(error)
    if "(?" in text or "invalid escape sequence" in text:
        text += " (without look-around, back references and \\Z; see the syntax of RE2)"
    return text
