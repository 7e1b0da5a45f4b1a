"""Refreshes of the pod cache, and the record of running pods for a review after a crash."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.shutdown.pod_cache import PodRuntime
from nodeagent.daemon.shutdown.recorder import running_pods
from nodeagent.errors import NodeAgentError
from nodeagent.model.node_stop import LastActivity

if TYPE_CHECKING:
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.shutdown.recorder import ShutdownRecorder
    from nodeagent.model.node_stop import StoppedPod

_RECORD_INTERVAL_S: Final = 300.0
_FIRST_LIST_WITHIN_S: Final = 2.0
_RETRY_S: Final = 0.2


class PodMonitor:
    """Keeps the pod cache current across reloads and failures of the runtime.

    Attributes:
        problem: reason for the last failure; empty after a success.
    """

    def __init__(self, context: DaemonContext, recorder: ShutdownRecorder) -> None:
        self._context = context
        self._recorder = recorder
        self._settings = context.settings
        self._runtime: PodRuntime | None = None
        self._recorded: tuple[StoppedPod, ...] | None = None
        self._recorded_s = 0.0
        self.problem = ""

    async def use(self, settings: Settings) -> None:
        """Close the current connection, and connect to the runtime of new settings."""
        await self.close()
        self._settings = settings
        self.connected()

    def connected(self) -> PodRuntime | None:
        """Return the open runtime connection, or a new one; ``None`` if no runtime is found, see ``problem``."""
        if self._runtime is None:
            roles = self._context.roles
            try:
                self._runtime = PodRuntime(
                    self._settings,
                    self._context.clock,
                    lambda: roles.current.role,
                    self._context.counters.call,
                    self._context.watched_pods,
                )
            except NodeAgentError as error:
                self._set_problem(str(error))
        return self._runtime

    async def connected_within(self, within_s: float) -> PodRuntime | None:
        """Return a connection as soon as a runtime is found; ``None`` after ``within_s`` seconds without a runtime."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.connected() is None:  # noqa: ASYNC110 - polls for a socket in the file system
                    await asyncio.sleep(_RETRY_S)
        return self.connected()

    async def refresh(self, *, record: bool) -> None:
        """Refresh the pod cache; with ``record`` write the running pods to disk, at least every five minutes."""
        runtime = self.connected()
        if runtime is None:
            return
        try:
            pods = running_pods(await runtime.pods.refresh())
        except NodeAgentError as error:
            self._set_problem(str(error))
            return
        self._set_problem("")
        now_s = self._context.clock.monotonic_s()
        if record and (pods != self._recorded or now_s - self._recorded_s >= _RECORD_INTERVAL_S):
            self._recorded, self._recorded_s = pods, now_s
            await asyncio.to_thread(self._recorder.record_activity, LastActivity.WATCHING, pods)

    async def complete(self, runtime: PodRuntime) -> None:
        """Read every source if the lists are incomplete, such as after a restart of the agent during a shutdown."""
        if runtime.pods.complete:
            return
        try:
            async with asyncio.timeout(_FIRST_LIST_WITHIN_S):
                await runtime.pods.refresh()
        except (NodeAgentError, TimeoutError) as error:
            self._recorder.logger.warning("shutdown_pods_unavailable", error=str(error) or "no answer in time")

    def record_again(self) -> None:
        """Record the running pods at the next refresh, even if they are unchanged."""
        self._recorded = None

    async def close(self) -> None:
        """Close the runtime connection."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            self._recorder.logger.warning("shutdown_pods_unavailable", error=problem)
        self.problem = problem
