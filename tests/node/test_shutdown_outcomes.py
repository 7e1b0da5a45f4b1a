"""Outcomes of shutdowns compared with the words of the pods themselves, which state their own times and exit codes.

The machine is emulated and shares its processors: its slowdown is measured at each shutdown and multiplies the bound
for the release of the lock. Times of signals are the pods' own readings of ``/proc/uptime``, in hundredths of a second;
the records of the agent count from the same boot.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.node.conftest import APP
from tests.node.shutdown_node import (
    BANDS,
    OWN,
    START_S,
    event_names,
    install,
    lock_entry,
    main_pid,
    parsed,
    set_limit,
    start,
    wait_for_lock,
)
from tests.support import images, reclaim, vm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vm import Disk, Node, RunningPod

pytestmark = [pytest.mark.node, pytest.mark.long]

OFF_S = 600.0
RELEASE_S = 0.1  # on a node
_LOOP_S = 0.03  # duration of _LOOP on a node
_LOOP = """\
import time
began = time.monotonic()
sum(number % 7 for number in range(500_000))
print(time.monotonic() - began)
"""
AT_ONCE, TWO_SECONDS, IGNORES = "now", "slow", "deaf"
_WORDS = "/var/lib/words"  # not the log, whose lines are lost while containerd restarts
_SAY = "say() { read up rest < /proc/uptime; echo $1 $up >> /words/$0; }; "
_SCRIPTS = {
    AT_ONCE: _SAY + "trap 'say term; say exit-0; exit 0' TERM; say up; while :; do sleep 1000 & wait $!; done",
    TWO_SECONDS: _SAY
    + "trap 'say term; sleep 2; say exit-0; exit 0' TERM; say up; while :; do sleep 1000 & wait $!; done",
    IGNORES: _SAY + "trap 'say term' TERM; say up; while :; do sleep 1000 & wait $!; done",
}


def make_pods(count: int, kinds: tuple[str, ...], suffix: str) -> list[vm.Pod]:
    """Return pods of every kind in turn, spread over the bands."""
    return [
        vm.Pod(
            _pod_name(index, kinds, suffix),
            APP,
            ("sh", "-c", _SCRIPTS[kinds[index // len(BANDS) % len(kinds)]], _pod_name(index, kinds, suffix)),
            namespace="shop",
            mounts={_WORDS: "/words"},
            annotations={"nodeagent.dev/priority": str(BANDS[index % len(BANDS)])},
        )
        for index in range(count)
    ]


def _pod_name(index: int, kinds: tuple[str, ...], suffix: str) -> str:
    row = index // len(BANDS)
    return f"b{index % len(BANDS)}-{row}-{kinds[row % len(kinds)]}{suffix}"


def _words_file(pod: RunningPod) -> str:
    return f"{_WORDS}/{pod.pod.name}"


class Facts:
    """A finished shutdown: the record of the agent, its journal, and the words of the pods from the disk."""

    def __init__(self, node: Node, pods: list[RunningPod], slowdown: float) -> None:
        self.release_s = RELEASE_S * slowdown
        self.record = json.loads(node.read_disk("/var/lib/nodeagent/shutdown.json"))
        self.log = parsed(node.journal())
        self.started_s: float = self.record["started_s"]
        self.pods = {each["name"]: each for each in self.record["pods"]}
        self.words = {pod.pod.name: self._words(node, pod) for pod in pods}
        self.terms = {pod.pod.name: node.read_disk(_words_file(pod)).count(b"term ") for pod in pods}
        self.released_s = self._released_s(node)

    def _words(self, node: Node, pod: RunningPod) -> dict[str, float]:
        found: dict[str, float] = {}
        for line in node.read_disk(_words_file(pod)).decode().splitlines():
            word, _, up = line.partition(" ")
            found.setdefault(word, float(up) - self.started_s)
        return found

    def _released_s(self, node: Node) -> float:
        times = [
            int(entry.fields["__MONOTONIC_TIMESTAMP"]) / 1e6
            for entry in node.journal()
            if '"inhibitor_lock_released"' in entry.message
        ]
        assert times, "the journal has a release of the lock"
        return max(times) - self.started_s  # earlier ones are of a soft-reboot of the same boot

    def print_table(self) -> None:
        print(f"{self.record.get('operation') or 'no operation'}: released at {self.released_s:.2f} s")
        print(
            f"bound from the last end to the release: {self.release_s:.2f} s; measured {self.release_delay_s():.2f} s"
        )
        for name, words in sorted(self.words.items()):
            known = self.pods[name]
            logged = " ".join(f"{word}={at:.2f}" for word, at in words.items() if word != "up")
            times = f"asked={known['asked_ms']} took={known['took_ms']}"
            print(f"{name:16} {known['outcome']:8} {times} logged {logged}, TERM {self.terms[name]} times")
        for each in self.log:
            if each["event"].startswith(("shutdown_", "inhibitor_lock")):
                print({key: value for key, value in each.items() if key not in ("timestamp", "level", "boot_id")})

    def assert_outcomes(self) -> None:
        """Assert that every outcome is that of the pod's own log."""
        assert set(self.pods) == set(self.words)
        wrong = {}
        for name, words in self.words.items():
            outcome = self.pods[name]["outcome"]
            logged = "stopped" if "exit-0" in words else "killed"
            if outcome != logged and not (outcome == "failed" and logged == "killed"):
                wrong[name] = (outcome, words)
        assert wrong == {}

    def assert_true(self) -> None:
        """Assert that every outcome is that of the pod's own log, and that the order and the signals are right."""
        self.assert_outcomes()
        unheard = [name for name, words in self.words.items() if "term" not in words]
        assert unheard == [], "every pod received TERM"
        late = [name for name, words in self.words.items() if words["term"] > self.released_s]
        assert late == [], "before the release of the lock"
        for band in range(1, len(BANDS)):
            first = min(words["term"] for name, words in self.words.items() if name.startswith(f"b{band}-"))
            for name, words in self.words.items():
                if name.startswith(f"b{band - 1}-"):
                    assert words["term"] <= first, (name, "order")

    def release_delay_s(self) -> float:
        """Return the time from the end of the last pod to the release of the lock."""
        ends = [words["exit-0"] for words in self.words.values() if "exit-0" in words]
        ends += [
            (each["asked_ms"] + each["took_ms"]) / 1000 for each in self.pods.values() if each["outcome"] == "killed"
        ]
        return self.released_s - max(ends, default=0.0)

    def assert_released_with_the_last_pod(self) -> None:
        assert self.release_delay_s() <= self.release_s


