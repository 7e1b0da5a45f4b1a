"""Crashes of the agent at any time of a shutdown, in virtual time: a new agent continues from the last record."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.act.shutdown.executor import ShutdownRun
from nodeagent.model import PodOutcome
from nodeagent.model.priority import CRITICAL_PRIORITY as CRITICAL
from nodeagent.plan.shutdown.budget import DelayLimit, ShutdownBudget, shutdown_budget
from nodeagent.plan.shutdown.phases import by_priority
from nodeagent.plan.shutdown.timing import MINIMUM_AFTER_TERM_MS
from tests.support.virtual_time import now_ms, play
from tests.unit.act.shutdown.shutdown_node import Node, pod

if TYPE_CHECKING:
    from nodeagent.model.node_stop import StoppedPod

PRIORITIES = (0, 1000, CRITICAL)
BUDGET = shutdown_budget(by_priority([(each, 10) for each in PRIORITIES]), DelayLimit(31_000_000))


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
        await last.settle(3)
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
            assert kills[0] - terms[0] >= MINIMUM_AFTER_TERM_MS or kills[0] >= 30_000
        if takes_s == 0:
            assert kills == []
        assert pods[f"p{index}"].outcome is (PodOutcome.KILLED if kills else PodOutcome.STOPPED)
