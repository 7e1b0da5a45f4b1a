"""Documents with a screen of their own, printed once or repeatedly."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from nodeagent.api.codec import encode
from nodeagent.cli.display import standard_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nodeagent.api.codec import Document
    from nodeagent.cli.display import Line

D = TypeVar("D", bound="Document")


@contextmanager
def watching(form: str, *, again: bool) -> Iterator[None]:
    """Use a terminal's second screen for a table that is printed repeatedly."""
    if not again or form != "table":
        yield
        return
    with standard_output().screen():
        yield


def print_document(
    document: D, form: str, view: Callable[[D, int | None], Iterable[Line]], *, again: bool = False
) -> None:
    """Print a document: as the lines of ``view`` for the form ``table``, with ``again`` over the previous ones."""
    if form != "table":
        sys.stdout.write(encode(document, form))
        sys.stdout.flush()
        return
    display = standard_output()
    write = display.repaint if again and display.columns is not None else display.write
    write(view(document, display.columns))
