"""Duration of commands relative to the duration of a bare interpreter.

The package is built as a wheel and installed, byte-compiled, into a virtual environment with only its dependencies. The
node has 100 images of ten layers and 20 containers: on a real containerd as root, otherwise on a simulated runtime. The
runs of all commands alternate, so that a change of the machine's load affects all commands; a ratio compares the median
wall times. The CPU time of the command's process excludes the time spent waiting for the daemon; its ratio varies less
on a busy machine.

    python -m tests.bench.bench_start [--runs N] [--simulated]
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
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.bench.bench_agent import LAYERS
from tests.support import many
from tests.support.containerd import Containerd, LoopFs, unavailable
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).parents[2]
IMAGES, CONTAINERS = 100, 20
BARE: Final = "bare interpreter"


class Budget(NamedTuple):
    """Command with its maximum ratio; ``daemon`` is false for a command that is run without a daemon."""

    words: str
    ratio: float
    daemon: bool = True


BUDGETS: Final = (
    Budget("--version", 9),
    Budget("--help", 9),
    Budget("status", 9),
    Budget("images", 9),
    Budget("containers", 9),
    Budget("history", 9),
    Budget("images --help", 9),
    Budget("gc all --help", 9),
    Budget("images", 25, daemon=False),
    Budget("gc all --dry-run", 25, daemon=False),
)


class Cost(NamedTuple):
    """Wall time and CPU time of one run, in seconds."""

    wall_s: float
    cpu_s: float


def installed(directory: Path) -> Path:
    """Build the wheel, install it into a virtual environment in ``directory``, and return its program directory."""
    wheels, environment = directory / "wheels", directory / "environment"
    pip = [sys.executable, "-I", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)], check=True)
    subprocess.run([sys.executable, "-I", "-m", "venv", str(environment)], check=True)
    (wheel,) = wheels.glob("nodeagent-*.whl")
    install = [*pip, "--python", str(environment / "bin/python"), "install", "--compile", str(wheel)]
    subprocess.run(install, check=True)
    return environment / "bin"


@contextmanager
def real_node(directory: Path) -> Iterator[str]:
    """Run a containerd with the images and containers; yield its CRI endpoint."""
    with Containerd(imagefs=LoopFs(many.MINIMUM_MIB, "ext4")) as containerd:
        many.fill(containerd, 0, IMAGES - 2)  # the other two are the kept image and the sandbox image
        with containerd.pods() as pods:
            sandbox = pods.run_sandbox("bench", log_directory=directory / "pod-logs")
            for number in range(CONTAINERS):
                pods.create_container(sandbox, f"app{number}", many.KEPT, ["sleep", "1000000"])
            yield f"unix://{containerd.socket}"


@contextmanager
def simulated_node(directory: Path) -> Iterator[str]:
    """Serve a simulated runtime with the images and containers; yield its CRI endpoint."""
    socket = directory / "runtime.sock"
    sizes = ["--images", str(IMAGES), "--layers", str(LAYERS), "--containers", str(CONTAINERS)]
    command = [sys.executable, "-m", "tests.sim", "--socket", str(socket), "--root", str(directory), *sizes]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        try:
            poll("the simulated runtime serves", socket.exists, timeout_s=30)
            yield f"unix://{socket}"
        finally:
            process.terminate()


@contextmanager
def daemon(programs: Path, config: Path, socket: Path) -> Iterator[int]:
    """Run a daemon and yield its process id; the block starts after its first passes."""
    command = [str(programs / "nodeagent"), "run", "--config", str(config), "--dry-run"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stderr is not None
        try:
            done = 0
            for line in process.stderr:
                done += '"pass_finished"' in line
                if done == 2 and socket.exists():
                    break
            yield process.pid
        finally:
            process.terminate()
            process.stderr.close()


def run(command: list[str], environment: Mapping[str, str]) -> Cost:
    """Run a command and return its cost."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, cwd="/")
    _, status, used = os.wait4(process.pid, 0)
    cost = Cost(time.perf_counter() - began, used.ru_utime + used.ru_stime)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stderr is not None
    with process.stderr:
        if process.returncode not in (0, 3):  # exit code 3: the dry run predicts that the low threshold is not reached
            raise RuntimeError(f"{command}: exit {process.returncode}: {process.stderr.read().decode()}")
    return cost


