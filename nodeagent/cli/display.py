"""Standard output for terminals and pipes: width, colours, and lines of escaped text.

On a terminal, tables are cut at its width and sentences are wrapped between words. Pipes receive full values. The
library rich is used only for live views (``live``), since its import takes longer than most commands.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from itertools import groupby
from typing import Final, NamedTuple, Self

from nodeagent.text import display_width, escape
from nodeagent.units import localize_times

_DEFAULT_COLUMNS: Final = 80
_NARROWEST: Final = 20
_DIM_AND_COLOURS: Final[Mapping[str, str]] = {
    "bold": "1",
    "dim": "2",
    "italic": "3",
    "reverse": "7",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "white": "37",
}
_WORD: Final = re.compile(r" *[^ ]+")
_INDENT: Final = "  "
_NARROWEST_TEXT: Final = 30
"""Minimum width of the text beside a label, in terminal columns."""
_FULL, _EMPTY = "\u2588", "\u2591"
_REPLACEMENTS: Final = {
    "\u2026": "~",
    _FULL: "#",
    _EMPTY: ".",
    "\u2264": "<",
    "\u2265": ">",
    "\u2192": ">",
    **dict.fromkeys("\u2514\u251c", "+"),
    **dict(zip("\u2581\u2582\u2583\u2584\u2585\u2586\u2587", "_.:-=+*", strict=True)),
    "\u00b7": " ",
    "\u2500": "-",
    "\u2502": "|",
}
"""ASCII replacements of the same width, for locales that cannot encode the characters."""


class Line:
    """One line of styled text; every appended string is escaped."""

    __slots__ = ("_hang", "_parts")

    def __init__(self, text: str = "", style: str = "", *, hang: int = 0) -> None:
        """Create a line with an initial text.

        Args:
            text: the text.
            style: list of colours, ``bold`` and ``dim``, separated by spaces.
            hang: width of the label at the start of the line; continuation lines are indented by this width.
        """
        self._parts: list[tuple[str, str]] = []
        self._hang = hang
        self.append(text, style)

    def append(self, text: str, style: str = "") -> Self:
        """Append text; return this line."""
        if text:
            self._parts.append((escape(text), style))
        return self

    def append_bar(self, share: float, cells: int, *, bad: bool = False, marks: Iterable[Mark] = ()) -> Self:
        """Append a bar of the used share (0 to 1), filled from the left, with marks; return this line."""
        for character, run in groupby(bar(share, cells, marks)):
            style = {_FULL: "red" if bad else "green", _EMPTY: "dim"}.get(character, "bold")
            self.append("".join(run), style)
        return self

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """The escaped texts of the line with their styles."""
        return tuple(self._parts)

    @property
    def text(self) -> str:
        """The text of the line, without styles."""
        return "".join(text for text, _ in self._parts)

    def styled(self) -> str:
        """Return the line with control sequences for its styles."""
        return "".join(_styled(text, style) for text, style in self._parts)

    def wrapped(self, columns: int) -> Iterator[Line]:
        """Yield parts of the line, wrapped between words to at most ``columns``; a longer word is not broken.

        A label is on the same line as the first word of its text. On a narrow terminal, continuation lines are not
        indented by the width of the label.
        """
        text = self.text
        if display_width(text) <= columns:
            yield self
            return
        label = self._hang if columns - self._hang >= _NARROWEST_TEXT else 0
        hang = " " * label or _INDENT
        start, used, indent = 0, 0, ""
        for word in _WORD.finditer(text):
            width = display_width(word[0])
            if used > label and used + width > columns:
                yield self._part(start, word.start(), indent)
                start, indent = word.end() - len(word[0].lstrip(" ")), hang
                used = len(indent) + display_width(word[0].lstrip(" "))
            else:
                used += width
        yield self._part(start, len(text.rstrip(" ")), indent)

    def _part(self, start: int, end: int, indent: str) -> Line:
        part, offset = Line(indent), 0
        for text, style in self._parts:
            part.append(text[max(0, start - offset) : max(0, end - offset)], style)
            offset += len(text)
        return part


def warning_lines(warnings: Iterable[str]) -> Iterator[Line]:
    """Yield the line of each warning, with local times."""
    for each in warnings:
        yield Line(f"warning: {localize_times(each)}", "yellow")


class MarkKind(StrEnum):
    """Threshold shown on a bar, as its character on every terminal; of two in one cell the later one is shown."""

    GC_LOW = "["
    GC_HIGH = "]"
    SOFT = "!"
    HARD = "X"


class Mark(NamedTuple):
    """A threshold at a used share; it is not shown unless the share is between 0 and 1."""

    share: float
    kind: MarkKind


def bar(share: float, cells: int, marks: Iterable[Mark] = ()) -> str:
    """Return a bar of the used share (0 to 1), filled from the left, with thresholds as marks.

    All cells before the mark of a met threshold are filled, and no cell behind the mark of another threshold. Without
    space, with ``cells`` of 0 or less, the bar is empty.
    """
    if cells <= 0:
        return ""
    full = filled_cells(share, cells)
    shown = [*_FULL * full, *_EMPTY * (cells - full)]
    order = list(MarkKind)
    for each in sorted(marks, key=lambda mark: order.index(mark.kind)):
        if 0 <= each.share <= 1:
            shown[min(cells - 1, filled_cells(each.share, cells))] = each.kind.value
    return "".join(shown)


def filled_cells(share: float, cells: int) -> int:
    """Return the number of filled cells in a bar of ``cells`` cells for a used share (0 to 1)."""
    return min(cells, max(0, round(cells * share)))


class Display(NamedTuple):
    """Standard output of a command: a terminal, a pipe or a file.

    Attributes:
        columns: width of the terminal; ``None`` for other outputs, where lines are not cut.
        colour: whether styles are printed as control sequences.
    """

    columns: int | None = None
    colour: bool = False

    @property
    def has_screen(self) -> bool:
        """Whether the output is a terminal on which text can be overwritten."""
        return self.columns is not None and os.environ.get("TERM", "") not in ("", "dumb", "unknown")

    def write(self, lines: Iterable[Line]) -> None:
        """Write lines; on a terminal wrapped between words."""
        columns = self.columns
        self.write_fitted(lines if columns is None else (part for line in lines for part in line.wrapped(columns)))

    def write_fitted(self, lines: Iterable[Line]) -> None:
        """Write lines without wrapping, such as table rows."""
        self._write("".join(f"{line.styled() if self.colour else line.text}\n" for line in lines))

    def write_raw(self, text: str) -> None:
        """Write text with its own line breaks, whose values are escaped."""
        self._write(text)

    def _write(self, text: str) -> None:
        sys.stdout.write(encodable_output(text))
        sys.stdout.flush()


def encodable_output(text: str) -> str:
    """Return text that standard output can encode, with replacements of the same width for drawn characters."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = "".join(_REPLACEMENTS.get(each, each) for each in text)
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    return text


