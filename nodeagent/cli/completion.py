"""Shell completion: the hidden command ``nodeagent __complete WORD...``, called by the shell completion scripts.

The last word is completed. Each line of the output is a value, followed by a tab and a description if the value has a
description; the single line ``:files`` requests file name completion by the shell. typer completes commands, options
and closed sets of values, and calls the functions in ``completion_values`` for other parameters.
Completion must not disturb the shell prompt: the process prints no error and exits after at most 1.5 seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Final

import typer

from nodeagent.cli.completion_values import WITHIN_S

FILES: Final = ":files"
_MOST_VALUES: Final = 2000


def main(words: list[str]) -> None:
    """Print the completions of the last word and exit with code 0, even after an error or a timeout."""
    found: list[str] = []

    def end(*_: object) -> None:
        os.write(1, "".join(f"{each}\n" for each in dict.fromkeys(found)).encode("utf-8", "replace"))
        os._exit(0)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, WITHIN_S)
    try:
        for each in completions(words or [""]):
            found.append(each)
            if len(found) >= _MOST_VALUES:
                break
    except Exception:  # noqa: BLE001, S110 - an error message would disturb the prompt
        pass
    end()


def completions(words: list[str]) -> Iterator[str]:
    """Yield the completions of the last word."""
    # Not through the variables that typer reads: its own output lacks descriptions, or imports rich for them.
    from typer._click.shell_completion import _resolve_context, _resolve_incomplete  # noqa: PLC0415

    from nodeagent.cli.main import app  # noqa: PLC0415 - within the time limit

    *given, last = words
    context = _resolve_context(typer.main.get_command(app), {}, "nodeagent", given)
    completed, incomplete = _resolve_incomplete(context, given, last)
    if getattr(getattr(completed, "type", None), "name", "") == "path":
        if incomplete == last:
            yield FILES
        return
    prefix = last.removesuffix(incomplete) if incomplete else last  # of an option, in ``--output=w``
    for each in completed.shell_complete(context, incomplete):
        text = (each.help or "").partition(" [default")[0]
        yield f"{prefix}{each.value}\t{text}" if text else f"{prefix}{each.value}"
