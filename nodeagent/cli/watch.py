"""Printing of documents with a table view of their own, once or repeatedly."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from nodeagent.api.codec import Document
from nodeagent.cli import reading
from nodeagent.cli.display import standard_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nodeagent.cli.display import Line

D = TypeVar("D", bound=Document)


@contextmanager
def watching(form: str, *, again: bool) -> Iterator[None]:
    """Use the terminal's alternate screen for a table that is printed repeatedly."""
    if not again or form != "table":
        yield
        return
    with standard_output().screen():
        yield


def print_document(
    document: D, form: str, view: Callable[[D, int | None], Iterable[Line]], *, again: bool = False
) -> None:
    """Print a document in an output format.

    Args:
        document: the document.
        form: ``table``, ``json`` or ``yaml``.
        view: returns the lines for the form ``table``, given the terminal width; ``None`` without a terminal.
        again: whether a table on a terminal overwrites the previous table.
    """
    if form != "table":
        reading.print_document(document, form)
        sys.stdout.flush()
        return
    display = standard_output()
    write = display.repaint if again and display.columns is not None else display.write
    write(view(document, display.columns))
