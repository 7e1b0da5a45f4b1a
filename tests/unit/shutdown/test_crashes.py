"""Crashes and stops of the agent at any time of a shutdown, in virtual time: it continues, or a new process does."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from hypothesis import example, given, strategies as st

from nodeagent.model.pods import CRITICAL_PRIORITY as CRITICAL
from nodeagent.model.stops import PodOutcome
from nodeagent.shutdown.executor import ShutdownRun, shifted
from nodeagent.shutdown.plan.planner import (
    MINIMUM_AFTER_TERM_MS,
    DelayLimit,
    ShutdownBudget,
    by_priority,
    shutdown_budget,
)
from tests.support.virtual_time import START, VirtualLoop, now_ms, play
from tests.unit.shutdown.shutdown_node import Node, pod

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.model.stops import StoppedPod

PRIORITIES = (0, 1000, CRITICAL)
BUDGET = shutdown_budget(by_priority([(each, 10) for each in PRIORITIES]), DelayLimit(31_000_000))


UNIT_STOP_BUDGET = shutdown_budget(by_priority([(each, 10) for each in PRIORITIES]), DelayLimit(50_000_000))


async def finish(run: ShutdownRun, node: Node) -> ShutdownRun:
    """Conclude a run, or run the stop hook for the pods that the run left; return the last run."""
    if not run.has_left_pods:
        await run.settle(3)
        return run
    started_ms = now_ms()
    before = {each.uid: shifted(each, started_ms) for each in run.pods}

    def elapsed_ms() -> int:
        return now_ms() - started_ms

    hook = ShutdownRun(
        UNIT_STOP_BUDGET, node, elapsed_ms, node.list_pods, processes=node, before=before, has_successor=False
    )
    await hook.carry_out(await node.list_pods())
    assert not hook.has_left_pods
    await hook.settle(3)
    return hook


def run_with_crashes(
    node: Node, budget: ShutdownBudget, crashes: list[tuple[int, int]]
) -> tuple[dict[str, StoppedPod], list[int]]:
    """Run a shutdown with crashes of the agent.

    Args:
        node: node to shut down.
        budget: time limits of the shutdown phases.
        crashes: for each crash, milliseconds until the crash and from the crash to the restart.

    Returns:
        The pods by name, and the times of the crashes in milliseconds.
    """

    async def work() -> tuple[dict[str, StoppedPod], list[int]]:
        crashed_ms: list[int] = []
        recorded: tuple[StoppedPod, ...] = ()

        def run() -> ShutdownRun:
            def record() -> None:
                nonlocal recorded
                recorded = running.pods

            running = ShutdownRun(
                budget,
                node,
                now_ms,
                node.list_pods,
                processes=node,
                on_change=record,
                before={each.uid: each for each in recorded},
            )
            return running

        for after_ms, absent_ms in crashes:
            task = asyncio.create_task(run().carry_out(await node.list_pods()))
            await asyncio.wait({task}, timeout=after_ms / 1000)
            at_crash = recorded
            crashed_ms.append(now_ms())
            task.cancel()
            await asyncio.wait({task})
            recorded = at_crash
            await asyncio.sleep(absent_ms / 1000)
        last = run()
        await last.carry_out(await node.list_pods())
        last = await finish(last, node)
        return {each.name: each for each in last.pods}, crashed_ms

    return play(work())


@given(
    kinds=st.lists(
        st.tuples(st.sampled_from(PRIORITIES), st.sampled_from([0.0, 2.0, 6.0, None])), min_size=1, max_size=6
    ),
    crashes=st.lists(st.tuples(st.integers(5, 12_000), st.integers(0, 4000)), max_size=3),
    busy=st.booleans(),
)
def test_crash_at_any_time_repeats_no_term_and_kills_no_pod_unheard(
    kinds: list[tuple[int, float | None]], crashes: list[tuple[int, int]], busy: bool
) -> None:
    up = [pod(f"p{index}", priority) for index, (priority, _) in enumerate(kinds)]
    node = Node(up, {f"p{index}-c": takes_s for index, (_, takes_s) in enumerate(kinds)}, located=None)
    node.busy_containers = {f"p{index}-c" for index in range(len(kinds))} if busy else set()
    pods, crashed_ms = run_with_crashes(node, BUDGET, crashes)
    for index, (_, takes_s) in enumerate(kinds):
        terms, kills = node.received(f"p{index}-c", "TERM"), node.received(f"p{index}-c", "KILL")
        assert terms, "every pod received TERM"
        assert len(terms) <= 2
        for at in terms[1:]:
            followed_ms = [node.ended[f"p{index}-c"], *(each for each in crashed_ms if each >= at)]
            assert min(followed_ms) - at <= 1001, "a second TERM is sent shortly before KILL, which a crash may delay"
        if kills:
            assert kills[0] - terms[0] >= MINIMUM_AFTER_TERM_MS
        if takes_s == 0:
            assert kills == []
        assert pods[f"p{index}"].outcome is (PodOutcome.KILLED if kills else PodOutcome.STOPPED)


def run_with_stops(node: Node, stops: list[tuple[int, int]]) -> dict[str, StoppedPod]:
    """Run a shutdown with an agent that is stopped (SIGSTOP) and continued, then the stop hook for the pods it left.

    Args:
        node: node to shut down, whose runtime answers and whose pods end only while the agent runs.
        stops: for each stop, its time in milliseconds since the start, and its duration in milliseconds.
    """

    async def work() -> dict[str, StoppedPod]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for at_ms, for_ms in stops:
            loop.call_later(at_ms / 1000, lambda each: setattr(loop, "now_s", loop.now_s + each), for_ms / 1000)
        run = ShutdownRun(BUDGET, node, now_ms, node.list_pods, processes=node)
        await run.carry_out(await node.list_pods())
        last = await finish(run, node)
        return {each.name: each for each in last.pods}

    return play(work())


def test_pod_that_ended_while_the_agent_was_stopped_has_the_time_of_its_end() -> None:
    node = Node([pod("web")], {"web-c": None}, located=None, finished_at=START + timedelta(seconds=2))

    async def work() -> StoppedPod:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        def continue_after_the_end() -> None:
            loop.now_s = 20.0
            node.end("web-c", 0)

        loop.call_later(1, continue_after_the_end)
        run = ShutdownRun(BUDGET, node, now_ms, node.list_pods, processes=node, elapsed_at=since_start_ms)
        await run.carry_out(node.up)
        await run.settle(3)
        return run.pods[0]

    stopped = play(work())
    assert (stopped.outcome, stopped.took_ms) == (PodOutcome.STOPPED, 2000)


def since_start_ms(at: datetime) -> int:
    return round((at - START).total_seconds() * 1000)


@given(
    kinds=st.lists(
        st.tuples(st.sampled_from(PRIORITIES), st.sampled_from([0.0, 2.0, 6.0, None])), min_size=1, max_size=6
    ),
    stops=st.lists(st.tuples(st.integers(0, 31_000), st.integers(1, 120_000)), min_size=1, max_size=2),
    located=st.booleans(),
)
@example(kinds=[(each, None) for each in PRIORITIES], stops=[(100, 30_000)], located=True)
@example(kinds=[(each, 2.0) for each in PRIORITIES], stops=[(0, 60_000)], located=False)
@example(kinds=[(1000, 0.0)], stops=[(0, 29_501), (1, 29_501)], located=False)
@example(kinds=[(1000, 2.0), (CRITICAL, 0.0)], stops=[(0, 29_501), (1, 29_003)], located=False)
@example(kinds=[(0, 2.0), (1000, 0.0)], stops=[(0, 1), (0, 9999)], located=False)
@example(kinds=[(0, 2.0), (1000, 0.0)], stops=[(0, 15_000)], located=False)
@example(kinds=[(0, 0.0)], stops=[(0, 30_600)], located=False)
@example(kinds=[(0, 0.0), (1000, 0.0)], stops=[(0, 1), (1, 29_500)], located=False)
def test_agent_stopped_at_any_time_kills_no_pod_without_term_and_minimum_grace(
    kinds: list[tuple[int, float | None]], stops: list[tuple[int, int]], located: bool
) -> None:
    up = [pod(f"p{index}", priority) for index, (priority, _) in enumerate(kinds)]
    takes_s = {f"p{index}-c": takes for index, (_, takes) in enumerate(kinds)}
    node = Node(up, takes_s, located=None if located else ())
    pods = run_with_stops(node, stops)
    first_term_ms = {index: node.received(f"p{index}-c", "TERM") for index in range(len(kinds))}
    assert all(first_term_ms.values()), "every pod received TERM"
    for index, (priority, takes) in enumerate(kinds):
        term_ms, kills = first_term_ms[index][0], node.received(f"p{index}-c", "KILL")
        assert all(at - term_ms >= MINIMUM_AFTER_TERM_MS for at in kills)
        assert bool(kills) == (pods[f"p{index}"].outcome is PodOutcome.KILLED)
        assert takes != 0 or not kills
        for lower, (other, _) in enumerate(kinds):
            if other < priority:
                assert first_term_ms[lower][0] <= term_ms, "bands receive TERM in order"
                quiet_ms = min(node.ended[f"p{lower}-c"], first_term_ms[lower][0] + MINIMUM_AFTER_TERM_MS)
                assert quiet_ms <= term_ms + 1, "after the minimum time of the lower band"
