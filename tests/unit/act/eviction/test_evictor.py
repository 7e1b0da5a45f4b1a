"""Eviction of one pod: re-read, stop, and verification."""

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
    from nodeagent.plan.eviction.eviction import Eviction

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
    """A runtime whose stop calls end the processes unless ``stubborn``."""

    stops: list[tuple[str, int]] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    processes: set[int] = field(default_factory=lambda: {10, 11})
    stubborn: bool = False
    hang: asyncio.Event | None = None
    both_stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        self.stops.append((container_id, timeout_s))
        if len(self.stops) == 2:
            self.both_stopping.set()
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


def evictor(runtime: Runtime, *facts: PodFacts, handle: PodHandle = HANDLE, verify_s: float = 5.0) -> CriEvictor:
    async def read_pods() -> PodInventory:
        return PodInventory(facts, (), {each.uid: replace(handle, uid=each.uid) for each in facts}, at(0))

    return CriEvictor(runtime, read_pods, POLICY, clock=Clock(), read_processes=runtime.read, verify_s=verify_s)


async def test_containers_are_stopped_concurrently_before_the_sandbox() -> None:
    runtime, web = Runtime(), pod()
    result = await evictor(runtime, web).evict(chosen(web, 2.5), HANDLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.EVICTED
    assert runtime.stops == [("c1", 3), ("c2", 3), ("s1", -1)]


@pytest.mark.parametrize(
    ("now", "handle", "outcome", "detail"),
    [
        pytest.param((), HANDLE, EvictionOutcome.GONE, "ended by itself", id="ended"),
        pytest.param(
            (pod(namespace="kube-system"),), HANDLE, EvictionOutcome.CHANGED, "protected namespace", id="protected"
        ),
        pytest.param((pod(), pod()), HANDLE, EvictionOutcome.CHANGED, "contradictory", id="duplicate UID"),
        pytest.param(
            (pod(),),
            replace(HANDLE, sandbox_ids=("s2",)),
            EvictionOutcome.CHANGED,
            "another sandbox",
            id="another sandbox",
        ),
    ],
)
async def test_changed_pod_is_not_evicted(
    now: tuple[PodFacts, ...], handle: PodHandle, outcome: EvictionOutcome, detail: str
) -> None:
    runtime = Runtime()
    result = await evictor(runtime, *now, handle=handle).evict(chosen(pod()), HANDLE, asyncio.Event())
    assert result.outcome is outcome
    assert detail in result.detail
    assert runtime.stops == []


async def test_failed_stop_is_reported_with_remaining_processes() -> None:
    runtime, web = Runtime(stubborn=True), pod()
    runtime.errors["c1"] = RuntimeRequestError("StopContainer", "c1", "INTERNAL", "no")
    result = await evictor(runtime, web).evict(chosen(web), HANDLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.FAILED
    assert "StopContainer" in result.detail
    assert "2 process(es) still running after 5 s: 10, 11" in result.detail


async def test_failed_stop_without_remaining_processes_counts_as_an_eviction() -> None:
    runtime, web = Runtime(), pod()
    runtime.errors["c1"] = RuntimeRequestError("StopContainer", "c1", "INTERNAL", "no")
    result = await evictor(runtime, web).evict(chosen(web), HANDLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.EVICTED
    assert result.detail.startswith("despite errors: StopContainer")


async def test_failed_stop_without_cgroups_counts_as_a_failure() -> None:
    runtime, web = Runtime(), pod()
    runtime.read = lambda _: frozenset()  # type: ignore[method-assign,assignment]
    runtime.errors["c1"] = RuntimeRequestError("StopContainer", "c1", "INTERNAL", "no")
    without_cgroup = replace(HANDLE, cgroup=None)
    result = await evictor(runtime, web, handle=without_cgroup).evict(chosen(web), without_cgroup, asyncio.Event())
    assert result.outcome is EvictionOutcome.FAILED


async def test_wait_for_a_hanging_runtime_is_bounded() -> None:
    runtime, web = Runtime(stubborn=True), pod()
    never = asyncio.Event()

    async def hang(identity: str, timeout_s: int = -1) -> None:
        runtime.stops.append((identity, timeout_s))
        await never.wait()

    runtime.stop_container = hang  # type: ignore[method-assign,assignment]
    runtime.stop_sandbox = hang  # type: ignore[method-assign,assignment]
    slow = evictor(runtime, web, verify_s=0.01)
    result = await asyncio.wait_for(slow.evict(chosen(web), HANDLE, asyncio.Event()), 5)
    assert result.outcome is EvictionOutcome.FAILED
    assert "no answer to StopContainer" in result.detail
    assert "2 process(es) still running" in result.detail
    never.set()


async def test_pod_without_processes_counts_as_evicted_without_a_runtime_response() -> None:
    runtime, web = Runtime(), pod()
    never = asyncio.Event()

    async def hang(sandbox_id: str) -> None:
        runtime.stops.append((sandbox_id, -1))
        await never.wait()

    runtime.stop_sandbox = hang  # type: ignore[method-assign]
    result = await evictor(runtime, web).evict(chosen(web), HANDLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.EVICTED
    never.set()


async def test_loss_of_the_runtime_raises_an_error() -> None:
    runtime, web = Runtime(), pod()
    runtime.errors["c2"] = RuntimeUnavailableError("no connection")
    with pytest.raises(RuntimeUnavailableError):
        await evictor(runtime, web).evict(chosen(web), HANDLE, asyncio.Event())


async def test_urgent_request_shortens_the_grace_period() -> None:
    runtime, web, hurry = Runtime(hang=asyncio.Event()), pod(), asyncio.Event()
    work = asyncio.ensure_future(evictor(runtime, web).evict(chosen(web, 30), HANDLE, hurry))
    await runtime.both_stopping.wait()
    hurry.set()
    result = await work
    assert result.outcome is EvictionOutcome.EVICTED
    assert result.hurried
    assert runtime.stops[:4] == [("c1", 30), ("c2", 30), ("c1", 0), ("c2", 0)]
