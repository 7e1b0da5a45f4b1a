"""Execution of a node shutdown: pods are stopped phase by phase, in parallel within a phase, within the budget.

A phase ends when its pods have no processes left, and at the latest at its deadline, even without an answer of the
runtime. Pods that are running at their deadline are killed, and the next phase starts without waiting for the kill.
Exit codes and sandboxes follow after the last phase, so that the end of the last pod releases the inhibitor lock. Each
outcome is logged immediately, and progress is written to disk.

The inhibitor task and the stop hook share this code; they differ in the service that waits, logind or systemd, and in
its time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError
from nodeagent.model.stops import LastActivity, NodeStop, PodOutcome, ShutdownPod, StopEnd, StopKind, StoppedPod
from nodeagent.record import replace
from nodeagent.shutdown.delivery import NO_ANSWER, RETRY_S, Delivery
from nodeagent.shutdown.plan import planner
from nodeagent.shutdown.recorder import (
    NO_TERM,
    ContainerStop,
    PodRecord,
    RunningPod,
    ShutdownRecorder,
    Stopper,
    summary,
)

if TYPE_CHECKING:
    from nodeagent.host.container_processes import ContainerProcesses
    from nodeagent.shutdown.pods import RunningPods

_LIST_WITHIN_S: Final = 2.0
_LIST_AGAIN_MS: Final = 5000
_GAP_MS: Final = 1000  # between two polls, after which the process counts as stopped meanwhile
_LATE_KILLS_MS: Final = 500  # for the kills of a late phase, after its minimum time
_POLL_S: Final = 0.25  # for processes whose end is not notified


@dataclass
class ShutdownRun:  # many attributes: collaborators, and progress shared by the tasks of a run
    """One run of the shutdown phases, or the remainder of an interrupted run.

    Attributes:
        elapsed_ms: returns the milliseconds since the shutdown began; never decreases.
        list_pods: lists the running pods.
        processes: the processes of containers.
        on_phase: called at the start of a phase, with the name of the phase and its number of known pods.
        on_pod: called with each pod whose outcome is final.
        on_change: called after each change of ``pods``.
        elapsed_at: converts a wall time to milliseconds since the shutdown began.
        before: pods of an interrupted run, by UID.
        expects_pods: whether pods are known to run although no pod is cached. The phases then wait for the pod list.
        has_successor: whether another process stops the pods that this run leaves. Otherwise the pods of a late phase
            are stopped too, with the minimum time between TERM and KILL.
        list_problem: reason for the failure of the last list; empty after a success.
    """

    budget: planner.ShutdownBudget
    stopper: Stopper
    elapsed_ms: Callable[[], int]
    list_pods: Callable[[], Awaitable[Sequence[RunningPod]]]
    processes: ContainerProcesses
    on_phase: Callable[[str, int], None] = lambda _name, _pods: None
    on_pod: Callable[[StoppedPod], None] = lambda _: None
    on_change: Callable[[], None] = lambda: None
    elapsed_at: Callable[[datetime], int] | None = None
    before: Mapping[str, StoppedPod] = field(default_factory=dict)
    expects_pods: bool = False
    has_successor: bool = True

    def __post_init__(self) -> None:
        self.list_problem = ""
        self._running: dict[str, RunningPod] = {}
        self._placed: dict[str, tuple[int, planner.PodPhase]] = {}
        self._records: dict[str, PodRecord] = {}
        self._delivery = Delivery(self.stopper, self.processes, self.elapsed_ms, self._progressed)
        self._lists: set[asyncio.Task[None]] = set()
        self._listed_ms = self._phase_listed_ms = 0
        self._awaits_list = False
        self._wake = asyncio.Event()
        self._current = 0
        self._started_ms = self._phase_started_ms = self._looked_ms = self.elapsed_ms()
        self._continued_ms = 0
        self._first_list: asyncio.Task[None] | None = None

    @property
    def ends_ms(self) -> int:
        """Latest end of the run, in milliseconds since the shutdown began."""
        ends_ms, minimum_end_ms = self.budget.latest_end_ms(self._started_ms), self._minimum_end_ms
        return ends_ms if minimum_end_ms is None else max(ends_ms, minimum_end_ms + _LATE_KILLS_MS)

    @property
    def _minimum_end_ms(self) -> int | None:
        """End of the minimum time of a late phase without a successor process; ``None`` for other phases."""
        if self.has_successor or not self.budget.phases:
            return None
        share = self.budget.phases[self._current]
        has_minimum = share.granted_ms >= planner.MINIMUM_AFTER_TERM_MS
        if not has_minimum or self._phase_started_ms <= share.deadline_ms - planner.MINIMUM_AFTER_TERM_MS:
            return None
        return self._phase_started_ms + planner.MINIMUM_AFTER_TERM_MS

    @property
    def pods(self) -> tuple[StoppedPod, ...]:
        """All pods: pods of an interrupted run, then pods with a stop request in order, then pods of later phases."""
        pods = dict(self.before)
        pods.update((uid, record.stopped) for uid, record in self._records.items())
        for uid, (phase, placement) in self._placed.items():
            pod, name = self._running[uid].pod, self.budget.phases[phase].phase.name
            observed = bool(pod.container_ids) and all(map(self.processes.is_located, pod.container_ids))
            known = StoppedPod(uid, pod.namespace, pod.name, name, placement.why, None, 0, None, NO_TERM)
            pods.setdefault(uid, replace(known, container_ids=pod.container_ids, observed=observed))
        return tuple(pods.values())

    @property
    def has_left_pods(self) -> bool:
        """Whether pods are left to another process: without a stop request, or with a TERM too late for a KILL."""
        running = [each for record in self._unfinished(None) for each in record.running]
        return not (self._placed.keys() <= self._records.keys() and all(each.killed for each in running))

    async def carry_out(self, cached: Sequence[RunningPod]) -> None:
        """Stop all pods; return once every pod has ended, at the latest at the end of the run.

        Runtime requests may still be pending; the caller calls :meth:`settle` next. After a cancellation, pods without
        a stop request continue to run, as do the pods of phases that the run reaches too late (``has_left_pods``).
        The pods of ``cached``, the last list, are stopped immediately, while the pods are listed again.
        """
        self.processes.on_change = self._wake.set
        locating = asyncio.create_task(self._locate(cached))
        try:
            if self.budget.phases:
                self._add(cached)
                self._add_interrupted()
                self._awaits_list = self.expects_pods and not self._placed
            for index in range(len(self.budget.phases)):
                await self._run_phase(index)
            await self._finish()
            if self.has_left_pods:
                await self._delivery.close()
        except asyncio.CancelledError:
            await self._delivery.close()
            raise
        finally:
            for task in (locating, *self._lists):
                task.cancel()

    async def settle(self, within_s: float) -> None:
        """Wait up to ``within_s`` seconds for exit codes, then cancel pending requests and conclude every outcome."""
        self._observe()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while any(each.readings for each in self._records.values()):
                    self._wake.clear()
                    await self._wake.wait()
                    self._observe()
        await self._delivery.close()
        self._observe_ends()
        for record in self._records.values():
            self._conclude(record)

    async def stop_sandboxes(self, within_s: float) -> None:
        """Stop the sandboxes of pods that have ended, for up to ``within_s`` seconds."""
        ids = [
            sandbox_id
            for uid, record in self._records.items()
            if record.outcome.ended and uid in self._running
            for sandbox_id in self._running[uid].sandbox_ids
        ]
        await self._delivery.stop_sandboxes(ids, within_s)

    # ---- pods

    def _add(self, pods: Iterable[RunningPod]) -> None:
        """Add running pods; a pod that is listed late joins the current phase."""
        for running in pods:
            uid = running.pod.uid
            self._running[uid] = running
            if uid not in self._placed:
                placement = planner.place(running.pod, self.budget.phases)
                self._placed[uid] = max(placement.phase, self._current), placement

    def _add_interrupted(self) -> None:
        """Add pods of an interrupted run that are not listed: they have ended, or the runtime is unavailable."""
        names = {each.phase.name: index for index, each in enumerate(self.budget.phases)}
        for uid, known in self.before.items():
            if uid in self._placed or (known.outcome is not None and known.outcome.ended) or not known.container_ids:
                continue
            pod = ShutdownPod(uid, known.namespace, known.name, container_ids=known.container_ids)
            placement = planner.place(pod, self.budget.phases)
            index = names.get(known.phase, placement.phase)
            self._running[uid] = RunningPod(pod)
            self._placed[uid] = index, planner.PodPhase(index, placement.by, known.why)

    async def _locate(self, pods: Iterable[RunningPod]) -> None:
        ids = {each for running in pods for each in running.pod.container_ids}
        ids.update(each for pod in self.before.values() for each in pod.container_ids)
        self.processes.watch(ids)
        self._delivery.searched = await self.processes.locate(ids)
        self.processes.watch(ids)
        self._wake.set()

    async def _list_again(self) -> None:
        """List the running pods again, and send the stop requests that are due."""
        within_s = (self.ends_ms - self.elapsed_ms()) / 1000
        if not self._awaits_list:
            within_s = min(_LIST_WITHIN_S, within_s)
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        pods = await self.list_pods()
                        break
                    except NodeAgentError as error:
                        self.list_problem = str(error)
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            self.list_problem = self.list_problem or "cannot list pods: no answer in time"
            return
        self.list_problem, self._awaits_list = "", False
        self._add(pods)
        self._request_due()
        await self._locate(pods)

    # ---- phases

    async def _run_phase(self, index: int) -> None:
        """Stop the pods of a phase; return once the pods have ended, at the latest at the deadline of the phase."""
        self._current = index
        self._phase_started_ms = now_ms = self.elapsed_ms()
        members = sum(phase == index for phase, _ in self._placed.values())
        self._request_due()
        if index == 0 or (members and now_ms - self._phase_listed_ms >= _LIST_AGAIN_MS):
            self._phase_listed_ms, task = now_ms, self._start_list()
            self._first_list = self._first_list or task
        self.on_phase(self.budget.phases[index].phase.name, members)
        while True:
            self._observe()
            end_ms = self._phase_end_ms()
            self._kill_due()
            if self._unfinished(index) and not self._lists and self.elapsed_ms() - self._listed_ms >= _LIST_AGAIN_MS:
                self._start_list()  # pods may have been created meanwhile
            listing = bool(self._lists) and (index == 0 or self._awaits_list)
            if self.elapsed_ms() >= end_ms or not (listing or self._unfinished(index)):
                return
            await self._wait(end_ms)

    async def _finish(self) -> None:
        """Wait for the last kills; set the outcome of pods that still have processes to failed until they end."""
        while True:
            self._observe()
            self._kill_due()
            listing = self._first_list is not None and not self._first_list.done()
            if not (listing or self._unfinished(None)) or self.elapsed_ms() >= self.ends_ms:
                break
            await self._wait(self.ends_ms)
        for record in self._unfinished(None):
            record.exceed_time(NO_ANSWER)
        if not self.has_left_pods:  # otherwise the next process reads the exit codes
            for record in self._records.values():
                record.outcome = record.known_outcome  # final unless an exit code contradicts it
        self.on_change()

    def _start_list(self) -> asyncio.Task[None]:
        self._listed_ms = self.elapsed_ms()
        task = asyncio.create_task(self._list_again())
        self._lists.add(task)
        task.add_done_callback(self._lists.discard)
        task.add_done_callback(lambda _: self._wake.set())
        return task

    def _unfinished(self, phase: int | None) -> list[PodRecord]:
        """Return the pods of a phase, or of all phases for ``None``, whose processes have not ended."""
        return [
            each
            for each in self._records.values()
            if each.took_ms is None and phase in (None, each.phase) and not each.is_final
        ]

    def _phase_end_ms(self) -> int:
        """Return the latest end of the current phase; a late TERM extends it within the remaining time.

        A TERM that was not confirmed before the process was stopped may be delivered after it continues.
        """
        members = self._unfinished(self._current)
        signals = [each.signalled_at_ms for each in members]
        start_ms = max((self._continued_ms if each is None else each for each in signals), default=0)
        late_ms = start_ms - self._phase_started_ms
        occupied = {phase for uid, (phase, _) in self._placed.items() if uid not in self._records}
        end_ms = planner.phase_end_ms(self.budget, self._current, self._phase_started_ms, occupied)
        end_ms = max(end_ms, self._minimum_end_ms or 0)
        if late_ms <= 0:
            return end_ms
        return max(end_ms, planner.phase_end_ms(self.budget, self._current, start_ms, occupied))

    def _kill_due(self) -> None:
        """Send each KILL and each final TERM that is due."""
        now_ms = self.elapsed_ms()
        last_ms = planner.last_kill_ms(self._started_ms, self.ends_ms)
        for record, due_ms in self._dues():
            signalled_ms = record.signalled_at_ms
            for each in record.running:
                if now_ms >= due_ms:
                    self._delivery.kill(each, due_ms, last_ms)
                elif signalled_ms is not None and now_ms >= planner.final_term_ms(signalled_ms, due_ms):
                    self._delivery.terminate_finally(each)

    def _dues(self) -> list[tuple[PodRecord, int]]:
        """Return the pods that have processes, with the due time of their KILL in milliseconds."""
        now_ms, phase_end_ms = self.elapsed_ms(), self._phase_end_ms()
        last_ms = planner.last_kill_ms(self._started_ms, self.ends_ms)
        dues = []
        for record in self._unfinished(None):
            end_ms = phase_end_ms if record.phase == self._current else now_ms
            due_ms = planner.kill_due_ms(record.signalled_at_ms, record.own_grace_ms, end_ms, last_ms)
            if record.signalled_at_ms is None and self._continued_ms:  # its TERM may be delivered only now
                due_ms = max(due_ms, self._continued_ms + planner.MINIMUM_AFTER_TERM_MS)
            dues.append((record, due_ms))
        return dues

    async def _wait(self, until_ms: int) -> None:
        """Wait for a change, the due time of the next signal or ``until_ms``, for at most ``_POLL_S`` seconds."""
        now_ms, times = self.elapsed_ms(), [until_ms]
        for record, due_ms in self._dues():
            times.append(due_ms)
            if record.signalled_at_ms is not None:
                times.append(planner.final_term_ms(record.signalled_at_ms, due_ms))
        left_ms = min((each - now_ms for each in times if each > now_ms), default=0)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_POLL_S, left_ms / 1000)):
                await self._wake.wait()
        self._wake.clear()

    def _progressed(self) -> None:
        """Report a change immediately: after a crash, the agent sends every TERM again that is not in the record."""
        self._wake.set()
        self.on_change()

    # ---- stop requests, and ends of pods

    def _request_due(self) -> None:
        """Send stop requests to all containers without a stop request in the pods of started phases."""
        now_ms = self.elapsed_ms()
        if self.has_successor and planner.is_too_late(self.budget, self._current, now_ms):
            return
        due = [uid for uid, (phase, _) in self._placed.items() if phase <= self._current]
        stops: list[ContainerStop] = []
        for uid in sorted(due, key=lambda each: planner.stop_order(self._running[each].pod)):
            record = self._records.get(uid) or self._new_record(uid, now_ms)
            known = self.before.get(uid)
            earlier = known.container_ids if known is not None and known.progress is not None else ()
            listed = self._running[uid].pod.container_ids
            # Containers of an interrupted run that are no longer listed have ended unobserved.
            wanted = listed if record.is_final else dict.fromkeys((*listed, *earlier))
            new = [each for each in wanted if each not in record.containers]
            if new:
                record.is_final, record.took_ms, record.outcome = False, None, PodOutcome.STOPPING
            for each in new:
                stop = ContainerStop(each, seen_at_ms=record.requested_at_ms)
                if known is not None and each in earlier:
                    stop.observed, stop.ended_at_ms = known.observed, known.ended_at_ms
                    stop.killed = known.kill_sent or None
                    if (term := known.terms.get(each)) is not None:
                        stop.signalled_at_ms, stop.direct = term.at_ms, term.direct
                record.containers[each] = stop
                if not self._delivery.observe(stop):
                    stops.append(stop)
        if stops:
            # The timeout is the end of the run: the agent itself sends KILL, so that a late TERM extends a pod's time.
            timeout_s = max(1, -(-(self.ends_ms - now_ms) // 1000))
            self._delivery.terminate(stops, timeout_s, self._phase_end_ms() - now_ms)
        self.on_change()

    def _new_record(self, uid: str, now_ms: int) -> PodRecord:
        running, (phase, placement) = self._running[uid], self._placed[uid]
        known = self.before.get(uid)
        progress = known.progress if known is not None else None
        ended = progress is not None and progress.outcome.ended
        grace_s = running.pod.termination_grace_s
        record = PodRecord(
            running.pod,
            placement.why,
            phase,
            self.budget.phases[phase].phase.name,
            now_ms if progress is None or (ended and running.pod.container_ids) else progress.requested_at_ms,
            None if grace_s is None else round(grace_s * 1000),
        )
        if known is not None and ended and not running.pod.container_ids:  # only its sandbox remains
            record.outcome, record.is_final = known.outcome or PodOutcome.STOPPED, True
            record.took_ms, record.detail = known.took_ms, known.detail
        self._records[uid] = record
        return record

    def _observe(self) -> None:
        """Record the pods whose processes have ended, and start to read their exit codes."""
        now_ms = self.elapsed_ms()
        if now_ms - self._looked_ms > _GAP_MS:
            self._continued_ms = now_ms
        self._looked_ms = now_ms
        for record in self._observe_ends():
            record.readings += 1
            self._delivery.read_exits(record, self.elapsed_at, partial(self._exits_read, record))
            self.on_change()

    def _observe_ends(self) -> list[PodRecord]:
        """Record the pods whose processes have ended, and return them."""
        observe = self._delivery.observe
        ended = [each for each in self._unfinished(None) if all(list(map(observe, each.containers.values())))]
        for each in ended:
            each.end(self.elapsed_ms())
        return ended

    def _exits_read(self, record: PodRecord) -> None:
        record.readings -= 1
        if not record.readings and not record.running:
            self._conclude(record)
        self._wake.set()

    def _conclude(self, record: PodRecord) -> None:
        if record.is_final:
            return
        if not record.running:
            record.end(self.elapsed_ms())
        record.conclude()
        self.on_pod(record.stopped)
        self.on_change()


_EXIT_CODES_S: Final = 3.0
HEARTBEAT_S: Final = 2.0
"""Interval of the writes of the record, which prove that the process makes progress."""
_SANDBOXES_S: Final = 3.0


class ShutdownInProgress:
    """A node shutdown in progress."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        recorder: ShutdownRecorder,
        budget: planner.ShutdownBudget,
        stopper: Stopper,
        pods: RunningPods,
        *,
        kind: StopKind,
        operation: str = "",
        began_s: float | None = None,
        earlier: NodeStop | None = None,
        expects_pods: bool = False,
    ) -> None:
        """Prepare a shutdown, or the rest of an interrupted shutdown; :meth:`carry_out` stops the pods.

        Args:
            recorder: writes the progress to disk.
            budget: phases of the shutdown with their time limits.
            stopper: stops containers.
            pods: the pod cache.
            kind: cause of the shutdown.
            operation: requested operation; empty to use the operation of ``earlier``.
            began_s: monotonic seconds of the request, from which the limit counts; by default now.
            earlier: an interrupted shutdown of this boot. A shutdown by logind's signal keeps its start and uses only
                the remaining time. A stop of the unit has the whole limit, since systemd then waits for the unit.
            expects_pods: whether pods are recorded as running, so that the shutdown waits for the pod list.
        """
        self._recorder = recorder
        self._clock, self._logger = recorder.clock, recorder.logger
        self._pods = pods
        now_s = self._clock.monotonic_s()
        keeps_start = earlier is not None and kind is StopKind.SIGNAL
        started_s = now_s if began_s is None else min(began_s, now_s)
        started_at = self._clock.now() - timedelta(seconds=now_s - started_s)
        shift_ms = 0
        if earlier is not None and keeps_start:
            started_s, started_at = earlier.started_s, earlier.started_at
        elif earlier is not None:
            shift_ms = planner.elapsed_since(earlier.started_s, started_s)
        before = {each.uid: shifted(each, shift_ms) for each in (earlier.pods if earlier is not None else ())}
        operation = operation or (earlier.operation if earlier is not None else "")
        self._stop = NodeStop(recorder.boot_id, kind, started_at, started_s, budget.granted_ms, operation=operation)
        self._started_s = started_s
        self._budget = budget
        self._writer = _ProgressWriter(recorder, lambda: self.stop)
        self._run = ShutdownRun(
            budget,
            stopper,
            self._elapsed_ms,
            pods.refresh_quickly,
            on_phase=lambda name, count: self._logger.info("shutdown_phase", phase=name, pods=count),
            on_pod=self._log_pod,
            processes=pods.processes,
            on_change=self._writer.request,
            elapsed_at=self._elapsed_at,
            before=before,
            expects_pods=expects_pods,
            has_successor=kind is not StopKind.UNIT_STOP,
        )
        self._resumed_after_ms = planner.elapsed_since(started_s, now_s) if earlier is not None else None

    @property
    def stop(self) -> NodeStop:
        """Record of this shutdown with its current progress."""
        progress_s = self._clock.monotonic_s() if self._stop.end is StopEnd.IN_PROGRESS else None
        return replace(self._stop, pods=self._run.pods, progress_s=progress_s)

    @property
    def has_left_pods(self) -> bool:
        """Whether pods are left to the next process, since a phase was reached too late."""
        return self._run.has_left_pods

    async def carry_out(self) -> None:
        """Stop all pods; return when all pods have ended, or at the end of the granted time.

        The shutdown is complete unless pods are left to the next process (``has_left_pods``).

        After a cancellation, pods without a stop request continue to run. The caller must call :meth:`close` or
        :meth:`interrupt` afterwards, and may release the inhibitor lock before.
        """
        work = asyncio.create_task(self._run.carry_out(self._pods.pods))
        try:
            await asyncio.sleep(
                0
            )  # the stop requests are sent first; the record with the pods and the log entry follow
            self._writer.start()
            self._log_start()
            await work
        finally:
            work.cancel()
            await asyncio.wait({work})
        if not self.has_left_pods:
            self._end(StopEnd.COMPLETE)

    @property
    def outcomes(self) -> str:
        """The number of pods per outcome, as a phrase; a pod without a known exit code counts as stopped."""
        return planner.outcome_summary(each.outcome for each in self._run.pods)

    async def close(self, end: StopEnd | None = None) -> NodeStop:
        """Record the end of the shutdown, read exit codes, stop the sandboxes of ended pods, and return the record.

        Args:
            end: end to record; by default the current value, which is complete after :meth:`carry_out`.
        """
        if end is not None:
            self._end(end)
        self._writer.request()  # the node may be off before the exit codes are known
        await self._run.settle(_EXIT_CODES_S)
        stop = self.stop
        self._logger.info("shutdown_finished", **summary(stop))
        if self._run.list_problem:
            self._logger.warning("shutdown_pods_outdated", error=self._run.list_problem)
        await self._writer.finish()
        await _write_to_end(self._recorder.close, stop)
        if stop.end is StopEnd.COMPLETE:
            await self._run.stop_sandboxes(_SANDBOXES_S)
        return stop

    async def interrupt(self) -> None:
        """Record the progress for the next agent process, which resumes the shutdown."""
        await self._writer.finish()
        await _write_to_end(self._recorder.write, self.stop)

    def _elapsed_ms(self) -> int:
        return planner.elapsed_since(self._started_s, self._clock.monotonic_s())

    def _end(self, end: StopEnd) -> None:
        """Record the end as the start plus the monotonic duration, since the wall clock may have been changed."""
        ended_at = self._stop.started_at + timedelta(milliseconds=self._elapsed_ms())
        self._stop = replace(self._stop, end=end, ended_at=ended_at)

    def _elapsed_at(self, at: datetime) -> int:
        """Return a wall time as milliseconds since the shutdown began, negative before it.

        A wall clock change since then falsifies it.
        """
        age_s = (self._clock.now() - at).total_seconds()
        return round((self._clock.monotonic_s() - age_s - self._started_s) * 1000)

    def _log_start(self) -> None:
        self._logger.info(
            "shutdown_started" if self._resumed_after_ms is None else "shutdown_resumed",
            kind=self._stop.kind.value,
            operation=self._stop.operation,
            granted_s=self._budget.granted_ms / 1000,
            elapsed_s=(self._resumed_after_ms or 0) / 1000,
            phases={each.phase.name: each.granted_ms / 1000 for each in self._budget.phases},
            pods=len(self._pods.pods),
        )
        for note in self._budget.notes:
            self._logger.warning("shutdown_warning", note=note)

    def _log_pod(self, pod: StoppedPod) -> None:
        level = self._logger.info if pod.outcome is PodOutcome.STOPPED else self._logger.warning
        level(
            "pod_stopped",
            pod=f"{pod.namespace}/{pod.name}",
            pod_uid=pod.uid,
            phase=pod.phase,
            outcome=pod.outcome.value if pod.outcome else "",
            seconds=None if pod.took_ms is None else pod.took_ms / 1000,
            why=pod.why,
            **({"detail": pod.detail} if pod.detail else {}),
        )


