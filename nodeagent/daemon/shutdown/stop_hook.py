"""The safety net: what the unit's stop command does when the whole node goes down and nobody saw it coming.

Without the daemon, or without logind's signal, the first sign of a shutdown is that systemd stops our unit. It stops
it before the runtime, since the unit is ordered after that, and it waits as long as the unit's time to stop says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.act.agent import READ_METHODS
from nodeagent.clock import SystemClock
from nodeagent.daemon.shutdown.execution import ShutdownInProgress, ShutdownRecorder, rehearse, retention
from nodeagent.daemon.shutdown.pod_cache import PodCache
from nodeagent.errors import NodeAgentError
from nodeagent.host.node import boot_id
from nodeagent.model.node_stop import LastActivity, StopEnd, StopKind
from nodeagent.observe.node_role import RoleWatch
from nodeagent.plan.shutdown.budget import DelayLimit, shutdown_budget
from nodeagent.runtime.connection import RuntimeConnection, discover_endpoint
from nodeagent.runtime.cri import CriClient
from nodeagent.store.history import History
from nodeagent.store.shutdown import ShutdownFiles

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.config.settings import Settings
    from nodeagent.host.systemd import UnitStop
    from nodeagent.model import Role
    from nodeagent.plan.shutdown.budget import ShutdownBudget

_SANDBOXES_S: Final = 3.0
_LIST_WITHIN_S: Final = 5.0


async def stop_pods_at_unit_stop(
    settings: Settings, logger: FilteringBoundLogger, told: UnitStop, *, this_boot: str = ""
) -> StopEnd | None:
    """Stop the pods in order if the node goes down and that was not done yet.

    Returns:
        How it ended, that of the daemon's own run if there was one; ``None`` where nothing was to be done.
    """
    if not told.node_goes_down:
        logger.debug("unit_stop", system_state=told.system_state)
        return None
    clock = SystemClock()
    files = ShutdownFiles(settings.state_directory)
    history = History(settings.state_directory)
    book = ShutdownRecorder(files, history, retention(settings), clock, logger, this_boot or boot_id())
    role = await RoleWatch(clock, logger).evaluate(settings.role)
    off = settings.shutdown.off_because(role.role, role.reason)
    if off:
        logger.info("shutdown_disabled", because=off)
        if files.read_boot() is not None:
            book.seen(LastActivity.GOING_DOWN)
        return None
    begun_s = clock.monotonic_s()
    limit_ms = DelayLimit.of_unit_stop(told.timeout_us).limit_ms
    if limit_ms is None:
        limit_ms = sum(phase.requested_ms for phase in settings.shutdown.phases)
    with files.claim(limit_ms / 1000) as ours:  # the daemon may still be stopping pods
        if not ours:
            logger.warning("shutdown_delegated", because="another process of the agent still stops the pods")
            return None
        last = book.last()
        if last is not None and last.boot_id == book.boot_id and last.end is StopEnd.COMPLETE:
            logger.info("shutdown_already_done")
            return last.end
        limit = DelayLimit.of_unit_stop(told.timeout_us, elapsed_s=clock.monotonic_s() - begun_s)
        return await _stop_pods(settings, book, shutdown_budget(settings.shutdown.phases, limit), role.role)


async def _stop_pods(settings: Settings, book: ShutdownRecorder, budget: ShutdownBudget, role: Role) -> StopEnd | None:
    if not budget.granted_ms:
        book.logger.warning("shutdown_delegated", because="TimeoutStopSec of the unit leaves no time to stop pods")
        return None
    deadlines = dict.fromkeys(READ_METHODS, min(settings.timeout_s, _LIST_WITHIN_S))
    async with RuntimeConnection(discover_endpoint(settings.endpoint or None), deadlines=deadlines) as connection:
        cri = CriClient(connection)
        pods = PodCache(cri, settings, book.clock, lambda: role)
        try:
            await pods.refresh()
        except NodeAgentError as error:
            book.logger.warning("shutdown_pods_unavailable", error=str(error))
        if settings.dry_run:
            rehearse(budget, pods.pods, book.logger)
            return None
        under_way = ShutdownInProgress(book, budget, cri, pods, kind=StopKind.UNIT_STOP, earlier=book.under_way())
        await under_way.carry_out()
        stop = await under_way.close(sandboxes_within_s=_SANDBOXES_S)
        await pods.close()
        return stop.end
