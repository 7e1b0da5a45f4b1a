"""Role changes at run time by the start and stop of a kubelet: role watch, eviction task, garbage collection."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.status import role_warnings
from nodeagent.errors import NodeAgentError
from nodeagent.eviction.composition import EvictionTask, eviction_tasks, refusal
from nodeagent.eviction.plan.effects import OutstandingEffect, Victim
from nodeagent.eviction.plan.reclaim import Shortage
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.policy import Scope
from nodeagent.loops.passes import Activity, LoopStatuses, PassLock
from nodeagent.model.node import KubeletTraces, Role, RoleBasis
from nodeagent.model.pressure import NodeCondition, Signal
from nodeagent.model.runtime import ContainerState
from nodeagent.pods import role as node_role
from nodeagent.pods.plan.role import ABSENT_S
from nodeagent.pods.role import RoleWatch
from nodeagent.record import replace
from nodeagent.settings.loading import load
from nodeagent.telemetry import logging as log
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.unit.kubelet_double import KUBELET, NO_KUBELET, KubeletDouble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nodeagent.gc.agent import Agent
    from nodeagent.settings.settings import Settings

BESIDE, STANDALONE = Role.BESIDE_KUBELET, Role.STANDALONE
IMAGE = "registry.test/app:v1"


class Watched:
    """A role watch with a fake kubelet, and its log."""

    def __init__(self, traces: KubeletTraces = NO_KUBELET) -> None:
        self.kubelet = KubeletDouble(traces)
        self.stream = io.StringIO()
        self.logger = log.configure("json", "info", self.stream)
        self.roles = RoleWatch(self.kubelet.clock, self.logger, reader=self.kubelet)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [each for each in map(json.loads, self.stream.getvalue().splitlines()) if each["event"] == name]


@pytest.fixture
def watched() -> Watched:
    return Watched()


# --- role watch


async def test_role_before_the_first_reading_is_beside_a_kubelet(watched: Watched) -> None:
    assert watched.roles.current.role is BESIDE


async def test_change_of_the_role_is_logged_once(watched: Watched) -> None:
    assert (await watched.roles.evaluate(None)).role is STANDALONE
    watched.kubelet.set(KUBELET)
    assert (await watched.roles.evaluate(None)).role is BESIDE
    await watched.roles.evaluate(None)
    (event,) = watched.events("role_changed")
    assert (event["role"], event["before"]) == ("beside-kubelet", "standalone")
    assert event["because"] == "kubelet process 812 (kubelet)"
    watched.kubelet.set(NO_KUBELET)
    await watched.roles.evaluate(None)
    assert len(watched.events("role_changed")) == 1
    watched.kubelet.set(NO_KUBELET, ABSENT_S)
    assert (await watched.roles.evaluate(None)).role is STANDALONE
    assert len(watched.events("role_changed")) == 2


async def test_first_role_is_not_logged_as_a_change(watched: Watched) -> None:
    watched.kubelet.set(KUBELET)
    await watched.roles.evaluate(None)
    assert watched.events("role_changed") == []


async def test_passes_in_quick_succession_share_one_reading(watched: Watched) -> None:
    for _ in range(10):
        await watched.roles.evaluate(None)
        watched.kubelet.clock.seconds += 0.2
    assert len(watched.kubelet.readings) == 1
    watched.kubelet.clock.seconds += 2
    await watched.roles.evaluate(None)
    assert len(watched.kubelet.readings) == 2


async def test_configured_standalone_beside_a_running_kubelet_is_logged_once(watched: Watched) -> None:
    watched.kubelet.set(KUBELET)
    for _ in range(3):
        assert (await watched.roles.evaluate(STANDALONE)).role is BESIDE
        watched.kubelet.clock.seconds += 5
    (event,) = watched.events("role_contradiction")
    assert "kubelet process 812" in event["warning"]


async def test_hanging_reading_is_replaced_by_a_non_blocking_one(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_role, "_READ_WITHIN_S", 0.05)
    watched.kubelet.hanging = frozenset({True})
    watched.kubelet.set(KUBELET)
    assert (await watched.roles.evaluate(None)).basis is RoleBasis.LIVE_KUBELET
    watched.kubelet.set(KUBELET)
    await watched.roles.evaluate(None)
    assert watched.kubelet.readings == [True, False, False]
    watched.kubelet.released.set()


async def test_role_is_kept_for_a_limited_time_without_readable_traces(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_role, "_READ_WITHIN_S", 0.05)
    assert (await watched.roles.evaluate(None)).role is STANDALONE
    watched.kubelet.hanging = frozenset({True, False})
    watched.kubelet.clock.seconds += 30
    assert (await watched.roles.evaluate(None)).role is STANDALONE
    watched.kubelet.clock.seconds += 31
    decision = await watched.roles.evaluate(None)
    assert (decision.role, decision.basis) == (BESIDE, RoleBasis.UNREADABLE)
    watched.kubelet.released.set()


async def test_exception_in_the_reader_gives_the_role_beside_a_kubelet(watched: Watched) -> None:
    watched.kubelet.error = RuntimeError("a bug")
    for _ in range(3):
        assert (await watched.roles.evaluate(None)).role is BESIDE
        watched.kubelet.clock.seconds += 5
    assert len(watched.events("role_unknown")) == 1


# --- eviction


class Evicting:
    """An eviction task with a fake eviction loop that ends when evictions are refused."""

    def __init__(self, watched: Watched, configured: Role | None = None, *, enabled: bool | None = None) -> None:
        clock = watched.kubelet.clock
        self.context = DaemonContext(None, watched.logger, clock, LoopStatuses(clock), PassLock(clock))  # type: ignore[arg-type]
        self.context.roles = watched.roles
        self.settings = load(None, {}, {}).config.settings()
        self.settings = replace(self.settings, role=configured, eviction=EvictionSettings(enabled=enabled))
        self.watched = watched
        self.loops = 0
        self.running = asyncio.Event()
        self.stop = asyncio.Event()
        self.task = EvictionTask(self.context, cast("Agent", self), lambda: self)

    @property
    def role(self) -> Role:
        return self.watched.roles.current.role

    async def evaluate_role(self) -> object:
        return await self.watched.roles.evaluate(self.settings.role)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until evictions are refused or ``stop`` is set, as the eviction loop does."""
        self.loops += 1
        while not stop.is_set() and not await refusal(cast("Agent", self)):
            self.running.set()
            await asyncio.sleep(0)
        self.running.clear()

    def line(self) -> tuple[Activity, str]:
        (line,) = self.context.loop_statuses.all
        return line.activity, line.reason

    async def wait_until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - the loop status sets no asyncio.Event
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.eviction.composition.ROLE_POLL_S", 0.0)


