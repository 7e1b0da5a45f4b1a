"""Ordered stop of pods by phase, in virtual time, with a responsive runtime."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, strategies as st

from nodeagent.model.pods import CRITICAL_PRIORITY as CRITICAL
from nodeagent.model.stops import PodOutcome, ShutdownPod
from nodeagent.shutdown.executor import ShutdownRun
from nodeagent.shutdown.plan.planner import MINIMUM_AFTER_TERM_MS, DelayLimit, Phase, shutdown_budget
from nodeagent.shutdown.recorder import RunningPod
from tests.support.virtual_time import now_ms, play
from tests.unit.shutdown.shutdown_node import TEN_AND_FIVE, Node, pod, run_down

if TYPE_CHECKING:
    from collections.abc import Collection

    from nodeagent.model.stops import StoppedPod

BOTH_SOURCES = pytest.mark.parametrize("located", [(), None], ids=["runtime-only", "cgroups"])


@pytest.mark.difference("shutdown-unused-time")
@BOTH_SOURCES
def test_unused_time_of_lower_priorities_extends_the_next_phase(located: Collection[str] | None) -> None:
    node = Node([pod("web"), pod("dns", CRITICAL)], takes_s={"web-c": 2.0, "dns-c": None}, located=located)
    result = run_down(node)
    assert [name for _, name in result.phases] == ["ordinary", "critical"]
    assert 2000 <= result.phases[1][0] <= 2010
    assert node.received("dns-c", "KILL")[0] in range(15_000, 15_020)
    assert {name: each.outcome for name, each in result.pods.items()} == {
        "web": PodOutcome.STOPPED,
        "dns": PodOutcome.KILLED,
    }
    assert sorted(node.sandboxes) == ["dns-s", "web-s"]


def test_phase_ends_with_its_processes_although_the_runtime_answers_later() -> None:
    node = Node(
        [pod("web"), pod("dns", CRITICAL)], takes_s={"web-c": 2.0, "dns-c": 1.0}, answers_after_s=2.5, located=None
    )
    result = run_down(node)
    assert [at for at, _ in result.phases] == [0, 2000]
    assert result.ended_ms == 3000
    assert {name: (each.outcome, each.took_ms) for name, each in result.pods.items()} == {
        "web": (PodOutcome.STOPPED, 2000),
        "dns": (PodOutcome.STOPPED, 1000),
    }


@pytest.mark.difference("shutdown-kill")
@BOTH_SOURCES
def test_pod_that_ignores_the_signal_is_killed_at_no_cost_to_the_next_phase(located: Collection[str] | None) -> None:
    node = Node([pod("stubborn"), pod("dns", CRITICAL)], takes_s={"stubborn-c": None, "dns-c": 4.0}, located=located)
    result = run_down(node)
    assert result.phases == [(0, "ordinary"), (10_000, "critical")]
    assert node.received("stubborn-c", "TERM")[0] == 0
    assert node.received("stubborn-c", "KILL") == [10_000]
    assert result.pods["stubborn"].outcome is PodOutcome.KILLED
    assert result.pods["dns"].outcome is PodOutcome.STOPPED
    assert result.ended_ms in range(14_000, 14_020)


@BOTH_SOURCES
def test_termination_grace_period_shorter_than_the_phase_is_used(located: Collection[str] | None) -> None:
    node = Node([pod("brief", grace_s=3)], takes_s={"brief-c": None}, located=located)
    result = run_down(node)
    assert node.received("brief-c", "KILL") == [3000]
    assert result.pods["brief"].outcome is PodOutcome.KILLED
    assert result.ended_ms in range(3000, 3020)


def test_pod_with_a_grace_period_of_0_receives_term_before_kill() -> None:
    node = Node([pod("abrupt", grace_s=0)], takes_s={"abrupt-c": None}, located=None)
    run_down(node)
    assert node.received("abrupt-c", "TERM")[0] == 0
    assert node.received("abrupt-c", "KILL") == [MINIMUM_AFTER_TERM_MS]


@pytest.mark.parametrize(
    ("receives_after_ms", "stopped", "killed_ms", "detail"),
    [
        (11_000, False, 11_250, ""),
        (60_000, False, 12_000, "killed while TERM was pending"),
        (60_000, True, 10_000, "killed while TERM was pending"),
    ],
    ids=["received-late", "never-received", "stopped"],
)
def test_kill_waits_shortly_for_a_process_without_cpu_time_to_receive_its_term(
    receives_after_ms: int, stopped: bool, killed_ms: int, detail: str
) -> None:
    node = Node([pod("late"), pod("dns", CRITICAL)], takes_s={"late-c": None, "dns-c": 4.0}, located=None)
    node.receives_after_ms["late-c"] = receives_after_ms
    if stopped:
        node.stopped.add("late-c")
    result = run_down(node)
    assert result.phases == [(0, "ordinary"), (10_000, "critical")]
    assert node.received("late-c", "KILL") == [pytest.approx(killed_ms, abs=260)]
    assert (result.pods["late"].outcome, result.pods["late"].detail) == (PodOutcome.KILLED, detail)


def test_kill_of_a_process_without_cpu_time_never_exceeds_the_time_of_the_shutdown() -> None:
    budget = shutdown_budget(TEN_AND_FIVE, DelayLimit(4_000_000))
    node = Node([pod("dns", CRITICAL)], takes_s={"dns-c": None}, located=None, receives_after_ms={"dns-c": 60_000})
    result = run_down(node, budget)
    assert node.received("dns-c", "KILL") == [3600]
    assert result.ended_ms <= 3900


@pytest.mark.difference("stop-without-hooks")
def test_containers_of_a_pod_are_stopped_in_parallel() -> None:
    node = Node([pod("web", 0, "a", "b", "c")], takes_s={"a": 1.0, "b": 2.0, "c": 3.0}, located=None)
    result = run_down(node)
    assert [at for at, _, _ in node.signals] == [0, 0, 0]
    assert (result.ended_ms, result.pods["web"].took_ms) == (3000, 3000)


def test_scaled_phase_kills_between_whole_seconds() -> None:
    budget = shutdown_budget(TEN_AND_FIVE, DelayLimit(5_000_000))
    node = Node([pod("stubborn"), pod("dns", CRITICAL)], takes_s={"stubborn-c": None, "dns-c": None}, located=None)
    result = run_down(node, budget)
    assert budget.granted_ms == 4500
    assert node.received("stubborn-c", "KILL") == [3000]
    assert node.received("dns-c", "TERM")[0] == 3000
    assert node.received("dns-c", "KILL") == [4500]
    assert result.ended_ms == 4500


def test_failed_stop_is_retried() -> None:
    node = Node([pod("web")], refuses={"web-c": 2})
    result = run_down(node)
    assert result.pods["web"].outcome is PodOutcome.STOPPED
    assert [at for at, _, _ in node.calls] == [0, 200, 400]


def test_uncached_pod_is_stopped_as_soon_as_it_is_listed() -> None:
    node = Node([pod("old"), pod("new"), pod("dns", CRITICAL)], takes_s={"old-c": 1.0, "new-c": 2.0}, located=None)
    result = run_down(node, cached=[pod("old")])
    assert node.received("new-c", "TERM") == [0]
    assert node.received("dns-c", "TERM") == [2000]
    assert {each.outcome for each in result.pods.values()} == {PodOutcome.STOPPED}


def test_restarted_container_is_stopped_again() -> None:
    node = Node([pod("web", 0, "web-1"), pod("dns", CRITICAL)], takes_s={"web-1": 6.0, "dns-c": 1.0}, located=None)

    def restart() -> None:
        if "web-1" in node.ended and len(node.up) == 2:
            node.up.append(pod("web", 0, "web-2"))

    node.on_list = restart
    result = run_down(node)
    assert "web-2" in node.ended
    assert result.pods["web"].outcome is PodOutcome.STOPPED


def test_pod_that_ended_meanwhile_is_recorded_as_stopped() -> None:
    result = run_down(Node([]), cached=[pod("ended")])
    assert result.pods["ended"].outcome is PodOutcome.STOPPED


def test_sandbox_of_a_pod_without_containers_is_stopped() -> None:
    bare = RunningPod(ShutdownPod("bare", "shop", "bare", 0), ("bare-s",))
    node = Node([])
    result = run_down(node, cached=[bare])
    assert (result.pods["bare"].outcome, node.sandboxes, node.calls) == (PodOutcome.STOPPED, ["bare-s"], [])


@pytest.mark.difference("shutdown-records")
@pytest.mark.parametrize(
    ("code", "outcome", "detail"),
    [
        (0, PodOutcome.STOPPED, ""),
        (143, PodOutcome.STOPPED, ""),
        (3, PodOutcome.STOPPED, "exit code 3"),
        (137, PodOutcome.KILLED, "exit code 137 without a KILL of the agent"),
    ],
)
def test_outcome_follows_from_the_exit_code(code: int, outcome: PodOutcome, detail: str) -> None:
    node = Node([pod("web")], takes_s={"web-c": 1.0}, exit_codes={"web-c": code}, located=None)
    result = run_down(node)
    assert (result.pods["web"].outcome, result.pods["web"].detail) == (outcome, detail)
    assert result.reported == [result.pods["web"]]


@pytest.mark.difference("shutdown-cancelled")
def test_cancelled_run_does_not_stop_pods_of_later_phases() -> None:
    async def work() -> tuple[Node, dict[str, StoppedPod]]:
        node = Node([pod("web"), pod("dns", CRITICAL)], takes_s={"web-c": 5.0})
        run = ShutdownRun(shutdown_budget(TEN_AND_FIVE, DelayLimit(None)), node, now_ms, node.list_pods, node)
        task = asyncio.ensure_future(run.carry_out(node.up))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(60.0)
        return node, {each.name: each for each in run.pods}

    node, pods = play(work())
    assert [call[1] for call in node.calls] == ["web-c"]
    assert (pods["web"].outcome, pods["dns"].outcome) == (PodOutcome.STOPPING, None)


INTERVALS = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(0, 15_000)).map(lambda each: (each[0], each[0] + each[1])), max_size=2
).map(tuple)


@given(
    pods=st.lists(
        st.tuples(
            st.sampled_from([-5, 0, 500, 1000, CRITICAL]),
            st.one_of(st.none(), st.floats(0, 40)),
            st.one_of(st.none(), st.integers(0, 30)),
            st.booleans(),
        ),
        max_size=12,
    ),
    seconds=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    limit_s=st.one_of(st.none(), st.integers(0, 40)),
    elapsed_ms=st.integers(0, 30_000),
    cached_count=st.integers(0, 12),
    busy=INTERVALS,
    unavailable=INTERVALS,
    located=st.booleans(),
)
@example(  # KILL without an earlier TERM while the runtime was busy
    pods=[(-5, None, None, False)],
    seconds=[0, 0, 0],
    limit_s=None,
    elapsed_ms=1500,
    cached_count=0,
    busy=((1, 201), (0, 200)),
    unavailable=(),
    located=True,
)
def test_order_signals_outcomes_and_time_limits_hold_for_all_pods(  # noqa: PLR0917 - values drawn by Hypothesis
    pods: list[tuple[int, float | None, int | None, bool]],
    seconds: list[int],
    limit_s: int | None,
    elapsed_ms: int,
    cached_count: int,
    busy: tuple[tuple[int, int], ...],
    unavailable: tuple[tuple[int, int], ...],
    located: bool,
) -> None:
    phases = tuple(
        Phase(str(minimum), each, minimum) for minimum, each in zip((0, 1000, CRITICAL), seconds, strict=True)
    )
    budget = shutdown_budget(phases, DelayLimit(None if limit_s is None else limit_s * 10**6))
    up = [pod(f"p{index}", priority, grace_s=grace) for index, (priority, _, grace, _) in enumerate(pods)]
    node = Node(up, {f"p{index}-c": takes for index, (_, takes, _, _) in enumerate(pods)})
    node.unresponsive = {f"p{index}-c" for index, (*_, unresponsive) in enumerate(pods) if unresponsive}
    node.busy, node.unavailable, node.located = busy, unavailable, None if located else ()
    result = run_down(node, budget, cached=up[:cached_count], elapsed_ms=elapsed_ms)
    release_ms = result.ended_ms
    phase_of = {
        f"p{index}": sum(priority >= each for each in (1000, CRITICAL)) for index, (priority, *_) in enumerate(pods)
    }
    listed = not result.run.list_problem
    assert set(result.pods) == ({each.pod.name for each in up} if listed else set(result.pods))
    assert release_ms + elapsed_ms <= result.run.ends_ms + 2, "limit plus rounding of virtual time"
    for name, each in result.pods.items():
        container, terms, kills = f"{name}-c", node.received(f"{name}-c", "TERM"), node.received(f"{name}-c", "KILL")
        if each.outcome is None:
            assert result.run.has_left_pods, "the remaining time is too short"
            assert (terms, kills, each.detail) == ([], [], "no TERM")
            continue
        assert each.outcome is not PodOutcome.STOPPING
        ended_ms = node.ended.get(container)
        if located:
            assert (each.outcome is PodOutcome.FAILED) == (ended_ms is None or ended_ms > release_ms), (name, each)
            assert len(terms) in (1, 2), "the second TERM is sent shortly before KILL"
            assert terms[0] >= result.phases[phase_of[name]][0]
        if each.outcome is PodOutcome.STOPPED:
            assert node.codes[container] == 0
        for at in kills:
            if located:
                assert min(terms) <= at
                hung = container in node.unresponsive and container not in node.stopped_shims
                assert hung or at - min(terms) >= MINIMUM_AFTER_TERM_MS
