"""Run the dashboard campaign: ``python -m tests.dashboard --minutes 60``.

A Prometheus with the shipped rules scrapes a daemon on a real containerd and a daemon beside a simulated kubelet, while
the events of all panels occur on their nodes. The exit code is 1 if a query returns no value, a rule fails, or a scrape
fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.dashboard.nodes import BesideKubelet, PressedDaemon
from tests.dashboard.prometheus import Prometheus, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

DASHBOARD: Final = Path(__file__).parents[2] / "systemd/grafana-dashboard.json"
SCRAPE_S: Final = 5
AFTER_SHUTDOWN_S: Final = 40.0
MAX_SERIES: Final = 150
_VARIABLES: Final = {"$__rate_interval": "1m", "$job": ".+", "$instance": ".+"}


class Result(NamedTuple):
    """Result of one panel query; ``values`` has the values of all series at all times, without NaN."""

    panel: str
    query: str
    series: int
    values: tuple[float, ...]

    def __str__(self) -> str:
        largest = f"{max(self.values):.6g}" if self.values else "-"
        return f"{self.panel:<42} {self.series:>6} {len(self.values):>8} {largest:>12}"


def main() -> int:
    """Run the campaign; return 1 if a query has no value, a rule fails, or a scrape failed before the shutdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.dashboard", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two rounds of events")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        directory = Path(made)
        ports = {"node-1": free_port(), "node-2": free_port()}
        pressed = stack.enter_context(PressedDaemon(directory / "node-1", ports["node-1"]))
        beside = stack.enter_context(BesideKubelet(directory / "node-2", ports["node-2"]))
        prometheus = stack.enter_context(Prometheus(directory / "prometheus", ports, scrape_s=SCRAPE_S))
        began_s = time.time()
        ends_s, number = began_s + options.minutes * 60, 0
        while time.time() < ends_s:
            next_s = time.time() + options.every
            pressed.step(number)
            beside.step(number)
            number += 1
            print(f"round {number}: {(time.time() - began_s) / 60:.1f} min", flush=True)
            time.sleep(max(0.0, min(next_s, ends_s) - time.time()))  # a real sleep until the next round of events
        problems = list(prometheus.problems())
        at_rest = prometheus.count_series()
        pressed.shut_down()
        time.sleep(AFTER_SHUTDOWN_S)  # a real sleep, so that Prometheus scrapes the state with stopped pods
        results = [evaluate(prometheus, *each, began_s) for each in queries()]
        alerts = prometheus.fired(began_s)
    print(f"{'panel':<42} {'series':>6} {'values':>8} {'largest':>12}")
    print("\n".join(map(str, results)))
    print(f"series of each node: {at_rest}; alerts that fired: {', '.join(sorted(alerts)) or 'none'}")
    problems += [f"no value: {each.panel}: {each.query}" for each in results if not each.values]
    for each in results:
        if each.values and not any(each.values):
            print(f"0 throughout: {each.panel}: {each.query}")
    print("\n".join(f"FAILED: {each}" for each in problems) or f"ok: {len(results)} queries")
    return 1 if problems else 0


def queries() -> Iterator[tuple[str, str]]:
    """Yield the panel title and query of every target of every panel, in the order of the dashboard."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def evaluate(prometheus: Prometheus, panel: str, query: str, began_s: float) -> Result:
    """Return the result of a panel query over the whole campaign, with all nodes selected."""
    text = query
    for name, value in _VARIABLES.items():
        text = text.replace(name, value)
    series = prometheus.query_range(text, began_s, time.time(), step_s=3 * SCRAPE_S)
    return Result(panel, query, len(series), tuple(value for each in series for value in each))


if __name__ == "__main__":
    sys.exit(main())
