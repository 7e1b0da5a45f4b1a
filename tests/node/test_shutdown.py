"""Tests of shutdowns of a virtual machine by every trigger: pods are stopped in order, with a journal entry each.

The machine is emulated, so that durations are long; the tests compare the order and the shares of the granted time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.node.shutdown_facts import RELEASE_S, measure_slowdown
from tests.node.shutdown_node import (
    BANDS,
    OWN,
    START_S,
    UPGRADES,
    await_count,
    count,
    event_names,
    install,
    lock_entry,
    log_now,
    main_pid,
    parsed,
    set_limit,
    start,
    wait_for_lock,
)
from tests.node.shutdown_pods import EXIT, assert_in_order, has_written, pod, read_times, run_pods
from tests.support import reclaim

if TYPE_CHECKING:
    from tests.support.vm import Node, Pod, RunningPod

pytestmark = [pytest.mark.node, pytest.mark.long]


def three_pods_per_band(suffix: str = "", ends_after_s: float = 0.5) -> list[Pod]:
    """Return three pods in each priority band; one pod of the second band ignores TERM."""
    pods = [
        pod(f"b{band}-{index}{suffix}", priority, ends_after_s)
        for band, priority in enumerate(BANDS)
        for index in range(3)
    ]
    pods[5] = pod(f"b1-2{suffix}", BANDS[1], None)
    return pods


def print_shutdown(log: list[dict[str, Any]]) -> None:
    print(json.dumps([each for each in log if each["event"].startswith(("shutdown", "pod_", "inhibitor"))], indent=0))


def times_of(node: Node, pods: list[RunningPod]) -> dict[str, dict[str, float]]:
    return {each.pod.name: read_times(node, each.pod.name) for each in pods}


def outcomes(log: list[dict[str, Any]]) -> dict[str, str]:
    return {each["pod"].removeprefix("shop/"): each["outcome"] for each in log if each["event"] == "pod_stopped"}


def assert_stopped_by_the_hook(node: Node, pods: list[RunningPod]) -> None:
    """Assert that the stop hook of the unit stopped the pods of :func:`three_pods_per_band` in order."""
    log = parsed(node.journal())
    print_shutdown(log)
    (done,) = [each for each in log if each["event"] == "shutdown_finished"]
    assert (done["kind"], done["end"]) == ("unit-stop", "complete")
    assert outcomes(log) == {each.pod.name: "stopped" for each in pods} | {"b1-2": "killed"}
    assert_in_order(times_of(node, pods))


def test_pods_are_stopped_in_order_in_repeated_shutdowns(shutdown_node: Node) -> None:
    node = shutdown_node
    install(node, 8)
    set_limit(node, OWN, 60)
    pods = run_pods(node, three_pods_per_band())
    start(node)
    _status_and_rehearsal(node)
    _lock_lasts(node)
    _stop_of_the_unit_stops_no_pod(node, pods)

    node.poweroff()
    log = parsed(node.journal())
    print_shutdown(log)
    found = outcomes(log)
    assert found == {each.pod.name: "stopped" for each in pods} | {"b1-2": "killed"}
    assert_in_order(times_of(node, pods))
    (done,) = [each for each in log if each["event"] == "shutdown_finished" and each["end"] == "complete"]
    assert done["seconds"] <= 32
    (unresponsive,) = [each for each in log if each["event"] == "pod_stopped" and each["pod"] == "shop/b1-2"]
    assert 8 <= unresponsive["seconds"] <= 16 + 4, (
        "killed at the end of its phase, extended by unused time of the phase before"
    )
    messages = [each.message for each in node.journal()]
    released = next(index for index, text in enumerate(messages) if '"inhibitor_lock_released"' in text)
    assert any("Reached target poweroff.target" in text for text in messages[released:])

    _a_smaller_limit(node)
    _power_cut(node)


def _status_and_rehearsal(node: Node) -> None:
    shown = json.loads(node.run("nodeagent shutdown --dry-run -o json").stdout)
    assert [[each["name"] for each in phase["pods"]] for phase in shown["phases"]] == [
        [f"b{band}-{index}" for index in range(3)] for band in range(4)
    ]
    assert (shown["enabled"], shown["scaled"], shown["limit"]["set_by"]) == (True, False, OWN)
    assert {each["priority_source"] for phase in shown["phases"] for each in phase["pods"]} == {
        "annotation nodeagent.dev/priority"
    }
    status = json.loads(node.run("nodeagent shutdown status -o json").stdout)
    assert status["inhibitor"]["held"]
    print(node.run("nodeagent shutdown --dry-run; nodeagent shutdown status; systemd-inhibit --list").stdout)


def _lock_lasts(node: Node) -> None:
    """Restart the bus and logind, then kill the agent; assert after each step that logind lists the lock again."""
    for unit in ("dbus", "systemd-logind"):
        before = count(node, "inhibitor_lock_acquired")
        node.run(f"systemctl restart {unit}", timeout_s=60)
        await_count(node, "inhibitor_lock_acquired", before + 1, within_s=30)
        wait_for_lock(node)
    pid = main_pid(node)
    node.run(f"kill -9 {pid}")
    assert lock_entry(node), "logind lists no lock: systemd keeps no copy of its descriptor"
    reclaim.poll("the agent has restarted", lambda: main_pid(node) not in ("0", pid), timeout_s=START_S, interval_s=0.5)
    wait_for_lock(node)
    print(node.run("systemctl show nodeagent --property CPUUsageNSec,NFileDescriptorStore,NRestarts").stdout)


def _stop_of_the_unit_stops_no_pod(node: Node, pods: list[RunningPod]) -> None:
    node.run("systemctl stop nodeagent", timeout_s=60)
    assert not lock_entry(node)
    assert not any(has_written(node, each.pod.name, "term") for each in pods)
    start(node)


def _cancelled_shutdowns(node: Node) -> None:
    """Cancel a shutdown by a restart of logind, and a second shutdown by masking ``poweroff.target``."""
    node.run(f"rm {UPGRADES}")
    set_limit(node, OWN, 60)
    run_pods(node, [pod("slow", 0, 20), pod("kept", BANDS[3])])
    start(node)
    node.run("shutdown +600 && shutdown -c")
    assert count(node, "shutdown_started") == 0

    node.run("systemctl poweroff")
    await_count(node, "shutdown_started", 1)
    node.run("systemctl restart systemd-logind", timeout_s=60)
    await_count(node, "shutdown_cancelled", 1)
    wait_for_lock(node)
    assert has_written(node, "slow", "term")
    assert not has_written(node, "kept", "term")

    node.run("systemctl poweroff")
    await_count(node, "shutdown_started", 2)
    node.run("systemctl mask --runtime poweroff.target")
    await_count(node, "shutdown_cancelled", 2)
    node.run("systemctl unmask --runtime poweroff.target")
    wait_for_lock(node)
    assert has_written(node, "kept", EXIT)
    shown = json.loads(node.run("nodeagent shutdown status -o json").stdout)
    assert [each["end"] for each in shown["stops"][:2]] == ["cancelled", "cancelled"]


def _a_smaller_limit(node: Node) -> None:
    node.start()
    wait_for_lock(node)
    log = log_now(node)
    assert "unclean_stop" not in event_names(log)
    assert "shutdown_incomplete" not in event_names(log)
    node.run(f"rm {OWN}")
    set_limit(node, UPGRADES, 4)
    pods = run_pods(node, three_pods_per_band("-x", 0.1))
    start(node)
    pid = main_pid(node)
    reclaim.poll("the warning is logged", lambda: "shutdown_warning" in event_names(log_now(node, pid)), timeout_s=60)
    (note,) = [each["note"] for each in log_now(node, pid) if each["event"] == "shutdown_warning"]
    print(note)
    assert UPGRADES in note
    assert "scaled to 3.6s" in note
    shown = json.loads(node.run("nodeagent shutdown --dry-run -o json").stdout)
    assert (shown["scaled"], shown["limit"]["set_by"], shown["granted_s"]) == (True, UPGRADES, 3.6)
    checked = json.loads(node.run("nodeagent doctor -o json").stdout)
    (finding,) = [each for each in checked["findings"] if each["check"] == "logind-delay"]
    assert finding["verdict"] == "warning"
    assert UPGRADES in finding["evidence"]
    node.poweroff()
    log = parsed(node.journal())
    (done,) = [each for each in log if each["event"] == "shutdown_finished"]
    print(done)
    assert done["seconds"] <= 4
    assert set(outcomes(log)) == {each.pod.name for each in pods}


def _power_cut(node: Node) -> None:
    node.start()
    wait_for_lock(node)
    _cancelled_shutdowns(node)
    run_pods(node, [pod("lost", 0)])
    start(node)
    reclaim.poll("the pod is recorded", lambda: b'"lost"' in node.get("/var/lib/nodeagent/boot.json"), timeout_s=60)
    node.run("sync")
    node.cut_power()
    node.start()
    wait_for_lock(node)
    (unclean,) = [each for each in log_now(node) if each["event"] == "unclean_stop"]
    assert "shop/lost" in unclean["running"]
    assert "unclean" in node.run("nodeagent shutdown status").stdout


def test_stop_hook_stops_the_pods_in_a_shutdown_without_logind(shutdown_node: Node) -> None:
    node = shutdown_node
    install(node, 8)
    start(node)
    pods = run_pods(node, three_pods_per_band())
    node.run("systemctl start poweroff.target --no-block --job-mode=replace-irreversibly")
    node.wait_off()
    assert_stopped_by_the_hook(node, pods)


def test_stop_hook_stops_the_pods_if_logind_grants_too_little_time(shutdown_node: Node) -> None:
    node = shutdown_node
    install(node, 8)
    set_limit(node, OWN, 0)
    start(node)
    pods = run_pods(node, three_pods_per_band())
    checked = json.loads(node.run("nodeagent doctor -o json", check=False).stdout)
    (finding,) = [each for each in checked["findings"] if each["check"] == "logind-delay"]
    assert "no pod is stopped at the signal" in finding["evidence"]
    node.run("systemctl poweroff")
    node.wait_off()
    assert_stopped_by_the_hook(node, pods)


SLICE_DROP_INS = (
    "/run/systemd/system/kubepods.slice.d/50-nodeagent.conf /run/systemd/system/kubepods-.slice.d/50-nodeagent.conf"
)
CASES = ("dry-run", "off", "paused", "kubelet", "stopped")


def test_agent_that_stops_no_pods_changes_no_shutdown(shutdown_node: Node) -> None:
    """Compare the time of TERM to each pod with that on the node without a running agent.

    The emulation is slower while the host has other load, so that each time is compared at the speed of its own boot.
    """
    node = shutdown_node
    found = {case: shut_down(node, case) for case in ("without", *CASES)}
    slowdown, without = found.pop("without")
    print(f"without the agent: {without}, slowdown {slowdown:.1f}; {found}")
    for case, (own, times) in found.items():
        expected, bound_s = [each * own / slowdown for each in without], max(1.0, RELEASE_S * own)
        for at_s in times:
            assert min(expected) - bound_s <= at_s <= max(expected) + bound_s, (case, expected)


def shut_down(node: Node, case: str) -> tuple[float, list[float]]:
    """Power off a node with two pods; return the slowdown of the node, and the times of :func:`term_times`."""
    install(node, 8)
    if case == "without":
        node.run("systemctl disable --now nodeagent", timeout_s=60)
    pods = run_pods(node, [pod(f"{case}-{index}", BANDS[index]) for index in (0, 3)])
    if case != "without":
        node.run("rm -f /var/lib/nodeagent/pause.json")
        start(node)
        assert node.run(f"ls {SLICE_DROP_INS}", check=False).code == 0, "written by an agent that will stop the pods"
        disable(node, case)
    return measure_slowdown(node), term_times(node, pods)


def disable(node: Node, case: str) -> None:
    """Make the running agent one that stops no pods, and wait until it has removed its lock and its drop-ins."""
    config = node.get("/etc/nodeagent/config.toml").decode()
    if case == "dry-run":
        node.put("/etc/nodeagent/config.toml", "dry_run = true\n" + config)
    elif case == "off":
        node.put("/etc/nodeagent/config.toml", config.replace("[shutdown]\n", '[shutdown]\nenabled = "off"\n'))
    elif case == "kubelet":
        node.put("/etc/nodeagent/config.toml", config.replace('"standalone"', '"beside-kubelet"'))
    action = {"paused": "nodeagent pause --for 1h --why test", "stopped": "systemctl stop nodeagent"}
    node.run(action.get(case, "systemctl reload nodeagent"), timeout_s=START_S)

    def is_disabled() -> bool:
        return not lock_entry(node) and node.run(f"ls {SLICE_DROP_INS} 2>/dev/null", check=False).stdout == ""

    reclaim.poll("lock and drop-ins are removed", is_disabled, timeout_s=START_S, interval_s=1)
    reload_pending = "systemctl show kubepods.slice --property NeedDaemonReload --value"
    reclaim.poll(
        "systemd is reloaded", lambda: node.run(reload_pending).stdout == "no\n", timeout_s=START_S, interval_s=1
    )


def term_times(node: Node, pods: list[RunningPod]) -> list[float]:
    """Power the node off; return the seconds from the request to the TERM of each pod."""
    began_s = float(node.run("cut -d' ' -f1 /proc/uptime && systemctl poweroff", timeout_s=START_S).stdout.split()[0])
    node.wait_off(timeout_s=START_S)
    return sorted(read_times(node, each.pod.name)["term"] - began_s for each in pods)
