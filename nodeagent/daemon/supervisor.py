"""The supervisor: starts the duties, owns the stop event, and brings everything down within seconds."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.act.outcomes import PassEnd
from nodeagent.clock import SystemClock
from nodeagent.daemon.agent import open_agent
from nodeagent.daemon.board import Board
from nodeagent.daemon.control_socket import ControlDuty
from nodeagent.daemon.effect import tell_effect
from nodeagent.daemon.evicting import eviction_duties
from nodeagent.daemon.loops import SILENCE_S, Loop, RuntimeWatch, log_report, log_result, wait_for_any
from nodeagent.daemon.metrics_server import MetricsDuty
from nodeagent.daemon.pausing import restore_pause
from nodeagent.daemon.reload_grace import keep_mode, restore_grace
from nodeagent.daemon.service import WEDGE, ReloadDuty, WatchdogDuty, WedgeDuty, announce_grace
from nodeagent.daemon.shutdown import ShutdownDuty
from nodeagent.daemon.station import Station
from nodeagent.daemon.taps import add_tap, remove_tap
from nodeagent.daemon.turns import Turns
from nodeagent.daemon.unix_signals import handled
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.host.notify import Notifier
from nodeagent.plan.breakdown import describe
from nodeagent.plan.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structlog.typing import FilteringBoundLogger

    from nodeagent.act.collect import Preview
    from nodeagent.act.outcomes import PassReport, Result
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.agent import Agent
    from nodeagent.daemon.loops import Pass
    from nodeagent.daemon.station import Duty
    from nodeagent.plan.breakdown import Breakdown

STOP_WITHIN_S = 8.0
GRACE_POLL_S = 0.5
"""Interval at which the end of the reload grace period is checked; a pause moves it."""
_LONG_S = 3600.0


async def supervise(settings: Settings, logger: FilteringBoundLogger, *, once: bool) -> PassEnd:
    """Do all duties until SIGTERM or SIGINT; with ``once`` make one pass over everything instead.

    SIGHUP reloads the configuration; with ``once`` it ends the pass as SIGTERM does.

    A pass that is under way ends between two items. One that is caught in a call to the runtime is given
    ``STOP_WITHIN_S`` seconds and then cancelled: the call may still take effect, which is no worse than a pass that
    ended after it.

    Returns:
        How the pass ended for ``once``, else ``COMPLETE``.

    Raises:
        RuntimeUnavailableError: with ``once``, the runtime does not answer.
        NodeAgentError: with ``once``, the pass could not be made.
    """
    clock = SystemClock()
    station = Station(settings, logger, clock, Board(clock), Turns(clock))
    loop = asyncio.get_running_loop()

    def end() -> None:
        Notifier().stopping()
        station.stop.set()
        station.turns.end()

    add_tap(station.tally.hear)
    try:
        with handled(loop, end=end, hangup=end if once else station.reload.set, once=once):
            if once:
                async with open_agent(settings, record=True, dry_run=settings.dry_run, roles=station.roles) as agent:
                    _tell_start(agent, logger)
                    return await _once(_passes(agent, logger, "once"), logger, station)
            restore_pause(station)
            restore_grace(station)
            await _all_duties(station)
            return PassEnd.COMPLETE
    finally:
        logger.info("agent_stopped")
        remove_tap(station.tally.hear)


def lasting_duties(station: Station) -> Sequence[Duty]:
    """Return the duties that go on over reloads."""
    notifier = Notifier()
    wedge = os.environ.get(WEDGE)
    return (
        ShutdownDuty(station),
        WatchdogDuty(station, notifier),
        ReloadDuty(station, notifier),
        ControlDuty(station),
        MetricsDuty(station),
        *((WedgeDuty(wedge),) if wedge else ()),
    )


def agent_duties(station: Station, agent: Agent) -> Sequence[Duty]:
    """Return the duties that serve one agent, until the next reload."""
    return (*_loops(station, agent), *eviction_duties(station, agent))


async def _all_duties(station: Station) -> None:
    """Do the lasting duties, and those of one agent after the other."""
    async with asyncio.TaskGroup() as tasks:
        for duty in lasting_duties(station):
            tasks.create_task(duty.run(station.stop))
        await serve_agents(station)


async def serve_agents(station: Station) -> None:
    """Compose one agent after the other and do its duties, until told to stop."""
    runtime = RuntimeWatch(station.logger)
    while not station.stop.is_set():
        station.take_next()
        try:
            await _one_agent(station)
            runtime.answered()
        except RuntimeUnavailableError as error:
            Notifier().ready(f"waiting for a container runtime: {error}")  # whoever starts us has no part in that
            await wait_for_any(runtime.lost(error), station.stop, station.renew)


async def _one_agent(station: Station) -> None:
    """Compose an agent from the settings in force and do its duties until told to stop, or to compose it anew.

    It is a dry run until the reload grace period is over, whatever the settings say.

    Raises:
        RuntimeUnavailableError: no runtime is configured and none is found.
    """
    if station.grace.over():
        station.grace.end()
        station.logger.warning("reload_grace_ended", dry_run=False)
    settings, dry_run = station.settings, station.dry_run  # at one instant: a reload may come at any await
    await keep_mode(station, dry_run=dry_run)
    async with open_agent(
        settings,
        record=True,
        dry_run=dry_run,
        clock=station.clock,
        observer_of_calls=station.tally.call,
        roles=station.roles,
    ) as agent:
        _tell_start(agent, station.logger)
        await _announced(station, agent)
        if station.stop.is_set() or station.renew.is_set():
            return
        station.agent = agent
        Notifier().ready(_mode(station, agent))
        done = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(duty.run(done)) for duty in agent_duties(station, agent)]
                await _replaced(station)
                done.set()
                station.turns.stop_passes()
                if running:
                    _, late = await asyncio.wait(running, timeout=STOP_WITHIN_S)
                    for task in late:
                        task.cancel()
                with suppress(TimeoutError):  # a pass that somebody asked for ends between two items, too
                    async with asyncio.timeout(STOP_WITHIN_S), station.turns.take():
                        station.agent = None
        finally:
            station.agent = None


async def _announced(station: Station, agent: Agent) -> None:
    """Wait until the effect of a reload is known; compute it here if a restart was the switch."""
    while not (station.announced.is_set() or station.stop.is_set() or station.renew.is_set()):
        await wait_for_any(_LONG_S, station.announced, station.stop, station.renew)
    if station.grace.pending and not station.grace.announced and station.announced.is_set():
        effect = await tell_effect(agent, replace(agent.settings, dry_run=True), station.logger, station.stop)
        if effect is not None and not station.renew.is_set():
            announce_grace(station, effect)


async def _replaced(station: Station) -> None:
    """Wait until the daemon stops, a reload replaces the agent, or the reload grace period ends.

    A duty that fails has its group cancel this wait.
    """
    waits, deadline_s = station.grace.pending, station.grace.deadline_s()
    while not (station.stop.is_set() or station.renew.is_set()):
        if waits and station.grace.over():
            return
        now_s = station.grace.deadline_s()
        if now_s is not None and now_s != deadline_s:
            until = station.grace.until()
            station.logger.warning(
                "reload_grace_restarted",
                seconds=station.grace.period_s,
                until=None if until is None else until.isoformat(timespec="seconds"),
            )
            deadline_s = now_s
        await wait_for_any(GRACE_POLL_S if waits else _LONG_S, station.stop, station.renew)


def _mode(station: Station, agent: Agent) -> str:
    """Return how an agent works, for the service manager's status line."""
    if station.grace.pending:
        return f"waiting: dry run for the reload grace period of {station.grace.period_s:g} s"
    return "tells what it would remove, and removes nothing" if agent.dry_run else "at work"