def say(line: str) -> None:
    """Write one escaped line to standard output; on a terminal wrapped between words."""
    standard_output().write([Line(line)])


def warn(line: str) -> None:
    """Write one escaped line to standard error, with local times."""
    sys.stderr.write(f"{escape(localize_times(line))}\n")


_WORKING_AFTER_S: Final = 0.5


@contextmanager
def working() -> Iterator[None]:
    """Show the elapsed seconds on a terminal while the block takes longer than half a second; clear them at its end.

    Nothing is shown from a thread other than the main thread, such as the reader of a live view.
    """
    is_background = threading.current_thread() is not threading.main_thread()
    if is_background or not (sys.stdout.isatty() and sys.stderr.isatty()) or os.environ.get("TERM") == "dumb":
        yield
        return
    done, terminal = threading.Event(), sys.stderr

    def show() -> None:
        seconds = 0
        within_s = _WORKING_AFTER_S
        while not done.wait(within_s):
            terminal.write(f"\r\x1b[Kworking, {seconds} s" if seconds else "working")
            terminal.flush()
            within_s = 1.0 if seconds else 1.0 - _WORKING_AFTER_S
            seconds += 1
        if seconds:
            terminal.write("\r\x1b[K")
            terminal.flush()

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        done.set()
        shower.join()


def standard_output() -> Display:
    """Return standard output; colours only on a terminal, unless ``FORCE_COLOR`` is set, and without ``NO_COLOR``."""
    terminal = sys.stdout.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    colour = (terminal or bool(os.environ.get("FORCE_COLOR"))) and not plain
    return Display(max(_NARROWEST, _terminal_size()[0]) if terminal else None, colour)


def _terminal_size() -> tuple[int, int]:
    """Return columns and rows of the terminal; ``COLUMNS`` takes precedence, an unknown size is 80 by 24."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        columns, rows = 0, 0
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given[:6]) > 0:
        columns = int(given[:6])
    return columns or _DEFAULT_COLUMNS, rows or 24


def _styled(text: str, style: str) -> str:
    codes = ";".join(_DIM_AND_COLOURS[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes else text
