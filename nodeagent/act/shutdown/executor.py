"""Stopping the pods of a node that goes down: phase by phase, all pods of a phase at once, never past the end.

The runtime is asked to end each container within its grace. What is still there when its time is over is killed, and
the next phase begins without waiting for that. What the runtime does not answer is given up at the end: the lock that
holds the node back is let go whatever happened.
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
_RUNTIME_KILLS_MS: Final = 250  # the runtime's own KILL is given this much before ours
_NO_ANSWER: Final = "the runtime did not answer in time; whether it still runs is not known"


class Stopper(Protocol):
    """Ends containers and sandboxes; both raise errors of the runtime, and take what is gone for ended."""

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Tell a container to end and kill it after so many seconds; returns once it has ended."""

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """End a sandbox and what runs in it."""


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod with something running.

    Attributes:
        pod: its containers are those that run.
        sandbox_ids: its ready sandboxes.
    """

    pod: ShutdownPod
    sandbox_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class _Reported:
    """One pod that was told to stop."""

    stop: PodStop
    phase: str
    requested_at_ms: int
    outcome: PodOutcome = PodOutcome.STOPPING
    took_ms: int | None = None
    problems: list[str] = field(default_factory=list)
    killed: bool = False
    under_way: int = 0

    @property
    def stopped(self) -> StoppedPod:
        """The pod as it is remembered."""
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
class ShutdownRun:
    """One run over the phases, or the rest of one that was interrupted.

    Attributes:
        elapsed_ms: milliseconds since the shutdown began; never goes back.
        list_pods: asks the runtime what is up now.
        on_phase: told when a phase begins, with the number of pods known to belong to it.
        on_pod: told of each pod once it ended, or failed.
        on_change: told after anything in ``pods`` changed.
        before: what an earlier run left, by pod UID.
        list_problem: why the runtime could not be asked what is up; empty where it could.
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
        self._up: dict[str, RunningPod] = {}
        self._placed: dict[str, tuple[int, Placement]] = {}
        self._seen: set[str] = set()  # containers that were told, and sandboxes of pods without any
        self._told: dict[str, _Reported] = {}
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._sandboxes: set[asyncio.Task[None]] = set()
        self._current = 0
        self._begun_ms = self.elapsed_ms()

    @property
    def ends_ms(self) -> int:
        """Latest end of the run, in milliseconds since the shutdown began."""
        return self.budget.latest_end_ms(self._begun_ms)

    @property
    def pods(self) -> tuple[StoppedPod, ...]:
        """Every pod: those of an earlier run, those that were told in that order, those that wait for their phase."""
        shown = dict(self.before)
        shown.update((uid, told.stopped) for uid, told in self._told.items())
        for uid, (phase, placement) in self._placed.items():
            pod, name = self._up[uid].pod, self.budget.phases[phase].phase.name
            shown.setdefault(uid, StoppedPod(uid, pod.namespace, pod.name, name, placement.why))
        return tuple(shown.values())

    async def carry_out(self, warm: Sequence[RunningPod]) -> None:
        """Stop all pods; returns once each has ended, at the end of the time at the latest.

        Cancelled, it leaves alone what was not told to stop yet.

        Args:
            warm: what was up when last looked. It is acted on at once, while the runtime is asked anew.
        """
        try:
            if self.budget.phases:
                self._learn(warm)
            for index in range(len(self.budget.phases)):
                await self._phase(index)
            await self._settle()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def end_sandboxes(self, within_s: float) -> None:
        """Give the sandboxes of ended pods so many seconds to end, too; then leave them to the node."""
        if self._sandboxes and within_s > 0:
            await asyncio.wait(self._sandboxes, timeout=within_s)
        for task in self._sandboxes:
            task.cancel()
        await asyncio.gather(*self._sandboxes, return_exceptions=True)

    def _learn(self, pods: Iterable[RunningPod]) -> None:
        """Note what is up; a pod that shows up late takes part in the phase under way."""
        for up in pods:
            uid = up.pod.uid
            self._up[uid] = up
            if uid not in self._placed:
                placement = place(up.pod, self.budget.phases)
                self._placed[uid] = max(placement.phase, self._current), placement

    async def _phase(self, index: int) -> None:
        """Stop what belongs to a phase; returns when that is done, at its deadline at the latest."""
        self._current = index
        share = self.budget.phases[index]
        members = sum(phase == index for phase, _ in self._placed.values())
        self._tell_due()
        if members or index == 0:
            self._start(self._list_anew(), index)
        self.on_phase(share.phase.name, members)
        while (left_ms := share.deadline_ms - self.elapsed_ms()) > 0:
            mine = [task for task, phase in self._tasks.items() if phase == index]
            if not mine:
                return
            await asyncio.wait(mine, timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED)

    async def _settle(self) -> None:
        """Wait for the last kills, and note what did not answer."""
        while self._tasks and (left_ms := self.ends_ms - self.elapsed_ms()) > 0:
            await asyncio.wait(self._tasks, timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        for told in self._told.values():
            if told.outcome is PodOutcome.STOPPING:
                told.outcome = PodOutcome.FAILED
                told.problems.append(_NO_ANSWER)
                self.on_pod(told.stopped)
        self.on_change()

    async def _list_anew(self) -> None:
        """Ask the runtime what is up, and tell what was not told yet."""
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
            self.list_problem = self.list_problem or "the runtime does not list what is up"
            return
        self.list_problem = ""
        self._learn(pods)
        self._tell_due()

    def _tell_due(self) -> None:
        """Tell every pod whose phase has begun, as far as it was not told yet."""
        due: dict[str, tuple[str, ...]] = {}
        for uid, (phase, _) in self._placed.items():
            up = self._up[uid]
            ids = tuple(each for each in up.pod.container_ids if each not in self._seen)
            bare = not up.pod.container_ids and not self._seen.intersection(up.sandbox_ids) and uid not in self._told
            if phase <= self._current and (ids or bare):
                due[uid] = ids
                self._seen.update(ids or up.sandbox_ids)
        if not due:
            return
        share, now_ms = self.budget.phases[self._current], self.elapsed_ms()
        left = {
            uid: progress
            for uid in due
            if (known := self.before.get(uid)) is not None
            and (progress := known.progress) is not None
            and not progress.outcome.ended
        }
        stops = tuple(PodStop(self._up[uid].pod, self._placed[uid][1], 0, capped=False) for uid in due)
        for stop in begin_phase(PlannedPhase(share, now_ms, now_ms, stops), elapsed_ms=now_ms, progress=left):
            self._tell(stop, due[stop.pod.uid], share.phase.name, left.get(stop.pod.uid))
        self.on_change()

    def _tell(self, stop: PodStop, ids: tuple[str, ...], phase: str, earlier: PodProgress | None) -> None:
        uid = stop.pod.uid
        told = self._told.get(uid)
        if told is None:
            requested_at_ms = earlier.requested_at_ms if earlier is not None else self.elapsed_ms()
            told = self._told[uid] = _Reported(stop, phase, requested_at_ms)
        told.outcome, told.took_ms = PodOutcome.STOPPING, None
        told.under_way += 1
        self._start(self._end_pod(told, stop, ids), self._current)

    def _start(self, work: Coroutine[object, object, None], phase: int) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = phase
        task.add_done_callback(self._tasks.pop)

    async def _end_pod(self, told: _Reported, stop: PodStop, ids: tuple[str, ...]) -> None:
        """End containers side by side; the sandboxes follow when nobody waits any more."""
        await asyncio.gather(*(self._end_container(told, stop, each) for each in ids))
        told.under_way -= 1
        if told.under_way:
            return
        told.took_ms = max(0, self.elapsed_ms() - told.requested_at_ms)
        told.outcome = PodOutcome.KILLED if told.killed else PodOutcome.STOPPED
        if told.problems:
            told.outcome = PodOutcome.FAILED
        for sandbox_id in self._up[stop.pod.uid].sandbox_ids:
            task = asyncio.create_task(self._end_sandbox(sandbox_id))
            self._sandboxes.add(task)
            task.add_done_callback(self._sandboxes.discard)
        self.on_pod(told.stopped)
        self.on_change()

    async def _end_container(self, told: _Reported, stop: PodStop, container_id: str) -> None:
        """End one container, by force when its time is over; what goes wrong is written to the pod."""
        begun_ms, problem = self.elapsed_ms(), ""
        if stop.grace_ms:
            own_ms = 0 if stop.capped or stop.grace_ms % 1000 else _RUNTIME_KILLS_MS
            problem = await self._ask(container_id, stop.timeout_s, begun_ms + stop.grace_ms + own_ms)
            if not problem:
                told.killed |= self.elapsed_ms() - begun_ms >= stop.timeout_s * 1000
                return
        told.killed = True
        unkilled = await self._ask(container_id, 0, self.ends_ms)
        if unkilled:
            told.problems.append(unkilled)

    async def _ask(self, container_id: str, timeout_s: int, until_ms: int) -> str:
        """Ask for a container's end until that works or the time is over; return why it did not, else nothing."""
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

    async def _end_sandbox(self, sandbox_id: str) -> None:
        try:
            await self.stopper.stop_sandbox(sandbox_id)
        except NodeAgentError:
            return  # the node goes down; its containers have ended
