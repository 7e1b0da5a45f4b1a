"""Runs of the command line in this process, on a pseudo-terminal of a given width or in a pipe."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios
import threading
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from unittest import mock

from nodeagent.cli.start import main

_ROWS = 50


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
