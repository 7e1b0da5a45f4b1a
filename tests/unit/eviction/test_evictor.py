"""Eviction of one pod: re-read of the pod, stop of its containers, check for remaining processes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeRequestError, RuntimeUnavailableError
from nodeagent.eviction.evictor import CriEvictor, EvictionOutcome
from nodeagent.model.pods import ContainerHandle, PodHandle, PodInventory
from nodeagent.model.pressure import Resource
from nodeagent.record import replace
from tests.unit.eviction.plan.cases import POLICY, at, planned, pod, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.model.pressure import PodFacts

HANDLE = PodHandle("uid-web", ("s1",), (ContainerHandle("c1", "app"), ContainerHandle("c2", "proxy")), "/cgroup/web")
CGROUPS = ["/cgroup/web/cri-containerd-c1.scope", "/cgroup/web/c2"]
KILLABLE = replace(
    HANDLE, containers=(ContainerHandle("c1", "app", CGROUPS[0]), ContainerHandle("c2", "proxy", CGROUPS[1]))
)


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
    """A fake runtime; stop calls end all container processes unless ``stubborn``."""

    stops: list[tuple[str, int]] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    processes: set[int] = field(default_factory=lambda: {10, 11})
    stubborn: bool = False
    hang: asyncio.Event | None = None
    both_stopping: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    kills: list[list[str]] = field(default_factory=list)
    kill_error: str = ""
    unkillable: bool = False
    dying: int = 0

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
        self.closed.set()

    def read(self, directories: Iterable[str]) -> frozenset[int] | None:
        assert list(directories) in (["/cgroup/web"], self.kills[-1] if self.kills else [])
        return frozenset(self.processes)

    def kill(self, directories: Iterable[str]) -> str:
        self.kills.append(list(directories))
        if not self.unkillable and not self.kill_error:
            self.processes.clear()
        return self.kill_error

    def is_populated(self, directories: Iterable[str]) -> bool:
        assert list(directories) == self.kills[-1]
        self.dying = max(0, self.dying - 1)
        return self.dying > 0


def chosen(facts: PodFacts, grace_s: float = 0.0) -> Eviction:
    found = planned([facts], read()).victim
    assert found is not None
    return replace(found, grace_s=grace_s)


def evictor(
    runtime: Runtime,
    *facts: PodFacts,
    handle: PodHandle = HANDLE,
    verify_s: float = 5.0,
    children: frozenset[str] | None = None,
    closed_after_s: float = 0.0,
) -> CriEvictor:
    async def read_pods() -> PodInventory:
        return PodInventory(facts, (), {each.uid: replace(handle, uid=each.uid) for each in facts}, at(0))

    return CriEvictor(
        runtime,
        read_pods,
        POLICY,
        clock=Clock(),
        read_processes=runtime.read,
        kill_processes=runtime.kill,
        is_populated=runtime.is_populated,
        verify_s=verify_s,
        list_children=lambda _: children,
        closed_after_s=closed_after_s,
    )


@pytest.mark.difference("stop-without-hooks")
async def test_containers_are_stopped_concurrently_before_the_sandbox() -> None:
    runtime, web = Runtime(), pod()
    result = await evictor(runtime, web).evict(chosen(web, 2.5), HANDLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.EVICTED
    assert runtime.stops == [("c1", 3), ("c2", 3), ("s1", -1)]


@pytest.mark.difference("stop-without-hooks")
async def test_soft_eviction_has_its_own_grace_period_below_two_seconds() -> None:
    runtime, web = Runtime(), pod()
    await evictor(runtime, web).evict(chosen(web, 0.5), HANDLE, asyncio.Event())
    assert runtime.stops[:2] == [("c1", 1), ("c2", 1)]


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


async def hang(identity: str, timeout_s: int = -1) -> None:
    del identity, timeout_s
    await asyncio.Event().wait()


@pytest.mark.difference("direct-kill")
async def test_processes_are_killed_directly_under_memory_pressure_while_the_runtime_hangs() -> None:
    runtime, web = Runtime(dying=4), pod()
    runtime.stop_container = runtime.stop_sandbox = hang  # type: ignore[method-assign,assignment]
    direct = evictor(runtime, web, handle=KILLABLE)
    result = await asyncio.wait_for(direct.evict(chosen(web), KILLABLE, asyncio.Event()), 5)
    assert result.outcome is EvictionOutcome.EVICTED
    assert runtime.kills == [CGROUPS]
    assert runtime.dying == 0


async def test_containers_and_sandbox_of_killed_processes_are_stopped_in_the_background() -> None:
    runtime, web = Runtime(), pod()
    await evictor(runtime, web, handle=KILLABLE).evict(chosen(web), KILLABLE, asyncio.Event())
    await runtime.closed.wait()
    assert runtime.stops == [("c1", 0), ("c2", 0), ("s1", -1)]


async def test_runtime_has_no_work_for_killed_processes_before_the_delay() -> None:
    runtime, web = Runtime(), pod()
    delayed = evictor(runtime, web, handle=KILLABLE, closed_after_s=60.0)
    result = await delayed.evict(chosen(web), KILLABLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.EVICTED
    for _ in range(100):
        await asyncio.sleep(0)
    assert runtime.stops == []


@pytest.mark.parametrize(
    ("grace_s", "starved", "handle"),
    [
        pytest.param(2.0, Resource.MEMORY, KILLABLE, id="grace period"),
        pytest.param(0.0, Resource.EPHEMERAL_STORAGE, KILLABLE, id="disk"),
        pytest.param(0.0, Resource.MEMORY, HANDLE, id="unknown cgroup"),
        pytest.param(
            0.0,
            Resource.MEMORY,
            replace(KILLABLE, containers=(KILLABLE.containers[0], ContainerHandle("c2", "proxy", "/cgroup/other"))),
            id="cgroup without the id of the container",
        ),
    ],
)
async def test_processes_are_not_killed_directly(grace_s: float, starved: Resource, handle: PodHandle) -> None:
    runtime, web = Runtime(), pod()
    eviction = replace(chosen(web, grace_s), starved=starved)
    result = await evictor(runtime, web, handle=handle).evict(eviction, handle, asyncio.Event())
    assert result.outcome is EvictionOutcome.EVICTED
    assert runtime.kills == []


async def test_urgent_request_kills_the_processes_of_a_pod_in_its_grace_period() -> None:
    runtime, web, hurry = Runtime(hang=asyncio.Event()), pod(), asyncio.Event()
    work = asyncio.ensure_future(evictor(runtime, web, handle=KILLABLE).evict(chosen(web, 30), KILLABLE, hurry))
    await runtime.both_stopping.wait()
    assert runtime.kills == []
    hurry.set()
    result = await work
    assert (result.outcome, result.hurried) == (EvictionOutcome.EVICTED, True)
    assert runtime.kills == [CGROUPS]
    assert runtime.stops == [("c1", 30), ("c2", 30), ("s1", -1)]


async def test_refused_kill_is_followed_by_a_stop_through_the_runtime() -> None:
    runtime, web = Runtime(kill_error="pidfd_send_signal: operation not permitted"), pod()
    result = await evictor(runtime, web, handle=KILLABLE).evict(chosen(web), KILLABLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.EVICTED
    assert "not killed directly: pidfd_send_signal: operation not permitted" in result.detail
    assert runtime.stops == [("c1", 0), ("c2", 0), ("s1", -1)]


async def test_unkillable_process_is_a_failed_eviction() -> None:
    runtime, web = Runtime(unkillable=True, stubborn=True), pod()
    result = await evictor(runtime, web, handle=KILLABLE).evict(chosen(web), KILLABLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.FAILED
    assert "2 process(es) still running" in result.detail


async def test_changed_pod_is_not_killed_directly() -> None:
    runtime = Runtime()
    changed = evictor(runtime, pod(namespace="kube-system"), handle=KILLABLE)
    result = await changed.evict(chosen(pod()), KILLABLE, asyncio.Event())
    assert result.outcome is EvictionOutcome.CHANGED
    assert runtime.kills == []


PRESENT = ("cri-containerd-c1.scope", "c2", "cri-containerd-s1.scope")


@pytest.mark.parametrize(
    ("grace_s", "children", "outcome"),
    [
        pytest.param(0.0, PRESENT, EvictionOutcome.EVICTED, id="listed containers"),
        pytest.param(2.0, PRESENT, EvictionOutcome.CHANGED, id="grace period"),
        pytest.param(0.0, (*PRESENT, "cri-containerd-c3.scope"), EvictionOutcome.CHANGED, id="another container"),
        pytest.param(0.0, PRESENT[1:], EvictionOutcome.CHANGED, id="ended container"),
        pytest.param(0.0, None, EvictionOutcome.CHANGED, id="unreadable"),
    ],
)
async def test_pods_are_read_again_before_a_direct_kill_unless_the_cgroup_has_exactly_the_listed_containers(
    grace_s: float, children: Sequence[str] | None, outcome: EvictionOutcome
) -> None:
    names = None if children is None else frozenset(children)
    current = evictor(Runtime(), pod(namespace="kube-system"), handle=KILLABLE, children=names)
    assert (await current.evict(chosen(pod(), grace_s), KILLABLE, asyncio.Event())).outcome is outcome
