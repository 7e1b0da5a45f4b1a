"""Stopping pods phase by phase, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.act.shutdown.executor import RunningPod, ShutdownRun
from nodeagent.errors import RuntimeRequestError, RuntimeUnavailableError
from nodeagent.model import PodOutcome, ShutdownPod
from nodeagent.model.node_stop import StoppedPod
from nodeagent.model.priority import CRITICAL_PRIORITY as CRITICAL
from nodeagent.plan.shutdown.budget import DelayLimit, shutdown_budget
from nodeagent.plan.shutdown.phases import Phase, two_bands
from tests.support.virtual_time import now_ms, play

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nodeagent.plan.shutdown.budget import ShutdownBudget

TEN_AND_FIVE = two_bands(15, 5)


def pod(name: str, priority: int = 0, *containers: str, grace_s: float | None = None) -> RunningPod:
    ids = containers or (f"{name}-c",)
    shutdown_pod = ShutdownPod(name, "shop", name, priority, container_ids=ids, termination_grace_s=grace_s)
    return RunningPod(shutdown_pod, (f"{name}-s",))


@dataclass
class Runtime:
    """Stops containers a number of seconds after TERM, ``None`` for never, and records the calls with their time.

    Attributes:
        up: pods in the list.
        unresponsive: containers whose calls are never answered.
        unavailable_until_ms: every call before this time fails.
    """

    up: list[RunningPod] = field(default_factory=list)
    takes_s: dict[str, float | None] = field(default_factory=dict)
    unresponsive: set[str] = field(default_factory=set)
    unavailable_until_ms: int = 0
    refuses: dict[str, int] = field(default_factory=dict)
    stops: list[tuple[int, str, int]] = field(default_factory=list)
    sandboxes: list[str] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    on_list: Callable[[], None] = lambda: None

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        self._check_available()
        self.stops.append((now_ms(), container_id, timeout_s))
        if self.refuses.get(container_id, 0):
            self.refuses[container_id] -= 1
            raise RuntimeRequestError("StopContainer", container_id, "UNKNOWN", "cannot")
        if container_id in self.unresponsive:
            await asyncio.Event().wait()
        takes_s = self.takes_s.get(container_id, 0.0)
        await asyncio.sleep(timeout_s if takes_s is None else min(takes_s, timeout_s))
        self.ended.setdefault(container_id, now_ms())

    async def stop_sandbox(self, sandbox_id: str) -> None:
        self._check_available()
        self.sandboxes.append(sandbox_id)

    async def list_pods(self) -> Sequence[RunningPod]:
        self._check_available()
        self.on_list()
        return [
            replace(up, pod=replace(up.pod, container_ids=ids))
            for up in self.up
            if (ids := tuple(each for each in up.pod.container_ids if each not in self.ended))
        ]

    def _check_available(self) -> None:
        if now_ms() < self.unavailable_until_ms:
            raise RuntimeUnavailableError("unavailable")


@dataclass
class RunResult:
    ended_ms: int
    pods: dict[str, StoppedPod]
    phases: list[tuple[int, str]]
    run: ShutdownRun


def run_down(
    runtime: Runtime,
    budget: ShutdownBudget | None = None,
    *,
    cached: Sequence[RunningPod] | None = None,
    before: Sequence[StoppedPod] = (),
    elapsed_ms: int = 0,
) -> RunResult:
    async def work() -> RunResult:
        phases: list[tuple[int, str]] = []
        run = ShutdownRun(
            budget or shutdown_budget(TEN_AND_FIVE, DelayLimit(30_000_000)),
            runtime,
            lambda: now_ms() + elapsed_ms,
            runtime.list_pods,
            on_phase=lambda name, _: phases.append((now_ms(), name)),
            before={each.uid: each for each in before},
        )
        await run.carry_out(runtime.up if cached is None else cached)
        ended_ms = now_ms()
        await run.end_sandboxes(1.0)
        return RunResult(ended_ms, {each.name: each for each in run.pods}, phases, run)

    return play(work())


def test_unused_time_of_lower_priorities_extends_the_next_phase() -> None:
    runtime = Runtime([pod("web"), pod("dns", CRITICAL)], takes_s={"web-c": 2.0, "dns-c": 1.5})
    result = run_down(runtime)
    assert result.phases == [(0, "ordinary"), (2000, "critical")]
    assert runtime.stops == [(0, "web-c", 10), (2000, "dns-c", 13)]
    assert result.ended_ms == 3500
    assert {name: (each.outcome, each.took_ms) for name, each in result.pods.items()} == {
        "web": (PodOutcome.STOPPED, 2000),
        "dns": (PodOutcome.STOPPED, 1500),
    }
    assert sorted(runtime.sandboxes) == ["dns-s", "web-s"]


def test_pod_that_ignores_the_signal_is_killed_at_no_cost_to_the_next_phase() -> None:
    runtime = Runtime([pod("stubborn"), pod("dns", CRITICAL)], takes_s={"stubborn-c": None, "dns-c": 4.0})
    result = run_down(runtime)
    assert result.phases == [(0, "ordinary"), (10_000, "critical")]
    assert (result.pods["stubborn"].outcome, result.pods["stubborn"].took_ms) == (PodOutcome.KILLED, 10_000)
    assert (10_000, "dns-c", 5) in runtime.stops
    assert result.pods["dns"].outcome is PodOutcome.STOPPED
    assert result.ended_ms == 14_000


def test_termination_grace_period_shorter_than_the_phase_is_used() -> None:
    runtime = Runtime([pod("brief", grace_s=3)], takes_s={"brief-c": None})
    result = run_down(runtime)
    assert runtime.stops == [(0, "brief-c", 3)]
    assert (result.pods["brief"].outcome, result.ended_ms) == (PodOutcome.KILLED, 3000)


def test_containers_of_a_pod_are_stopped_in_parallel() -> None:
    runtime = Runtime([pod("web", 0, "a", "b", "c")], takes_s={"a": 1.0, "b": 2.0, "c": 3.0})
    result = run_down(runtime)
    assert sorted(runtime.stops) == [(0, "a", 10), (0, "b", 10), (0, "c", 10)]
    assert result.ended_ms == 3000


def test_scaled_phase_kills_between_whole_seconds() -> None:
    budget = shutdown_budget(TEN_AND_FIVE, DelayLimit(5_000_000))
    runtime = Runtime([pod("stubborn"), pod("dns", CRITICAL)], takes_s={"stubborn-c": None, "dns-c": None})
    result = run_down(runtime, budget)
    assert budget.granted_ms == 4500
    assert runtime.stops == [(0, "stubborn-c", 3), (3000, "dns-c", 2), (4500, "dns-c", 0)]
    assert result.ended_ms <= budget.granted_ms


def test_call_without_an_answer_is_abandoned_before_the_limit() -> None:
    budget = shutdown_budget(TEN_AND_FIVE, DelayLimit(10_000_000))
    runtime = Runtime([pod("web"), pod("hung", CRITICAL)], unresponsive={"hung-c"})
    result = run_down(runtime, budget)
    assert result.pods["web"].outcome is PodOutcome.STOPPED
    assert result.pods["hung"].outcome is PodOutcome.FAILED
    assert "may still run" in result.pods["hung"].detail
    assert budget.granted_ms <= result.ended_ms < 10_000


def test_hanging_call_does_not_delay_the_next_phase() -> None:
    runtime = Runtime([pod("hung"), pod("dns", CRITICAL)], unresponsive={"hung-c"})
    result = run_down(runtime)
    assert (10_000, "dns-c", 5) in runtime.stops
    assert result.pods["dns"].outcome is PodOutcome.STOPPED
    assert result.pods["hung"].outcome is PodOutcome.FAILED


def test_stop_is_retried_until_the_runtime_is_available() -> None:
    runtime = Runtime([pod("web"), pod("dns", CRITICAL)], unavailable_until_ms=3000)
    result = run_down(runtime)
    assert {each.outcome for each in result.pods.values()} == {PodOutcome.STOPPED}
    assert 3000 <= result.ended_ms <= 3500
    assert all(at >= 3000 for at, _, _ in runtime.stops)


def test_unavailable_runtime_costs_at_most_the_granted_time() -> None:
    runtime = Runtime([pod("web"), pod("dns", CRITICAL)], unavailable_until_ms=10**9)
    result = run_down(runtime)
    assert {each.outcome for each in result.pods.values()} == {PodOutcome.FAILED}
    assert result.ended_ms <= 17_000
    assert result.run.list_problem == "unavailable"


def test_unavailable_runtime_without_cached_pods_is_abandoned_soon() -> None:
    result = run_down(Runtime(unavailable_until_ms=10**9), cached=())
    assert (result.pods, result.ended_ms) == ({}, 2000)


def test_failed_stop_is_retried() -> None:
    runtime = Runtime([pod("web")], refuses={"web-c": 2})
    result = run_down(runtime)
    assert result.pods["web"].outcome is PodOutcome.STOPPED
    assert [at for at, _, _ in runtime.stops] == [0, 200, 400]


def test_uncached_pod_is_stopped_as_soon_as_it_is_listed() -> None:
    runtime = Runtime([pod("old"), pod("new"), pod("dns", CRITICAL)], takes_s={"old-c": 1.0, "new-c": 2.0})
    result = run_down(runtime, cached=[pod("old")])
    assert (0, "new-c", 10) in runtime.stops
    assert [at for at, each, _ in runtime.stops if each == "dns-c"] == [2000]
    assert {each.outcome for each in result.pods.values()} == {PodOutcome.STOPPED}


def test_restarted_container_is_stopped_again() -> None:
    runtime = Runtime([pod("web", 0, "web-1"), pod("dns", CRITICAL)], takes_s={"dns-c": 1.0})

    def restart() -> None:
        if "web-1" in runtime.ended and len(runtime.up) == 2:
            runtime.up.append(pod("web", 0, "web-2"))

    runtime.on_list = restart
    result = run_down(runtime)
    assert "web-2" in runtime.ended
    assert result.pods["web"].outcome is PodOutcome.STOPPED


def test_pod_that_ended_meanwhile_is_recorded_as_stopped() -> None:
    runtime = Runtime([])
    result = run_down(runtime, cached=[pod("ended")])
    assert result.pods["ended"].outcome is PodOutcome.STOPPED


def test_sandbox_of_a_pod_without_containers_is_stopped() -> None:
    bare = RunningPod(ShutdownPod("bare", "shop", "bare", 0), ("bare-s",))
    runtime = Runtime([])
    result = run_down(runtime, cached=[bare])
    assert (result.pods["bare"].outcome, runtime.sandboxes, runtime.stops) == (PodOutcome.STOPPED, ["bare-s"], [])


def test_resumed_run_uses_the_rest_of_the_time() -> None:
    before = [
        StoppedPod("done", "shop", "done", "ordinary", outcome=PodOutcome.STOPPED, took_ms=900),
        StoppedPod("slow", "shop", "slow", "ordinary", outcome=PodOutcome.STOPPING, requested_at_ms=0),
    ]
    runtime = Runtime([pod("slow", grace_s=8), pod("dns", CRITICAL)], takes_s={"slow-c": None, "dns-c": 1.0})
    result = run_down(runtime, before=before, elapsed_ms=6000)
    assert runtime.stops[0] == (0, "slow-c", 2)
    assert [stop for stop in runtime.stops if stop[1] == "dns-c"] == [(2000, "dns-c", 7)]
    assert result.pods["done"] == before[0]
    assert (result.pods["slow"].outcome, result.pods["slow"].took_ms) == (PodOutcome.KILLED, 8000)


def test_pods_of_a_phase_past_its_deadline_are_killed_at_once() -> None:
    runtime = Runtime([pod("late"), pod("dns", CRITICAL)], takes_s={"dns-c": 1.0})
    result = run_down(runtime, elapsed_ms=11_000)
    assert (0, "late-c", 0) in runtime.stops
    assert (0, "dns-c", 4) in runtime.stops
    assert result.pods["late"].outcome is PodOutcome.KILLED
    assert result.ended_ms == 1000


def test_cancelled_run_does_not_stop_pods_of_later_phases() -> None:
    async def work() -> tuple[Runtime, dict[str, StoppedPod]]:
        runtime = Runtime([pod("web"), pod("dns", CRITICAL)], takes_s={"web-c": 5.0})
        run = ShutdownRun(shutdown_budget(TEN_AND_FIVE, DelayLimit(None)), runtime, now_ms, runtime.list_pods)
        task = asyncio.ensure_future(run.carry_out(runtime.up))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(60.0)
        return runtime, {each.name: each for each in run.pods}

    runtime, pods = play(work())
    assert [stop[1] for stop in runtime.stops] == ["web-c"]
    assert (pods["web"].outcome, pods["dns"].outcome) == (PodOutcome.STOPPING, None)


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
)
def test_order_and_time_limits_are_kept_for_all_pods(
    pods: list[tuple[int, float | None, int | None, bool]],
    seconds: list[int],
    limit_s: int | None,
    elapsed_ms: int,
    cached_count: int,
) -> None:
    phases = tuple(
        Phase(str(minimum), each, minimum) for minimum, each in zip((0, 1000, CRITICAL), seconds, strict=True)
    )
    budget = shutdown_budget(phases, DelayLimit(None if limit_s is None else limit_s * 10**6))
    up = [pod(f"p{index}", priority, grace_s=grace) for index, (priority, _, grace, _) in enumerate(pods)]
    runtime = Runtime(up, {f"p{index}-c": takes for index, (_, takes, _, _) in enumerate(pods)})
    runtime.unresponsive = {f"p{index}-c" for index, (*_, unresponsive) in enumerate(pods) if unresponsive}
    result = run_down(runtime, budget, cached=up[:cached_count], elapsed_ms=elapsed_ms)
    phase_of = {
        f"p{index}-c": sum(priority >= each for each in (1000, CRITICAL)) for index, (priority, *_) in enumerate(pods)
    }
    first: dict[str, int] = {}
    for at, each, _ in runtime.stops:
        first.setdefault(each, at)
    for each, at in first.items():
        started_ms = result.phases[phase_of[each]][0]
        assert at >= started_ms
        for other, other_at in first.items():
            if phase_of[other] < phase_of[each]:
                assert other_at <= at
    assert set(result.pods) == {f"p{index}" for index in range(len(pods))}
    assert result.ended_ms + elapsed_ms <= result.run.ends_ms
    for each_pod in result.pods.values():
        assert each_pod.outcome is not PodOutcome.STOPPING