async def test_eviction_stops_beside_a_kubelet_and_resumes_without_it(watched: Watched) -> None:
    made = Evicting(watched)
    made.context.eviction = EvictionState(reported=frozenset({NodeCondition.MEMORY_PRESSURE}), evicted_s=(1.0,))
    running = asyncio.ensure_future(made.task.run(made.stop))
    await asyncio.wait_for(made.running.wait(), 20)
    watched.kubelet.set(KUBELET)
    await made.wait_until(lambda: made.context.loop_statuses.all)
    assert made.line()[0] is Activity.DISABLED
    assert "kubelet process 812 (kubelet)" in made.line()[1]
    assert made.context.eviction == EvictionState(evicted_s=(1.0,))
    watched.kubelet.set(NO_KUBELET)
    await made.wait_until(lambda: "absent for" in made.line()[1])
    assert made.loops == 1
    watched.kubelet.set(NO_KUBELET, ABSENT_S)
    await made.wait_until(lambda: made.loops == 2)
    made.stop.set()
    await asyncio.wait_for(running, 20)
    assert len(watched.events("loop_disabled")) == 1


async def test_unfinished_eviction_is_kept_and_logged_when_a_kubelet_starts(watched: Watched) -> None:
    made = Evicting(watched)
    now_s = watched.kubelet.clock.monotonic_s()
    victims = (Victim("uid-1", "shop", "web", verified=True), Victim("uid-2", "shop", "db", cleared=True))
    effects = tuple(
        OutstandingEffect(name, Shortage.IMAGEFS, Signal.IMAGEFS_AVAILABLE, None, None, now_s, until_s)
        for name, until_s in (("outstanding", now_s + 3600), ("expired", now_s))
    )
    made.context.eviction = EvictionState(evicted_s=(1.0,), outstanding=effects, victims=victims)
    watched.kubelet.set(KUBELET)
    running = asyncio.ensure_future(made.task.run(made.stop))
    await made.wait_until(lambda: made.context.loop_statuses.all)
    made.stop.set()
    await asyncio.wait_for(running, 20)
    assert made.context.eviction == EvictionState(evicted_s=(1.0,), outstanding=effects[:1], victims=victims)
    (event,) = watched.events("eviction_cleanup_failed")
    assert event["pod_name"] == "web"
    assert event["detail"].startswith("removal suspended: eviction is disabled: ")


@pytest.mark.parametrize("configured", [None, STANDALONE])
async def test_eviction_configured_on_is_refused_beside_a_kubelet(watched: Watched, configured: Role | None) -> None:
    watched.kubelet.set(KUBELET)
    made = Evicting(watched, configured, enabled=True)
    running = asyncio.ensure_future(made.task.run(made.stop))
    await made.wait_until(lambda: made.context.loop_statuses.all)
    made.stop.set()
    await asyncio.wait_for(running, 20)
    assert made.loops == 0
    (event,) = watched.events("loop_disabled")
    assert event["level"] == "warning"
    assert event["because"].startswith('eviction.enabled = "on" is refused: a kubelet manages this node')
    warnings = role_warnings(made.settings, watched.roles.current)
    assert any('eviction.enabled = "on" is refused' in each for each in warnings)
    assert any('role = "standalone" is configured' in each for each in warnings) == (configured is STANDALONE)


