"""Output of ``.ci/setup``, which installs the dependencies of ``make demo`` and ``make test``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]


@pytest.mark.parametrize("code", [0, 1], ids=["success", "failure"])
def test_output_of_the_package_manager_is_printed_only_if_it_fails(tmp_path: Path, code: int) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\necho 'noise of pip'\necho 'WARNING: noise' >&2\nexit {code}\n")
    python.chmod(0o755)
    ended = subprocess.run(
        [ROOT / ".ci/setup", "run"],
        env={**os.environ, "VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    step = f"installing Python packages of requirements.lock in {tmp_path}"
    failure = f"noise of pip\nWARNING: noise\nsetup: failed: {step}\n" if code else ""
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", f"setup: {step}\n{failure}")
    assert (tmp_path / ".installed-run").exists() == (code == 0)
