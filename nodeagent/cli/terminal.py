"""Escaped output on a terminal.

Names, labels and messages are data: their markup is never interpreted, and none of their characters controls the
terminal. ``Text`` and ``SafeConsole`` replace the classes ``Text`` and ``Console`` of rich, which other modules
must not use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.segment import Segment
from rich.text import Text as RichText

from nodeagent.text import escape, escape_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, HighlighterType, JustifyMethod, OverflowMethod, RenderableType
    from rich.style import Style

_DOCUMENT_COLUMNS: Final = 100


class Text(RichText):
    """One line of styled text; every appended string is escaped."""

    def __init__(self, text: str = "", style: str | Style = "") -> None:
        super().__init__(escape(text), style)

    def append(self, text: RichText | str, style: str | Style | None = None) -> RichText:
        """Append a string after escaping, or a styled text unchanged."""
        return super().append(escape(text) if isinstance(text, str) else text, style)


class SafeConsole(Console):
    """A console that escapes every string, in tables too, and emits only its own control sequences."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        """Create a console on standard output or standard error; ``width`` in columns is detected if ``None``."""
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: HighlighterType | None = None,
    ) -> RichText:
        """Return a string as text with one style; markup and emoji codes in it are not interpreted."""
        del emoji, markup
        return super().render_str(
            escape(text),
            style=style,
            justify=justify,
            overflow=overflow,
            emoji=False,
            markup=False,
            highlight=highlight,
            highlighter=highlighter,
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield escaped segments; other classes of rich, such as trees, pass text to this method unescaped."""
        for segment in super().render(renderable, options):
            if segment.control or (shown := escape_lines(segment.text)) == segment.text:
                yield segment
            else:
                yield Segment(shown, segment.style)


def print_markdown(text: str) -> None:
    """Print a Markdown document with styles, as wide as the terminal and at most 100 columns."""
    from rich.markdown import Markdown  # noqa: PLC0415 - needed only for documents

    console = SafeConsole()
    console.width = min(console.width, _DOCUMENT_COLUMNS)
    console.print(Markdown(text, hyperlinks=False))


_PIPE_WIDTH = 180


def make_console(*, stderr: bool = False) -> Console:
    """Return a console with colours only on a terminal, and with sufficient width for whole ids in a pipe."""
    probe = SafeConsole(stderr=stderr)
    if probe.is_terminal or os.environ.get("COLUMNS"):
        return probe
    return SafeConsole(stderr=stderr, width=_PIPE_WIDTH)
