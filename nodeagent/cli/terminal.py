"""Escaped output on a terminal.

Names, labels and messages are data: their markup is never interpreted, and none of their characters controls the
terminal. ``SafeConsole`` replaces the class ``Console`` of rich, which other modules must not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from nodeagent.cli.display import Line, encodable_output
from nodeagent.cli.table import short_reference
from nodeagent.text import escape, escape_lines

if TYPE_CHECKING:
    from nodeagent.gc.executor import Result

_DOCUMENT_COLUMNS: Final = 100


class SafeConsole(Console):
    """A console that escapes every string, in tables too, and emits only its own control sequences."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        """Create a console on standard output or standard error; ``width`` in columns is detected if ``None``."""
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - options of rich
        """Return a string as text with one style; markup and emoji codes in it are not interpreted."""
        return super().render_str(escape(text), **{**options, "emoji": False, "markup": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield escaped segments; other classes of rich, such as trees, pass text to this method unescaped."""
        for segment in super().render(renderable, options):
            if segment.control or (shown := escape_lines(segment.text)) == segment.text:
                yield segment
            else:
                yield Segment(shown, segment.style)


def text_of(lines: Iterable[Line]) -> Text:
    """Return lines as one text that is neither wrapped nor searched for markup, in characters of standard output."""
    text = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        for part, style in line.parts:
            text.append(encodable_output(part), style)
    return text


def styled_markdown(text: str) -> str:
    """Return a Markdown document with styles, as wide as the terminal and at most 100 columns."""
    from rich.markdown import Markdown  # noqa: PLC0415 - needed only for documents

    console = SafeConsole()
    console.width = min(console.width, _DOCUMENT_COLUMNS)
    with console.capture() as shown:
        console.print(Markdown(text, hyperlinks=False))
    return shown.get()


@contextmanager
def removal_progress(total: int) -> Iterator[Callable[[Result], None]]:
    """Show a progress bar on standard error during removals; yield the callback to call with each result."""
    console = SafeConsole(stderr=True)
    columns = (
        TextColumn("removing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}", markup=False),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("removing", total=total, last="")

        def on_result(result: Result) -> None:
            completed = progress.tasks[0].completed + 1
            last = f"{result.outcome.value}: {short_reference(result.decision.name)}"
            progress.update(task, completed=completed, total=max(total, completed), last=escape(last))

        yield on_result
