"""Memory, processor time and event loop of a daemon with the default configuration on a large node.

The runtime is simulated in a separate process. The thread CPU time of every callback of the daemon's event loop is
measured. A client asks for ``/v1/version`` several times a second, from the start of the daemon on.

    python -m tests.bench.bench_node [--containers N] [--seconds N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import psutil

from nodeagent.api.client import ControlClient
from nodeagent.errors import NodeAgentError
from tests.bench.bench_agent import CONTROL, runtime

IMAGES, LAYERS, CONTAINERS = 1_000, 4, 20_000
RESIDENT_MIB, CALLBACK_S, ANSWER_S, CPU_PERCENT = 230.0, 0.1, 0.5, 5.0
_LONGEST: Final = 8
_SHOWN_FROM_S: Final = 0.02
_PAUSE_S: Final = 0.1


def daemon(config: str, timings: Path) -> None:
    """Run the daemon; at its end write the longest callbacks of its event loop, with their CPU seconds."""
    from nodeagent.daemon import supervisor  # noqa: F401, PLC0415 - imported before the first callback is measured

    taken: list[tuple[float, str]] = []
    run = asyncio.Handle._run  # noqa: SLF001 - asyncio has no public hook around a callback

    def measured(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(handle)
        used_s = time.thread_time() - began_s
        if used_s >= _SHOWN_FROM_S:
            owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]  # noqa: SLF001
            taken.append((used_s, str(owner.get_coro() if isinstance(owner, asyncio.Task) else owner)[:100]))

    asyncio.Handle._run = measured  # type: ignore[method-assign, assignment]  # noqa: SLF001
    from nodeagent.cli.start import main  # noqa: PLC0415

    sys.argv = ["nodeagent", "run", "--dry-run", "--config", config]
    try:
        main()
    finally:
        timings.write_text(json.dumps(sorted(taken, reverse=True)[:_LONGEST]))


def _ask(socket: Path, answers: list[float], stop: threading.Event) -> None:
    while not stop.wait(_PAUSE_S):
        began_s = time.perf_counter()
        try:
            ControlClient(socket).call("Version", {}, within_s=60)
        except NodeAgentError:
            continue
        answers.append(time.perf_counter() - began_s)


def main(arguments: list[str] | None = None) -> int:
    """Print the figures of one daemon; return 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--containers", type=int, default=CONTAINERS)
    parser.add_argument("--seconds", type=float, default=120, help="seconds of measurement after the first passes")
    parser.add_argument("--daemon", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.daemon:
        daemon(options.daemon[0], Path(options.daemon[1]))
        return 0
    with tempfile.TemporaryDirectory() as name:
        return _measure(Path(name), options.containers, options.seconds)


def _measure(directory: Path, containers: int, seconds: float) -> int:
    timings = directory / "timings"
    answers: list[float] = []
    with runtime(directory, IMAGES, LAYERS, containers) as config:
        words = [sys.executable, "-m", "tests.bench.bench_node", "--daemon", str(config), str(timings)]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            stop = threading.Event()
            client = threading.Thread(target=_ask, args=(directory / CONTROL, answers, stop))
            client.start()
            done, log = 0, process.stderr
            assert log is not None
            for line in log:
                done += '"pass_finished"' in line
                if done == 2:
                    break
            drain = threading.Thread(target=log.read)
            drain.start()
            watched, first = psutil.Process(process.pid), len(answers)
            time.sleep(seconds / 2)  # real sleeps: the figures are rates over this time
            before, from_s = watched.cpu_times(), time.monotonic()
            stop.set()
            client.join()
            time.sleep(seconds / 2)
            after, passed_s = watched.cpu_times(), time.monotonic() - from_s
            resident_mib = watched.memory_info().rss / 2**20
            process.terminate()
            drain.join()
    percent = 100 * (after.user + after.system - before.user - before.system) / passed_s
    callbacks = json.loads(timings.read_text())
    print(f"{containers} containers, default configuration, for {seconds:.0f} s after the first passes")
    print(f"resident {resident_mib:.0f} MiB (budget {RESIDENT_MIB:.0f} at {CONTAINERS})")
    print(f"{percent:.1f} % of a core without requests (budget {CPU_PERCENT:.0f} at 10000)")
    before_s, after_s = max(answers[:first], default=0), max(answers[first:], default=0)
    print(f"longest answer to version: {before_s:.2f} s in the first passes, then {after_s:.2f} s (budget {ANSWER_S})")
    for used_s, where in callbacks:
        print(f"callback {used_s:.3f} CPU s  {where}")
    is_large = containers >= CONTAINERS
    return int(
        (is_large and (resident_mib > RESIDENT_MIB or callbacks[0][0] > CALLBACK_S or max(answers) > ANSWER_S))
        or (not is_large and percent > CPU_PERCENT)
    )


if __name__ == "__main__":
    sys.exit(main())
