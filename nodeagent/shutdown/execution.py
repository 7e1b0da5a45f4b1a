"""One shutdown of the node: pods are stopped, each outcome is logged immediately, and progress is written to disk.

The inhibitor task and the stop hook share this code; they differ in the service that waits, logind or systemd, and in
its time limit.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.model import PodOutcome
from nodeagent.model.stops import LastActivity, NodeStop, StopEnd, StopKind
from nodeagent.record import replace
from nodeagent.shutdown.executor import ShutdownRun
from nodeagent.shutdown.plan.planner import elapsed_since
from nodeagent.shutdown.plan.timing import outcome_summary
from nodeagent.shutdown.recorder import summary

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from nodeagent.model.stops import StoppedPod
    from nodeagent.shutdown.plan.budget import ShutdownBudget
    from nodeagent.shutdown.pod_record import Stopper
    from nodeagent.shutdown.pods import PodCache
    from nodeagent.shutdown.recorder import ShutdownRecorder

_EXIT_CODES_S: Final = 3.0
HEARTBEAT_S: Final = 2.0
"""Interval of the writes of the record, which prove that the process makes progress."""
_SANDBOXES_S: Final = 3.0


class ShutdownInProgress:
    """A node shutdown in progress."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        recorder: ShutdownRecorder,
        budget: ShutdownBudget,
        stopper: Stopper,
        pods: PodCache,
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
            shift_ms = elapsed_since(earlier.started_s, started_s)
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
        self._resumed_after_ms = elapsed_since(started_s, now_s) if earlier is not None else None

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
        """The number of pods per outcome, as a phrase."""
        return outcome_summary(self._run.outcomes)

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
        await asyncio.to_thread(self._recorder.close, stop)
        if stop.end is StopEnd.COMPLETE:
            await self._run.stop_sandboxes(_SANDBOXES_S)
        return stop

    async def interrupt(self) -> None:
        """Record the progress for the next agent process, which resumes the shutdown."""
        await self._writer.finish()
        await asyncio.to_thread(self._recorder.write, self.stop)

    def _elapsed_ms(self) -> int:
        return elapsed_since(self._started_s, self._clock.monotonic_s())

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
        level("pod_stopped", **_pod_fields(pod), why=pod.why, **({"detail": pod.detail} if pod.detail else {}))


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


def shifted(pod: StoppedPod, by_ms: int) -> StoppedPod:
    """Return the record of a pod with its times relative to a start that is ``by_ms`` later."""
    terms = {container_id: replace(each, at_ms=each.at_ms - by_ms) for container_id, each in pod.terms.items()}
    return replace(pod, requested_at_ms=pod.requested_at_ms - by_ms, terms=terms)


def _pod_fields(pod: StoppedPod) -> dict[str, object]:
    return {
        "pod": f"{pod.namespace}/{pod.name}",
        "pod_uid": pod.uid,
        "phase": pod.phase,
        "outcome": pod.outcome.value if pod.outcome else "",
        "seconds": None if pod.took_ms is None else pod.took_ms / 1000,
    }
