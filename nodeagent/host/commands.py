"""Child processes, independent of the caller's directory and environment.

Commands may run as root in directories that other users can write to. Python puts the current directory first in the
module search path for ``-c`` and ``-m``, and an empty or relative entry of ``PATH`` resolves programs there. Therefore
every child is started in ``/``, and programs are resolved by the absolute entries of ``PATH``. The first step of an
installation has no libraries: this module imports the standard library alone.

Source: Python command line, ``-I``; environ(7), ``PATH``.
"""

from __future__ import annotations

import os
import subprocess
from typing import Final

WORKING_DIRECTORY: Final = "/"
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path if the environment has no absolute entry."""
TIMEOUT_S: Final = 600.0


def child_environment() -> dict[str, str]:
    """Return the environment of a child: without ``PYTHON*`` variables, with only the absolute entries of ``PATH``.

    ``PYTHON*`` variables are removed although isolated mode ignores them, because pip starts interpreters itself.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    entries = [entry for entry in kept.get("PATH", "").split(os.pathsep) if os.path.isabs(entry)]  # noqa: PTH117
    return kept | {"PATH": os.pathsep.join(entries) or DEFAULT_PATH}


def run(*words: str, within_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str] | None:
    """Return the completed command with its output as text.

    Args:
        words: the program, resolved by the absolute entries of ``PATH``, and its arguments.
        within_s: deadline in seconds.

    Returns:
        ``None`` if the program does not exist, cannot be started or misses the deadline.
    """
    import shutil  # noqa: PLC0415 - loads bz2 and lzma, unused by the idle daemon

    environment = child_environment()
    environment.pop("NOTIFY_SOCKET", None)  # of the service manager, to which systemd's programs report failures
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