@pytest.fixture(scope="module")
def prepared(disk: Disk) -> Iterator[Node]:
    with vm.Node.boot(disk) as node:
        node.import_images(vm.pause_image(), images.image(APP))
        install(node, 10)
        yield node


def measure_slowdown(node: Node) -> float:
    """Return the time of a computation in the node as a multiple of its time on a node that is not emulated."""
    return max(1.0, float(node.run(("python3", "-c", _LOOP)).stdout) / _LOOP_S)


def shut_down(node: Node, pods: list[RunningPod], command: str = "systemctl poweroff") -> Facts:
    slowdown = measure_slowdown(node)
    node.run(command)
    if command == "systemctl halt":
        reclaim.poll("the kernel has halted", lambda: "reboot: System halted" in node.console, timeout_s=OFF_S)
        node.cut_power()
    else:
        node.wait_off(timeout_s=OFF_S)
    facts = Facts(node, pods, slowdown)
    facts.print_table()
    return facts


def prepare(node: Node, count: int, kinds: tuple[str, ...], limit_s: float, suffix: str) -> list[RunningPod]:
    if not node.running:
        node.start()
    install(node, limit_s / len(BANDS))
    set_limit(node, OWN, limit_s)
    node.run(f"mkdir -p {_WORDS}")
    pods = node.run_pods(*make_pods(count, kinds, suffix))
    start(node)
    names = {pod.pod.name for pod in pods}
    reclaim.poll("the pods are recorded", lambda: names <= _recorded_names(node), timeout_s=300, interval_s=1)
    return pods


def _recorded_names(node: Node) -> set[str]:
    return {each["name"] for each in read_record(node, "boot").get("pods", ())}


@pytest.mark.parametrize(
    ("count", "kinds", "limit_s"),
    [
        (12, (AT_ONCE,), 4),
        (12, (AT_ONCE, TWO_SECONDS, IGNORES), 30),
        (40, (AT_ONCE,), 30),
        (40, (AT_ONCE, TWO_SECONDS, IGNORES), 90),
        (40, (AT_ONCE, IGNORES), 4),
    ],
)
def test_every_outcome_is_what_the_pod_itself_wrote(
    prepared: Node, count: int, kinds: tuple[str, ...], limit_s: float
) -> None:
    pods = prepare(prepared, count, kinds, limit_s, f"-{count}x{limit_s:g}")
    facts = shut_down(prepared, pods)
    if limit_s >= 30:
        facts.assert_true()
        facts.assert_released_with_the_last_pod()
    else:  # too short for the emulated machine, which the record states
        facts.assert_outcomes()
        unheard = {name for name, words in facts.words.items() if "term" not in words}
        assert unheard <= {name for name, each in facts.pods.items() if each["outcome"] == "failed"}
    (finished,) = [each for each in facts.log if each["event"] == "shutdown_finished"]
    numbers = re.findall(r"(\d+) ", finished["outcomes"])
    assert sum(map(int, numbers)) == count
    assert facts.released_s <= limit_s + facts.release_s


