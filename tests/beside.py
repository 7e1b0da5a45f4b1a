"""Run a command with background commands beside it: ``python -m tests.beside [--node] COMMAND...``.

CI uses the processor time that tests on a real containerd leave unused: for a fuzzing campaign at the lowest priority,
and with ``--node`` for the short tests of a whole node. The seed of the campaign is fixed, so that the same inputs fail
again. Two targets are omitted: the response times of ``daemon`` depend on the load, and the process of ``list-filter``,
a command in operation, grows by 64 MiB after about 600,000 inputs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from tests.fuzz.targets import open_targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SECONDS: Final = 20
_SEED: Final = 1
_LOWEST: Final = 19
_OMITTED: Final = ("list-filter",)
_ROOT: Final = Path(__file__).parents[1]
_NODE_TESTS: Final = ("make", "--no-print-directory", "test-node", "SHORT=1")
_WITH_NODE: Final = "--node"


class Background(NamedTuple):
    """A command beside another one.

    Attributes:
        is_campaign: whether the command has the lowest priority and its temporary files in memory.
    """

    command: Sequence[str]
    is_campaign: bool = False


class _Started(NamedTuple):
    """A started background command, with its output."""

    background: Background
    process: subprocess.Popen[bytes]
    output: IO[str]


def run_beside(command: Sequence[str], backgrounds: Sequence[Background]) -> int:
    """Run a command with background commands beside it, and wait for all; return the exit code of the first that fails.

    The outputs of the background commands are printed after that of the command. When a command fails, those still
    running are stopped.
    """
    with ExitStack() as stack:
        started = [stack.enter_context(_started(each)) for each in backgrounds]
        code = subprocess.run(command, check=False).returncode
        for each in started:
            code = code or each.process.wait()
        for each in started:
            each.output.seek(0)
            print(f"== {' '.join(each.background.command)}\n{each.output.read()}", end="", flush=True)
    return code


@contextmanager
def _started(background: Background) -> Iterator[_Started]:
    """Start a background command; at the end of the block, kill its processes."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="nodeagent-fuzz-", dir=memory) as directory,
        tempfile.TemporaryFile("w+", errors="replace") as output,
    ):
        process = subprocess.Popen(
            background.command,
            cwd=_ROOT,
            env={**os.environ, "TMPDIR": directory} if background.is_campaign else None,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            if background.is_campaign:
                os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST)
                with suppress(OSError):  # without autogroups, the priority of the process is sufficient
                    Path(f"/proc/{process.pid}/autogroup").write_text(f"{_LOWEST}")
            yield _Started(background, process, output)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    """Run the command of the arguments and the background commands of CI; return the exit code of the first failure."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    command = sys.argv[1:]
    backgrounds = []
    if command[:1] == [_WITH_NODE]:
        command = command[1:]
        backgrounds.append(Background(_NODE_TESTS))
    with open_targets() as targets:
        chosen = [each for each in targets if each not in _OMITTED]
    options = ["--seconds", str(_SECONDS), "--seed", str(_SEED)]
    campaign = Background([sys.executable, "-m", "tests.fuzz", *options, *chosen], is_campaign=True)
    return run_beside(command, [*backgrounds, campaign])


if __name__ == "__main__":
    sys.exit(main())
