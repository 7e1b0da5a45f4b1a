"""Declaration of lists, and the common options of list commands.

A list is declared once, as a ``ListView``: its columns define the cells of the table, the keys of ``--sort-by`` and
the keys of ``--filter``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from nodeagent.cli.table import SHORTEST, Heading, age, short_id, size_cell
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from nodeagent.text import Cut

R = TypeVar("R")


class ListScope(Enum):
    """Scope of a column: the tables that show the column.

    Attributes:
        TABLE: every table.
        WIDE: ``-o wide``.
        FULL: every table whose values are not cut: in a pipe, or with ``--no-trunc``.
        KEY: no table; the column is only a key of ``--sort-by`` and ``--filter``.
    """

    TABLE = "table"
    WIDE = "wide"
    FULL = "full"
    KEY = "key"


class Column(NamedTuple, Generic[R]):
    """A column of a list.

    Attributes:
        key: key of ``--sort-by`` and ``--filter``.
        heading: title, alignment and shortening.
        value: returns the sort value of a row; rows with ``None`` are sorted last.
        show: returns the cell of a row, given the time of the document.
        scope: the tables that show the column.
        texts: returns the texts compared with ``--filter``; ``None`` for a column without a filter.
        brief: returns the shortened cell for a terminal without ``--no-trunc``; ``None`` for the cell of ``show``.
    """

    key: str
    heading: Heading
    value: Callable[[R], Any]
    show: Callable[[R, datetime], str]
    scope: ListScope = ListScope.TABLE
    texts: Callable[[R], Sequence[str]] | None = None
    brief: Callable[[R], str] | None = None


def text(
    key: str,
    title: str,
    value: Callable[[R], str],
    *,
    cut: Cut | None = None,
    name: bool = False,
    at_least: int = SHORTEST,
    scope: ListScope = ListScope.TABLE,
    texts: Callable[[R], Sequence[str]] | None = None,
    brief: Callable[[R], str] | None = None,
) -> Column[R]:
    """Return a text column; ``texts`` returns the texts compared with ``--filter``, by default only the value."""
    return Column(
        key,
        Heading(title, cut=cut, name=name, at_least=at_least),
        value,
        lambda row, _: value(row),
        scope,
        texts or (lambda row: (value(row),)),
        brief,
    )


def identifier(key: str, title: str, value: Callable[[R], str], *, scope: ListScope = ListScope.TABLE) -> Column[R]:
    """Return a column of ids, cut to twelve digits on a terminal; ``--filter`` matches the full and the short id."""

    def forms(row: R) -> tuple[str, ...]:
        return value(row), short_id(value(row))

    return text(key, title, value, scope=scope, texts=forms, brief=lambda row: short_id(value(row)))


def size(
    key: str,
    title: str,
    value: Callable[[R], int | None],
    *,
    scope: ListScope = ListScope.TABLE,
    mark: Callable[[R], str] = lambda _: "",
    missing: str = "?",
) -> Column[R]:
    """Return a column of sizes in bytes, each with the prefix of ``mark``; ``missing`` is shown for ``None``."""

    def show(row: R, _: datetime) -> str:
        size_bytes = value(row)
        return missing if size_bytes is None else f"{mark(row)}{size_cell(size_bytes)}"

    return Column(key, Heading(title, right=True), value, show, scope)


def count(key: str, title: str, value: Callable[[R], int | None], *, scope: ListScope = ListScope.TABLE) -> Column[R]:
    """Return a column of whole numbers; empty for ``None``."""

    def show(row: R, _: datetime) -> str:
        number = value(row)
        return "" if number is None else str(number)

    return Column(key, Heading(title, right=True), value, show, scope)


def since(
    key: str,
    title: str,
    value: Callable[[R], datetime | None],
    *,
    missing: str = "?",
    first: str = "",
    scope: ListScope = ListScope.TABLE,
) -> Column[R]:
    """Return a column of ages; ``missing`` is shown for ``None``, ``first`` (if given) for the time of the document."""

    def show(row: R, now: datetime) -> str:
        moment = value(row)
        if moment is None:
            return missing
        return first if first and moment == now else age(moment, now)

    return Column(key, Heading(title), value, show, scope)


def duration(key: str, title: str, value: Callable[[R], float], *, scope: ListScope = ListScope.TABLE) -> Column[R]:
    """Return a column of durations; ``value`` returns seconds."""
    return Column(key, Heading(title), value, lambda row, _: format_duration(value(row)), scope)


class ListView(NamedTuple, Generic[R]):
    """The declaration of a list.

    Attributes:
        rows: name of the document field with the rows.
        columns: the columns in table order.
        id: returns the id of a row, printed with ``--quiet``.
        name: returns the name of a row, printed with ``-o name``.
        style: returns the style of a row; empty for plain text.
    """

    rows: str
    columns: Sequence[Column[R]]
    id: Callable[[R], str]
    name: Callable[[R], str]
    style: Callable[[R], str] = lambda _: ""

    @property
    def sort_keys(self) -> tuple[str, ...]:
        """The keys of ``--sort-by``."""
        return tuple(each.key for each in self.columns)

    @property
    def filter_keys(self) -> tuple[str, ...]:
        """The keys of ``--filter``."""
        return tuple(each.key for each in self.columns if each.texts is not None)


class ListOptions(NamedTuple):
    """The options of a list command.

    Attributes:
        form: ``table``, ``wide``, ``json``, ``yaml`` or ``name``.
        sort_by: key of a column, with the prefix ``-`` for descending order; empty for the order of the document.
        filters: conditions ``KEY=VALUE`` or ``KEY!=VALUE``; ``*``, ``?`` and ``[...]`` in a value are wildcards.
        headers: whether a table has headings.
        truncate: whether values are cut to the width of a terminal.
        quiet: whether only ids are printed.
    """

    form: str = "table"
    sort_by: str = ""
    filters: tuple[str, ...] = ()
    headers: bool = True
    truncate: bool = True
    quiet: bool = False

    @property
    def is_table(self) -> bool:
        """Whether the output is a table: ``table`` or ``wide`` without ``--quiet``."""
        return self.form in ("table", "wide") and not self.quiet
