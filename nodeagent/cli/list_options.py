"""Options shared by all list commands."""

from __future__ import annotations

from typing import NamedTuple


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
