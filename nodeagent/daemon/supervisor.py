"""The supervisor: starts the loops, owns the stop event, and brings everything down within seconds."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING

from nodeagent.act.outcomes import PassEnd
from nodeagent.daemon.loops import Loop, log_report, log_result
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.plan.breakdown import describe
from nodeagent.plan.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from structlog.typing import FilteringBoundLogger

    from nodeagent.act.collect import Preview
    from nodeagent.act.outcomes import PassReport
    from nodeagent.daemon.agent import Agent
    from nodeagent.daemon.loops import Pass
    from nodeagent.plan.breakdown import Breakdown

STOP_WITHIN_S = 8.0


async def supervise(agent: Agent, logger: FilteringBoundLogger, *, once: bool) -> PassEnd:
    """Run the loops until SIGTERM or SIGINT; with ``once`` make one pass over everything instead.

    A pass that is under way ends between two items. One that is caught in a call to the runtime is given
    ``STOP_WITHIN_S`` seconds and then cancelled: the call may still take effect, which is no worse than a pass that
    ended after it.

    Returns:
        How the pass ended for ``once``, else ``COMPLETE``.

    Raises:
        RuntimeUnavailableError: with ``once``, the runtime does not answer.
        NodeAgentError: with ``once``, the pass could not be made.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: logger.warning("reload_not_supported", hint="restart the agent"))

    async def run_pass(scope: Scope, stop: asyncio.Event) -> tuple[Preview, PassReport]:
        preview = await agent.collector.preview(scope)
        report = await agent.run(
            preview,
            trigger="once" if once else "interval",
            stop=stop,
            on_result=lambda result: log_result(logger, result, dry_run=agent.dry_run),
        )
        agent.log_health(logger)
        await tell_what_fills(agent, report, logger)
        return preview, report

    logger.info("agent_started", role=agent.role.value, role_because=agent.role_because, dry_run=agent.dry_run)
    try:
        work = _once(run_pass, logger, stop) if once else _loops(agent, run_pass, logger, stop)
        return await _until_stopped(work, stop)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
        logger.info("agent_stopped")


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


async def _until_stopped(work: Coroutine[object, object, PassEnd], stop: asyncio.Event) -> PassEnd:
    """Await the work; once told to stop, give it a bounded time to end by itself."""
    task = asyncio.ensure_future(work)
    told = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=STOP_WITHIN_S)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            return PassEnd.CANCELLED
        return task.result()
    finally:
        told.cancel()


async def _once(run_pass: Pass, logger: FilteringBoundLogger, stop: asyncio.Event) -> PassEnd:
    preview, report = await run_pass(Scope.ALL, stop)
    log_report(logger, preview, report)
    if report.end is PassEnd.RUNTIME_LOST:
        raise RuntimeUnavailableError(report.end_detail)
    return PassEnd.SHORTFALL if report.failed and report.end is PassEnd.COMPLETE else report.end


async def _loops(agent: Agent, run_pass: Pass, logger: FilteringBoundLogger, stop: asyncio.Event) -> PassEnd:
    turn = asyncio.Lock()
    wanted = (
        (Scope.CONTAINERS, agent.settings.container_interval_s),
        (Scope.IMAGES, agent.settings.image_interval_s),
    )
    async with asyncio.TaskGroup() as tasks:
        for scope, interval_s in wanted:
            if interval_s is None:
                logger.info("loop_off", loop=scope.value)
                continue
            made = Loop(scope, interval_s, run_pass, turn=turn, stop=stop, logger=logger, jitter=random.random)
            tasks.create_task(made.run())
        tasks.create_task(stop.wait())
    return PassEnd.COMPLETE