def _band_terminates(node: Node, pods: list[RunningPod], band: int) -> None:
    files = [_words_file(pod) for pod in pods if pod.pod.name.startswith(f"b{band}-")]
    reclaim.poll(
        f"band {band} received TERM",
        lambda: any(b"term " in node.get(each) for each in files),
        timeout_s=START_S,
        interval_s=0.2,
    )


@pytest.mark.parametrize("first", ["agent", "containerd"])
def test_crash_in_each_phase_kills_no_pod_unheard(prepared: Node, first: str) -> None:
    """Kill the agent in two phases and containerd in the other two; all four with both parameters."""
    limit_s = 120
    pods = prepare(prepared, 8, (TWO_SECONDS, IGNORES), limit_s, f"-{first}")
    slowdown = measure_slowdown(prepared)
    prepared.run("systemctl poweroff")
    for band in range(len(BANDS)):
        _band_terminates(prepared, pods, band)
        if (band % 2 == 0) == (first == "agent"):
            prepared.run(f"kill -9 {main_pid(prepared)}")
            assert lock_entry(prepared), "the lock is kept"
        else:
            prepared.run("systemctl kill --kill-whom main --signal KILL containerd")  # its shims continue
    prepared.wait_off(timeout_s=OFF_S)
    facts = Facts(prepared, pods, slowdown)
    facts.print_table()
    facts.assert_true()
    for name, words in facts.words.items():
        if "slow" in name:
            assert "exit-0" in words, (name, "ended by itself within its time")
    assert facts.released_s <= limit_s + facts.release_s
    assert event_names(facts.log).count("shutdown_resumed") == len(BANDS) // 2


def test_last_settings_are_used_after_a_start_with_an_invalid_configuration(prepared: Node) -> None:
    pods = prepare(prepared, 8, (AT_ONCE, TWO_SECONDS), 60, "-config")
    prepared.put("/etc/nodeagent/config.toml", "[shutdown]\ngrace_period = 7 parsecs\n")
    prepared.run("systemctl restart nodeagent", timeout_s=START_S)
    wait_for_lock(prepared)
    assert "graceful shutdown only" in prepared.run("systemctl status nodeagent", check=False).stdout
    facts = shut_down(prepared, pods)
    facts.assert_true()
    assert "config_invalid" in event_names(facts.log)
    (begun,) = [each for each in facts.log if each["event"] == "shutdown_started"]
    assert begun["phases"] == {f"priority-{band}": 14.875 for band in BANDS}


_LOAD_KEXEC = """\
import ctypes, os
system = ctypes.CDLL(None, use_errno=True)
kernel, words = os.open("/root/vmlinuz", os.O_RDONLY), b"console=ttyS0 panic=1"  # without a root: it panics and reboots
if system.syscall(320, kernel, -1, ctypes.c_ulong(len(words) + 1), words, ctypes.c_ulong(4)):
    raise OSError(ctypes.get_errno(), "kexec_file_load")
"""


@pytest.mark.parametrize(
    ("command", "operation"),
    [
        ("systemctl reboot", "reboot"),
        ("systemctl halt", "halt"),
        ("systemctl kexec", "kexec"),
        ("shutdown +10 && shutdown -c && shutdown +1", "poweroff"),
    ],
)
def test_requested_operation_is_recorded(prepared: Node, command: str, operation: str) -> None:
    pods = prepare(prepared, 4, (AT_ONCE,), 60, f"-{operation}")
    if operation == "kexec":
        prepared.put("/root/vmlinuz", prepared.source.kernel)
        prepared.run(("python3", "-c", _LOAD_KEXEC))
    facts = shut_down(prepared, pods, command)
    facts.assert_true()
    assert (facts.record["operation"], facts.record["end"]) == (operation, "complete")
    assert event_names(facts.log).count("shutdown_started") == 1, "none for a shutdown that was cancelled in time"


def test_complete_shutdown_remains_complete_after_a_soft_reboot(prepared: Node) -> None:
    prepare(prepared, 4, (AT_ONCE,), 60, "-soft")
    prepared.run("systemctl soft-reboot --no-block")
    reclaim.poll("the pods are stopped", lambda: read_record(prepared).get("end") == "complete", timeout_s=120)

    def started_again() -> bool:
        count = prepared.run("systemctl show --property SoftRebootsCount --value", check=False).stdout.strip()
        return count == "1" and prepared.run("systemctl is-active nodeagent", check=False).code == 0

    reclaim.poll("the userspace has started again", started_again, timeout_s=300, interval_s=2)
    wait_for_lock(prepared)
    record = read_record(prepared)
    assert (record["end"], record["operation"]) == ("complete", "soft-reboot")


def read_record(node: Node, name: str = "shutdown") -> dict[str, Any]:
    """Return a record of the agent; empty before it is written."""
    try:
        record: dict[str, Any] = json.loads(node.get(f"/var/lib/nodeagent/{name}.json"))
    except (vm.NodeError, TimeoutError):
        return {}
    return record
