"""System tools run by the test harness, found in the system directories regardless of ``PATH``."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHOWN_CHARACTERS = 4000


def environment() -> dict[str, str]:
    """Return the environment of this process with a ``PATH`` of system directories."""
    return {**os.environ, "PATH": PATH}


def find_missing(tools: Sequence[str]) -> list[str]:
    """Return those of the given tools that are not installed."""
    return [name for name in tools if shutil.which(name, path=PATH) is None]


def run(command: Sequence[str], error: type[Exception], *, stdin: bytes = b"", timeout_s: float | None = None) -> str:
    """Run a command and return its standard output; raise ``error`` with its error output if it fails."""
    done = subprocess.run(command, capture_output=True, input=stdin, env=environment(), check=False, timeout=timeout_s)
    if done.returncode != 0:
        shown = done.stderr.decode(errors="replace")[-_SHOWN_CHARACTERS:].strip()
        raise error(f"{' '.join(command)}: exit {done.returncode}: {shown}")
    return done.stdout.decode()