class _ProgressWriter:
    """Writes the newest progress of a shutdown after each change and at intervals, one write at a time."""

    def __init__(self, recorder: ShutdownRecorder, progress: Callable[[], NodeStop]) -> None:
        self._recorder = recorder
        self._progress = progress
        self._dirty = asyncio.Event()
        self._finished = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Request a write of the current progress."""
        self._dirty.set()

    def start(self) -> None:
        """Start the writer task with a first write."""
        self._dirty.set()
        self._task = asyncio.create_task(self._run())

    async def finish(self) -> None:
        """Wait for the pending write and end the writer task.

        The task is not cancelled: its thread would continue, and overwrite a later record.
        """
        if self._task is not None:
            self._finished = True
            self._dirty.set()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        self._dirty.clear()
        await asyncio.to_thread(self._recorder.write, self._progress())
        # The activity record has no pods: it is written after the shutdown record, so that one record always has the
        # pods.
        await asyncio.to_thread(self._recorder.record_activity, LastActivity.GOING_DOWN)
        while not self._finished:
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._dirty.wait()
            self._dirty.clear()
            await asyncio.to_thread(self._recorder.write, self._progress())


async def _write_to_end(write: Callable[[NodeStop], None], stop: NodeStop) -> None:
    """Write a record in a thread; wait for the thread even if cancelled, since it would overwrite a later record."""
    writing = asyncio.create_task(asyncio.to_thread(write, stop))
    try:
        await asyncio.shield(writing)
    finally:
        await asyncio.wait({writing})


def shifted(pod: StoppedPod, by_ms: int) -> StoppedPod:
    """Return the record of a pod with its times relative to a start that is ``by_ms`` later."""
    terms = {container_id: replace(each, at_ms=each.at_ms - by_ms) for container_id, each in pod.terms.items()}
    return replace(pod, requested_at_ms=pod.requested_at_ms - by_ms, terms=terms)