async def test_eviction_configured_off_makes_no_task(watched: Watched) -> None:
    made = Evicting(watched, enabled=False)
    assert eviction_tasks(made.context, cast("Agent", made)) == ()
    assert made.line() == (Activity.DISABLED, 'eviction.enabled = "off"')


# --- garbage collection


def configured(tmp_path: Path, **more: str | int) -> Settings:
    words: dict[str, str | int] = {
        "runtime.endpoint": f"unix://{tmp_path}/cri.sock",
        "state.directory": str(tmp_path / "state"),
        "container_gc.pod_log_root": str(tmp_path / "pods"),
        "container_gc.container_log_root": str(tmp_path / "containers"),
        "container_gc.deleted_pod_grace": "1s",
        "container_gc.log_minimum_age": "0s",
        **more,
    }
    return load(None, words, {}).config.settings()


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[SimNode]:
    """Serve a simulated node with one finished pod and its log directory; yield the node."""
    node = SimNode()
    node.root_path = str(tmp_path)
    node.add_image(IMAGE, layers=[Layer("base", 1 << 20)])
    sandbox = node.add_pod("job", namespace="shop", uid="uid-job", age_s=7200, ready=False)
    node.add_container(sandbox, "main", IMAGE, state=ContainerState.EXITED, age_s=7200, ended_s=3600)
    (tmp_path / "pods/shop_job_uid-job").mkdir(parents=True)
    async with SimServer(node, tmp_path / "cri.sock"):
        yield node


async def collect(agent: Agent) -> list[str]:
    """Run a container GC pass; return the sorted kinds of the removed items."""
    preview = await agent.collector.preview(Scope.CONTAINERS)
    report = await agent.run(preview, trigger="test", stop=asyncio.Event())
    return sorted(each.decision.kind.value for each in report.removed)


async def test_pass_beside_a_kubelet_keeps_a_finished_pod(watched: Watched, job: SimNode, tmp_path: Path) -> None:
    async with open_agent(
        configured(tmp_path), record=False, dry_run=False, roles=watched.roles, clock=job.clock
    ) as agent:
        first = await agent.collector.preview(Scope.CONTAINERS)
        assert {each.kind.value for each in first.removals} == {"container", "sandbox", "pod-log-directory"}
        watched.kubelet.set(KUBELET)
        assert await collect(agent) == []
        preview = await agent.collector.preview(Scope.CONTAINERS)
        assert preview.snapshot.role is BESIDE
        assert "a kubelet manages this node" in str([each.reason.sentence for each in preview.plans[0].decisions])
        watched.kubelet.set(NO_KUBELET)
        assert await collect(agent) == []
        watched.kubelet.set(NO_KUBELET, ABSENT_S)
        assert await collect(agent) == ["container", "pod-log-directory", "sandbox"]
    assert job.containers == {}


async def test_preview_made_before_the_start_of_a_kubelet_is_not_executed(
    watched: Watched, job: SimNode, tmp_path: Path
) -> None:
    async with open_agent(
        configured(tmp_path), record=False, dry_run=False, roles=watched.roles, clock=job.clock
    ) as agent:
        preview = await agent.collector.preview(Scope.CONTAINERS)
        assert preview.removals
        watched.kubelet.set(KUBELET)
        with pytest.raises(NodeAgentError, match=r"kubelet process 812 \(kubelet\); nothing was removed"):
            await agent.run(preview, trigger="test", stop=asyncio.Event())
    assert len(job.containers) == 1


@pytest.mark.difference("pod-deletion-beside-kubelet")
async def test_pod_from_an_api_server_is_kept_although_no_kubelet_is_found(watched: Watched, tmp_path: Path) -> None:
    node = SimNode()
    node.root_path = str(tmp_path)
    node.add_image(IMAGE, layers=[Layer("base", 1 << 20)])
    for name, source in (("job", "api"), ("plain", "")):
        sandbox = node.add_pod(name, namespace="shop", uid=f"uid-{name}", age_s=7200, ready=False, source=source)
        node.add_container(sandbox, "main", IMAGE, state=ContainerState.EXITED, age_s=7200, ended_s=3600)
        (tmp_path / f"pods/shop_{name}_uid-{name}").mkdir(parents=True)
    settings = configured(tmp_path)
    async with (
        SimServer(node, tmp_path / "cri.sock"),
        open_agent(settings, record=False, dry_run=False, roles=watched.roles, clock=node.clock) as agent,
    ):
        assert agent.role is STANDALONE
        assert await collect(agent) == ["container", "pod-log-directory", "sandbox"]
        again = await agent.collector.preview(Scope.CONTAINERS)
        assert again.removals == ()
        sentences = [each.reason.sentence for plan in again.plans for each in plan.decisions]
        assert len([each for each in sentences if "kubernetes.io/config.source=api" in each]) == 2
    assert [each.name for each in node.sandboxes.values()] == ["job"]
    assert [each.name for each in (tmp_path / "pods").iterdir()] == ["shop_job_uid-job"]
