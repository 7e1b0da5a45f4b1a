"""Whole commands on a real containerd beside ``crictl``: wall time, and CPU time of all processes involved.

The CPU time is the sum of the command, the daemon and containerd. Lists: the node has 1,000 images and 400 containers,
and a daemon is running. Removal: 200 of 300 images, without a daemon, from a copy of one filesystem; ``crictl rmi``
names all images in one call. The commands of a pair alternate; a ratio compares the medians of the same run.

    python -m tests.bench.bench_commands [--images N] [--containers N] [--runs N] [--crictl PROGRAM]

Requires root and ``crictl``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from tests.bench.bench_start import Cost, daemon, installed, run
from tests.support import many
from tests.support.containerd import Containerd, LoopFs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_MIB: Final = 4_000
_REMOVED: Final = 200
_KEPT: Final = 100


class Pair(NamedTuple):
    """A command of the agent, the command of ``crictl`` beside it, and the maximum ratios of wall and CPU time."""

    own: str
    peer: str
    wall: float | None
    cpu: float


LISTS: Final = (
    Pair("images", "images", None, 2.5),
    Pair("containers", "ps -a", None, 2.5),
    Pair("pods", "pods", None, 2.5),
    Pair("images --direct -q", "images -q", None, 6),
)
REMOVAL: Final = Pair("gc images --yes --undo-window 0s", "rmi", 1.25, 2)


def cost(command: list[str], environment: dict[str, str], servers: Collection[psutil.Process]) -> Cost:
    """Run a command and return its cost, including the CPU time of the servers.

    Raises:
        RuntimeError: the command failed.
    """
    before_s = sum(map(_cpu_s, servers))
    own = run(command, environment)
    return Cost(own.wall_s, own.cpu_s + sum(map(_cpu_s, servers)) - before_s)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def lists(programs: Path, crictl: str, images: int, containers: int, runs: int) -> list[tuple[Pair, Cost, Cost]]:
    """Return the median costs of each pair of lists."""
    with Containerd(imagefs=LoopFs(_MIB, "ext4")) as containerd, containerd.pods() as pods:
        many.fill(containerd, 0, images - 2, shared=1, own=2)  # the other two: the kept and the sandbox image
        directory = containerd.base
        for number in range(max(1, containers // 10)):
            sandbox = pods.run_sandbox(f"bench{number}", log_directory=directory / "pod-logs")
            for place in range(min(10, containers)):
                pods.create_container(sandbox, f"app{place}", many.KEPT, ["sleep", "1000000"])
        socket, config = directory / "control.sock", many.configure(containerd)
        config.write_text(f"{config.read_text()}[control]\nsocket = {json.dumps(str(socket))}\n")
        environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "NODEAGENT_CONTROL__SOCKET": str(socket)}
        peer = [crictl, "--runtime-endpoint", f"unix://{containerd.socket}", "--timeout", "60s"]
        own = [str(programs / "nodeagent")]
        with daemon(programs, config, socket) as pid:
            servers = [psutil.Process(containerd.pid), psutil.Process(pid)]
            found = []
            for pair in LISTS:
                options = ["--config", str(config)] if "--direct" in pair.own else []
                commands = ([*own, *pair.own.split(), *options], [*peer, *pair.peer.split()])
                taken = [[cost(each, environment, servers) for each in commands] for _ in range(runs + 1)][1:]
                found.append((pair, _median([own for own, _ in taken]), _median([peer for _, peer in taken])))
            return found


def removal(programs: Path, crictl: str, runs: int) -> tuple[Pair, Cost, Cost]:
    """Return the median costs of the removal."""
    taken: list[tuple[Cost, Cost]] = []
    with Containerd(imagefs=LoopFs(many.MINIMUM_MIB, "ext4")) as containerd:
        many.fill(containerd, _REMOVED, _KEPT, shared=1, own=3)
        config = many.configure(containerd)
        containerd.checkpoint()
        for _ in range(runs):
            costs = []
            for is_own in (True, False):
                with containerd.pods() as pods:
                    ids = [each.id for each in pods.list_images() if any("/going/" in tag for tag in each.tags)]
                own = [str(programs / "nodeagent"), *REMOVAL.own.split(), "--config", str(config)]
                peer = [crictl, "--runtime-endpoint", f"unix://{containerd.socket}", "--timeout", "60s", "rmi", *ids]
                environment = {"PATH": os.defpath, "LANG": "C.UTF-8"}
                costs.append(cost(own if is_own else peer, environment, [psutil.Process(containerd.pid)]))
                with containerd.pods() as pods:
                    assert not {each.id for each in pods.list_images()} & set(ids)
                containerd.rewind()
            taken.append((costs[0], costs[1]))
    return REMOVAL, _median([own for own, _ in taken]), _median([peer for _, peer in taken])


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(each.wall_s for each in costs), statistics.median(each.cpu_s for each in costs))


def main(arguments: list[str] | None = None) -> int:
    """Print the costs of each pair; return 1 if a ratio exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_000)
    parser.add_argument("--containers", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--crictl", default=shutil.which("crictl") or "", help="default: crictl in PATH")
    options = parser.parse_args(arguments)
    if not options.crictl:
        print("skipped: requires crictl")
        return 0
    with tempfile.TemporaryDirectory() as name:
        programs = installed(Path(name))
        rows = lists(programs, options.crictl, options.images, options.containers, options.runs)
        rows.append(removal(programs, options.crictl, options.runs))
    exceeded = False
    print(f"{'command':34} {'wall s':>7} {'crictl':>7} {'ratio':>6} {'CPU s':>7} {'crictl':>7} {'ratio':>6} budget")
    for pair, own, peer in rows:
        wall, cpu = own.wall_s / peer.wall_s, own.cpu_s / peer.cpu_s
        is_over = cpu > pair.cpu or (pair.wall is not None and wall > pair.wall)
        exceeded |= is_over
        print(
            f"{pair.own:34} {own.wall_s:7.3f} {peer.wall_s:7.3f} {wall:6.2f} {own.cpu_s:7.3f} {peer.cpu_s:7.3f} "
            f"{cpu:6.2f} {pair.cpu:g}{'' if pair.wall is None else f', wall {pair.wall:g}'}"
            f"{'  exceeded' if is_over else ''}"
        )
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
