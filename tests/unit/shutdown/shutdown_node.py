"""A node in virtual time: containers with processes, and a runtime that can be slow, unavailable or unresponsive."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError, RuntimeUnavailableError
from nodeagent.host.container_processes import ContainerProcesses
from nodeagent.model.runtime import Container, ContainerState
from nodeagent.model.stops import ShutdownPod
from nodeagent.record import replace
from nodeagent.shutdown.executor import ShutdownRun
from nodeagent.shutdown.plan.planner import DelayLimit, shutdown_budget, two_bands
from nodeagent.shutdown.recorder import RunningPod
from tests.support.virtual_time import now_ms, play

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from nodeagent.model.stops import StoppedPod
    from nodeagent.shutdown.plan.planner import ShutdownBudget

TEN_AND_FIVE = two_bands(15, 5)


def pod(name: str, priority: int = 0, *containers: str, grace_s: float | None = None) -> RunningPod:
    ids = containers or (f"{name}-c",)
    shutdown_pod = ShutdownPod(name, "shop", name, priority, container_ids=ids, termination_grace_s=grace_s)
    return RunningPod(shutdown_pod, (f"{name}-s",))


@dataclass
class Node(ContainerProcesses):
    """A fake node that records all signals and stop requests with their times in milliseconds.

    Attributes:
        up: pods listed by the runtime while they have running containers.
        takes_s: seconds from TERM to the end, by container; 0 by default, ``None`` for containers that ignore TERM.
        answers_after_s: seconds from the end of the container to the response to its stop request.
        unresponsive: containers with stop requests that hang without effect.
        refuses: number of stop requests that fail, by container, each after ``refuses_after_s``.
        unavailable: intervals in milliseconds in which every call fails.
        busy: intervals in milliseconds; calls in an interval are delayed until its end.
        located: containers with observable processes; ``None`` for all containers.
        complete_search: whether the process search was complete, so that unlocated containers have no processes.
        stopped_shims: containers with a stopped containerd shim.
        busy_containers: containers with unknown CPU time, which does not confirm that TERM was received.
        exit_codes: exit codes after TERM, by container; 0 by default.
        uninterruptible: containers with a process in uninterruptible sleep (state D), which ignores KILL.
        receives_after_ms: milliseconds during which TERM is pending, by container; 0 by default.
        stopped: containers with a stopped process.
        finished_at: finish time that the runtime reports for every container.
    """

    up: list[RunningPod] = field(default_factory=list)
    takes_s: dict[str, float | None] = field(default_factory=dict)
    answers_after_s: float = 0.0
    unresponsive: set[str] = field(default_factory=set)
    unavailable: tuple[tuple[int, int], ...] = ()
    busy: tuple[tuple[int, int], ...] = ()
    refuses: dict[str, int] = field(default_factory=dict)
    refuses_after_s: float = 0.0
    located: Collection[str] | None = ()
    complete_search: bool = True
    stopped_shims: set[str] = field(default_factory=set)
    busy_containers: set[str] = field(default_factory=set)
    exit_codes: dict[str, int] = field(default_factory=dict)
    uninterruptible: set[str] = field(default_factory=set)
    receives_after_ms: dict[str, int] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    finished_at: datetime | None = None
    ended: dict[str, int] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    signals: list[tuple[int, str, str]] = field(default_factory=list)
    calls: list[tuple[int, str, int]] = field(default_factory=list)
    sandboxes: list[str] = field(default_factory=list)
    events: dict[str, asyncio.Event] = field(default_factory=dict)
    on_list: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None

    # ---- processes

    def terminated(self, container_id: str) -> None:
        """Record TERM, and schedule the end of the container at its first TERM."""
        if container_id in self.ended:
            return
        if not self.received(container_id, "TERM"):
            takes_s = self.takes_s.get(container_id, 0.0)
            if takes_s is not None:
                asyncio.get_running_loop().call_later(takes_s, self.end, container_id, None)
        self.signals.append((now_ms(), container_id, "TERM"))

    def killed(self, container_id: str) -> None:
        """Record KILL, and end the container unless its process is uninterruptible."""
        if container_id not in self.ended:
            self.signals.append((now_ms(), container_id, "KILL"))
            if container_id not in self.uninterruptible:
                self.end(container_id, 137)

    def end(self, container_id: str, code: int | None) -> None:
        if container_id not in self.ended:
            self.ended[container_id] = now_ms()
            self.codes[container_id] = self.exit_codes.get(container_id, 0) if code is None else code
            self._event(container_id).set()
            self.on_change()

    def _event(self, container_id: str) -> asyncio.Event:
        return self.events.setdefault(container_id, asyncio.Event())

    def received(self, container_id: str, signal: str) -> list[int]:
        return [at for at, each, name in self.signals if (each, name) == (container_id, signal)]

    async def locate(self, _container_ids: Collection[str]) -> bool:
        """Return ``complete_search``, false without any located container; the located containers do not change."""
        return self.complete_search and self.located != ()

    def watch(self, container_ids: Collection[str]) -> None:
        """Do nothing, since the end of every container is reported."""

    def is_located(self, container_id: str) -> bool:
        return self.is_populated(container_id) is not None

    def is_populated(self, container_id: str) -> bool | None:
        if self.located is not None and container_id not in self.located:
            return None
        return container_id not in self.ended

    def terminate(self, container_id: str) -> bool:
        if self.is_populated(container_id):
            self.terminated(container_id)
            return True
        return False

    def kill(self, container_id: str) -> bool:
        if self.is_populated(container_id):
            self.killed(container_id)
            return True
        return False

    def has_stopped_shim(self, container_id: str) -> bool:
        return container_id in self.stopped_shims and self.is_populated(container_id) is not None

    def has_pending_term(self, container_id: str) -> bool:
        at_ms = self.received(container_id, "TERM")
        return bool(at_ms) and now_ms() < at_ms[0] + self.receives_after_ms.get(container_id, 0)

    def is_delayed(self, container_id: str) -> bool:
        """Return whether TERM can be pending in a container without a stopped process."""
        return container_id in self.receives_after_ms and container_id not in self.stopped

    def cpu_us(self, container_id: str) -> int | None:
        """Return the CPU time in microseconds, 1 for each TERM; ``None`` if unknown."""
        if container_id in self.busy_containers or self.is_populated(container_id) is None:
            return None
        return len(self.received(container_id, "TERM"))

    # ---- the runtime

    async def version(self) -> object:
        await self._check()
        return None

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        self.calls.append((now_ms(), container_id, timeout_s))
        await self._check()
        if self.refuses.get(container_id, 0):
            self.refuses[container_id] -= 1
            await asyncio.sleep(self.refuses_after_s)
            raise RuntimeRequestError("StopContainer", container_id, "UNKNOWN", "cannot")
        if container_id in self.unresponsive | self.stopped_shims:
            await asyncio.Event().wait()
        if timeout_s:
            self.terminated(container_id)
            outages = [start - now_ms() for start, end in self.unavailable if now_ms() < start < end]
            with suppress(TimeoutError):
                async with asyncio.timeout(min(timeout_s, *(each / 1000 for each in outages), timeout_s)):
                    await self._event(container_id).wait()
            self._fail_if_unavailable()
        self.killed(container_id)
        await asyncio.sleep(self.answers_after_s)

    async def container_status(self, container_id: str) -> Container:
        await self._check()
        known = {each for up in self.up for each in up.pod.container_ids} | self.ended.keys()
        if container_id not in known:
            raise RuntimeNotFoundError("ContainerStatus", container_id, "NOT_FOUND", "none")
        state = ContainerState.EXITED if container_id in self.ended else ContainerState.RUNNING
        code = self.codes.get(container_id)
        return Container(container_id, "main", "", state, exit_code=code, finished_at=self.finished_at)

    async def stop_sandbox(self, sandbox_id: str) -> None:
        await self._check()
        self.sandboxes.append(sandbox_id)

    async def list_pods(self) -> Sequence[RunningPod]:
        await self._check()
        self.on_list()
        return [
            replace(up, pod=replace(up.pod, container_ids=ids))
            for up in self.up
            if (ids := tuple(each for each in up.pod.container_ids if each not in self.ended))
        ]

    async def _check(self) -> None:
        for start, end in self.busy:
            if start <= now_ms() < end:
                await asyncio.sleep((end - now_ms()) / 1000)
        self._fail_if_unavailable()

    def _fail_if_unavailable(self) -> None:
        if any(start <= now_ms() < end for start, end in self.unavailable):
            raise RuntimeUnavailableError("unavailable")


@dataclass
class RunResult:
    """The result of a shutdown run.

    Attributes:
        ended_ms: time of the release of the inhibitor lock.
        reported: pods with a final outcome.
        records: time in milliseconds and pods of each record on disk.
    """

    ended_ms: int
    pods: dict[str, StoppedPod]
    phases: list[tuple[int, str]]
    run: ShutdownRun
    reported: list[StoppedPod]
    records: list[tuple[int, dict[str, StoppedPod]]]

    def recorded(self, at_ms: int) -> list[StoppedPod]:
        """Return the pods of the last record written before ``at_ms``, the time of a crash of the agent."""
        return list([pods for written_ms, pods in self.records if written_ms < at_ms][-1].values())


def run_down(
    node: Node,
    budget: ShutdownBudget | None = None,
    *,
    cached: Sequence[RunningPod] | None = None,
    before: Sequence[StoppedPod] = (),
    elapsed_ms: int = 0,
    expects_pods: bool = False,
) -> RunResult:
    async def work() -> RunResult:
        phases: list[tuple[int, str]] = []
        reported: list[StoppedPod] = []
        records: list[tuple[int, dict[str, StoppedPod]]] = []
        run = ShutdownRun(
            budget or shutdown_budget(TEN_AND_FIVE, DelayLimit(30_000_000)),
            node,
            lambda: now_ms() + elapsed_ms,
            node.list_pods,
            processes=node,
            on_phase=lambda name, _: phases.append((now_ms(), name)),
            on_pod=reported.append,
            on_change=lambda: records.append((now_ms(), {each.name: each for each in run.pods})),
            before={each.uid: each for each in before},
            expects_pods=expects_pods,
        )
        await run.carry_out(node.up if cached is None else cached)
        ended_ms = now_ms()
        await run.settle(3.0)
        await run.stop_sandboxes(1.0)
        return RunResult(ended_ms, {each.name: each for each in run.pods}, phases, run, reported, records)

    return play(work())
