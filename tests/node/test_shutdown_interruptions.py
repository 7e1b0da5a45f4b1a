"""Tests of interrupted shutdowns: crashes, an invalid configuration, and concurrent actions of users on the node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.node.shutdown_facts import ShutdownFacts, measure_slowdown, shut_down
from tests.node.shutdown_node import (
    BANDS,
    START_S,
    event_names,
    install_with_limit,
    lock_entry,
    log_now,
    main_pid,
    parsed,
    start_with,
    wait_for_lock,
)
from tests.node.shutdown_pods import (
    AT_ONCE,
    EXIT,
    IGNORES,
    LONG_S,
    TWO_SECONDS,
    assert_in_order,
    await_term,
    in_every_band,
    pod,
    read_times,
    run_pods,
)
from tests.support import reclaim

if TYPE_CHECKING:
    from tests.support.vm import Node, RunningPod

pytestmark = [pytest.mark.node, pytest.mark.long]

CRITICAL = BANDS[-1]
_STATE = "/var/lib/nodeagent"


def prepare(
    node: Node, kinds: tuple[str, ...], limit_s: float, suffix: str, count: int | None = None
) -> list[RunningPod]:
    """Run pods in all priority bands and start the agent; by default, every band has one pod of each kind."""
    install_with_limit(node, limit_s)
    pods = run_pods(node, in_every_band(count or len(kinds) * len(BANDS), kinds, suffix))
    start_with(node, pods)
    return pods


def kill(node: Node, what: str) -> None:
    """Kill the agent or containerd with SIGKILL; the shims of containerd continue to run."""
    if what == "agent":
        node.run(f"kill -9 {main_pid(node)}")
        assert lock_entry(node), "the lock is kept"
    else:
        node.run("systemctl kill --kill-whom main --signal KILL containerd")


@pytest.mark.parametrize("first", ["agent", "containerd"])
@pytest.mark.parametrize(("count", "limit_s"), [(12, 120), (40, 240)])
def test_crash_in_each_phase_kills_no_pod_without_term(
    shutdown_node: Node, first: str, count: int, limit_s: float
) -> None:
    """Kill the agent in two phases and containerd in the other two phases; the parameter selects the phases."""
    pods = prepare(shutdown_node, (TWO_SECONDS, IGNORES), limit_s, f"-{first}{count}", count)
    slowdown = measure_slowdown(shutdown_node)
    shutdown_node.run("systemctl poweroff")
    for band in range(len(BANDS)):
        await_term(shutdown_node, pods, band)
        kill(shutdown_node, "agent" if (band % 2 == 0) == (first == "agent") else "containerd")
    shutdown_node.wait_off(timeout_s=START_S)
    facts = ShutdownFacts(shutdown_node, pods, slowdown)
    facts.assert_true()
    facts.assert_released_with_the_last_pod()
    for name, times in facts.times.items():
        if TWO_SECONDS in name:
            assert EXIT in times, (name, "ended by itself within its time")
    assert facts.released_s <= limit_s + facts.release_s
    assert event_names(facts.log).count("shutdown_resumed") == len(BANDS) // 2


@pytest.mark.parametrize("band", [None, 0, 1, 2, 3])
def test_agent_stopped_before_or_in_a_phase_is_replaced_by_the_stop_hook(shutdown_node: Node, band: int | None) -> None:
    """Stop the agent by SIGSTOP; logind then continues the shutdown at its limit, and systemd runs the stop hook."""
    pods = prepare(shutdown_node, (TWO_SECONDS, IGNORES), 30, f"-stop{band}", 16)
    stop = f"kill -STOP {main_pid(shutdown_node)}"
    if band is None:
        shutdown_node.run(stop)
    shutdown_node.run("systemctl poweroff")
    if band is not None:
        await_term(shutdown_node, pods, band)
        shutdown_node.run(stop)
    shutdown_node.wait_off(timeout_s=START_S)
    log = parsed(shutdown_node.journal())
    record = json.loads(shutdown_node.read_disk(f"{_STATE}/shutdown.json"))
    times = {each.pod.name: read_times(shutdown_node, each.pod.name) for each in pods}
    for each in record["pods"]:
        print(each["name"], each["outcome"], each["detail"], each["asked_ms"], each["took_ms"], times[each["name"]])
    assert (record["kind"], record["end"]) == ("unit-stop", "complete")
    assert ("shutdown_taken_over" in event_names(log)) == (band is not None)
    assert all("term" in each for each in times.values()), "every pod received TERM"
    assert_in_order(times)
    for each in record["pods"]:
        written, end_s = times[each["name"]], record["started_s"] + (each["asked_ms"] + each["took_ms"]) / 1000
        assert each["outcome"] == ("stopped" if EXIT in written else "killed")
        assert "no TERM" not in each["detail"]
        if EXIT in written:
            assert abs(end_s - written[EXIT]) < 5, "the record has the time of the end, not of its late observation"
        else:
            assert end_s - written["term"] >= 0.5, "KILL follows TERM after the minimum time"


def test_last_settings_are_used_after_a_start_with_an_invalid_configuration(shutdown_node: Node) -> None:
    pods = prepare(shutdown_node, (AT_ONCE, TWO_SECONDS), 60, "-config")
    pid = main_pid(shutdown_node)
    reclaim.poll(
        "the phases are logged",  # logged after the lock has been acquired
        lambda: "shutdown_ready" in event_names(log_now(shutdown_node, pid)),
        timeout_s=START_S,
        interval_s=0.5,
    )
    phases = [each["phases"] for each in log_now(shutdown_node, pid) if each["event"] == "shutdown_ready"][-1]
    assert set(phases) == {f"priority-{band}" for band in BANDS}
    shutdown_node.put("/etc/nodeagent/config.toml", "[shutdown]\ngrace_period = 7 parsecs\n")
    shutdown_node.run("systemctl restart nodeagent", timeout_s=START_S)
    wait_for_lock(shutdown_node)
    assert "only graceful shutdown runs" in shutdown_node.run("systemctl status nodeagent", check=False).stdout
    facts = shut_down(shutdown_node, pods)
    facts.assert_true()
    assert "config_invalid" in event_names(facts.log)
    (begun,) = facts.events("shutdown_started")
    assert begun["phases"] == phases


def test_restarts_for_a_permanent_failure_back_off_and_keep_no_lock(shutdown_node: Node) -> None:
    install_with_limit(shutdown_node, 60)
    shutdown_node.put("/etc/nodeagent/config.toml", "[shutdown]\ngrace_period = 7 parsecs\n")
    shutdown_node.run(f"systemctl stop nodeagent; rm -rf {_STATE}; systemctl start --no-block nodeagent")
    show = "systemctl show nodeagent --property NRestarts --value"
    reclaim.poll(
        "systemd has restarted the agent 6 times",
        lambda: int(shutdown_node.run(show).stdout) >= 6,
        timeout_s=START_S,
        interval_s=1,
    )
    assert not lock_entry(shutdown_node)
    own = [each for each in shutdown_node.journal() if each.fields.get("UNIT") == "nodeagent.service"]
    at_s = {
        kind: [int(each.fields["__MONOTONIC_TIMESTAMP"]) / 1e6 for each in own if text in each.message]
        for kind, text in (("failed", "Failed with result"), ("restarted", "Scheduled restart job"))
    }
    waits_s = [restarted - failed for failed, restarted in zip(at_s["failed"], at_s["restarted"][:6], strict=False)]
    print(f"waits before the restarts: {waits_s}")
    assert waits_s[0] < 5
    assert waits_s == sorted(waits_s)
    assert waits_s[-1] >= 10


def test_actions_of_others_during_a_shutdown_change_no_outcome(shutdown_node: Node) -> None:
    """Create pods, set the wall clock and request the shutdown again; one critical pod ends slowly."""
    limit_s = 120
    pods = prepare(shutdown_node, (TWO_SECONDS, IGNORES), limit_s, "-others")
    pods += run_pods(shutdown_node, [pod("b3-2-long-others", CRITICAL, LONG_S)])
    slowdown = measure_slowdown(shutdown_node)
    shutdown_node.run("systemctl poweroff")
    await_term(shutdown_node, pods, 0)
    pods += run_pods(shutdown_node, [pod("b0-2-new-others", BANDS[0]), pod("b3-3-new-others", CRITICAL)])
    shutdown_node.run("date --set '+2 hours'")
    await_term(shutdown_node, pods, 1)
    shutdown_node.run("systemctl poweroff", check=False)
    shutdown_node.run("date --set '-2 hours'")
    shutdown_node.wait_off(timeout_s=START_S)
    facts = ShutdownFacts(shutdown_node, pods, slowdown)
    facts.assert_outcomes()
    assert facts.unheard == set()
    assert facts.pods["b3-2-long-others"]["outcome"] == "stopped"
    assert_in_order({name: times for name, times in facts.times.items() if "b0-2" not in name})
    assert len(facts.events("shutdown_started")) == 1
    (finished,) = facts.events("shutdown_finished")
    assert (finished["end"], finished["seconds"] <= limit_s) == ("complete", True)
    assert facts.released_s <= limit_s + facts.release_s


@pytest.mark.parametrize("action", ["stop", "restart"])
def test_stop_of_the_unit_in_a_shutdown_waits_for_the_pods(shutdown_node: Node, action: str) -> None:
    """The phases fit in the time that the unit grants to its stop hook."""
    pods = prepare(shutdown_node, (TWO_SECONDS, IGNORES), 45, f"-{action}")
    slowdown = measure_slowdown(shutdown_node)
    shutdown_node.run("systemctl poweroff")
    await_term(shutdown_node, pods, 0)
    shutdown_node.run(f"systemctl {action} --no-block nodeagent")
    shutdown_node.wait_off(timeout_s=START_S)
    facts = ShutdownFacts(shutdown_node, pods, slowdown)
    facts.assert_true()
    assert facts.events("unit_stop_delayed")


def test_frozen_shim_does_not_delay_the_release(shutdown_node: Node) -> None:
    pods = prepare(shutdown_node, (AT_ONCE, TWO_SECONDS), 90, "-shim")
    frozen = next(each for each in pods if each.pod.name.startswith("b1-1"))
    shutdown_node.run(f"pkill -STOP -f '[c]ontainerd-shim.*{frozen.sandbox_id}'")
    facts = shut_down(shutdown_node, pods)
    facts.assert_true()
    facts.assert_released_with_the_last_pod()
    assert "exit code not reported" in facts.pods[frozen.pod.name]["detail"]


def test_restart_of_the_bus_just_before_a_shutdown_changes_no_outcome(shutdown_node: Node) -> None:
    """logind announces the shutdown if the agent has activated it again; otherwise the stop hook stops the pods."""
    pods = prepare(shutdown_node, (TWO_SECONDS, IGNORES), 40, "-bus")
    shutdown_node.run("systemctl restart dbus; systemctl poweroff", check=False)
    shutdown_node.wait_off(timeout_s=START_S)
    assert_true_by_log(shutdown_node, pods)


def test_full_state_directory_changes_no_outcome(shutdown_node: Node) -> None:
    """The shutdown is recorded in the runtime directory, and the stop hook does not repeat the shutdown."""
    install_with_limit(shutdown_node, 60)
    pods = run_pods(shutdown_node, in_every_band(8, (TWO_SECONDS, IGNORES), "-full"))
    shutdown_node.run(
        f"systemctl stop nodeagent; mkdir -p {_STATE} && mount -t tmpfs -o size=4m,mode=750 none {_STATE}"
    )
    start_with(shutdown_node, pods)
    filled = shutdown_node.run(f"dd if=/dev/zero of={_STATE}/filler bs=4k; df {_STATE}", check=False)
    assert "No space left" in filled.stderr
    shutdown_node.poweroff(timeout_s=START_S)
    log = assert_true_by_log(shutdown_node, pods)
    problems = [each for each in log if each["event"] == "shutdown_state_not_written"]
    assert "No space left on device" in problems[0]["error"]
    assert not any("boot.json" in each["error"] for each in problems), "overwritten within its blocks"
    assert event_names(log).count("shutdown_finished") == event_names(log).count("shutdown_already_done") == 1


def assert_true_by_log(node: Node, pods: list[RunningPod]) -> list[dict[str, Any]]:
    """Assert that the logged outcomes and their order agree with the times written by the pods; return the log."""
    log = parsed(node.journal())
    for each in log:
        if each["event"].startswith(("shutdown", "pod_", "inhibitor", "logind")):
            print(each)
    logged = [(each["pod"].removeprefix("shop/"), each["outcome"]) for each in log if each["event"] == "pod_stopped"]
    times = {each.pod.name: read_times(node, each.pod.name) for each in pods}
    print(json.dumps(times, indent=0))
    assert sorted(logged) == sorted((name, "stopped" if EXIT in each else "killed") for name, each in times.items())
    assert_in_order(times)
    return log
