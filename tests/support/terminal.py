"""Runs of the command line on a pseudo-terminal of a given width or in a pipe.

Runs are in this process; a :class:`Session` is a process of its own with keys, signals and changes of the size.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from unittest import mock

from nodeagent.cli.start import main

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROWS = 50
_SHOWN_WITHIN_S: Final = 60.0
_HOME: Final = "\x1b[H"
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Shown:
    """Result of a command.

    Attributes:
        out: standard output as received by the terminal, with CR LF replaced by LF.
    """

    code: int
    out: str
    err: str


def on_terminal(columns: int, *arguments: str) -> Shown:
    """Run ``nodeagent ARGUMENTS`` with a terminal as standard output."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    received: list[bytes] = []
    reader = threading.Thread(target=_drain, args=(master, received))
    reader.start()
    try:
        with os.fdopen(slave, "w", encoding="utf-8") as out:
            code, err = _run(arguments, out)
    finally:
        reader.join()
        os.close(master)
    return Shown(code, b"".join(received).decode().replace("\r\n", "\n"), err)


def in_pipe(*arguments: str) -> Shown:
    """Run ``nodeagent ARGUMENTS`` with a pipe as standard output."""
    out = StringIO()
    code, err = _run(arguments, out)
    return Shown(code, out.getvalue(), err)


def _run(arguments: tuple[str, ...], out: object) -> tuple[int, str]:
    err = StringIO()
    code: object = 0
    with mock.patch.object(sys, "argv", ["nodeagent", *arguments]), redirect_stdout(out), redirect_stderr(err):  # type: ignore[type-var]
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return int(str(code)), err.getvalue()


def _drain(master: int, received: list[bytes]) -> None:
    while True:
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # EIO: the command has closed the terminal
            return
        if not part:
            return
        received.append(part)


def _log_in(terminal: int) -> None:
    """Make a terminal the controlling one, with the signals of a login, also if the tests run in the background."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    os.login_tty(terminal)


class Session:
    """The command line in a process with a controlling terminal, used like a person uses it."""

    def __init__(self, *arguments: str, environment: Mapping[str, str], columns: int = 80, rows: int = 24) -> None:
        """Start ``nodeagent ARGUMENTS`` on a terminal of this size, with changes of the environment."""
        self._master, self._slave = os.openpty()
        self._set_size(columns, rows)
        self.mode_before = self.mode()
        self.received = ""
        sized_by_the_terminal = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nodeagent", *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            cwd=Path(__file__).parents[2],
            env={**sized_by_the_terminal, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment},
            preexec_fn=partial(_log_in, self._slave),  # noqa: PLW1509 - the terminal delivers Ctrl-C
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)
        os.close(self._slave)

    @property
    def pid(self) -> int:
        """The process id of the command."""
        return self._process.pid

    def mode(self) -> list[Any]:
        """Return the mode of the terminal, such as echo."""
        return termios.tcgetattr(self._slave)

    def press(self, keys: str) -> None:
        """Type keys."""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal, of which the kernel informs the command."""
        self._set_size(columns, rows)

    @property
    def screen(self) -> list[str]:
        """The lines of the last complete or partial drawing, without styles."""
        return [line.rstrip() for line in _STYLE.sub("", self.received.rpartition(_HOME)[2]).splitlines()]

    def shown(self, text: str) -> list[str]:
        """Return the lines of the screen once a line contains a text.

        Raises:
            AssertionError: the text is not shown in time.
        """
        until_s = time.monotonic() + _SHOWN_WITHIN_S
        while not any(text in line for line in self.screen):
            assert self._receive(until_s), f"{text!r} is not shown:\n" + "\n".join(self.screen)
        return self.screen

    def receive_until(self, text: str) -> None:
        """Receive output up to a text, such as the control sequence that leaves the screen.

        Raises:
            AssertionError: the text is not received in time.
        """
        until_s = time.monotonic() + _SHOWN_WITHIN_S
        while text not in self.received:
            assert self._receive(until_s), f"{text!r} is not received"

    def wait(self) -> int:
        """Return the exit code of the command once it ends; negative for a signal."""
        until_s = time.monotonic() + _SHOWN_WITHIN_S
        while self._process.poll() is None:
            self._receive(min(until_s, time.monotonic() + 0.05))
            assert time.monotonic() < until_s, "the command does not end"
        while self._receive(time.monotonic()):
            pass
        return self._process.returncode

    def _receive(self, until_s: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, until_s - time.monotonic()))
        if ready:
            self.received += os.read(self._master, 1 << 16).decode(errors="replace")
        return bool(ready)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
