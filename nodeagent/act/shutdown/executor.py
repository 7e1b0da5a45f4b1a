"""Execution of a node shutdown: pods are stopped phase by phase, in parallel within a phase, within the budget.

The runtime stops each container within its grace period. Containers that still run at its end are killed, and the next
phase starts without waiting for the kill. Calls without an answer are abandoned at the end of the run, so that the
inhibitor lock is always released in time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.errors import NodeAgentError, RuntimeRequestError, RuntimeUnavailableError
from nodeagent.model import PodOutcome, PodProgress
from nodeagent.model.node_stop import StoppedPod
from nodeagent.plan.shutdown.planner import PlannedPhase, PodStop, begin_phase, place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from nodeagent.model import ShutdownPod
    from nodeagent.plan.shutdown.budget import ShutdownBudget
    from nodeagent.plan.shutdown.planner import Placement

_RETRY_S: Final = 0.2
_LIST_WITHIN_S: Final = 2.0
_RUNTIME_KILL_LEAD_MS: Final = 250  # lead of the runtime's own KILL over the agent's, so that a pod is not killed twice
_NO_ANSWER: Final = "the runtime did not answer in time; the containers may still run"


class Stopper(Protocol):
    """Stops containers and sandboxes.

    Both methods raise errors of the runtime, and treat a container or sandbox that was not found as stopped.
    """

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Send TERM to a container, and KILL after ``timeout_s`` seconds; returns once it has stopped."""

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox with its containers."""


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod with running containers or a ready sandbox.

    Attributes:
        pod: the pod, with its running containers only.
        sandbox_ids: ids of its ready sandboxes.
    """

    pod: ShutdownPod
    sandbox_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class _PodRecord:
    """One pod with a stop request."""

    stop: PodStop
    phase: str
    requested_at_ms: int
    outcome: PodOutcome = PodOutcome.STOPPING
    took_ms: int | None = None
    problems: list[str] = field(default_factory=list)
    killed: bool = False
    pending: int = 0

    @property
    def stopped(self) -> StoppedPod:
        """The pod in the form of the records."""
        pod = self.stop.pod
        return StoppedPod(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            phase=self.phase,
            why=self.stop.placement.why,
            outcome=self.outcome,
            requested_at_ms=self.requested_at_ms,
            took_ms=self.took_ms,
            detail="; ".join(dict.fromkeys(self.problems)),
        )


