"""``systemd/installation``: its arguments, and the interpreter that it starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

SCRIPT: Final = Path(__file__).parents[3] / "systemd/installation"


def run(directory: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a directory with its programs, as root by its own program ``id``."""
    made = {"id": "echo 0", "bin/python": 'echo "started $0" >&2; exit 7'}
    for name, text in made.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", **variables}
    return subprocess.run(
        [str(SCRIPT), *words], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("words", [(), ("",), ("instal",), ("--help",)])
def test_unknown_command_prints_the_usage_and_is_an_error(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, *words, PYTHON="bin/python")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: systemd/installation install|uninstall\n"


@pytest.mark.parametrize("command", ["install", "uninstall"])
@pytest.mark.parametrize("python", ["bin/python", "./bin/python", "{}/bin/python"])
def test_interpreter_is_found_relative_to_the_working_directory(command: str, python: str, tmp_path: Path) -> None:
    done = run(tmp_path, command, PYTHON=python.format(tmp_path))
    assert done.returncode == 7, done.stderr
    assert done.stderr.startswith(f"started {tmp_path}/")


def test_interpreter_that_is_not_found_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "install", PYTHON="bin/python4")
    assert done.returncode == 1
    assert "install: bin/python4 not found, requires Python 3.11" in done.stderr
