"""Regular expressions of operators, matched in linear time.

Python's own expressions backtrack: one with nested repetitions takes hours on an image name of 30 characters, and the
names are chosen by tenants. RE2 takes a time proportional to the text and to the size of the expression, which is
limited. It has neither look-around nor back references. A grammar of our own was rejected: operators write expressions
by the rules they know.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol

MAX_CHARACTERS: Final = 512
MAX_PROGRAM_SIZE: Final = 300
"""Maximum number of instructions; the worst found takes 0.2 ms on a name of 180 characters, a usual one 1 µs."""


class Search(Protocol):
    """Search for an expression in a text."""

    def __call__(self, text: str, /) -> bool:
        """Return whether the expression matches anywhere in the text."""


class ExpressionError(ValueError):
    """An expression is invalid, too large, or has a construct without linear time."""


@lru_cache(maxsize=1024)
def compile_expression(expression: str) -> Search:
    """Return the search for an expression.

    Raises:
        ExpressionError: the expression cannot be used; the message has the cause.
    """
    import re2  # noqa: PLC0415 - only where a rule is an expression

    if len(expression) > MAX_CHARACTERS:
        raise ExpressionError(f"{len(expression)} characters, more than {MAX_CHARACTERS}")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        # bytes, so that a name that is not valid text is matched too instead of failing
        compiled = re2.compile(expression.encode("utf-8", "surrogateescape"), options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ExpressionError(_cause(error)) from error
    if compiled.programsize > MAX_PROGRAM_SIZE:
        raise ExpressionError(
            f"too large ({compiled.programsize} instructions, at most {MAX_PROGRAM_SIZE}): use fewer repetitions"
        )
    search = compiled.search

    def found(text: str, /) -> bool:
        return search(text.encode("utf-8", "surrogatepass")) is not None

    return found


def _cause(error: Exception) -> str:
    """Return the cause of an error in printable form; RE2 reports bytes."""
    first = error.args[0] if error.args else ""
    text = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(error)
    if "(?" in text or "invalid escape sequence" in text:
        text += " (without look-around, back references and \\Z; see the syntax of RE2)"
    return text
