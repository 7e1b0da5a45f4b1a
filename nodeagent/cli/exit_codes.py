"""Exit codes, as scripts rely on them."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's end means to a script."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    RUNTIME_UNREACHABLE = 4
    BUSY = 5
    INTERRUPTED = 130


EPILOG = (
    "Exit codes: 0 done (or nothing to do), 1 failed, 2 wrong usage or configuration, 3 partly done or short of the "
    "target, 4 runtime unreachable, 5 another pass is running, 130 interrupted."
)
