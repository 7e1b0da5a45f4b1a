"""Child processes, independent of the caller's directory and environment.

Commands may run as root in directories that other users can write to. Python puts the current directory first in the
module search path for ``-c`` and ``-m``, and an empty or relative entry of ``PATH`` resolves programs there. Therefore
every child is started in ``/``, programs are resolved by the absolute entries of ``PATH`` only, and interpreters run in
isolated mode, which also ignores ``PYTHON*`` variables and the user's site directory.

Source: Python command line, ``-I``; environ(7), ``PATH``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKING_DIRECTORY: Final = "/"
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path if the environment has no absolute entry."""
TIMEOUT_S: Final = 600.0


def child_environment(additions: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child: without ``PYTHON*`` variables, with only the absolute entries of ``PATH``.

    ``PYTHON*`` variables are removed although isolated mode ignores them, because pip starts interpreters itself.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    entries = [entry for entry in kept.get("PATH", "").split(os.pathsep) if os.path.isabs(entry)]  # noqa: PTH117
    return kept | {"PATH": os.pathsep.join(entries) or DEFAULT_PATH} | dict(additions or {})


def _without_manager(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment without the service manager's socket, to which systemd's programs report failures."""
    return {name: value for name, value in environment.items() if name != "NOTIFY_SOCKET"}


def python_command(*arguments: str, interpreter: str = "") -> list[str]:
    """Return the command line of an isolated interpreter; by default this process's interpreter."""
    return [interpreter or sys.executable, "-I", *arguments]


def run(
    *words: str, within_s: float = TIMEOUT_S, additions: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Return the completed command with its output as text.

    Args:
        words: the program, resolved by the absolute entries of ``PATH``, and its arguments.
        within_s: deadline in seconds.
        additions: environment variables for the child only.

    Returns:
        ``None`` if the program does not exist, cannot be started or misses the deadline.
    """
    import shutil  # noqa: PLC0415 - loads bz2 and lzma, unused by the idle daemon

    environment = _without_manager(child_environment(additions))
    program = shutil.which(words[0], path=environment["PATH"])
    if program is None:
        return None
    try:
        return subprocess.run(  # noqa: S603 - a fixed program with separate arguments
            [program, *words[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
            check=False,
            cwd=WORKING_DIRECTORY,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
