"""Run a command, and a fuzzing campaign at the lowest priority beside it: ``python -m tests.fuzz.beside COMMAND...``.

CI uses the processor time that tests on a real containerd leave unused. The seed is fixed, so that the same inputs fail
again. Two targets are omitted: the response times of ``daemon`` depend on the load, and the process of ``list-filter``,
a command in operation, grows by 64 MiB after about 600,000 inputs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.fuzz.targets import open_targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SECONDS: Final = 60
_SEED: Final = 1
_LOWEST: Final = 19
_OMITTED: Final = ("list-filter",)
_ROOT: Final = Path(__file__).parents[2]


def run_beside(command: Sequence[str], campaign: Sequence[str]) -> int:
    """Run a command with a campaign beside it, and wait for both; return the exit code of the first that fails.

    The output of the campaign is printed after that of the command. If the command fails, the campaign is stopped.
    """
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="nodeagent-fuzz-", dir=memory) as directory,
        tempfile.TemporaryFile("w+", errors="replace") as output,
        _started(campaign, directory, output.fileno()) as background,
    ):
        code = subprocess.run(command, check=False).returncode
        if not code:
            code = background.wait()
        output.seek(0)
        print(f"== {' '.join(campaign)}\n{output.read()}", end="", flush=True)
    return code


@contextmanager
def _started(command: Sequence[str], directory: str, output: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command with a directory for temporary files; at the end of the block, kill its processes."""
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": directory},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST)
        with suppress(OSError):  # without autogroups, the priority of the process is sufficient
            Path(f"/proc/{process.pid}/autogroup").write_text(f"{_LOWEST}")
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    """Run the command of the arguments and the campaign of CI; return the exit code of the first that fails."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with open_targets() as targets:
        chosen = [each for each in targets if each not in _OMITTED]
    options = ["--seconds", str(_SECONDS), "--seed", str(_SEED)]
    return run_beside(sys.argv[1:], [sys.executable, "-m", "tests.fuzz", *options, *chosen])


if __name__ == "__main__":
    sys.exit(main())