@dataclass
class ShutdownRun:  # 17 attributes: its collaborators, and the progress of one run that its tasks share
    """One run over the phases, or the rest of an interrupted run.

    Attributes:
        elapsed_ms: returns the milliseconds since the shutdown began; never decreases.
        list_pods: lists the running pods.
        on_phase: called at the start of a phase, with its number of known pods.
        on_pod: called with each pod that has stopped or failed to.
        on_change: called after each change of ``pods``.
        before: pods of an interrupted run, by UID.
        list_problem: reason for the failure of the last list; empty after a success.
    """

    budget: ShutdownBudget
    stopper: Stopper
    elapsed_ms: Callable[[], int]
    list_pods: Callable[[], Awaitable[Sequence[RunningPod]]]
    on_phase: Callable[[str, int], None] = lambda _name, _pods: None
    on_pod: Callable[[StoppedPod], None] = lambda _: None
    on_change: Callable[[], None] = lambda: None
    before: Mapping[str, StoppedPod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.list_problem = ""
        self._running: dict[str, RunningPod] = {}
        self._placed: dict[str, tuple[int, Placement]] = {}
        self._requested_ids: set[str] = set()  # ids of containers, and of the sandboxes of pods without containers
        self._records: dict[str, _PodRecord] = {}
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._sandboxes: set[asyncio.Task[None]] = set()
        self._current = 0
        self._started_ms = self.elapsed_ms()

    @property
    def ends_ms(self) -> int:
        """Latest end of the run, in milliseconds since the shutdown began."""
        return self.budget.latest_end_ms(self._started_ms)

    @property
    def pods(self) -> tuple[StoppedPod, ...]:
        """All pods: pods of an interrupted run, then pods with a stop request in order, then pods of later phases."""
        pods = dict(self.before)
        pods.update((uid, record.stopped) for uid, record in self._records.items())
        for uid, (phase, placement) in self._placed.items():
            pod, name = self._running[uid].pod, self.budget.phases[phase].phase.name
            pods.setdefault(uid, StoppedPod(uid, pod.namespace, pod.name, name, placement.why))
        return tuple(pods.values())

    async def carry_out(self, cached: Sequence[RunningPod]) -> None:
        """Stop all pods; returns once each has stopped, at the end of the run at the latest.

        When cancelled, pods without a stop request continue to run.

        Args:
            cached: the last list of running pods. They are stopped at once, while the runtime is listed again.
        """
        try:
            if self.budget.phases:
                self._add(cached)
            for index in range(len(self.budget.phases)):
                await self._run_phase(index)
            await self._finish()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def end_sandboxes(self, within_s: float) -> None:
        """Wait up to ``within_s`` seconds for the sandboxes of stopped pods to stop; then cancel the rest."""
        if self._sandboxes and within_s > 0:
            await asyncio.wait(self._sandboxes, timeout=within_s)
        for task in self._sandboxes:
            task.cancel()
        await asyncio.gather(*self._sandboxes, return_exceptions=True)

    def _add(self, pods: Iterable[RunningPod]) -> None:
        """Add running pods; a pod that is listed late joins the current phase."""
        for running in pods:
            uid = running.pod.uid
            self._running[uid] = running
            if uid not in self._placed:
                placement = place(running.pod, self.budget.phases)
                self._placed[uid] = max(placement.phase, self._current), placement

    async def _run_phase(self, index: int) -> None:
        """Stop the pods of a phase; returns once they have stopped, at its deadline at the latest."""
        self._current = index
        share = self.budget.phases[index]
        members = sum(phase == index for phase, _ in self._placed.values())
        self._request_due()
        if members or index == 0:
            self._start(self._list_again(), index)
        self.on_phase(share.phase.name, members)
        while (left_ms := share.deadline_ms - self.elapsed_ms()) > 0:
            tasks = [task for task, phase in self._tasks.items() if phase == index]
            if not tasks:
                return
            await asyncio.wait(tasks, timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED)

    async def _finish(self) -> None:
        """Wait for the last kills, and mark pods without an answer as failed."""
        while self._tasks and (left_ms := self.ends_ms - self.elapsed_ms()) > 0:
            await asyncio.wait(self._tasks, timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        for record in self._records.values():
            if record.outcome is PodOutcome.STOPPING:
                record.outcome = PodOutcome.FAILED
                record.problems.append(_NO_ANSWER)
                self.on_pod(record.stopped)
        self.on_change()

    async def _list_again(self) -> None:
        """List the running pods, and send the stop requests that are due."""
        within_s = min(_LIST_WITHIN_S, (self.ends_ms - self.elapsed_ms()) / 1000)
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        pods = await self.list_pods()
                        break
                    except NodeAgentError as error:
                        self.list_problem = str(error)
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            self.list_problem = self.list_problem or "cannot list pods: no answer in time"
            return
        self.list_problem = ""
        self._add(pods)
        self._request_due()

    def _request_due(self) -> None:
        """Send a stop request to each pod of a started phase that has none yet."""
        due: dict[str, tuple[str, ...]] = {}
        for uid, (phase, _) in self._placed.items():
            running = self._running[uid]
            ids = tuple(each for each in running.pod.container_ids if each not in self._requested_ids)
            no_containers = not running.pod.container_ids and uid not in self._records
            sandbox_only = no_containers and not self._requested_ids.intersection(running.sandbox_ids)
            if phase <= self._current and (ids or sandbox_only):
                due[uid] = ids
                self._requested_ids.update(ids or running.sandbox_ids)
        if not due:
            return
        share, now_ms = self.budget.phases[self._current], self.elapsed_ms()
        earlier = {
            uid: progress
            for uid in due
            if (known := self.before.get(uid)) is not None
            and (progress := known.progress) is not None
            and not progress.outcome.ended
        }
        stops = tuple(PodStop(self._running[uid].pod, self._placed[uid][1], 0, capped=False) for uid in due)
        for stop in begin_phase(PlannedPhase(share, now_ms, now_ms, stops), elapsed_ms=now_ms, progress=earlier):
            self._request(stop, due[stop.pod.uid], share.phase.name, earlier.get(stop.pod.uid))
        self.on_change()

    def _request(self, stop: PodStop, ids: tuple[str, ...], phase: str, earlier: PodProgress | None) -> None:
        uid = stop.pod.uid
        record = self._records.get(uid)
        if record is None:
            requested_at_ms = earlier.requested_at_ms if earlier is not None else self.elapsed_ms()
            record = self._records[uid] = _PodRecord(stop, phase, requested_at_ms)
        record.outcome, record.took_ms = PodOutcome.STOPPING, None
        record.pending += 1
        self._start(self._stop_pod(record, stop, ids), self._current)

    def _start(self, work: Coroutine[object, object, None], phase: int) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = phase
        task.add_done_callback(self._tasks.pop)

    async def _stop_pod(self, record: _PodRecord, stop: PodStop, ids: tuple[str, ...]) -> None:
        """Stop containers in parallel; the sandboxes follow without delaying the phase."""
        await asyncio.gather(*(self._stop_container(record, stop, each) for each in ids))
        record.pending -= 1
        if record.pending:
            return
        record.took_ms = max(0, self.elapsed_ms() - record.requested_at_ms)
        record.outcome = PodOutcome.KILLED if record.killed else PodOutcome.STOPPED
        if record.problems:
            record.outcome = PodOutcome.FAILED
        for sandbox_id in self._running[stop.pod.uid].sandbox_ids:
            task = asyncio.create_task(self._stop_sandbox(sandbox_id))
            self._sandboxes.add(task)
            task.add_done_callback(self._sandboxes.discard)
        self.on_pod(record.stopped)
        self.on_change()

    async def _stop_container(self, record: _PodRecord, stop: PodStop, container_id: str) -> None:
        """Stop one container, and kill it at the end of its grace period; a failure is added to the pod's record."""
        started_ms, problem = self.elapsed_ms(), ""
        if stop.grace_ms:
            lead_ms = 0 if stop.capped or stop.grace_ms % 1000 else _RUNTIME_KILL_LEAD_MS
            problem = await self._call(container_id, stop.timeout_s, started_ms + stop.grace_ms + lead_ms)
            if not problem:
                record.killed |= self.elapsed_ms() - started_ms >= stop.timeout_s * 1000
                return
        record.killed = True
        problem = await self._call(container_id, 0, self.ends_ms)
        if problem:
            record.problems.append(problem)

    async def _call(self, container_id: str, timeout_s: int, until_ms: int) -> str:
        """Call ``StopContainer`` until it succeeds or the time is over; return the last problem, empty on success."""
        problem = _NO_ANSWER
        left_ms = until_ms - self.elapsed_ms()
        try:
            async with asyncio.timeout(max(0, left_ms) / 1000):
                while True:
                    try:
                        await self.stopper.stop_container(container_id, timeout_s)
                    except (RuntimeRequestError, RuntimeUnavailableError) as error:
                        problem = str(error)
                    else:
                        return ""
                    await asyncio.sleep(_RETRY_S)
                    timeout_s = min(timeout_s, max(0, -(-(until_ms - self.elapsed_ms()) // 1000)))
        except TimeoutError:
            return problem

    async def _stop_sandbox(self, sandbox_id: str) -> None:
        try:
            await self.stopper.stop_sandbox(sandbox_id)
        except NodeAgentError:
            return  # its containers have stopped, and the node's shutdown ends the rest
