"""Shutdowns with an unresponsive runtime, with hung shims, and after an interruption, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from nodeagent.model.pods import CRITICAL_PRIORITY as CRITICAL
from nodeagent.model.stops import PodOutcome, SentTerm, StoppedPod
from nodeagent.record import replace
from nodeagent.shutdown.plan.planner import DelayLimit, by_priority, shutdown_budget
from tests.unit.shutdown.shutdown_node import TEN_AND_FIVE, Node, pod, run_down

if TYPE_CHECKING:
    from nodeagent.shutdown.plan.planner import ShutdownBudget

PRIORITIES = (0, 1000, 100_000, CRITICAL)


def four_bands(limit_s: float) -> ShutdownBudget:
    return shutdown_budget(by_priority([(each, limit_s / 4) for each in PRIORITIES]), DelayLimit(round(limit_s * 1e6)))


def stopping(name: str, phase: str, *, requested_at_ms: int = 0, signalled_at_ms: int | None = 0) -> StoppedPod:
    return StoppedPod(
        name,
        "shop",
        name,
        phase,
        outcome=PodOutcome.STOPPING,
        requested_at_ms=requested_at_ms,
        container_ids=(f"{name}-c",),
        terms={} if signalled_at_ms is None else {f"{name}-c": SentTerm(signalled_at_ms)},
    )


def test_hanging_call_is_abandoned_before_the_limit() -> None:
    budget = shutdown_budget(TEN_AND_FIVE, DelayLimit(10_000_000))
    node = Node([pod("web"), pod("hung", CRITICAL)], unresponsive={"hung-c"})
    result = run_down(node, budget)
    assert result.pods["web"].outcome is PodOutcome.STOPPED
    assert result.pods["hung"].outcome is PodOutcome.FAILED
    assert "still running" in result.pods["hung"].detail
    assert budget.granted_ms <= result.ended_ms < 10_000


def test_hanging_call_does_not_delay_the_next_phase() -> None:
    node = Node([pod("hung"), pod("dns", CRITICAL)], unresponsive={"hung-c"})
    result = run_down(node)
    assert node.received("dns-c", "TERM") == [10_000]
    assert result.pods["dns"].outcome is PodOutcome.STOPPED
    assert result.pods["hung"].outcome is PodOutcome.FAILED


@pytest.mark.difference("shutdown-direct-signals")
def test_pod_with_a_stopped_shim_is_signalled_directly_and_delays_nothing() -> None:
    node = Node([pod("frozen"), pod("web")], takes_s={"frozen-c": 2.0}, stopped_shims={"frozen-c"}, located=None)
    result = run_down(node)
    assert node.received("frozen-c", "TERM") == [0]
    assert (result.pods["frozen"].outcome, result.pods["frozen"].took_ms) == (PodOutcome.STOPPED, 2000)
    assert result.ended_ms == 2000


def test_pod_with_an_uninterruptible_process_is_recorded_as_running_and_delays_no_other() -> None:
    node = Node(
        [pod("stuck"), pod("web"), pod("dns", CRITICAL)],
        {"stuck-c": None, "dns-c": 1.0},
        located=None,
        uninterruptible={"stuck-c"},
    )
    budget = four_bands(30)
    result = run_down(node, budget)
    assert (result.pods["stuck"].outcome, result.pods["stuck"].took_ms) == (PodOutcome.FAILED, None)
    assert "still running" in result.pods["stuck"].detail
    assert node.received("dns-c", "TERM")[0] <= budget.phases[0].deadline_ms + 10
    assert {result.pods[each].outcome for each in ("web", "dns")} == {PodOutcome.STOPPED}
    assert result.ended_ms <= 30_000
    assert "stuck-s" not in node.sandboxes


def test_runtime_that_is_busy_for_a_whole_phase_delays_no_term() -> None:
    up = [pod(f"p{band}", priority) for band, priority in enumerate(PRIORITIES)]
    node = Node(up, {f"p{band}-c": 1.0 for band in range(4)}, busy=((0, 20_000),), located=None)
    result = run_down(node, four_bands(30))
    assert all(len(node.received(f"p{band}-c", "TERM")) == 1 for band in range(4))
    assert node.received("p3-c", "TERM")[0] <= 10_000
    assert {each.outcome for each in result.pods.values()} == {PodOutcome.STOPPED}


@pytest.mark.parametrize("located", [(), None], ids=["runtime-only", "cgroups"])
def test_stop_that_is_refused_after_a_later_call_was_answered_is_retried(located: tuple[str, ...] | None) -> None:
    node = Node(
        [pod("web"), pod("stubborn"), pod("dns", CRITICAL)],
        takes_s={"web-c": 2.0, "stubborn-c": None},
        refuses={"web-c": 2, "stubborn-c": 2},
        refuses_after_s=0.1,
        located=located,
        busy_containers={"web-c", "stubborn-c"},
    )
    result = run_down(node)
    assert node.received("web-c", "TERM")[0] <= 600
    assert result.pods["web"].outcome is PodOutcome.STOPPED
    assert node.received("stubborn-c", "KILL")[0] in range(10_000, 10_300), "KILL is sent 10 s after the start"


@pytest.mark.difference("shutdown-new-pods")
def test_pod_created_during_a_phase_is_stopped_in_it() -> None:
    node = Node([pod("slow")], {"slow-c": 9.0}, located=None)

    def create_later() -> None:
        asyncio.get_running_loop().call_later(1, node.up.append, pod("late"))

    node.on_list = create_later
    result = run_down(node)
    assert result.pods["late"].outcome is PodOutcome.STOPPED
    assert node.received("late-c", "TERM")[0] < 6000


def test_stop_is_retried_until_the_runtime_is_available() -> None:
    node = Node([pod("web"), pod("dns", CRITICAL)], unavailable=((0, 3000),))
    result = run_down(node)
    assert {each.outcome for each in result.pods.values()} == {PodOutcome.STOPPED}
    assert 3000 <= result.ended_ms <= 3500
    assert all(at >= 3000 for at, _, _ in node.signals)


def test_pod_that_ends_before_the_exit_codes_are_known_is_not_recorded_as_running() -> None:
    node = Node(
        [pod("late"), pod("web")],
        {"late-c": 17.3, "web-c": 9.5},
        answers_after_s=8.0,  # late ends while the executor waits for the exit code of web
        located=None,
        uninterruptible={"late-c"},
        stopped_shims={"late-c"},
    )
    result = run_down(node)
    assert result.ended_ms < node.ended["late-c"]
    assert PodOutcome.FAILED not in {each.outcome for each in result.pods.values()}
    late = result.pods["late"]
    assert (late.outcome, late.took_ms, late.detail) == (PodOutcome.STOPPED, 17_300, "ended after the granted time")
    assert [each.name for each in result.reported].count("late") == 1


def test_pod_whose_term_was_delayed_by_the_runtime_keeps_its_grace() -> None:
    budget = four_bands(40)
    node = Node([pod("late"), pod("dns", CRITICAL)], {"late-c": 2.0}, unavailable=((0, 8500),))
    result = run_down(node, budget)
    assert node.received("late-c", "KILL") == []
    assert {each.outcome for each in result.pods.values()} == {PodOutcome.STOPPED}


@pytest.mark.parametrize("located", [(), None], ids=["runtime-only", "cgroups"])
@pytest.mark.parametrize("after_ms", [100, 1000])
def test_restart_of_the_runtime_after_term_sends_no_second_one(located: tuple[str, ...] | None, after_ms: int) -> None:
    node = Node([pod("web")], takes_s={"web-c": 6.0}, unavailable=((after_ms, 3000),), located=located)
    result = run_down(node)
    assert node.received("web-c", "TERM") == [0]
    assert (result.pods["web"].outcome, node.received("web-c", "KILL")) == (PodOutcome.STOPPED, [])


def test_unavailable_runtime_costs_at_most_the_granted_time() -> None:
    node = Node([pod("web"), pod("dns", CRITICAL)], unavailable=((0, 10**9),))
    result = run_down(node)
    assert {each.outcome for each in result.pods.values()} == {PodOutcome.FAILED}
    assert result.ended_ms <= 17_000
    assert result.run.list_problem == "unavailable"


def test_pods_are_stopped_without_a_runtime() -> None:
    node = Node(
        [pod("web"), pod("stubborn"), pod("dns", CRITICAL)],
        {"stubborn-c": None},
        unavailable=((0, 10**9),),
        located=None,
    )
    result = run_down(node)
    assert {name: each.outcome for name, each in result.pods.items()} == {
        "web": PodOutcome.STOPPED,
        "stubborn": PodOutcome.KILLED,
        "dns": PodOutcome.STOPPED,
    }
    assert node.received("dns-c", "TERM") == [10_000]


def test_unavailable_runtime_without_cached_pods_is_abandoned_soon() -> None:
    result = run_down(Node(unavailable=((0, 10**9),)), cached=())
    assert (result.pods, result.ended_ms) == ({}, 2000)


# ---- shutdowns continued after an interruption


@pytest.mark.difference("shutdown-resumed")
def test_resumed_run_uses_the_rest_of_the_time_without_a_second_term() -> None:
    before = [
        StoppedPod("done", "shop", "done", "ordinary", outcome=PodOutcome.STOPPED, took_ms=900),
        stopping("slow", "ordinary"),
    ]
    node = Node([pod("slow", grace_s=8), pod("dns", CRITICAL)], {"slow-c": None, "dns-c": 1.0}, located=None)
    result = run_down(node, before=before, elapsed_ms=6000)
    assert node.received("slow-c", "KILL") == [2000]
    assert len(node.received("slow-c", "TERM")) == 1, "the TERM sent shortly before KILL"
    assert node.received("dns-c", "TERM") == [2000]
    assert result.pods["done"] == before[0]
    assert (result.pods["slow"].outcome, result.pods["slow"].took_ms) == (PodOutcome.KILLED, 8000)


def test_crash_after_term_sends_no_second_one_after_the_restart() -> None:
    first = Node([pod("slow", 0, "a", "b")], {"a": 8.0, "b": 8.0}, located=None)
    recorded = run_down(first).recorded(500)
    second = Node(first.up, {"a": None, "b": None}, located=None)
    result = run_down(second, before=recorded, elapsed_ms=500)
    assert (first.received("a", "TERM"), first.received("b", "TERM")) == ([0], [0])
    assert [each for at, each, name in second.signals if name == "TERM" and at < 8000] == []
    assert result.pods["slow"].outcome is PodOutcome.KILLED


def test_crash_between_two_terms_of_a_pod_repeats_only_the_missing_one() -> None:
    first = Node([pod("slow", 0, "a", "b")], {"a": 8.0, "b": 8.0}, located=None, unresponsive={"b"})
    recorded = run_down(first).recorded(500)
    second = Node(first.up, {"a": None, "b": 2.0}, located=None)
    second_run = run_down(second, before=recorded, elapsed_ms=500)
    assert (len(first.received("a", "TERM")), second.received("b", "TERM")) == (1, [0])
    assert [at for at in second.received("a", "TERM") if at < 8000] == []
    assert second_run.pods["slow"].outcome is PodOutcome.KILLED


def test_direct_term_before_a_crash_is_the_only_one() -> None:
    first = Node([pod("frozen")], {"frozen-c": None}, stopped_shims={"frozen-c"}, located=None)
    recorded = run_down(first).recorded(500)
    second = Node(first.up, {"frozen-c": None}, stopped_shims={"frozen-c"}, located=None)
    run_down(second, before=recorded, elapsed_ms=500)
    assert (first.received("frozen-c", "TERM"), second.received("frozen-c", "TERM")) == ([0], [])


def test_phases_after_an_absence_share_the_remaining_time_by_weight() -> None:
    up = [pod(f"p{band}", priority) for band, priority in enumerate(PRIORITIES)]
    node = Node(up, {f"p{band}-c": None for band in range(4)}, located=None)
    result = run_down(node, four_bands(40), cached=up[1:], before=[stopping("p0", "priority-0")], elapsed_ms=18_500)
    terms = [node.received(f"p{band}-c", "TERM")[0] for band in (1, 2, 3)]
    kills = [node.received(f"p{band}-c", "KILL")[0] for band in (1, 2, 3)]
    for term, kill in zip(terms, kills, strict=True):
        assert kill - term >= 4000
    assert terms[1] >= kills[0]
    assert terms[2] >= kills[1]
    assert result.ended_ms + 18_500 <= 40_000


def test_pod_that_ended_during_the_absence_has_an_outcome() -> None:
    node = Node([], located=None)
    node.ended, node.codes = {"web-c": 0}, {"web-c": 0}
    known = stopping("web", "ordinary", requested_at_ms=100)
    result = run_down(node, cached=[], before=[known], elapsed_ms=5000)
    assert result.pods["web"].outcome is PodOutcome.STOPPED
    assert node.signals == []


@pytest.mark.parametrize("located", [None, {"dns-c"}], ids=["cgroup-exists", "cgroup-removed"])
def test_end_that_was_recorded_before_an_absence_keeps_its_time(located: set[str] | None) -> None:
    node = Node([pod("dns", CRITICAL)], {"dns-c": 1.0}, located=located)
    node.ended, node.codes, node.finished_at = {"web-c": 0}, {"web-c": 0}, datetime(2026, 1, 1, tzinfo=UTC)
    known = replace(stopping("web", "ordinary", requested_at_ms=100), took_ms=900, observed=True)
    result = run_down(node, before=[known], elapsed_ms=5000)
    assert (result.pods["web"].outcome, result.pods["web"].took_ms) == (PodOutcome.STOPPED, 900)


def test_pod_without_a_recorded_term_receives_one_after_the_deadline_of_its_phase() -> None:
    known = stopping("late", "ordinary", signalled_at_ms=None)
    node = Node([pod("late"), pod("dns", CRITICAL)], {"late-c": 2.0, "dns-c": 1.0}, located=None)
    result = run_down(node, before=[known], elapsed_ms=11_000)
    assert node.received("late-c", "TERM") == [0]
    assert node.received("late-c", "KILL") == []
    assert {each.outcome for each in result.pods.values()} == {PodOutcome.STOPPED}


def test_pods_are_left_to_the_stop_hook_after_the_end_of_the_whole_time() -> None:
    up = [pod(f"p{band}", priority) for band, priority in enumerate(PRIORITIES)]
    node = Node(up, {f"p{band}-c": None for band in range(4)}, located=None)
    result = run_down(node, four_bands(30), elapsed_ms=60_000)
    assert node.signals == []
    assert result.run.has_left_pods
    assert {(each.outcome, each.detail) for each in result.pods.values()} == {(None, "no TERM")}


def test_pod_that_ended_before_the_interruption_keeps_its_outcome_while_its_sandbox_is_ready() -> None:
    before = replace(stopping("web", "ordinary"), why="priority 0", outcome=PodOutcome.KILLED, took_ms=900)
    bare = replace(pod("web"), pod=replace(pod("web").pod, container_ids=()))
    node = Node([], located=None)
    result = run_down(node, cached=[bare], before=[before], elapsed_ms=5000)
    assert result.pods["web"] == before
    assert node.sandboxes == ["web-s"]
    assert result.reported == []


def test_pod_that_was_killed_before_the_resumption_is_recorded_as_killed_while_its_sandbox_is_ready() -> None:
    bare = replace(pod("web"), pod=replace(pod("web").pod, container_ids=()))
    node = Node([], located=None)
    node.ended, node.codes = {"web-c": 0}, {"web-c": 137}
    result = run_down(node, cached=[bare], before=[stopping("web", "ordinary")], elapsed_ms=5000)
    assert (result.pods["web"].outcome, result.pods["web"].detail) == (PodOutcome.KILLED, "")


def test_phases_continue_in_order_without_a_runtime_after_an_interruption() -> None:
    up = [pod(f"p{band}", priority) for band, priority in enumerate(PRIORITIES)]
    node = Node(up, {f"p{band}-c": 1.0 for band in range(4)}, unavailable=((0, 10**9),), located=None)
    later = [
        replace(stopping(f"p{band}", f"priority-{PRIORITIES[band]}", signalled_at_ms=None), outcome=None)
        for band in (1, 2, 3)
    ]
    result = run_down(node, four_bands(40), cached=(), before=[stopping("p0", "priority-0"), *later], elapsed_ms=500)
    terms = [node.received(f"p{band}-c", "TERM")[0] for band in (1, 2, 3)]
    assert terms == sorted(terms)
    assert len(set(terms)) == 3
    assert [result.pods[f"p{band}"].outcome for band in (1, 2, 3)] == [PodOutcome.STOPPED] * 3


def test_list_is_awaited_through_the_phases_if_pods_are_recorded() -> None:
    up = [pod(f"p{band}", priority) for band, priority in enumerate(PRIORITIES)]
    node = Node(up, {f"p{band}-c": 1.0 for band in range(4)}, unavailable=((0, 12_000),), located=None)
    result = run_down(node, four_bands(40), cached=(), expects_pods=True)
    terms = [node.received(f"p{band}-c", "TERM")[0] for band in range(4)]
    assert terms[0] == terms[1] < terms[2] < terms[3], "the time of the first phase expired during the outage"
    assert {each.outcome for each in result.pods.values()} == {PodOutcome.STOPPED}


@pytest.mark.parametrize(
    ("kill_sent", "outcome"), [(False, PodOutcome.STOPPED), (True, PodOutcome.KILLED)], ids=["term", "kill"]
)
def test_pod_that_ended_during_the_absence_is_not_running_without_a_runtime(
    kill_sent: bool, outcome: PodOutcome
) -> None:
    known = replace(stopping("web", "ordinary"), observed=True, kill_sent=kill_sent)
    node = Node([pod("dns", CRITICAL)], unavailable=((0, 10**9),), located={"dns-c"})
    result = run_down(node, before=[known], elapsed_ms=2000)
    assert result.pods["web"].outcome is outcome
    assert result.pods["web"].detail == "exit code not reported by the runtime"
    assert result.phases[1][0] <= 2000, "the phase takes only the time of the pod list"


def test_pod_without_an_observed_end_is_recorded_as_running() -> None:
    known = replace(stopping("web", "ordinary"), observed=True)
    node = Node([pod("dns", CRITICAL)], unavailable=((0, 10**9),), located={"dns-c"}, complete_search=False)
    result = run_down(node, before=[known], elapsed_ms=2000)
    assert result.pods["web"].outcome is PodOutcome.FAILED


def test_idle_pod_whose_term_is_delayed_in_the_runtime_is_signalled_directly() -> None:
    node = Node([pod("idle"), pod("dns", CRITICAL)], {"idle-c": 2.0}, unresponsive={"idle-c"}, located=None)
    result = run_down(node)
    assert node.received("idle-c", "TERM") == [1000]
    assert result.pods["idle"].outcome is PodOutcome.STOPPED
    assert node.received("dns-c", "TERM") == [3000]


def test_busy_pod_whose_term_is_delayed_in_the_runtime_is_signalled_directly_before_kill() -> None:
    node = Node([pod("busy")], {"busy-c": None}, unresponsive={"busy-c"}, busy_containers={"busy-c"}, located=None)
    result = run_down(node)
    assert node.received("busy-c", "TERM") == [9000]
    assert node.received("busy-c", "KILL") == [10_000]
    assert result.pods["busy"].outcome is PodOutcome.KILLED


def test_phase_after_one_without_an_answer_of_the_runtime_receives_term_at_once() -> None:
    node = Node(
        [pod("web"), pod("dns", CRITICAL)],
        takes_s={"web-c": 2.0, "dns-c": 2.0},
        busy=((0, 60_000),),
        located=None,
    )
    result = run_down(node)
    assert node.signals == [(1000, "web-c", "TERM"), (3000, "dns-c", "TERM")]
    assert result.ended_ms == 5000


def test_runtime_that_answers_again_is_asked_first_in_the_following_phase() -> None:
    pods = [pod("web"), pod("db", 1000), pod("dns", 100_000)]
    node = Node(pods, takes_s={"web-c": 2.0, "db-c": 2.0, "dns-c": 2.0}, busy=((0, 1500),), located=None)
    run_down(node, four_bands(40))
    assert [container_id for _, container_id, _ in node.calls] == ["web-c", "dns-c"]
    assert [at for at, _, _ in node.signals] == [1000, 3000, 5000]
