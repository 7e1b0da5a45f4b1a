"""Run the fuzzing campaign: ``python -m tests.fuzz --minutes 30 [--seed N] [--jobs N] [TARGET...]``.

The figures of each target are printed at its end. Durations are CPU time, except those of the target ``daemon`` and of
atheris. Without atheris, equal seeds result in equal inputs, and a faster processor only in more of them.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.fuzz.targets import open_targets

_DAEMON: Final = "daemon"
_LOG_TAIL: Final = 4000
_ROOT: Final = Path(__file__).parents[2]


def main() -> int:
    """Run the fuzzing campaign; return 1 if a target has a defect."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="time of the whole campaign")
    parser.add_argument("--seconds", type=float, help="time of each target instead")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="seed of the mutations")
    parser.add_argument("--jobs", type=int, default=1, help="number of targets that are fuzzed at the same time")
    parser.add_argument("targets", nargs="*", help="targets; all unless given")
    options = parser.parse_args()
    with open_targets() as known:
        chosen = options.targets or [*known, _DAEMON]
    directory = Path(tempfile.mkdtemp(prefix="nodeagent-fuzz-result-"))
    seconds = options.seconds or options.minutes * 60 / len(chosen)
    print(f"seed {options.seed}, {seconds:.0f} s for each of {len(chosen)} targets, results in {directory}")
    columns = ("inputs", "accepted", "slowest", "memory", "growth")
    print(f"{'target':<12} {'engine':<9} {' '.join(f'{each:>9}' for each in columns)}  defect", flush=True)
    failed = False
    with ThreadPoolExecutor(options.jobs) as jobs:
        for name, figures in zip(
            chosen, jobs.map(partial(_fuzz, directory, seconds, options.seed), chosen), strict=True
        ):
            print(_row(name, figures), flush=True)
            if figures["defect"]:
                failed = True
                print(_evidence(directory, name), flush=True)
    return int(failed)


def _fuzz(directory: Path, seconds: float, seed: int, name: str) -> dict[str, Any]:
    """Fuzz one target in a separate process; return its figures."""
    result = directory / f"{name}.json"
    module = ["tests.fuzz.daemon"] if name == _DAEMON else ["tests.fuzz.worker", name]
    command = [sys.executable, "-m", *module, f"{seconds}", f"{seed}", str(result)]
    with (directory / f"{name}.log").open("w") as log:
        ended = subprocess.run(command, cwd=_ROOT, stdout=log, stderr=log, check=False)
    figures: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
    figures.setdefault("defect", "")
    if ended.returncode and not figures["defect"]:
        figures["defect"] = f"exit code {ended.returncode}, see {directory / name}.log"
    return figures


def _evidence(directory: Path, name: str) -> str:
    """Return the input that caused a defect and the end of the target's log, since CI keeps no files."""
    data = directory / f"{name}.input"
    encoded = base64.b64encode(data.read_bytes()).decode() if data.exists() else "unknown"
    log = (directory / f"{name}.log").read_text(errors="replace")
    return f"input of {name} in base64: {encoded}\n{log[-_LOG_TAIL:]}"


def _row(name: str, figures: dict[str, Any]) -> str:
    return (
        f"{name:<12} {figures.get('engine', '?'):<9} {figures.get('inputs', 0):>9} {figures.get('accepted', 0):>9} "
        f"{figures.get('slowest_s', 0) * 1000:>6.0f} ms {figures.get('rss_mib', 0):>5.0f} MiB "
        f"{figures.get('rss_growth_mib', 0):>5.0f} MiB  {figures['defect'] or '-'}"
    )


if __name__ == "__main__":
    sys.exit(main())
