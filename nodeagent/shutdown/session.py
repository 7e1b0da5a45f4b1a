"""One period of enabled graceful shutdown: the driver of the inhibitor lock's state machine.

The session reports events to the machine and carries out its commands: log entries, the copy of the lock in systemd's
descriptor store, the stop of pods, and restarts of logind. The decisions are made in
:mod:`nodeagent.shutdown.plan.inhibitor`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Final

from nodeagent.errors import InhibitorError
from nodeagent.host.logind_config import LogindDelay, read_delay
from nodeagent.loops.passes import Pause, PausedBy, wait_for_any
from nodeagent.model.stops import NodeStop, StopEnd, StopKind
from nodeagent.record import replace
from nodeagent.shutdown.environment import NAME, HostServices, Intervals, read_enablement
from nodeagent.shutdown.executor import ShutdownInProgress
from nodeagent.shutdown.logind import ShutdownInhibitor
from nodeagent.shutdown.plan import inhibitor
from nodeagent.shutdown.plan.planner import DelayLimit, ShutdownBudget, elapsed_since, shutdown_budget
from nodeagent.shutdown.pods import RunningPodMonitor

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.shutdown.recorder import ShutdownRecorder

_SLACK_S: Final = 60.0
_FINISH_WITHIN_S: Final = 7.0
ANNOUNCE_WITHIN_S: Final = 2.0
"""Time from the signal until which the lock is kept for the announcement to the API server."""


class InhibitorSession:
    """Holds the inhibitor lock, refreshes the pod cache, and stops the pods at logind's signal."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        context: DaemonContext,
        host: HostServices,
        recorder: ShutdownRecorder,
        intervals: Intervals,
        wake: asyncio.Event,
        *,
        adopted: int | None = None,
        earlier: NodeStop | None = None,
    ) -> None:
        """Prepare a session; :meth:`run` requests the lock.

        Args:
            context: the daemon context.
            host: services of the node.
            recorder: writes the records of stops.
            intervals: poll intervals.
            wake: event that ends the current wait.
            adopted: descriptor of a lock from an earlier run of the agent.
            earlier: the last shutdown of this boot, finished or not.
        """
        self._context = context
        self._host = host
        self._recorder = recorder
        self._intervals = intervals
        self._wake = wake
        self._settings = context.settings
        self._inhibitor = ShutdownInhibitor(
            self._on_command, address=host.bus_address, adopted=adopted, has_earlier=earlier is not None
        )
        self._monitor = RunningPodMonitor(context, recorder)
        self._status = _LockStatus(context, recorder, self._inhibitor.state.because)
        self._work: asyncio.Task[None] | None = None  # the newest of the unfinished tasks
        self._unfinished: set[asyncio.Task[None]] = set()
        self._in_progress: ShutdownInProgress | None = None
        self._earlier = earlier
        self._signalled_s = 0.0
        self._refreshed_s = -math.inf

    async def run(self, stop: asyncio.Event) -> None:
        """Hold the inhibitor lock until stopped or disabled; the next session resumes a shutdown in progress."""
        self._status.delay = await asyncio.to_thread(read_delay, self._host.root)
        await self._take_settings()
        holding = asyncio.create_task(self._inhibitor.run())
        try:
            while not stop.is_set() and not holding.done() and not await self._disabled():
                if self._context.settings is not self._settings and self._in_progress is None:
                    await self._take_settings()
                self._wake.clear()
                await self._poll()
                if self._inhibitor.machine.is_lock_missing:
                    await wait_for_any(self._intervals.restart_after_s, stop)
                    await self._restart_logind_off_bus()
                held = self._inhibitor.state.held
                await self._wait(self._intervals.refresh_s if held else self._intervals.retry_s, stop)
            if holding.done():
                holding.result()
        finally:
            await self._end_work()
            holding.cancel()
            await asyncio.wait({holding})
            self._context.lock_held = None
            await self._monitor.close()
            await asyncio.to_thread(self._recorder.record_agent_stop)

    async def _wait(self, seconds: float, stop: asyncio.Event) -> None:
        """Wait ``seconds``; end earlier at a stop, at the wake event, or when graceful shutdown is disabled."""
        poll_s = self._intervals.role_poll_s
        while seconds > 0:
            if await wait_for_any(min(seconds, poll_s), stop, self._wake):
                return
            if (await read_enablement(self._context, max_age_s=poll_s)).disabled_because:
                return
            seconds -= poll_s

    async def _disabled(self) -> bool:
        """Apply a change of the settings or the role; return whether the change ends the session."""
        enablement = await read_enablement(self._context, max_age_s=self._intervals.role_poll_s)
        if not enablement.disabled_because or (self._work is not None and not self._work.done()):
            return False
        commands = self._apply(inhibitor.Disabled(enablement.disabled_because))
        return any(each.kind is inhibitor.CommandKind.DISABLE for each in commands)

    async def _take_settings(self) -> None:
        self._settings = self._context.settings
        self._recorder.follow(self._settings)
        await self._monitor.use(self._settings)
        self._refreshed_s = -math.inf

    async def _poll(self) -> None:
        """Refresh the pod cache, the budget and the loop status.

        Without the lock, logind signals no shutdown: the pods are then read for the record of an abrupt stop only.
        """
        if self._in_progress is not None:
            return
        now_s = self._context.clock.monotonic_s()
        if self._inhibitor.state.held or now_s - self._refreshed_s >= self._intervals.refresh_s:
            self._refreshed_s = now_s
            await self._monitor.refresh(record=self._work is None)
        state = self._inhibitor.state
        if self._status.is_new(state.limit_us, self._settings):
            self._status.delay = await asyncio.to_thread(read_delay, self._host.root)
            self._status.log_budget(self._budget())
        if state.held:
            self._status.held(self._budget(), self._intervals.refresh_s)
        else:
            self._status.not_held(str(state), state.because, self._intervals.retry_s)

    async def _restart_logind_off_bus(self) -> None:
        """Restart logind if it has no bus connection: it does not reconnect by itself, and would signal no shutdown."""
        now_s = self._context.clock.monotonic_s()
        if not self._settings.shutdown.restart_logind:
            return
        limit_ms = self._budget().limit_ms
        limit_s = math.inf if limit_ms is None else limit_ms / 1000
        if inhibitor.Command(inhibitor.CommandKind.CHECK_LOGIND) not in self._apply(
            inhibitor.LockOverdue(now_s, limit_s)
        ):
            return
        off_bus = await asyncio.to_thread(self._host.logind.runs_beside_the_bus)
        if inhibitor.Command(inhibitor.CommandKind.RESTART_LOGIND) not in self._apply(
            inhibitor.LogindUnitChecked(off_bus, now_s)
        ):
            return
        self._recorder.logger.warning("logind_restart", because="it runs, but is not on the system bus")
        try:
            await asyncio.to_thread(self._host.logind.restart)
        except InhibitorError as error:
            self._recorder.logger.warning("logind_restart_failed", error=str(error))

    def _budget(self) -> ShutdownBudget:
        delay = self._status.delay
        limit = DelayLimit.of_logind(self._inhibitor.state.limit_us, delay.delay_us, delay.set_by)
        return shutdown_budget(self._settings.shutdown.phases, limit)

    # ---- commands

    def _apply(self, event: inhibitor.Event) -> tuple[inhibitor.Command, ...]:
        commands = self._inhibitor.apply(event)
        for each in commands:
            self._carry_out(each)
        return commands

    def _on_command(self, command: inhibitor.Command, state: inhibitor.LogindState) -> None:
        """Carry out a command of the state machine. Runs in the D-Bus message handler, and only starts tasks."""
        self._context.lock_held = state.held
        self._wake.set()
        self._carry_out(command)

    def _carry_out(self, command: inhibitor.Command) -> None:
        """Carry out a command, except a command for the caller that reported the event."""
        logger, because = self._recorder.logger, command.because
        match command.kind:
            case inhibitor.CommandKind.REPORT_HELD:
                number = self._inhibitor.descriptor
                kept = number is not None and self._host.store.keep(number)
                self._status.missing_because = ""
                logger.info("inhibitor_lock_acquired", because=because, kept_by_systemd=kept)
            case inhibitor.CommandKind.REPORT_LOST:
                self._status.missing_because = because
                logger.warning("inhibitor_lock_lost", because=because)
            case inhibitor.CommandKind.RELEASE:
                self._host.store.forget()
                self._context.lock_held = False
                logger.info("inhibitor_lock_released", because=because)
            case inhibitor.CommandKind.DELEGATE:
                logger.warning("shutdown_delegated", because=because, hint="nodeagent doctor --fix-logind")
            case inhibitor.CommandKind.DISABLE:
                self._context.pass_lock.end_pause(
                    PausedBy.SHUTDOWN
                )  # logind reports a cancellation to holders of the lock only
                self._host.store.forget()
            case inhibitor.CommandKind.START_SHUTDOWN:
                self._signalled_s = self._context.clock.monotonic_s()
                self._context.pass_lock.add_pause(Pause(PausedBy.SHUTDOWN, "the node is shutting down"))
                self._start_work(self._shut_down)
            case inhibitor.CommandKind.CANCEL_SHUTDOWN:
                self._context.pass_lock.end_pause(PausedBy.SHUTDOWN)
                logger.warning("shutdown_cancelled")
                if self._work is not None:
                    self._work.cancel()
                self._start_work(self._close_cancelled)
            case inhibitor.CommandKind.CLOSE_EARLIER:
                self._start_work(self._close_cancelled)

    # ---- shutdown

    def _start_work(self, work: Callable[[Collection[asyncio.Task[None]]], Coroutine[object, object, None]]) -> None:
        """Start a task that first waits for all earlier tasks: a cancelled task may itself wait for other tasks."""
        self._work = task = asyncio.create_task(work(tuple(self._unfinished)))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    async def _shut_down(self, previous: Collection[asyncio.Task[None]]) -> None:
        """Stop the pods and release the lock, even on errors; a stop of the agent or a cancellation ends early."""
        try:
            if previous:
                await asyncio.wait(previous)
            enablement = await read_enablement(self._context)  # a kubelet may have started since the last poll
            commands = self._apply(inhibitor.ShutdownChecked(enablement.disabled_because, self._budget()))
            if enablement.disabled_because:
                self._wake.set()
            if inhibitor.Command(inhibitor.CommandKind.STOP_PODS) in commands:
                # The record is read again: the stop hook may have stopped the pods while this process was stopped.
                with self._recorder.files.claim() as claimed:
                    if claimed:
                        await self._stop_pods()
                    else:
                        because = "another process of the agent stops the pods"
                        self._recorder.logger.warning("shutdown_delegated", because=because)
        except Exception:  # an unexpected error must not delay the node's shutdown until logind's limit
            self._recorder.logger.exception("shutdown_crashed")
        await self._wait_for_announcement()
        self._apply(inhibitor.PodsStopped("shutdown handling finished"))

    async def _stop_pods(self) -> None:
        self._earlier, logger = None, self._recorder.logger
        earlier = await asyncio.to_thread(self._recorder.last_of_this_boot)
        if earlier is not None and earlier.end is StopEnd.COMPLETE:
            logger.info("shutdown_already_done")
            return
        if earlier is not None and earlier.end is not StopEnd.IN_PROGRESS:
            earlier = None
        budget, expects_pods = self._budget(), await asyncio.to_thread(self._recorder.has_running_pods)
        runtime = self._monitor.connected()
        if runtime is None and expects_pods:  # the runtime is restarting
            began_s = self._signalled_s if earlier is None else earlier.started_s
            used_ms = elapsed_since(began_s, self._context.clock.monotonic_s())
            runtime = await self._monitor.connected_within(max(0, budget.granted_ms - used_ms) / 1000)
        if runtime is None:
            logger.error("shutdown_runtime_unavailable", error=self._monitor.problem)
            return
        await self._monitor.complete(runtime)
        self._in_progress = ShutdownInProgress(
            self._recorder,
            budget,
            runtime.cri,
            runtime.pods,
            kind=StopKind.SIGNAL,
            operation=self._inhibitor.operation,
            began_s=self._signalled_s,
            earlier=earlier,
            expects_pods=expects_pods,
        )
        self._context.loop_statuses.running(NAME, budget.granted_ms / 1000 + _SLACK_S)
        await self._in_progress.carry_out()
        await self._wait_for_announcement()
        self._apply(inhibitor.PodsStopped(self._in_progress.outcomes))
        if self._in_progress.has_left_pods:
            logger.warning("shutdown_delegated", because="no time is left; the unit's stop hook stops the other pods")
            await self._in_progress.interrupt()
            self._context.loop_statuses.ended(NAME, StopEnd.INCOMPLETE.value)
            return
        stop = await self._in_progress.close()
        self._context.loop_statuses.ended(NAME, stop.end.value)

    async def _wait_for_announcement(self) -> None:
        """Wait until the API server knows of the shutdown, within the granted time and seconds after the signal."""
        if not self._inhibitor.machine.is_stopping_pods:
            return
        try:
            within_s = min(ANNOUNCE_WITHIN_S, self._budget().granted_ms / 1000)
            left_s = within_s - (self._context.clock.monotonic_s() - self._signalled_s)
            is_announced = await self._context.shutdown_announcement.wait(left_s)
        except Exception:  # the lock is released in any case: an error must not keep it until logind's limit
            self._recorder.logger.exception("shutdown_crashed")
        else:
            if not is_announced:
                self._recorder.logger.warning("shutdown_not_announced")

    async def _close_cancelled(self, previous: Collection[asyncio.Task[None]]) -> None:
        """Record the cancellation of a shutdown, including a shutdown recorded by an earlier run of the agent."""
        if previous:
            await asyncio.wait(previous)
        in_progress, self._in_progress = self._in_progress, None
        earlier, self._earlier = self._earlier, None
        self._monitor.record_again()
        if in_progress is not None:
            await in_progress.close(StopEnd.CANCELLED)
            self._context.loop_statuses.ended(NAME, StopEnd.CANCELLED.value)
        elif earlier is not None and earlier.end in (StopEnd.IN_PROGRESS, StopEnd.COMPLETE):
            closed = replace(earlier, end=StopEnd.CANCELLED, ended_at=self._context.clock.now())
            await asyncio.to_thread(self._recorder.close, closed)
        if self._work is asyncio.current_task():
            self._work = None
        self._wake.set()

    async def _end_work(self) -> None:
        """Interrupt a shutdown in progress for the next session; wait for the record of an ended shutdown."""
        if self._work is None:
            return
        is_stopping_pods = self._inhibitor.machine.is_stopping_pods
        if is_stopping_pods:
            self._work.cancel()
        _, late = await asyncio.wait({self._work, *self._unfinished}, timeout=_FINISH_WITHIN_S)
        for task in late:
            task.cancel()
        if self._in_progress is not None and is_stopping_pods:
            await self._in_progress.interrupt()


