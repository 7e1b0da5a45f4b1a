"""Process of one user that runs commands of the agent sequentially, since imports dominate the time of a cold start.

The clocks of the agent are ahead of the machine's clocks, so that images and containers of a new node are days old, and
slow, so that no age depends on the duration of a test. The configuration of a role replaces the configuration in
``/etc``, and no environment variable configures the agent.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from unittest import mock

from nodeagent.cli.start import main
from nodeagent.units import SystemClock
from tests.support.modules import import_all
from tests.support.terminal import Shown, in_pipe, on_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ROOT: Final = Path(__file__).parents[2]
_SPEED: Final = 1e-3
"""Seconds by the agent's clocks per second of the machine."""
_OWN_OPTIONS: Final = ("NODEAGENT_", "COLUMNS", "FORCE_COLOR", "PYTHON")


@dataclass(frozen=True, slots=True)
class Role:
    """User of a worker process, with the configuration and the clocks of its commands.

    Attributes:
        group: id of the only supplementary group; -1 for none.
        config: path of the default configuration.
        ahead_s: seconds by which the clocks are ahead at the start.
        started_at: wall time at the start of the slow clocks, equal for all processes; ``started_s`` is that start by
            CLOCK_BOOTTIME in seconds.
    """

    uid: int
    group: int
    config: str
    ahead_s: float
    started_at: str
    started_s: float


class CommandWorker:
    """Context manager for the process that runs the commands of a role."""

    def __init__(self, role: Role, directory: Path) -> None:
        """Start the process with ``directory`` as working directory."""
        self._process = subprocess.Popen(
            _command(role), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=directory, env=_environment(), text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=60)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def run(
        self,
        columns: int | None,
        *arguments: str,
        interrupt_s: float = 0.0,
        variables: Mapping[str, str] | None = None,
    ) -> Shown:
        """Run ``nodeagent ARGUMENTS`` on a terminal of ``columns``, or in a pipe for ``None``.

        The command is interrupted by SIGINT after ``interrupt_s`` seconds; 0 disables the interruption. ``variables``
        are added to the environment.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("the process has no pipes")
        self._process.stdin.write(f"{json.dumps([columns, arguments, interrupt_s, dict(variables or {})])}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process ended during {' '.join(arguments)}")
        return Shown(**json.loads(answer))


def is_idle(worker: CommandWorker) -> bool:
    """Return whether no loop of the daemon runs."""
    loops = json.loads(worker.run(None, "status", "-o", "json").out)["loops"]
    return all(each["activity"] != "running" for each in loops)


def is_measured(worker: CommandWorker) -> bool:
    """Return whether the runtime has measured the writable layers of all removable containers."""
    preview = json.loads(worker.run(None, "gc", "containers", "--dry-run", "-o", "json").out)
    found = [each for plan in preview["plans"] for each in plan["decisions"] if each["kind"] == "container"]
    return all(each["frees_bytes"] for each in found if each["verdict"] == "remove")


def has_detected(worker: CommandWorker, image: str) -> bool:
    """Return whether a reading of the daemon is later than its first detection of an image."""
    return "first by this reading" not in worker.run(None, "explain", image).out


@contextmanager
def running_daemon(role: Role, log: Path) -> Iterator[int]:
    """Run the daemon with the configuration and the clocks of a role; yield its process id."""
    with (
        log.open("w") as out,
        subprocess.Popen(
            _command(role, "run", "--config", role.config), stdout=out, stderr=out, cwd=_ROOT, env=_environment()
        ) as process,
    ):
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(timeout=30)


def _command(role: Role, *arguments: str) -> list[str]:
    return [sys.executable, "-m", __name__, json.dumps(asdict(role)), *arguments]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_OPTIONS)}
    return {**kept, "NO_COLOR": "1", "NODEAGENT_PAGER": "", "PYTHONPATH": str(_ROOT)}


def _serve(role: Role) -> None:
    """Run the commands given on standard input as the user of a role; the commands have an empty standard input."""
    import_all()  # as root, since the user may have no access to the checkout
    for each in ("importlib.metadata", "getpass"):  # imported at their first use
        importlib.import_module(each)
    for words in (
        ()
        if role.uid == 0
        else (("doctor",), ("node", "describe"), ("pressure", "--direct"), ("gc", "images", "-n", "-o", "json"))
    ):
        in_pipe(*words)  # imports as root the modules that commands import later, also those of the standard library
    os.setgroups([] if role.group < 0 else [role.group])
    if role.uid:
        os.setresgid(role.uid, role.uid, role.uid)
        os.setresuid(role.uid, role.uid, role.uid)
    requests, answers = sys.stdin, sys.stdout
    with Path(os.devnull).open() as nothing, mock.patch.object(sys, "stdin", nothing):
        for line in requests:
            columns, arguments, interrupt_s, variables = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, interrupt_s)
            with mock.patch.dict(os.environ, variables):
                shown = in_pipe(*arguments) if columns is None else on_terminal(columns, *arguments)
            answers.write(f"{json.dumps(asdict(shown))}\n")
            answers.flush()


@contextmanager
def _view(role: Role) -> Iterator[None]:
    started_at = datetime.fromisoformat(role.started_at)
    monotonic_s = SystemClock.monotonic_s

    def elapsed_s(clock: SystemClock) -> float:
        return role.ahead_s + (monotonic_s(clock) - role.started_s) * _SPEED

    def now(clock: SystemClock) -> datetime:  # derived from the monotonic clock: never set back
        return started_at + timedelta(seconds=elapsed_s(clock))

    with (
        mock.patch.object(SystemClock, "now", now),
        mock.patch.object(SystemClock, "monotonic_s", lambda clock: role.started_s + elapsed_s(clock)),
        mock.patch("nodeagent.config.files.DEFAULT_PATH", Path(role.config)),
        mock.patch("nodeagent.config.paths.CONFIG_FILE", role.config),
    ):
        yield


if __name__ == "__main__":
    with _view(Role(**json.loads(sys.argv[1]))):
        if len(sys.argv) == 2:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of a shell
            signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
            _serve(Role(**json.loads(sys.argv[1])))
        else:
            sys.argv[1:] = sys.argv[2:]
            main()
