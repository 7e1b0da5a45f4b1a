"""Shutdowns of a whole node by every trigger: pods are stopped in order, with a journal entry for each.

The machine is emulated, so durations are long; the tests compare the order, and shares of the granted time.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.node.conftest import APP
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
from tests.support import images, reclaim, vm

if TYPE_CHECKING:
    from tests.support.vm import Disk, Node, RunningPod

pytestmark = [pytest.mark.node, pytest.mark.long]


def pod_that_ends(name: str, priority: int, ends_after_s: float = 0.5) -> vm.Pod:
    """Return a pod that ends so many seconds after TERM, and logs TERM and its end."""
    script = (
        f"trap 'echo term; sleep {ends_after_s}; echo ended; exit 0' TERM; echo up; while :; do sleep 1 & wait $!; done"
    )
    annotations = {"nodeagent.dev/priority": str(priority)}
    return vm.Pod(name, APP, ("sh", "-c", script), namespace="shop", annotations=annotations)


def pod_that_ignores_term(name: str, priority: int) -> vm.Pod:
    """Return a pod that logs TERM and continues."""
    script = "trap 'echo term' TERM; echo up; while :; do sleep 1 & wait $!; done"
    annotations = {"nodeagent.dev/priority": str(priority)}
    return vm.Pod(name, APP, ("sh", "-c", script), namespace="shop", annotations=annotations)


def three_pods_per_band(suffix: str = "", ends_after_s: float = 0.5) -> list[vm.Pod]:
    """Return three pods in each priority band; one of the second band ignores TERM."""
    pods = [
        pod_that_ends(f"b{band}-{index}{suffix}", priority, ends_after_s)
        for band, priority in enumerate(BANDS)
        for index in range(3)
    ]
    pods[5] = pod_that_ignores_term(f"b1-2{suffix}", BANDS[1])
    return pods


def spans(node: Node, pods: list[RunningPod]) -> dict[str, dict[str, float]]:
    """Return the time of each word in each pod's log on the disk, in seconds."""
    found = {}
    for pod in pods:
        words: dict[str, float] = {}
        for line in node.read_disk(pod.log_file).decode().splitlines():
            at, _, _, word = line.split(" ", 3)
            words.setdefault(word, datetime.fromisoformat(at[:26] + "+00:00").timestamp())
        found[pod.pod.name] = words
    return found


def in_order(words: dict[str, dict[str, float]]) -> None:
    """Assert that no band received TERM before all pods of the band below had ended or been killed."""
    for band in range(1, len(BANDS)):
        first = min(each["term"] for name, each in words.items() if name.startswith(f"b{band}-"))
        for name, each in words.items():
            if name.startswith(f"b{band - 1}-"):
                assert each.get("ended", each["term"]) <= first, (name, words)


def outcomes(log: list[dict[str, Any]]) -> dict[str, str]:
    return {each["pod"].removeprefix("shop/"): each["outcome"] for each in log if each["event"] == "pod_stopped"}


def test_pods_are_stopped_in_order_in_repeated_shutdowns(disk: Disk) -> None:
    with vm.Node.boot(disk) as node:
        node.import_images(vm.pause_image(), images.image(APP))
        install(node, 8)
        set_limit(node, OWN, 60)
        pods = node.run_pods(*three_pods_per_band())
        start(node)
        _status_and_rehearsal(node)
        _lock_lasts(node)
        _stop_of_the_unit_stops_no_pod(node, pods)

        node.poweroff()
        log = parsed(node.journal())
        print(
            json.dumps([each for each in log if each["event"].startswith(("shutdown", "pod_", "inhibitor"))], indent=0)
        )
        found = outcomes(log)
        assert found == {pod.pod.name: "stopped" for pod in pods} | {"b1-2": "killed"}
        in_order(spans(node, pods))
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
    """Restart the bus and logind, then kill the agent; assert that logind lists the lock again after each."""
    for unit in ("dbus", "systemd-logind"):
        before = count(node, "inhibitor_lock_acquired")
        node.run(f"systemctl restart {unit}", timeout_s=60)
        await_count(node, "inhibitor_lock_acquired", before + 1, within_s=30)
        wait_for_lock(node)
    pid = main_pid(node)
    node.run(f"kill -9 {pid}")
    assert lock_entry(node), "systemd has a copy of the lock"
    reclaim.poll("the agent has restarted", lambda: main_pid(node) not in ("0", pid), timeout_s=START_S, interval_s=0.5)
    wait_for_lock(node)
    print(node.run("systemctl show nodeagent --property CPUUsageNSec,NFileDescriptorStore,NRestarts").stdout)


def _stop_of_the_unit_stops_no_pod(node: Node, pods: list[RunningPod]) -> None:
    node.run("systemctl stop nodeagent", timeout_s=60)
    assert not lock_entry(node)
    assert b"term" not in b"".join(node.get(pod.log_file) for pod in pods)
    start(node)


