"""Cost of the agent as a process: a cold dry run, and an idle daemon.

The runtime is simulated in a separate process, with 200 images of ten layers and 300 containers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGES, LAYERS, CONTAINERS = 200, 10, 300
CONTROL = "control.sock"


@contextmanager
def runtime(
    directory: Path, images: int = IMAGES, layers: int = LAYERS, containers: int = CONTAINERS
) -> Iterator[Path]:
    """Serve the simulated node; yield the path of a configuration file for it."""
    socket = directory / "runtime.sock"
    command = [sys.executable, "-m", "tests.sim", "--socket", str(socket), "--root", str(directory)]
    sizes = ["--images", str(images), "--layers", str(layers), "--containers", str(containers)]
    with subprocess.Popen([*command, *sizes], stdout=subprocess.DEVNULL) as process:
        try:
            poll("the simulated runtime serves", socket.exists, timeout_s=30)
            config = directory / "config.toml"
            lines = [
                'role = "standalone"',
                f"[runtime]\nendpoint = {json.dumps(f'unix://{socket}')}",
                f"[state]\ndirectory = {json.dumps(str(directory / 'state'))}",
                f"[control]\nsocket = {json.dumps(str(directory / CONTROL))}",
            ]
            config.write_text("\n".join(lines) + "\n")
            yield config
        finally:
            process.terminate()


def timed(*command: str, runs: int, socket: Path | None = None) -> list[float]:
    """Return the wall time of each run in seconds, after a warm-up run; ``socket`` is the daemon's control socket."""
    environment = os.environ | ({} if socket is None else {"NODEAGENT_CONTROL__SOCKET": str(socket)})
    taken = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True, env=environment)
        taken.append(time.perf_counter() - began)
    return taken[1:]


def at_rest(config: Path, seconds: float, runs: int) -> tuple[float, float, list[float]]:
    """Measure an idle daemon for ``seconds`` after its first passes.

    Returns:
        Its resident memory in MiB, its CPU usage in percent of a core, and the wall times of ``status`` in seconds.

    """
    command = [sys.executable, "-m", "nodeagent", "run", "--config", str(config), "--dry-run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        done = 0
        for line in process.stderr:
            done += '"pass_finished"' in line
            if done == 2:
                break
        watched = psutil.Process(process.pid)
        before = watched.cpu_times()
        time.sleep(seconds)  # a real sleep, since the measurement is a rate over this time
        after = watched.cpu_times()
        resident = watched.memory_info().rss / 2**20
        status = timed("-m", "nodeagent", "status", runs=runs, socket=config.with_name(CONTROL))
        process.terminate()
    used = (after.user + after.system) - (before.user + before.system)
    return resident, 100 * used / seconds, status


def main() -> None:
    """Print the run times of commands and the load of an idle daemon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rest", type=float, default=60, help="seconds of measurement of the idle daemon")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, runtime(Path(name)) as config:
        words = ("-m", "nodeagent", "gc", "all", "--dry-run", "--config", str(config))
        first = timed(*words, runs=options.runs)
        subprocess.run([sys.executable, "-m", "nodeagent", "run", "--once", "--dry-run", "-c", str(config)], check=True)
        preview = timed(*words, runs=options.runs)
        imports = timed("-c", "import nodeagent.cli.main, nodeagent.cli.gc, nodeagent.gc.agent", runs=options.runs)
        shown = timed("-m", "nodeagent", "--help", runs=options.runs)
        resident, percent, status = at_rest(config, options.rest, options.runs)
    print(f"{'command':58} {'min':>9} {'median':>9} {'max':>9}")
    for command, taken in (
        (f"gc all --dry-run, cold, {IMAGES} images, {CONTAINERS} containers [s]", preview),
        ("  the same on a node where the agent has never run [s]", first),
        ("  of which interpreter and imports [s]", imports),
        ("--help [s]", shown),
        ("status of a running daemon [s]", status),
    ):
        print(f"{command:58} {min(taken):9.3f} {statistics.median(taken):9.3f} {max(taken):9.3f}")
    print(f"idle daemon over {options.rest:.0f} s: {resident:.1f} MiB resident, {percent:.2f} % of a core")


if __name__ == "__main__":
    main()
