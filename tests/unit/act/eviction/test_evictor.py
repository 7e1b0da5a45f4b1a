"""Evicting one pod: the look before, the stops, and whether it is really gone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from nodeagent.act.eviction.evictor import CriEvictor, EvictionOutcome
from nodeagent.errors import RuntimeRequestError, RuntimeUnavailableError
from nodeagent.model.pods import ContainerHandle, PodHandle, PodInventory
from tests.unit.plan.eviction.cases import POLICY, at, planned, pod, read

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from nodeagent.model.pressure import PodFacts
    from nodeagent.plan.eviction.planner import Eviction

HANDLE = PodHandle("uid-web", ("s1",), (ContainerHandle("c1", "app"), ContainerHandle("c2", "proxy")), "/cgroup/web")


class Clock:
    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self) -> datetime:
        return at(self.at_s).at

    def monotonic_s(self) -> float:
        self.at_s += 1.0
        return self.at_s


@dataclass
class Runtime:
    """Ends the processes of what it stops, unless told otherwise."""

    stops: list[tuple[str, int]] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    processes: set[int] = field(default_factory=lambda: {10, 11})
    stubborn: bool = False
    hang: asyncio.Event | None = None
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        self.stops.append((container_id, timeout_s))
        if len(self.stops) == 2:
            self.told.set()
        if container_id in self.errors:
            raise self.errors[container_id]
        if self.hang is not None and timeout_s:
            await self.hang.wait()
        if not timeout_s and self.hang is not None:
            self.hang.set()
        if not self.stubborn:
            self.processes.clear()

    async def stop_sandbox(self, sandbox_id: str) -> None:
        self.stops.append((sandbox_id, -1))

    def read(self, directories: Iterable[str]) -> frozenset[int] | None:
        assert list(directories) == ["/cgroup/web"]
        return frozenset(self.processes)


def chosen(facts: PodFacts, grace_s: float = 0.0) -> Eviction:
    found = planned([facts], read()).victim
    assert found is not None
    return replace(found, grace_s=grace_s)


def evictor(runtime: Runtime, *facts: PodFacts, handle: PodHandle = HANDLE) -> CriEvictor:
    async def look() -> PodInventory:
        return PodInventory(facts, (), {each.uid: replace(handle, uid=each.uid) for each in facts}, at(0))

    return CriEvictor(runtime, look, POLICY, clock=Clock(), read_processes=runtime.read, verify_s=5.0)


async def test_all_containers_are_stopped_at_once_then_the_sandbox() -> None:
    runtime, web = Runtime(), pod()
    result = await evictor(runtime, web).evict(chosen(web, 2.5), HANDLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.EVICTED
    assert runtime.stops == [("c1", 3), ("c2", 3), ("s1", -1)]


@pytest.mark.parametrize(
    ("now", "handle", "outcome", "words"),
    [
        pytest.param((), HANDLE, EvictionOutcome.GONE, "ended by itself", id="gone"),
        pytest.param(
            (pod(namespace="kube-system"),), HANDLE, EvictionOutcome.CHANGED, "protected namespace", id="protected"
        ),
        pytest.param((pod(), pod()), HANDLE, EvictionOutcome.CHANGED, "contradictory", id="two of its UID"),
        pytest.param(
            (pod(),),
            replace(HANDLE, sandbox_ids=("s2",)),
            EvictionOutcome.CHANGED,
            "started anew",
            id="another sandbox",
        ),
    ],
)
async def test_what_changed_meanwhile_is_let_be(
    now: tuple[PodFacts, ...], handle: PodHandle, outcome: EvictionOutcome, words: str
) -> None:
    runtime = Runtime()
    result = await evictor(runtime, *now, handle=handle).evict(chosen(pod()), HANDLE, asyncio.Event())
    assert result.outcome is outcome
    assert words in result.detail
    assert runtime.stops == []


async def test_a_stop_that_fails_is_told_if_processes_are_left() -> None:
    runtime, web = Runtime(stubborn=True), pod()
    runtime.errors["c1"] = RuntimeRequestError("StopContainer", "c1", "INTERNAL", "no")
    result = await evictor(runtime, web).evict(chosen(web), HANDLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.FAILED
    assert "StopContainer" in result.detail
    assert "2 process(es) are still there after 5 s: 10, 11" in result.detail


async def test_a_stop_that_fails_does_not_matter_if_nothing_is_left() -> None:
    runtime, web = Runtime(), pod()
    runtime.errors["c1"] = RuntimeRequestError("StopContainer", "c1", "INTERNAL", "no")
    result = await evictor(runtime, web).evict(chosen(web), HANDLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.EVICTED
    assert result.detail.startswith("though: StopContainer")


async def test_without_cgroups_a_failed_stop_is_a_failure() -> None:
    runtime, web = Runtime(), pod()
    runtime.read = lambda _: frozenset()  # type: ignore[method-assign,assignment]
    runtime.errors["c1"] = RuntimeRequestError("StopContainer", "c1", "INTERNAL", "no")
    bare = replace(HANDLE, cgroup=None)
    result = await evictor(runtime, web, handle=bare).evict(chosen(web), bare, asyncio.Event())
    assert result.outcome is EvictionOutcome.FAILED


async def test_a_runtime_that_never_answers_is_not_waited_for() -> None:
    runtime, web = Runtime(stubborn=True), pod()
    never = asyncio.Event()

    async def hang(identity: str, timeout_s: int = -1) -> None:
        runtime.stops.append((identity, timeout_s))
        await never.wait()

    runtime.stop_container = hang  # type: ignore[method-assign,assignment]
    runtime.stop_sandbox = hang  # type: ignore[method-assign,assignment]
    made = evictor(runtime, web)
    made._verify_s = 0.01
    result = await asyncio.wait_for(made.evict(chosen(web), HANDLE, asyncio.Event()), 5)
    assert result.outcome is EvictionOutcome.FAILED
    assert "StopContainer was not answered" in result.detail
    assert "2 process(es) are still there" in result.detail
    never.set()


async def test_what_is_gone_is_evicted_even_if_the_runtime_never_says_so() -> None:
    runtime, web = Runtime(), pod()
    never = asyncio.Event()

    async def hang(sandbox_id: str) -> None:
        runtime.stops.append((sandbox_id, -1))
        await never.wait()

    runtime.stop_sandbox = hang  # type: ignore[method-assign]
    result = await evictor(runtime, web).evict(chosen(web), HANDLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.EVICTED
    never.set()


async def test_a_lost_runtime_ends_the_pass() -> None:
    runtime, web = Runtime(), pod()
    runtime.errors["c2"] = RuntimeUnavailableError("gone")
    with pytest.raises(RuntimeUnavailableError):
        await evictor(runtime, web).evict(chosen(web), HANDLE, asyncio.Event())


async def test_in_a_hurry_the_grace_is_cut_short() -> None:
    runtime, web, hurry = Runtime(hang=asyncio.Event()), pod(), asyncio.Event()
    work = asyncio.ensure_future(evictor(runtime, web).evict(chosen(web, 30), HANDLE, hurry))
    await runtime.told.wait()
    hurry.set()
    result = await work
    assert result.outcome is EvictionOutcome.EVICTED
    assert result.hurried
    assert runtime.stops[:4] == [("c1", 30), ("c2", 30), ("c1", 0), ("c2", 0)]
