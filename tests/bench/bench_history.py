"""Run time of ``nodeagent history`` with many passes and without, and the cost of recording a pass with many removals.

The exit code is 1 if listing 1,000 passes takes more than five times as long as listing an empty history in that run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from nodeagent.record import replace
from nodeagent.store.history import History, PastAction, PastPass, Retention
from tests.bench.bench_agent import timed

PASSES: Final = 1000
REMOVALS: Final = 20
LARGE: Final = 20_000
LIMIT: Final = 5.0
KEEP: Final = Retention(timedelta(days=3650), 1 << 30, 0)


def make_pass(name: str, removals: int, started_at: datetime) -> PastPass:
    """Return the record of a finished pass that removed dead containers."""
    actions = tuple(
        PastAction("container", f"{number:064x}", f"shop/web-{number}/app", (), "done", "", "dead", "dead", 0, 0.01)
        for number in range(removals)
    )
    return PastPass(
        name, started_at, 1.5, "interval", "containers", "p", False, "complete", "", 0, None, 91, 80, actions
    )


def measure(directory: Path, passes: int, removals: int, runs: int) -> tuple[float, float]:
    """Return the median run time in seconds of ``history`` as a table and as JSON."""
    config = directory / "config.toml"
    config.write_text(f'[state]\ndirectory = "{directory}/state"\n[control]\nsocket = ""\n')
    history, first = History(directory / "state"), datetime.now(UTC) - timedelta(days=5)
    for number in range(passes):
        history.add(make_pass(f"p{number}", removals, first + timedelta(minutes=number)), KEEP)
    words = ("-m", "nodeagent", "history", "--limit", str(PASSES), "--config", str(config))
    table, document = timed(*words, runs=runs), timed(*words, "-o", "json", runs=runs)
    return statistics.median(table), statistics.median(document)


def record(directory: Path) -> tuple[float, float]:
    """Return the durations of writing the first and the final record of a pass with ``LARGE`` removals, in seconds."""
    history, past = History(directory), make_pass("large", LARGE, datetime.now(UTC))
    began = time.perf_counter()
    history.begin(replace(past, result="running"))
    begun = time.perf_counter()
    history.add(past, KEEP)
    return begun - began, time.perf_counter() - begun


def main() -> None:
    """Print the run times; exit with 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directories = [Path(name) / each for each in ("empty", "full", "large")]
        for each in directories:
            each.mkdir()
        empty = measure(directories[0], 0, 0, options.runs)
        full = measure(directories[1], PASSES, REMOVALS, options.runs)
        begin_s, finish_s = record(directories[2])
    print(f"{'what':58} {'table':>9} {'json':>9}")
    print(f"{'history, empty [s]':58} {empty[0]:9.3f} {empty[1]:9.3f}")
    print(f"{f'history of {PASSES} passes with {REMOVALS} removals each [s]':58} {full[0]:9.3f} {full[1]:9.3f}")
    print(f"{f'record of a pass with {LARGE} removals, begin and end [s]':58} {begin_s:9.3f} {finish_s:9.3f}")
    ratio = max(full[0] / empty[0], full[1] / empty[1])
    print(f"factor {ratio:.1f}, limit {LIMIT:g}")
    if ratio > LIMIT:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
