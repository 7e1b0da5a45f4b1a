"""Output of long texts through the user's pager, as systemctl and git do."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from nodeagent.host.commands import WORKING_DIRECTORY, child_environment

VARIABLES: Final = ("NODEAGENT_PAGER", "PAGER")
"""Variables with the command of the pager, in order of precedence; an empty value or ``cat`` disables the pager."""
_DEFAULT: Final = ("less", "more")
_LESS: Final = {"LESS": "FRX", "LESSSECURE": "1"}
"""Options of less: exit if the text fits the screen, show styles, keep the screen; no commands, editors or files."""


def page(text: str) -> None:
    """Write a text to standard output, on a terminal through the pager.

    Without a pager, or if it cannot be started, the text is written directly. The pager is started without a shell.
    Under sudo, only less or more is started, since the variables may be those of another user.
    """
    words = pager_words(os.environ) if sys.stdout.isatty() else []
    if not words or not _is_paged(words, text):
        sys.stdout.write(text)


def pager_words(environment: Mapping[str, str]) -> list[str]:
    """Return the pager, resolved by the absolute entries of ``PATH``, and its arguments; empty for no pager."""
    if environment.get("TERM", "dumb") == "dumb":
        return []
    path = child_environment()["PATH"]
    own = "SUDO_UID" not in environment
    given = next((environment[each] for each in VARIABLES if own and each in environment), None)
    if given is None:
        program = next(filter(None, (shutil.which(each, path=path) for each in _DEFAULT)), None)
        return [] if program is None else [program]
    try:
        words = shlex.split(given)
    except ValueError:  # an unclosed quote
        return []
    program = shutil.which(words[0], path=path) if words and words[0] != "cat" else None
    return [program, *words[1:]] if program is not None and program.startswith("/") else []


def _is_paged(words: list[str], text: str) -> bool:
    """Show a text in the pager; return false if it cannot be started."""
    sys.stdout.flush()
    environment = child_environment() | _LESS
    try:
        pager = subprocess.Popen(  # noqa: S603 - the user's program, without a shell
            words, stdin=subprocess.PIPE, stdout=sys.stdout, env=environment, cwd=WORKING_DIRECTORY
        )
    except OSError:
        return False
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key of the pager, which ends a search of less
    try:
        pager.communicate(text.encode(sys.stdout.encoding or "utf-8", "replace"))
    finally:
        signal.signal(signal.SIGINT, before)
    return True
