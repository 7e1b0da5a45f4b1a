"""Tests of recorded shutdown outcomes against the times and exits that the pods write."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.node.shutdown_facts import shut_down
from tests.node.shutdown_node import (
    START_S,
    event_names,
    install_with_limit,
    read_record,
    start_with,
    wait_for_lock,
)
from tests.node.shutdown_pods import AT_ONCE, IGNORES, LONG, TWO_SECONDS, in_every_band, run_pods
from tests.support import reclaim

if TYPE_CHECKING:
    from tests.support.vm import Node, RunningPod

pytestmark = [pytest.mark.node, pytest.mark.long]

ALL = (AT_ONCE, TWO_SECONDS, IGNORES)


def prepare(node: Node, count: int, kinds: tuple[str, ...], limit_s: float, suffix: str) -> list[RunningPod]:
    install_with_limit(node, limit_s)
    pods = run_pods(node, in_every_band(count, kinds, suffix))
    start_with(node, pods)
    return pods


@pytest.mark.parametrize(
    ("count", "kinds", "limit_s"),
    [
        (12, (AT_ONCE,), 4),
        (12, ALL, 4),
        (12, ALL, 30),
        (12, ALL, 90),
        (12, (AT_ONCE, LONG, IGNORES), 90),
        (40, (AT_ONCE,), 30),
        (40, ALL, 30),
        (40, ALL, 90),
        (40, ALL, 4),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else f"{value:g}",
)
def test_every_outcome_is_what_the_pod_itself_wrote(
    shutdown_node: Node, count: int, kinds: tuple[str, ...], limit_s: float
) -> None:
    pods = prepare(shutdown_node, count, kinds, limit_s, f"-{count}x{limit_s:g}")
    facts = shut_down(shutdown_node, pods)
    if shutdown_node.counted or limit_s >= 90 or len(kinds) == 1 or (count, limit_s) == (12, 30):
        facts.assert_true()
        facts.assert_released_with_the_last_pod()
    else:  # too short for an emulated machine under load; the record states that TERM was not confirmed
        facts.assert_outcomes()
        assert facts.unheard <= facts.without_time_for_term
    (finished,) = facts.events("shutdown_finished")
    numbers = re.findall(r"(\d+) ", finished["outcomes"])
    assert sum(map(int, numbers)) == count
    if shutdown_node.counted:
        assert finished.get("failed", 0) == 0, "all pods have ended"
    assert facts.released_s <= limit_s + facts.release_s


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
    ids=["reboot", "halt", "kexec", "scheduled-poweroff"],
)
def test_requested_operation_is_recorded(shutdown_node: Node, command: str, operation: str) -> None:
    pods = prepare(shutdown_node, 4, (AT_ONCE,), 60, f"-{operation}")
    if operation == "kexec":
        shutdown_node.put("/root/vmlinuz", shutdown_node.source.kernel)
        shutdown_node.run(("python3", "-c", _LOAD_KEXEC))
    facts = shut_down(shutdown_node, pods, command)
    facts.assert_true()
    assert (facts.record["operation"], facts.record["end"]) == (operation, "complete")
    assert event_names(facts.log).count("shutdown_started") == 1, "none for a shutdown that was cancelled in time"


def test_complete_shutdown_remains_complete_after_a_soft_reboot(shutdown_node: Node) -> None:
    prepare(shutdown_node, 4, (AT_ONCE,), 60, "-soft")
    shutdown_node.run("systemctl soft-reboot --no-block")
    reclaim.poll("the pods are stopped", lambda: read_record(shutdown_node).get("end") == "complete", timeout_s=120)

    def started_again() -> bool:
        show = "systemctl show --property SoftRebootsCount --value"
        count = shutdown_node.run(show, check=False).stdout.strip()
        return count == "1" and shutdown_node.run("systemctl is-active nodeagent", check=False).code == 0

    reclaim.poll("the userspace has started again", started_again, timeout_s=START_S, interval_s=2)
    wait_for_lock(shutdown_node)
    record = read_record(shutdown_node)
    assert (record["end"], record["operation"]) == ("complete", "soft-reboot")
