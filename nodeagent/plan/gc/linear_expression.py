"""Regular expressions in the configuration, matched in linear time by RE2.

Python's ``re`` backtracks: an expression with nested repetitions can run for hours on an image name of 30 characters,
and tenants choose image names. The run time of RE2 is proportional to the length of the text and to the size of the
expression, which is limited. RE2 supports no look-around and no back references. Rejected alternative: a custom syntax,
which operators would have to learn.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol

MAX_CHARACTERS: Final = 512
MAX_PROGRAM_SIZE: Final = 300
"""Maximum number of RE2 instructions of an expression.

On a name of 180 characters, the slowest tested expression of this size takes 0.2 ms, a typical expression 1 µs.
"""


class Search(Protocol):
    """Function that searches a text for a compiled expression."""

    def __call__(self, text: str, /) -> bool:
        """Return whether the expression matches anywhere in the text."""


class ExpressionError(ValueError):
    """The expression is invalid, too large, or contains a construct that RE2 does not support."""


@lru_cache(maxsize=1024)
def compile_expression(expression: str) -> Search:
    """Return the search function of a regular expression.

    Raises:
        ExpressionError: the expression is invalid, unsupported or too large; the message states the cause.
    """
    import re2  # noqa: PLC0415 - loaded only if a rule is a regular expression

    if len(expression) > MAX_CHARACTERS:
        raise ExpressionError(f"{len(expression)} characters, more than {MAX_CHARACTERS}")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        # Compiled as bytes, so that an image name that is not valid UTF-8 is matched instead of raising an error.
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
    """Return the cause of a compilation error as text; RE2 reports bytes."""
    first = error.args[0] if error.args else ""
    text = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(error)
    if "(?" in text or "invalid escape sequence" in text:
        text += " (without look-around, back references and \\Z; see the syntax of RE2)"
    return text
