"""Pods that write the times of their signals and exits to the node's disk, and readers of these times.

Pods read the time from ``/proc/uptime``, in hundredths of a second; times in the agent's records are also since boot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.node.conftest import APP
from tests.node.shutdown_node import BANDS, START_S
from tests.support import vm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.vm import Node, RunningPod

AT_ONCE, TWO_SECONDS, LONG, IGNORES = "now", "slow", "long", "deaf"
LONG_S = 10
EXIT = "exit-0"
_TIMES = "/var/lib/pod-times"  # not the pod log: log lines are lost while containerd restarts
# A signal interrupts read.
_WRITE = "write() { until read up rest < /proc/uptime && [ $up ]; do :; done; echo $1 $up >> /times/$0; }; "
_ENDS_AFTER_S: dict[str, float | None] = {AT_ONCE: 0, TWO_SECONDS: 2, LONG: LONG_S, IGNORES: None}


def pod(name: str, priority: int, ends_after_s: float | None = 0) -> vm.Pod:
    """Return a pod that ends ``ends_after_s`` seconds after TERM; with ``None``, the pod ignores TERM."""
    end = "" if ends_after_s is None else f"; sleep {ends_after_s:g}; write {EXIT}; exit 0"
    script = f"{_WRITE}trap 'write term{end}' TERM; write up; while :; do sleep 1000 & wait $!; done"
    return vm.Pod(
        name,
        APP,
        ("sh", "-c", script, name),
        namespace="shop",
        mounts={_TIMES: "/times"},
        annotations={"nodeagent.dev/priority": str(priority)},
    )


def in_every_band(count: int, kinds: tuple[str, ...], suffix: str) -> list[vm.Pod]:
    """Return ``count`` pods, distributed over the priority bands and the kinds; names start with the band (``b0-``)."""
    found = []
    for index in range(count):
        row, band = divmod(index, len(BANDS))
        kind = kinds[row % len(kinds)]
        found.append(pod(f"b{band}-{row}-{kind}{suffix}", BANDS[band], _ENDS_AFTER_S[kind]))
    return found


def run_pods(node: Node, pods: Sequence[vm.Pod]) -> list[RunningPod]:
    """Remove the time files of earlier pods with these names, and run the pods."""
    node.run(f"mkdir -p {_TIMES} && rm -f {' '.join(times_file(each.name) for each in pods)}")
    return node.run_pods(*pods)


def times_file(name: str) -> str:
    return f"{_TIMES}/{name}"


def has_written(node: Node, name: str, word: str) -> bool:
    """Return whether a pod of a running node has written a word."""
    done = node.run(f"grep -q '^{word} ' {times_file(name)}", check=False)
    return done.code == 0


def read_times(node: Node, name: str) -> dict[str, float]:
    """Return the first time of each word written by a pod, in seconds since boot; the node must be powered off."""
    found: dict[str, float] = {}
    for line in node.read_disk(times_file(name)).decode().splitlines():
        word, _, up = line.partition(" ")
        found.setdefault(word, float(up))
    return found


def await_term(node: Node, pods: list[RunningPod], band: int) -> None:
    """Wait until a pod of a priority band has received TERM."""
    files = " ".join(times_file(each.pod.name) for each in pods if each.pod.name.startswith(f"b{band}-"))
    node.run(f"until grep -qs '^term ' {files}; do sleep 0.2; done", timeout_s=START_S)


def assert_in_order(times: dict[str, dict[str, float]]) -> None:
    """Assert that no priority band received TERM before all pods of the next lower band had ended or ignored TERM."""
    for band in range(1, len(BANDS)):
        first_s = min(each["term"] for name, each in times.items() if name.startswith(f"b{band}-"))
        for name, each in times.items():
            if name.startswith(f"b{band - 1}-"):
                assert each.get(EXIT, each["term"]) <= first_s, (name, times)