class _LockStatus:
    """Log entries and loop status of the lock; each reason is logged once.

    Attributes:
        delay: inhibitor delay limit from logind's configuration files.
        missing_because: last logged reason for a missing lock.
    """

    def __init__(self, context: DaemonContext, recorder: ShutdownRecorder, missing_because: str) -> None:
        self._loop_statuses = context.loop_statuses
        self._logger = recorder.logger
        self._logged: object = None
        self.delay = LogindDelay(None)
        self.missing_because = missing_because

    def is_new(self, limit_us: int | None, settings: object) -> bool:
        """Return whether the budget is not logged yet for this limit and these settings; false for an unknown limit."""
        if limit_us is None or self._logged == (limit_us, settings):
            return False
        self._logged = limit_us, settings
        return True

    def log_budget(self, budget: ShutdownBudget) -> None:
        """Log the shutdown budget with its warnings."""
        self._logger.info(
            "shutdown_ready",
            wanted_s=budget.requested_ms / 1000,
            granted_s=budget.granted_ms / 1000,
            limit_s=None if budget.limit_ms is None else budget.limit_ms / 1000,
            phases={each.phase.name: each.granted_ms / 1000 for each in budget.phases},
            at_signal=budget.suffices_at_signal,
        )
        delegated = budget.delegated_because
        for note in (delegated,) if delegated else budget.notes:
            self._logger.warning("shutdown_warning", note=note, hint="nodeagent doctor --fix-logind")

    def held(self, budget: ShutdownBudget, next_s: float) -> None:
        """Set the loop status while the inhibitor lock is held."""
        if budget.delegated_because:
            self._loop_statuses.paused(NAME, budget.delegated_because, next_s + _SLACK_S)
        else:
            self._loop_statuses.waiting(NAME, next_s, _SLACK_S)

    def not_held(self, status: str, because: str, next_s: float) -> None:
        """Set the loop status while the inhibitor lock is missing, and log a new reason."""
        self._loop_statuses.paused(NAME, status, next_s + _SLACK_S)
        if because != self.missing_because:
            self.missing_because = because
            self._logger.warning("inhibitor_lock_missing", because=because)
