"""``nodeagent logs``: the journal of the agent, shown by journalctl."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import Final

from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.host.commands import WORKING_DIRECTORY, child_environment
from nodeagent.units import SystemClock, parse_since

_UNIT: Final = "nodeagent.service"
_LAST_LINES: Final = "100"


def show_journal(*, follow: bool, lines: str, since: str) -> None:
    """Replace this process by journalctl, which prints the journal of the agent's unit.

    Args:
        follow: whether new lines are printed until an interrupt.
        lines: maximum number of printed lines, or ``all``; empty for the last 100 lines, or all lines with ``since``.
        since: time of the first line, as in :func:`~nodeagent.units.parse_since`; empty for no limit.

    Raises:
        UsageError: ``lines`` is not a number, or ``since`` is not a time.
        NodeAgentError: journalctl does not exist or cannot be started.
    """
    if lines not in ("", "all") and not (lines.isascii() and lines.isdigit()):
        raise UsageError(f"--lines {lines}: must be a whole number or 'all'")
    try:
        start = [f"--since=@{int(parse_since(since, SystemClock().now()).timestamp())}"] if since else []
    except ValueError as error:
        raise UsageError(f"--since: {error}") from error
    environment = child_environment()
    program = shutil.which("journalctl", path=environment["PATH"])
    if program is None:
        raise NodeAgentError(
            "cannot show the journal: journalctl not found; for an agent in a container, use 'kubectl logs' or "
            "'crictl logs' of its container"
        )
    count = lines or ("all" if since else _LAST_LINES)
    words = [program, f"--unit={_UNIT}", "--no-pager", f"--lines={count}", *start, *(["--follow"] if follow else [])]
    sys.stdout.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ignored by Python; journalctl would inherit that
    os.chdir(WORKING_DIRECTORY)
    try:
        os.execve(program, words, environment)  # noqa: S606 - a fixed program with separate arguments
    except OSError as error:
        raise NodeAgentError(f"cannot show the journal: cannot start {program}: {error.strerror}") from error
