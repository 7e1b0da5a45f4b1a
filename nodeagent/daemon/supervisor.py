"""The supervisor: composes and runs all tasks, owns the stop event, and stops all tasks within seconds."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent.cluster.task import kubernetes_tasks
from nodeagent.daemon.context import DaemonContext, DaemonTask
from nodeagent.daemon.control.server import ControlServer, refuse_second_agent
from nodeagent.daemon.health import status_line
from nodeagent.daemon.http.metrics_task import MetricsTask, TextfileTask
from nodeagent.daemon.reload_preview import log_reload_effect
from nodeagent.daemon.service_manager import ReloadTask, WatchdogTask, announce_grace
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError, StoreError
from nodeagent.eviction.composition import eviction_tasks
from nodeagent.gc import loop as gc_loop
from nodeagent.gc.agent import Agent, open_agent
from nodeagent.gc.executor import DryRunWatch, PassEnd, PassReport, PassTrigger, Result
from nodeagent.gc.plan.breakdown import describe
from nodeagent.gc.plan.policy import Scope
from nodeagent.host.lock import daemon_lock
from nodeagent.host.systemd import Notifier, is_node_stopping
from nodeagent.loops.passes import LoopStatuses, PassLock, wait_for_any
from nodeagent.loops.pause import PauseTask, restore_pause
from nodeagent.loops.reload_grace import restore_grace
from nodeagent.loops.unix_signals import handled
from nodeagent.record import replace
from nodeagent.runtime.connection import check_permission
from nodeagent.settings.loading import write_last_settings
from nodeagent.shutdown.task import InhibitorTask
from nodeagent.telemetry.logging import StateLog, subscribe, unsubscribe
from nodeagent.trend.recorder import RecorderTask
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.gc.pass_state import Preview
    from nodeagent.settings.settings import Settings

STOP_WITHIN_S = 8.0
GRACE_POLL_S = 0.5
"""Interval in seconds of checks for the end of the reload grace period, which a pause postpones."""
_LONG_S = 3600.0


def daemon_tasks(context: DaemonContext) -> Sequence[DaemonTask]:
    """Return the tasks that continue across reloads."""
    notifier = Notifier()
    return (
        InhibitorTask(context),
        WatchdogTask(context, notifier),
        ReloadTask(context, notifier),
        ControlServer(context),
        MetricsTask(context),
        TextfileTask(context),
        *kubernetes_tasks(context),
    )


async def supervise(
    settings: Settings,
    logger: FilteringBoundLogger,
    *,
    once: bool,
    lasting_tasks: Callable[[DaemonContext], Sequence[DaemonTask]] = daemon_tasks,
) -> PassEnd:
    """Run all tasks until SIGTERM or SIGINT; with ``once`` run one pass over all scopes instead.

    SIGHUP reloads the configuration; with ``once`` it ends the pass as SIGTERM does.

    A running pass ends between two items. A runtime call has ``STOP_WITHIN_S`` seconds to finish and is then cancelled;
    a cancelled call can still take effect, as if the pass had ended after the call.

    Args:
        settings: settings in force until the first reload.
        logger: logger of the daemon.
        once: whether to run a single pass and return.
        lasting_tasks: returns the tasks that continue across reloads; tests add their own tasks.

    Returns:
        The end of the pass for ``once``, else ``COMPLETE``.

    Raises:
        ControlUnavailableError: without ``once``, another agent is listening on the control socket.
        RuntimeUnavailableError: this user has no access to the runtime; with ``once``, the runtime does not answer.
        NodeAgentError: with ``once``, a reading failed or was contradictory.
        PassBusyError: another daemon runs with this state directory.
    """
    if not once:
        await asyncio.to_thread(refuse_second_agent, settings.control.socket)
        await asyncio.to_thread(check_permission, settings.endpoint or None)
    clock = SystemClock()
    context = DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(partial(_report_fault, StateLog(logger, clock)))

    def end() -> None:
        Notifier().stopping()
        context.stop.set()
        context.pass_lock.end()

    subscribe(context.counters.count_event)
    try:
        with handled(loop, end=end, hangup=end if once else context.reload.set, once=once):
            if once:
                async with open_agent(settings, record=True, dry_run=settings.dry_run, roles=context.roles) as agent:
                    _log_start(agent, logger)
                    await agent.log_interrupted(logger)
                    return await _once(_passes(agent, logger, PassTrigger.ONCE), logger, context)
            with daemon_lock(settings.state_directory) as unlocked:
                for warning in filter(None, (unlocked, _foreign_owner(settings.state_directory))):
                    logger.warning("pass_warning", warning=warning)
                pausing = PauseTask(context, restore_pause(context))
                restore_grace(context.grace, context.settings)
                await _run_tasks(context, (*lasting_tasks(context), pausing))
                return PassEnd.COMPLETE
    finally:
        logger.info("agent_stopped")
        unsubscribe(context.counters.count_event)


def _foreign_owner(directory: Path) -> str:
    """Return the warning about a state directory that another user can change; empty without one."""
    try:
        found = directory.stat()
    except OSError:  # reported by the state database
        return ""
    if found.st_uid in (0, os.geteuid()) and not found.st_mode & stat.S_IWOTH:
        return ""
    return (
        f"state directory {directory} is writable by uid {found.st_uid} or all users, who can change holds, history "
        f"and the observed image use: chown {os.geteuid()} {directory}; chmod o-w {directory}"
    )


def _report_fault(states: StateLog, loop: asyncio.AbstractEventLoop, fault: dict[str, Any]) -> None:
    """Log an exception in a callback; a lack of file descriptors once, since each connection would log it 64 times."""
    error = fault.get("exception")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        states.log_once("pass_warning", {"warning": f"cannot accept connections: {error.strerror}; see LimitNOFILE="})
    else:
        loop.default_exception_handler(fault)


def agent_tasks(context: DaemonContext, agent: Agent) -> Sequence[DaemonTask]:
    """Return the tasks that serve one agent, until the next reload."""
    return (*_loops(context, agent), *eviction_tasks(context, agent), RecorderTask(context, agent))


async def _run_tasks(context: DaemonContext, lasting: Sequence[DaemonTask]) -> None:
    """Run the tasks that continue across reloads, and one agent after the other."""
    async with asyncio.TaskGroup() as tasks:
        for task in lasting:
            tasks.create_task(task.run(context.stop))
        await serve_agents(context)


async def serve_agents(context: DaemonContext) -> None:
    """Compose one agent after the other and run its tasks, until the daemon stops."""
    runtime = gc_loop.RuntimeWatch(context.logger)
    while not context.stop.is_set():
        context.take_next()
        if context.settings.invalid_because:
            await _stand_by(context)
            continue
        try:
            await asyncio.to_thread(write_last_settings, context.settings)
        except StoreError as error:
            context.logger.warning("last_settings_not_written", error=str(error))
        try:
            await _serve_one_agent(context)
            runtime.answered()
        except RuntimeUnavailableError as error:
            context.runtime_problem = str(error)
            # READY without a runtime: a unit that is ordered after nodeagent must not wait for a runtime.
            Notifier().ready(status_line(context))
            await wait_for_any(runtime.lost(error), context.stop, context.renew)


async def _stand_by(context: DaemonContext) -> None:
    """Wait for a valid configuration; the tasks that continue across reloads run meanwhile."""
    settings = context.settings
    context.config_problem = settings.invalid_because
    context.logger.error(
        "config_invalid",
        error=settings.invalid_because,
        hint="correct it, then systemctl reload nodeagent; until then only graceful shutdown runs",
        settings=settings.standby_source,
    )
    Notifier().ready(status_line(context))
    while not context.stop.is_set() and not context.renew.is_set():
        await wait_for_any(_LONG_S, context.stop, context.renew)


async def _serve_one_agent(context: DaemonContext) -> None:
    """Compose an agent from the settings in force and run its tasks until the daemon stops or the agent is replaced.

    The agent is a dry run until the reload grace period is over, regardless of the settings.

    Raises:
        RuntimeUnavailableError: no runtime is configured and none is found.
    """
    if context.grace.over():
        context.grace.end()
        context.logger.warning("reload_grace_ended", dry_run=False)
    settings, dry_run = (
        context.settings,
        context.dry_run,
    )  # read at one instant, since a reload is possible at any await
    await context.stored_mode.write(settings.state_directory, dry_run=dry_run)
    context.runtime_answered = False  # the answer was to an earlier agent, possibly over another endpoint
    async with open_agent(
        settings,
        record=True,
        dry_run=dry_run,
        clock=context.clock,
        observer_of_calls=context.observe_call,
        roles=context.roles,
        watched_pods=context.watched_pods,
        lists=context.lists,
        read_forecast=context.trend.collection_forecast,
    ) as agent:
        _log_start(agent, context.logger)
        await agent.log_interrupted(context.logger)
        if dry_run:
            for text in await agent.recovery.describe():
                context.logger.warning("pass_warning", warning=text)
        else:
            await agent.recovery.run()
            agent.log_health(context.logger)
        await _wait_for_effect(context, agent)
        if context.stop.is_set() or context.renew.is_set():
            return
        context.agent, context.runtime_problem = agent, ""
        Notifier().ready(status_line(context))
        done = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(task.run(done)) for task in agent_tasks(context, agent)]
                await _wait_for_replacement(context)
                done.set()
                context.pass_lock.stop_passes()
                if running:
                    _, unfinished = await asyncio.wait(running, timeout=STOP_WITHIN_S)
                    for task in unfinished:
                        task.cancel()
                with suppress(TimeoutError):  # also ends a pass of the control API between two items
                    async with asyncio.timeout(STOP_WITHIN_S), context.pass_lock.take():
                        context.agent = None
        finally:
            context.agent = None
        if context.stop.is_set() and await asyncio.to_thread(is_node_stopping):
            await asyncio.to_thread(agent.store.stop, agent.read_clocks())


async def _wait_for_effect(context: DaemonContext, agent: Agent) -> None:
    """Wait until the effect of a reload is logged; if a restart switched the mode, log the effect here."""
    while not (context.announced.is_set() or context.stop.is_set() or context.renew.is_set()):
        await wait_for_any(_LONG_S, context.announced, context.stop, context.renew)
    if context.grace.pending and not context.grace.announced and context.announced.is_set():
        effect = await log_reload_effect(agent, replace(agent.settings, dry_run=True), context.logger, context.stop)
        if effect is not None and not context.renew.is_set():
            announce_grace(context, effect)


async def _wait_for_replacement(context: DaemonContext) -> None:
    """Wait until the daemon stops, a reload replaces the agent, or the reload grace period ends.

    A task that fails cancels this wait through the task group.
    """
    waits, deadline_s = context.grace.pending, context.grace.deadline_s()
    while not (context.stop.is_set() or context.renew.is_set()):
        if waits and context.grace.over():
            return
        now_s = context.grace.deadline_s()
        if now_s is not None and now_s != deadline_s:
            until = context.grace.until()
            context.logger.warning(
                "reload_grace_restarted",
                seconds=context.grace.period_s,
                until=None if until is None else until.isoformat(timespec="seconds"),
            )
            deadline_s = now_s
        await wait_for_any(GRACE_POLL_S if waits else _LONG_S, context.stop, context.renew)


def _log_start(agent: Agent, logger: FilteringBoundLogger) -> None:
    logger.info("agent_started", role=agent.role.value, role_because=agent.role_because, dry_run=agent.dry_run)


def _passes(
    agent: Agent, logger: FilteringBoundLogger, trigger: str, context: DaemonContext | None = None
) -> gc_loop.Pass:
    """Return a function that runs one pass of an agent and logs its removals; dry runs log only changes."""
    dry_runs, states = DryRunWatch(), StateLog(logger, agent.clock)

    async def run_pass(scope: Scope, stop: asyncio.Event) -> tuple[Preview, PassReport]:
        def report_result(result: Result) -> None:
            if not agent.dry_run:
                gc_loop.log_result(states, result, dry_run=False)
            if context is not None:
                context.loop_statuses.beat(scope.value, gc_loop.SILENCE_S)

        is_triggered = context is not None and scope.value in context.triggered
        if context is not None:
            context.triggered.discard(scope.value)
        preview = await agent.collector.prepare(scope)
        by_time = trigger if preview.ahead_available_bytes is None else PassTrigger.COLLECT_AHEAD
        report = await agent.run(
            preview,
            trigger=PassTrigger.TRIGGER if is_triggered else by_time,
            stop=stop,
            on_start=partial(gc_loop.log_start, states),
            on_result=report_result,
            dry_runs=dry_runs,
        )
        if agent.dry_run:
            gc_loop.log_dry_run_changes(states, report.id, dry_runs.last)
        agent.log_health(logger)
        if context is not None and scope is Scope.IMAGES:
            await asyncio.to_thread(
                context.trend.note_images,
                preview.snapshot,
                agent.settings.policy.images,
                0 if report.dry_run else report.predicted_bytes,
                context.clock.monotonic_s(),
            )
            if report.removed:
                context.trend.collected_at = context.clock.now()
        await agent.log_interrupted(logger)  # such as the pass of a killed command
        await log_breakdown(agent, report, logger)
        return preview, report

    return run_pass


async def log_breakdown(agent: Agent, report: PassReport, logger: FilteringBoundLogger) -> None:
    """Log the usage breakdown of the image filesystem after a shortfall, once until a pass reaches its target."""
    if report.before is None or report.dry_run:
        return
    if report.end is not PassEnd.SHORTFALL:
        agent.shortfall_reported = False
        return
    if agent.shortfall_reported:
        return
    agent.shortfall_reported = True
    try:
        snapshot = await agent.observer.observe(Scope.ALL)
        breakdown = await agent.break_down(snapshot, within_s=0, walk=False)
    except NodeAgentError as error:
        logger.warning("imagefs_breakdown_failed", error=str(error))
        return
    sizes = {f"{part.replace('-', '_')}_bytes": size for part, size in describe(breakdown).items()}
    logger.warning("imagefs_breakdown", pass_id=report.id, hint="nodeagent du --details", **sizes)


async def _once(run_pass: gc_loop.Pass, logger: FilteringBoundLogger, context: DaemonContext) -> PassEnd:
    """Run one pass; after a stop request the pass has ``STOP_WITHIN_S`` seconds to end by itself."""
    async with context.pass_lock.take() as end:
        if end.is_set():  # a signal was received during the start
            return PassEnd.CANCELLED
        task = asyncio.ensure_future(run_pass(Scope.ALL, end))
        stopped = asyncio.ensure_future(end.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait({task}, timeout=STOP_WITHIN_S)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                return PassEnd.CANCELLED
            preview, report = task.result()
        finally:
            stopped.cancel()
    gc_loop.log_report(StateLog(logger, context.clock), preview, report)
    if report.end is PassEnd.RUNTIME_LOST:
        raise RuntimeUnavailableError(report.end_detail)
    return PassEnd.SHORTFALL if report.failed and report.end is PassEnd.COMPLETE else report.end


def _loops(context: DaemonContext, agent: Agent) -> list[gc_loop.Loop]:
    intervals = (
        (Scope.CONTAINERS, "container_gc", agent.settings.container_interval_s),
        (Scope.IMAGES, "image_gc", agent.settings.image_interval_s),
    )
    loops = []
    for scope, section, interval_s in intervals:
        if interval_s is None:
            because = f"{section}.enabled = false"
            context.loop_statuses.disabled(scope.value, because)
            context.logger.info("loop_disabled", loop=scope.value, because=because)
            continue
        loop = gc_loop.Loop(
            scope,
            partial(gc_loop.with_jitter, interval_s, random.random),
            _passes(agent, context.logger, PassTrigger.INTERVAL, context),
            pass_lock=context.pass_lock,
            loop_statuses=context.loop_statuses,
            states=StateLog(context.logger.bind(loop=scope.value), context.clock),
            wake=context.wake.setdefault(scope.value, asyncio.Event()),
        )
        loops.append(loop)
    return loops
