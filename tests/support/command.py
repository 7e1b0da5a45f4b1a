"""Runs of the command line, if possible in this process: a new interpreter costs half a second of CPU time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from os import devnull
from pathlib import Path
from typing import Final
from unittest import mock

from nodeagent.cli.start import main

ROOT: Final = Path(__file__).parents[2]
_OWN_PROCESS: Final = ("run",)
"""Command that is run in a separate process: it installs signal handlers, locks memory and configures logging."""


def nodeagent(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``nodeagent ARGUMENTS`` without a terminal; return the exit code and the output.

    An unexpected exception of a command in this process is raised, not printed.
    """
    return _child(*arguments) if arguments[:1] == _OWN_PROCESS else _in_process(*arguments)


def _child(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nodeagent", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
    )


def _in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        Path(devnull).open() as stdin,
        mock.patch.object(sys, "argv", ["nodeagent", *arguments]),
        mock.patch.object(sys, "stdin", stdin),
    ):
        code: object = 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
        if isinstance(code, str):
            err.write(f"{code}\n")
            code = 1
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(list(arguments), int(str(code)), out.read(), err.read())
