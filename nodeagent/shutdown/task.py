"""The inhibitor task: graceful shutdown across reloads, changes of the role and crashes.

While graceful shutdown is enabled, the task runs one session, which holds logind's inhibitor lock and refreshes the pod
cache. A copy of the lock is in systemd's descriptor store: an agent that is killed during a shutdown receives the copy
after its restart, reads the recorded progress, and resumes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeagent.errors import InhibitorError
from nodeagent.host.systemd import stored_descriptor, userspace_id
from nodeagent.loops.passes import wait_for_any
from nodeagent.shutdown.environment import NAME, HostServices, Intervals, read_enablement
from nodeagent.shutdown.recorder import ShutdownRecorder

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext


class InhibitorTask:
    """Runs a session while graceful shutdown is enabled.

    Attributes:
        recorder: writes the records of stops.
        wake: event that makes the session apply changed settings immediately.
    """

    def __init__(
        self,
        context: DaemonContext,
        *,
        host: HostServices | None = None,
        adopted: int | None = None,
        intervals: Intervals | None = None,
    ) -> None:
        """Prepare the task; :meth:`run` requests the lock.

        Args:
            context: the daemon context.
            host: services of the node; by default this machine's.
            adopted: descriptor of a lock from an earlier run; by default the descriptor in systemd's descriptor store.
            intervals: poll intervals other than the defaults.
        """
        self._context = context
        self._host = host or HostServices()
        self._adopted = adopted if adopted is not None else stored_descriptor()
        self._intervals = intervals or Intervals()
        self._logger = context.logger.bind(task=NAME)
        self.recorder = ShutdownRecorder(
            context.settings, context.clock, self._logger, self._host.boot_id, self._host.runtime_directory
        )
        self.wake = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Run sessions until stopped; the next process resumes a shutdown in progress.

        The slices of pods are exempt from a shutdown only while graceful shutdown is enabled. After a crash they remain
        exempt for the next process.
        """
        self.recorder.boot_id = self._host.boot_id or await asyncio.to_thread(userspace_id)
        await asyncio.to_thread(self.recorder.review)
        while not stop.is_set():
            enablement = await read_enablement(self._context)
            if enablement.disabled_because:
                await self._change_slices(self._host.slices.restore)
                self._context.loop_statuses.disabled(NAME, enablement.disabled_because)
                self._close_adopted()
                # logged after the effect, so that the status and the lock agree with the journal
                level = self._logger.warning if enablement.refused else self._logger.info
                level("shutdown_disabled", because=enablement.disabled_because)
                await self._wait_until_enabled(stop)
                continue
            await self._change_slices(self._host.slices.exempt)
            try:
                await self._run_session(stop)
            except Exception:  # an unexpected error must not end the daemon's other tasks
                self._logger.exception("inhibitor_task_crashed")
                await wait_for_any(self._intervals.retry_s, stop)
        await self._change_slices(self._host.slices.restore)

    async def _change_slices(self, change: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(change)
        except InhibitorError as error:
            self._logger.warning("shutdown_warning", note=str(error))

    async def _run_session(self, stop: asyncio.Event) -> None:
        # imported here, since a daemon without graceful shutdown does not need dbus_fast
        from nodeagent.shutdown.session import InhibitorSession  # noqa: PLC0415

        earlier = await asyncio.to_thread(self.recorder.last_of_this_boot)
        adopted, self._adopted = self._adopted, None
        session = InhibitorSession(
            self._context, self._host, self.recorder, self._intervals, self.wake, adopted=adopted, earlier=earlier
        )
        await session.run(stop)

    async def _wait_until_enabled(self, stop: asyncio.Event) -> None:
        await asyncio.to_thread(self.recorder.record_agent_stop)
        max_age_s = self._intervals.role_poll_s
        while not stop.is_set():
            enablement = await read_enablement(self._context, max_age_s=max_age_s)
            if not enablement.disabled_because:
                return
            self._context.loop_statuses.disabled(NAME, enablement.disabled_because)
            await wait_for_any(self._intervals.retry_s, stop)

    def _close_adopted(self) -> None:
        """Close an adopted lock, and its copy in systemd's descriptor store."""
        number, self._adopted = self._adopted, None
        if number is not None:
            with suppress(OSError):
                os.close(number)
            self._host.store.forget()