def measure(programs: Path, endpoint: str, directory: Path, runs: int) -> dict[str, list[Cost]]:
    """Return the costs of each command from alternating runs, after a warm-up run."""
    socket, config = directory / "control.sock", directory / "config.toml"
    lines = [
        'role = "standalone"',
        f"[runtime]\nendpoint = {json.dumps(endpoint)}",
        f"[state]\ndirectory = {json.dumps(str(directory / 'state'))}",
        f"[control]\nsocket = {json.dumps(str(socket))}",
    ]
    config.write_text("\n".join(lines) + "\n")
    shared = {"PATH": os.defpath, "LANG": "C.UTF-8"}
    with_daemon = {**shared, "NODEAGENT_CONTROL__SOCKET": str(socket)}
    without = {
        **shared,
        "NODEAGENT_CONTROL__SOCKET": str(directory / "none.sock"),
        "NODEAGENT_RUNTIME__ENDPOINT": endpoint,
        "NODEAGENT_STATE__DIRECTORY": str(directory / "state"),
        "NODEAGENT_ROLE": "standalone",
    }
    commands = {BARE: ([str(programs / "python"), "-I", "-c", "pass"], shared)}
    for each in BUDGETS:
        words = [str(programs / "nodeagent"), *each.words.split()]
        commands[label(each)] = (words, with_daemon if each.daemon else without)
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    with daemon(programs, config, socket):
        for _ in range(runs + 1):
            for name, (words, environment) in commands.items():
                costs[name].append(run(words, environment))
    return {name: each[1:] for name, each in costs.items()}


def label(budget: Budget) -> str:
    """Return the name of a measured command in the table."""
    return budget.words if budget.daemon else f"{budget.words}, no daemon"


def main() -> None:
    """Print the ratio of each command to a bare interpreter; exit with 1 if a ratio exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--simulated", action="store_true", help="simulated runtime also as root")
    options = parser.parse_args()
    problem = "requested" if options.simulated else "needs root" if os.geteuid() else unavailable()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        programs = installed(directory)
        node = real_node if not problem else simulated_node
        print(f"runtime: {f'simulated ({problem})' if problem else 'containerd'}, {options.runs} runs")
        with node(directory) as endpoint:
            costs = measure(programs, endpoint, directory, options.runs)
    bare = Cost(*(statistics.median(each) for each in zip(*costs[BARE], strict=True)))
    print(f"{'command':32} {'ms':>7} {'range':>13} {'ratio':>6} {'budget':>6} {'cpu ms':>7} {'ratio':>6}")
    print(f"{BARE:32} {1000 * bare.wall_s:7.1f} {span(costs[BARE]):>13} {'':13} {1000 * bare.cpu_s:7.1f}")
    exceeded = False
    for each in BUDGETS:
        taken = costs[label(each)]
        median = Cost(*(statistics.median(one) for one in zip(*taken, strict=True)))
        ratio = median.wall_s / bare.wall_s
        exceeded |= ratio > each.ratio
        print(
            f"{label(each):32} {1000 * median.wall_s:7.1f} {span(taken):>13} {ratio:6.1f} {each.ratio:6g} "
            f"{1000 * median.cpu_s:7.1f} {median.cpu_s / bare.cpu_s:6.1f}{'  exceeded' if ratio > each.ratio else ''}"
        )
    sys.exit(exceeded)


def span(costs: list[Cost]) -> str:
    """Return the range of wall times as text, in milliseconds."""
    times = [1000 * each.wall_s for each in costs]
    return f"{min(times):.0f} to {max(times):.0f}"


if __name__ == "__main__":
    main()
