"""Run the fuzzing campaign: ``python -m tests.fuzz --minutes 30 [--seed N] [TARGET...]``.

The targets are fuzzed sequentially; then a table of the figures is printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.fuzz.targets import open_targets

_DAEMON: Final = "daemon"
_ROOT: Final = Path(__file__).parents[2]


def main() -> int:
    """Run the fuzzing campaign; return 1 if a target has a defect."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="time of the whole campaign")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="seed of the mutations")
    parser.add_argument("targets", nargs="*", help="targets; all unless given")
    options = parser.parse_args()
    with open_targets() as known:
        chosen = options.targets or [*known, _DAEMON]
    directory = Path(tempfile.mkdtemp(prefix="nodeagent-fuzz-result-"))
    seconds = options.minutes * 60 / len(chosen)
    print(f"seed {options.seed}, {seconds:.0f} s for each of {len(chosen)} targets, results in {directory}")
    print(
        f"{'target':<12} {'engine':<9} {'inputs':>9} {'accepted':>9} {'slowest':>9} {'memory':>9} {'growth':>9}  defect"
    )
    failed = False
    for name in chosen:
        result = directory / f"{name}.json"
        module = ["tests.fuzz.daemon"] if name == _DAEMON else ["tests.fuzz.worker", name]
        command = [sys.executable, "-m", *module, f"{seconds}", f"{options.seed}", str(result)]
        with (directory / f"{name}.log").open("w") as log:
            ended = subprocess.run(command, cwd=_ROOT, stdout=log, stderr=log, check=False)
        figures = json.loads(result.read_text()) if result.exists() else {}
        figures.setdefault("defect", "")
        if ended.returncode and not figures["defect"]:
            figures["defect"] = f"exit code {ended.returncode}, see {directory / name}.log"
        failed |= bool(figures["defect"])
        print(_row(name, figures), flush=True)
    return int(failed)


def _row(name: str, figures: dict[str, Any]) -> str:
    return (
        f"{name:<12} {figures.get('engine', '?'):<9} {figures.get('inputs', 0):>9} {figures.get('accepted', 0):>9} "
        f"{figures.get('slowest_s', 0) * 1000:>6.0f} ms {figures.get('rss_mib', 0):>5.0f} MiB "
        f"{figures.get('rss_growth_mib', 0):>5.0f} MiB  {figures['defect'] or '-'}"
    )


if __name__ == "__main__":
    sys.exit(main())