def _cancelled_shutdowns(node: Node) -> None:
    """Cancel a shutdown by a restart of logind, and another one after all pods have ended."""
    node.run(f"rm {UPGRADES}")
    set_limit(node, OWN, 60)
    slow, kept = node.run_pods(pod_that_ends("slow", 0, 20), pod_that_ends("kept", BANDS[3]))
    start(node)
    node.run("shutdown +600 && shutdown -c")
    assert count(node, "shutdown_started") == 0

    node.run("systemctl poweroff")
    await_count(node, "shutdown_started", 1)
    node.run("systemctl restart systemd-logind", timeout_s=60)
    await_count(node, "shutdown_cancelled", 1)
    wait_for_lock(node)
    assert b"term" in node.get(slow.log_file)
    assert b"term" not in node.get(kept.log_file)

    node.run("systemctl poweroff")
    await_count(node, "shutdown_started", 2)
    node.run("systemctl mask --runtime poweroff.target")
    await_count(node, "shutdown_cancelled", 2)
    node.run("systemctl unmask --runtime poweroff.target")
    wait_for_lock(node)
    assert b"ended" in node.get(kept.log_file)
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
    pods = node.run_pods(*three_pods_per_band("-x", 0.1))
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
    assert set(outcomes(log)) == {pod.pod.name for pod in pods}


def _power_cut(node: Node) -> None:
    node.start()
    wait_for_lock(node)
    _cancelled_shutdowns(node)
    node.run_pods(pod_that_ends("lost", 0))
    start(node)
    reclaim.poll("the pod is recorded", lambda: b'"lost"' in node.get("/var/lib/nodeagent/boot.json"), timeout_s=60)
    node.run("sync")
    node.cut_power()
    node.start()
    wait_for_lock(node)
    (unclean,) = [each for each in log_now(node) if each["event"] == "unclean_stop"]
    assert "shop/lost" in unclean["running"]
    assert "unclean" in node.run("nodeagent shutdown status").stdout


def test_stop_hook_stops_the_pods_in_a_shutdown_without_logind(disk: Disk) -> None:
    with vm.Node.boot(disk) as node:
        node.import_images(vm.pause_image(), images.image(APP))
        install(node, 8)
        start(node)
        pods = node.run_pods(*three_pods_per_band())
        node.run("systemctl start poweroff.target --no-block --job-mode=replace-irreversibly")
        node.wait_off()
        log = parsed(node.journal())
        print(json.dumps([each for each in log if each["event"].startswith(("shutdown", "pod_"))], indent=0))
        (done,) = [each for each in log if each["event"] == "shutdown_finished"]
        assert (done["kind"], done["end"]) == ("unit-stop", "complete")
        assert outcomes(log) == {pod.pod.name: "stopped" for pod in pods} | {"b1-2": "killed"}
        in_order(spans(node, pods))


def test_stop_hook_stops_the_pods_if_logind_grants_too_little_time(disk: Disk) -> None:
    with vm.Node.boot(disk) as node:
        node.import_images(vm.pause_image(), images.image(APP))
        install(node, 8)
        set_limit(node, OWN, 0)
        start(node)
        pods = node.run_pods(*three_pods_per_band())
        checked = json.loads(node.run("nodeagent doctor -o json", check=False).stdout)
        (finding,) = [each for each in checked["findings"] if each["check"] == "logind-delay"]
        assert "no pod is stopped at the signal" in finding["evidence"]
        node.run("systemctl poweroff")
        node.wait_off()
        log = parsed(node.journal())
        print(json.dumps([each for each in log if each["event"].startswith(("shutdown", "pod_"))], indent=0))
        (done,) = [each for each in log if each["event"] == "shutdown_finished"]
        assert (done["kind"], done["end"]) == ("unit-stop", "complete")
        assert outcomes(log) == {pod.pod.name: "stopped" for pod in pods} | {"b1-2": "killed"}
        in_order(spans(node, pods))


def test_agent_killed_during_a_shutdown_resumes_it(disk: Disk) -> None:
    with vm.Node.boot(disk) as node:
        node.import_images(vm.pause_image(), images.image(APP))
        install(node, 25)
        set_limit(node, OWN, 120)
        pods = node.run_pods(*[pod_that_ends(f"b{band}-0", priority, 12) for band, priority in enumerate(BANDS)])
        start(node)
        pid = main_pid(node)
        node.run("systemctl poweroff")
        await_count(node, "shutdown_started", 1)
        node.run(f"kill -9 {pid}")
        held = lock_entry(node)
        print(f"copy of the lock in systemd: {held}")
        assert held
        node.wait_off()
        log = parsed(node.journal())
        print(
            json.dumps([each for each in log if each["event"].startswith(("shutdown", "pod_", "inhibitor"))], indent=0)
        )
        assert event_names(log).count("agent_started") == 2
        assert "shutdown_resumed" in event_names(log)
        assert outcomes(log) == {f"b{band}-0": "stopped" for band in range(4)}
        in_order(spans(node, pods))
        (done,) = [each for each in log if each["event"] == "shutdown_finished"]
        assert done["seconds"] <= 100
