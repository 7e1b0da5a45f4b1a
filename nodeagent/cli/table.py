"""Tables: one line per row, aligned columns, cut only to the width of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

from nodeagent.cli.display import Line
from nodeagent.text import Cut, display_width, escape, fit
from nodeagent.units import format_bytes, format_duration

T = TypeVar("T")

EMPTY: Final = "-"
"""Text of an empty cell."""
_GAP: Final = "  "
SHORTEST: Final = 10
"""Default minimum width of a column with cut values, in terminal cells."""


class Heading(NamedTuple):
    """A column of a table.

    Attributes:
        title: text above the column.
        right: whether the values are right-aligned.
        cut: the omitted part of a long value; ``None`` for values that are never shortened.
        name: whether the column identifies the row; such a column is cut after all other columns.
        at_least: minimum width in terminal cells if the values are cut.
        is_time: whether the values are times or durations, which differ in the next output; a column of equal times is
            not omitted.
        optional: whether the column is omitted from a list on a terminal that is too narrow for it.
    """

    title: str
    right: bool = False
    cut: Cut | None = None
    name: bool = False
    at_least: int = SHORTEST
    is_time: bool = False
    optional: bool = False


class Row(NamedTuple):
    """Cell texts and style of one table row."""

    cells: Sequence[str]
    style: str = ""

    def without(self, index: int) -> Row:
        """Return the row without one cell."""
        return self._replace(cells=_without(self.cells, index))


def table_lines(
    headings: Sequence[Heading], rows: Sequence[Row], columns: int | None, *, headers: bool = True
) -> list[Line]:
    """Return one line per row, after the headings unless ``headers`` is false.

    Args:
        headings: the columns.
        rows: the rows; their cell texts are escaped by this function.
        columns: width of the terminal: columns with ``cut`` are cut so that a line fits; if that is not sufficient, the
            end of the line is cut. ``None`` disables cutting.
        headers: whether the headings are shown.
    """
    cells = [[escape(cell) for cell in row.cells] for row in rows]
    shown = [[each.title for each in headings], *cells] if headers else cells
    widths = [max(map(display_width, column), default=0) for column in zip(*shown, strict=True)]
    if columns is not None and widths:
        widths = _narrowed(headings, widths, columns)
    styles = [*(["bold"] if headers else []), *(row.style for row in rows)]
    lines = []
    for values, style in zip(shown, styles, strict=True):
        text = _joined(headings, values, widths)
        lines.append(Line(text if columns is None else fit(text, columns), style))
    return lines


_READABLE: Final = 0.5
"""Share of the width of names below which a table on a terminal is replaced by rows of several lines."""


def fitted_lines(headings: Sequence[Heading], rows: Sequence[Row], columns: int, *, headers: bool = True) -> list[Line]:
    """Return the lines of a list on a terminal, with names whole as long as possible; ``rows`` is not empty.

    If the table is too wide, columns with the same value in all rows are omitted first, and their values are stated
    once, below the table; then optional columns, until the names are whole. If the names would still lose half of their
    width, a row is shown in several lines: its whole first name, and the other values below.
    """
    omitted: list[str] = []
    for index in reversed(range(len(headings))):
        values = {row.cells[index] for row in rows}
        is_constant = len(rows) > 1 and len(values) == 1 and not (headings[index].name or headings[index].is_time)
        if is_constant and _is_too_wide(headings, rows, columns):
            omitted.insert(0, f"{headings[index].title} {values.pop()}")
            headings, rows = _without(headings, index), [row.without(index) for row in rows]
    fewer, shorter = headings, rows
    for index in reversed(range(len(headings))):
        if headings[index].optional and not _shows_names(fewer, shorter, columns, whole=True):
            fewer, shorter = _without(fewer, index), [row.without(index) for row in shorter]
    if _shows_names(headings, rows, columns) or _shows_names(fewer, shorter, columns, whole=True):
        headings, rows = fewer, shorter
    if not _shows_names(headings, rows, columns):
        lines = [line for row in rows for line in _stacked(headings, row, columns, headers=headers)]
    else:
        lines = table_lines(headings, rows, columns, headers=headers)
    if omitted and headers:
        lines += Line(f"all: {', '.join(omitted)}", "dim").wrapped(columns)
    return lines


def _without(items: Sequence[T], index: int) -> list[T]:
    return [*items[:index], *items[index + 1 :]]


def _is_too_wide(headings: Sequence[Heading], rows: Sequence[Row], columns: int) -> bool:
    return sum(_widths(headings, rows)) + _gaps(headings) > columns


def _gaps(headings: Sequence[Heading]) -> int:
    return len(_GAP) * (len(headings) - 1)


def _widths(headings: Sequence[Heading], rows: Sequence[Row]) -> list[int]:
    return [
        max(display_width(each.title), *(display_width(escape(row.cells[index])) for row in rows))
        for index, each in enumerate(headings)
    ]


def _shows_names(headings: Sequence[Heading], rows: Sequence[Row], columns: int, *, whole: bool = False) -> bool:
    """Return whether the names keep half of their width beside the other columns; of a path, of its last component.

    With ``whole``, whether they keep their full width; of a name that is cut at its end, the minimum width.
    """
    needed, others = 0, _gaps(headings)
    for index, (each, width) in enumerate(zip(headings, _widths(headings, rows), strict=True)):
        if each.name and whole:
            needed += min(width, each.at_least) if each.cut is Cut.END else width
        elif each.name:
            ends = [row.cells[index].rpartition("/")[2] if each.cut is Cut.PATH else row.cells[index] for row in rows]
            needed += max(display_width(escape(end)) for end in ends)
        else:
            others += width if each.cut is None else min(width, max(display_width(each.title), each.at_least))
    return columns - others >= (needed if whole else _READABLE * needed)


def _stacked(headings: Sequence[Heading], row: Row, columns: int, *, headers: bool) -> Iterator[Line]:
    """Yield the first name of a row, and its other values with their titles below; no value is cut."""
    first = next((index for index, each in enumerate(headings) if each.name), 0)
    yield Line(row.cells[first], row.style)  # not wrapped: a part of a name would look like a value
    text = ""
    for index, heading in enumerate(headings):
        if index == first:
            continue
        value = escape(f"{heading.title} {row.cells[index]}" if headers else row.cells[index])
        if text and display_width(text) + len(_GAP) + display_width(value) > columns:
            yield from Line(text, row.style, hang=len(_GAP)).wrapped(columns)
            text = ""
        text += _GAP + value
    yield from Line(text, row.style, hang=len(_GAP)).wrapped(columns)


class Table:
    """Table built row by row."""

    def __init__(self, *headings: Heading | str) -> None:
        """Create a table without rows; a text is the title of a column that is aligned left and never cut."""
        self._headings = [Heading(each) if isinstance(each, str) else each for each in headings]
        self._rows: list[Row] = []

    def add(self, *cells: str, style: str = "") -> None:
        """Add a row; an empty cell is shown as a dash."""
        self._rows.append(Row([cell or EMPTY for cell in cells], style))

    def lines(self, columns: int | None) -> list[Line]:
        """Return the lines of the table, cut to ``columns`` as by ``table_lines``."""
        return table_lines(self._headings, self._rows, columns)

    def fitted_lines(self, columns: int) -> list[Line]:
        """Return the lines of a table with rows on a terminal, with whole names as by the function ``fitted_lines``."""
        return fitted_lines(self._headings, self._rows, columns)


def _narrowed(headings: Sequence[Heading], widths: Sequence[int], columns: int) -> list[int]:
    """Return column widths that fit into ``columns``, but not below the minimum width of each column."""
    narrowed = list(widths)
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - columns
    for name in (False, True):
        floors = {
            index: max(display_width(each.title), each.at_least)
            for index, each in enumerate(headings)
            if each.cut is not None and each.name is name
        }
        while excess > 0:
            spare = {index: narrowed[index] for index, floor in floors.items() if narrowed[index] > floor}
            if not spare:
                break
            widest = max(spare, key=lambda index: (spare[index], index))
            others = [width for index, width in spare.items() if index != widest]
            cut = min(excess, narrowed[widest] - floors[widest])
            if others and narrowed[widest] > max(
                others
            ):  # reduced to the next widest, so that the widest columns are cut evenly
                cut = min(cut, narrowed[widest] - max(others))
            elif others:
                cut = 1
            narrowed[widest] -= cut
            excess -= cut
    return narrowed


def _joined(headings: Sequence[Heading], values: Sequence[str], widths: Sequence[int]) -> str:
    padded = []
    for heading, value, width in zip(headings, values, widths, strict=True):
        text = value if heading.cut is None else fit(value, width, heading.cut)
        space = " " * (width - display_width(text))
        padded.append(space + text if heading.right else text + space)
    return _GAP.join(padded).rstrip(" ")


def short_id(text: str) -> str:
    """Return the first twelve hexadecimal digits of an id or digest; any other text unchanged."""
    bare = text.removeprefix("sha256:")
    if len(bare) >= 32 and all(char in "0123456789abcdef" for char in bare):
        return bare[:12]
    return text


def short_reference(reference: str) -> str:
    """Return an image reference or id with its digest cut to twelve digits."""
    repository, at, digest = reference.partition("@")
    return f"{repository}@{short_id(digest)}" if at else short_id(reference)


def size(size_bytes: int | None, *, upper_bound: bool = False) -> str:
    """Return a size as text; an upper bound is marked with ``≤``, ``None`` is shown as ``?``."""
    if size_bytes is None:
        return "?"
    return f"≤ {format_bytes(size_bytes)}" if upper_bound else format_bytes(size_bytes)


def size_cell(size_bytes: int | None) -> str:
    """Return a size as one word, such as ``1.46GiB``; ``?`` for ``None``."""
    return "?" if size_bytes is None else format_bytes(size_bytes).replace(" ", "")


def done_cell(trigger: str, done: int, planned: int) -> str:
    """Return the number of items that a pass removed of those planned; an undo restores them."""
    return f"{done}/{planned} restored" if trigger == "undo" else f"{done}/{planned}"


def ago(moment: datetime | None, now: datetime) -> str:
    """Return the time since a moment as text, ``never`` for ``None``."""
    return "never" if moment is None else f"{age(moment, now)} ago"


def age(moment: datetime, now: datetime) -> str:
    """Return the time since a moment, such as ``3d4h``; 0 for a moment in the future."""
    return format_duration(max(0.0, float(round((now - moment).total_seconds()))))
