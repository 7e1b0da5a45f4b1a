"""A simulated runtime in a separate process."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(__file__).parents[3]


@contextmanager
def served(directory: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.sim", "--socket", str(directory / "s"), "--root", str(directory)]
    sizes = ["--images", "20", "--layers", "3", "--containers", "12"]
    with subprocess.Popen([*command, *sizes], stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        try:
            poll("the simulated runtime is listening", (directory / "s").exists, timeout_s=30)
            yield
        finally:
            process.terminate()
