"""Speed of the machine, for budgets that are wall times."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Final

REFERENCE_MS: Final = 9.3
"""Wall time of a bare interpreter on the machine for which the wall-time budgets are stated."""

_RUNS: Final = 15


def slowdown() -> float:
    """Return the factor of wall-time budgets: the time of a bare interpreter relative to ``REFERENCE_MS``, at least 1.

    The interpreter is that of an empty virtual environment, as in the benchmark of commands: development packages
    add to the start. The shortest of several runs counts, since other processes cause the excess of longer runs.
    """
    taken_ms = []
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, symlinks=True)
        for _ in range(_RUNS):
            start_s = time.perf_counter()
            subprocess.run([Path(name) / "bin/python", "-I", "-c", "pass"], check=True)
            taken_ms.append(1000 * (time.perf_counter() - start_s))
    bare_ms = min(taken_ms)
    factor = max(1.0, bare_ms / REFERENCE_MS)
    detail = f"bare interpreter {bare_ms:.1f} ms: budgets for {REFERENCE_MS} ms are multiplied by {factor:.2f}"
    print(detail, file=sys.stderr, flush=True)
    return factor
