"""Facts of a finished shutdown from the node's disk: the agent's record and journal, and the times written by pods.

The virtual machine is emulated and shares the host's processors. Its slowdown is measured at each shutdown; the bound
for the release of the lock is multiplied by the slowdown.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.node import shutdown_pods
from tests.node.shutdown_node import START_S, parsed
from tests.node.shutdown_pods import EXIT, assert_in_order, times_file
from tests.support import reclaim

if TYPE_CHECKING:
    from tests.support.vm import Node, RunningPod

RELEASE_S = 0.1  # without emulation
_LOOP_S = 0.03  # duration of _LOOP without emulation
_LOOP = """\
import time
began = time.monotonic()
sum(number % 7 for number in range(500_000))
print(time.monotonic() - began)
"""


def measure_slowdown(node: Node) -> float:
    """Return the slowdown of the emulated node: the factor by which a computation is slower than without emulation."""
    return max(1.0, float(node.run(("python3", "-c", _LOOP)).stdout) / _LOOP_S)


def shut_down(node: Node, pods: list[RunningPod], command: str = "systemctl poweroff") -> ShutdownFacts:
    slowdown = measure_slowdown(node)
    node.run(command)
    if command == "systemctl halt":
        reclaim.poll("the kernel has halted", lambda: "reboot: System halted" in node.console, timeout_s=START_S)
        node.cut_power()
    else:
        node.wait_off(timeout_s=START_S)
    return ShutdownFacts(node, pods, slowdown)


class ShutdownFacts:
    """Facts of the last shutdown of a powered-off node; printed as a table.

    Attributes:
        record: the agent's record of the shutdown.
        pods: recorded pods by name.
        times: seconds from the start of the shutdown, by pod and word that the pod wrote.
        released_s: seconds from the start of the shutdown to the release of the inhibitor lock.
    """

    def __init__(self, node: Node, pods: list[RunningPod], slowdown: float) -> None:
        self.slowdown = slowdown
        self.record = json.loads(node.read_disk("/var/lib/nodeagent/shutdown.json"))
        self.log = parsed(node.journal())
        started_s: float = self.record["started_s"]
        self.pods = {each["name"]: each for each in self.record["pods"]}
        names = [each.pod.name for each in pods]
        self.times = {
            name: {word: at - started_s for word, at in shutdown_pods.read_times(node, name).items()} for name in names
        }
        self._terms = {name: node.read_disk(times_file(name)).count(b"term ") for name in names}
        released = [
            int(entry.fields["__MONOTONIC_TIMESTAMP"]) / 1e6
            for entry in node.journal()
            if '"inhibitor_lock_released"' in entry.message
        ]
        assert released, "the journal has a release of the lock"
        self.released_s = max(released) - started_s  # earlier releases: soft-reboots
        self._print()

    @property
    def release_s(self) -> float:
        """Bound for the time from the end of the last pod to the release of the lock, in emulated seconds."""
        return RELEASE_S * self.slowdown

    @property
    def release_delay_s(self) -> float:
        """Seconds from the end of the last pod to the release of the lock; 0 if a pod has the outcome ``failed``."""
        if any(each["outcome"] == "failed" for each in self.pods.values()):
            return 0.0
        ends = [times[EXIT] for times in self.times.values() if EXIT in times]
        ends += [
            (each["asked_ms"] + each["took_ms"]) / 1000 for each in self.pods.values() if each["outcome"] == "killed"
        ]
        return self.released_s - max(ends, default=0.0)

    @property
    def unheard(self) -> set[str]:
        """Names of the pods that received no TERM."""
        return {name for name, times in self.times.items() if "term" not in times}

    @property
    def without_time_for_term(self) -> set[str]:
        """Names of the pods that are recorded with the outcome ``failed`` or with an unconfirmed or pending TERM."""
        remarks = ("without a confirmed TERM", "while TERM was pending")
        return {
            name
            for name, each in self.pods.items()
            if each["outcome"] == "failed" or any(remark in each["detail"] for remark in remarks)
        }

    def events(self, name: str) -> list[dict[str, Any]]:
        return [each for each in self.log if each["event"] == name]

    def _print(self) -> None:
        print(f"{self.record.get('operation') or 'no operation'}: released at {self.released_s:.2f} s")
        print(
            f"emulation {self.slowdown:.1f} times slower: release {self.release_delay_s:.2f} s after the last end,"
            f" bound {self.release_s:.2f} s"
        )
        for name, times in sorted(self.times.items()):
            known = self.pods[name]
            written = " ".join(f"{word}={at:.2f}" for word, at in times.items() if word != "up")
            recorded = f"asked={known['asked_ms']} took={known['took_ms']}"
            print(f"{name:16} {known['outcome']:8} {recorded} wrote {written}, TERM {self._terms[name]} times")
        for each in self.log:
            if each["event"].startswith(("shutdown_", "inhibitor_lock", "unit_stop")):
                print({key: value for key, value in each.items() if key not in ("timestamp", "level", "boot_id")})

    def assert_outcomes(self) -> None:
        """Assert that every recorded outcome agrees with the times that the pod wrote."""
        assert set(self.pods) == set(self.times)
        wrong = {}
        for name, times in self.times.items():
            outcome = self.pods[name]["outcome"]
            expected = {"stopped"} if EXIT in times else {"killed", "failed"}
            if outcome not in expected:
                wrong[name] = (outcome, times)
        assert wrong == {}

    def assert_true(self) -> None:
        """Assert that outcomes agree with the times written by pods, and that all TERMs were in time and in order."""
        self.assert_outcomes()
        assert self.unheard == set(), "every pod received TERM"
        late = [name for name, times in self.times.items() if times["term"] > self.released_s]
        assert late == [], "before the release of the lock"
        assert_in_order(self.times)

    def assert_released_with_the_last_pod(self) -> None:
        assert self.release_delay_s <= self.release_s