def _tell_start(agent: Agent, logger: FilteringBoundLogger) -> None:
    logger.info("agent_started", role=agent.role.value, role_because=agent.role_because, dry_run=agent.dry_run)


def _passes(agent: Agent, logger: FilteringBoundLogger, trigger: str, station: Station | None = None) -> Pass:
    """Return what makes one pass of an agent, and tells what it does."""

    async def run_pass(scope: Scope, stop: asyncio.Event) -> tuple[Preview, PassReport]:
        def tell(result: Result) -> None:
            log_result(logger, result, dry_run=agent.dry_run)
            if station is not None:
                station.board.beat(scope.value, SILENCE_S)

        preview = await agent.collector.preview(scope)
        report = await agent.run(preview, trigger=trigger, stop=stop, on_result=tell)
        agent.log_health(logger)
        await tell_what_fills(agent, report, logger)
        return preview, report

    return run_pass


async def tell_what_fills(agent: Agent, report: PassReport, logger: FilteringBoundLogger) -> None:
    """Log what fills the image filesystem when a pass did not free enough, once until one does."""
    if report.before is None or report.dry_run:
        return
    if report.end is not PassEnd.SHORTFALL:
        agent.shortfall_told = False
        return
    if agent.shortfall_told:
        return
    agent.shortfall_told = True
    try:
        snapshot = await agent.observer.observe(Scope.ALL)
        found = await agent.break_down(snapshot, within_s=0, walk=False)
    except NodeAgentError as error:
        logger.warning("imagefs_breakdown_failed", error=str(error))
        return
    logger.warning("imagefs_breakdown", pass_id=report.id, hint="nodeagent du --details", **_sizes(found))


def _sizes(found: Breakdown) -> dict[str, int]:
    return {f"{part.replace('-', '_')}_bytes": size for part, size in describe(found).items()}


async def _once(run_pass: Pass, logger: FilteringBoundLogger, station: Station) -> PassEnd:
    """Make one pass; once told to stop, give it a bounded time to end by itself."""
    async with station.turns.take() as end:
        if end.is_set():  # a signal came while the process started
            return PassEnd.CANCELLED
        task = asyncio.ensure_future(run_pass(Scope.ALL, end))
        told = asyncio.ensure_future(end.wait())
        try:
            await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait({task}, timeout=STOP_WITHIN_S)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                return PassEnd.CANCELLED
            preview, report = task.result()
        finally:
            told.cancel()
    log_report(logger, preview, report)
    if report.end is PassEnd.RUNTIME_LOST:
        raise RuntimeUnavailableError(report.end_detail)
    return PassEnd.SHORTFALL if report.failed and report.end is PassEnd.COMPLETE else report.end


def _loops(station: Station, agent: Agent) -> list[Loop]:
    wanted = (
        (Scope.CONTAINERS, agent.settings.container_interval_s),
        (Scope.IMAGES, agent.settings.image_interval_s),
    )
    made = []
    for scope, interval_s in wanted:
        if interval_s is None:
            station.board.off(scope.value, "not enabled")
            station.logger.info("loop_off", loop=scope.value)
            continue
        loop = Loop(
            scope,
            interval_s,
            _passes(agent, station.logger, "interval", station),
            turns=station.turns,
            board=station.board,
            logger=station.logger,
            jitter=random.random,
            wake=station.wake.setdefault(scope.value, asyncio.Event()),
        )
        made.append(loop)
    return made
