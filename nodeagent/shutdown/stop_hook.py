"""The stop hook of the unit: stops pods during a shutdown of the node that logind did not signal or delay.

Without the daemon, or without logind's signal, the stop of the unit is the first sign of a shutdown. systemd stops the
unit before the runtime, since the unit is ordered after the runtime, and waits up to the unit's ``TimeoutStopSec``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.config.paths import RUNTIME_DIRECTORY
from nodeagent.errors import NodeAgentError, StoreError
from nodeagent.host.systemd import UnitStop, userspace_id
from nodeagent.loops.clock_reading import read_clocks
from nodeagent.loops.pause_file import PauseFile
from nodeagent.model.stops import LastActivity, NodeStop, StopEnd, StopKind
from nodeagent.pods.role import RoleWatch
from nodeagent.pods.watched import WatchedPods, restore_pods
from nodeagent.record import replace
from nodeagent.runtime.connection import configured_connection
from nodeagent.runtime.cri import CriClient
from nodeagent.shutdown.executor import ShutdownInProgress
from nodeagent.shutdown.plan.planner import DelayLimit, ShutdownBudget, shutdown_budget
from nodeagent.shutdown.pods import RunningPods
from nodeagent.shutdown.recorder import STALLED_AFTER_S, ShutdownRecorder
from nodeagent.units import Clock, SystemClock

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.model.node import Role
    from nodeagent.settings.settings import Settings

_LIST_WITHIN_S: Final = 5.0
_UNLIMITED_S: Final = 3600.0


async def stop_pods_at_unit_stop(  # noqa: PLR0913 - its collaborators
    settings: Settings,
    logger: FilteringBoundLogger,
    unit_stop: UnitStop,
    *,
    began_s: float | None = None,
    main_pid: int | None = None,
    this_boot: str = "",
    runtime_directory: Path = Path(RUNTIME_DIRECTORY),
) -> StopEnd | None:
    """Stop the pods in order if the node is shutting down and no other process of the agent has stopped them.

    If logind has announced a shutdown and still waits for the daemon, the hook waits for the daemon too. A daemon that
    holds the shutdown without progress is killed, and the hook stops the other pods.

    Args:
        settings: the settings of the agent.
        logger: logger of all events.
        unit_stop: the stop of the unit.
        began_s: monotonic seconds of the start of the stop hook, from which its time limit counts; by default now.
        main_pid: process id of the daemon; ``None`` if it is not running.
        this_boot: id of the current start of the userspace; by default the id of this machine.
        runtime_directory: directory of the records that the state directory cannot store.

    Returns:
        The end of this shutdown, or of the daemon's shutdown if that was complete; ``None`` if the hook stops no pods.
    """
    clock = SystemClock()
    began_s = clock.monotonic_s() if began_s is None else began_s
    recorder = ShutdownRecorder(settings, clock, logger, this_boot or userspace_id(), runtime_directory)
    if not unit_stop.is_node_stopping and not (unit_stop.is_announced and recorder.in_progress() is not None):
        logger.debug("unit_stop", system_state=unit_stop.system_state)
        return None
    role = await RoleWatch(clock, logger).evaluate(settings.role)
    paused = PauseFile(settings.state_directory).in_force(read_clocks(clock))
    disabled_because = settings.shutdown_off_because(role.role, role.reason, paused)
    if disabled_because:
        logger.info("shutdown_disabled", because=disabled_because)
        if recorder.last_boot() is not None:
            recorder.record_activity(LastActivity.GOING_DOWN)
        return None
    limit_ms = _limit(unit_stop, clock, began_s).limit_ms
    within_s = _UNLIMITED_S if limit_ms is None else limit_ms / 1000
    if not unit_stop.is_node_stopping:  # systemd would stop the pods in any order: the daemon's lock ends with it
        because = "pods are being stopped for a node shutdown"
        logger.warning("unit_stop_delayed", because=because, within_s=within_s)
    with recorder.files.claim(within_s, lambda: _takes_over(recorder, main_pid)) as claimed:
        if not claimed:
            logger.warning("shutdown_delegated", because="another process of the agent still stops the pods")
            return None
        last = recorder.last_of_this_boot()
        if last is not None and last.end is StopEnd.COMPLETE:
            return _already_done(recorder, last, unit_stop)
        if not unit_stop.is_node_stopping and (last is None or last.end is not StopEnd.IN_PROGRESS):
            return None  # cancelled
        limit = _limit(unit_stop, clock, began_s)
        return await _stop_pods(
            settings, recorder, shutdown_budget(settings.shutdown.phases, limit), role.role, unit_stop.operation
        )


def _already_done(recorder: ShutdownRecorder, last: NodeStop, unit_stop: UnitStop) -> StopEnd:
    """Return the end of a complete shutdown, whose record is completed with the operation of systemd's jobs."""
    recorder.logger.info("shutdown_already_done")
    if unit_stop.operation and not last.operation:
        recorder.close(replace(last, operation=unit_stop.operation))
    return last.end


def _limit(unit_stop: UnitStop, clock: Clock, began_s: float) -> DelayLimit:
    return DelayLimit.of_unit_stop(unit_stop.timeout_us, elapsed_s=clock.monotonic_s() - began_s)


def _takes_over(recorder: ShutdownRecorder, main_pid: int | None) -> bool:
    """Return whether the daemon, which holds the shutdown, stops no further pods; a stalled daemon is killed.

    A stopped process that continues later would send KILL for deadlines that have passed. A process with a pending
    SIGKILL runs no further instruction of its own, even while the kernel still waits for its disk.
    """
    last = recorder.last_of_this_boot()
    if last is not None and last.end is StopEnd.COMPLETE:
        return True
    if main_pid is None or not recorder.is_stalled():
        return False
    recorder.logger.warning("shutdown_taken_over", pid=main_pid, stalled_s=STALLED_AFTER_S)
    with suppress(ProcessLookupError):
        os.kill(main_pid, signal.SIGKILL)
    return True


async def _stored_pods(settings: Settings, recorder: ShutdownRecorder) -> WatchedPods:
    """Return the last pods watched by the daemon, from disk: during a shutdown the network may be down."""
    watched = WatchedPods(recorder.clock)
    if settings.kubernetes.watch_pods:
        try:
            await asyncio.to_thread(restore_pods, watched, settings.state_directory, settings.kubelet.node_name)
        except StoreError as error:
            recorder.logger.warning("store_notice", notice=str(error))
    return watched


async def _stop_pods(
    settings: Settings, recorder: ShutdownRecorder, budget: ShutdownBudget, role: Role, operation: str
) -> StopEnd | None:
    if not budget.granted_ms:
        because = "TimeoutStopSec of the unit leaves no time to stop pods"
        recorder.logger.warning("shutdown_delegated", because=because)
        return None
    async with configured_connection(settings, read_timeout_s=min(settings.timeout_s, _LIST_WITHIN_S)) as connection:
        cri = CriClient(connection)
        pods = RunningPods(cri, settings, recorder.clock, lambda: role, await _stored_pods(settings, recorder))
        try:
            await pods.refresh()
        except NodeAgentError as error:
            recorder.logger.warning("shutdown_pods_unavailable", error=str(error))
        shutdown = ShutdownInProgress(
            recorder,
            budget,
            cri,
            pods,
            kind=StopKind.UNIT_STOP,
            operation=operation,
            earlier=recorder.in_progress(),
            expects_pods=recorder.has_running_pods(),
        )
        await shutdown.carry_out()
        stop = await shutdown.close(StopEnd.INCOMPLETE if shutdown.has_left_pods else None)
        await pods.close()
        return stop.end
