"""Progress bar of removals, shown only on a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from nodeagent.cli.table import short_reference
from nodeagent.cli.terminal import SafeConsole
from nodeagent.text import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nodeagent.gc.executor import Result


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
