"""The running pods, listed in advance so that a shutdown starts without a prior reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError
from nodeagent.host.container_processes import ContainerProcesses
from nodeagent.model.stops import LastActivity, StoppedPod
from nodeagent.pods.reader import make_pod_reader
from nodeagent.runtime.connection import configured_connection
from nodeagent.runtime.cri import CriClient
from nodeagent.shutdown.plan.planner import signal_number
from nodeagent.shutdown.recorder import RunningPod, ShutdownRecorder, running_pods

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.model.node import Role
    from nodeagent.model.pods import PodInventory
    from nodeagent.pods.watched import WatchedPods
    from nodeagent.settings.settings import Settings
    from nodeagent.units import Clock

_NEW_PODS_WITHIN_S: Final = 0.5


class RunningPods:
    """The running pods of the node at the last reading.

    Attributes:
        pods: running pods at the last reading.
        complete: whether all sources have been read since the agent started.
        processes: the processes of the containers of these pods.
    """

    def __init__(
        self,
        cri: CriClient,
        settings: Settings,
        clock: Clock,
        role: Callable[[], Role],
        watched: WatchedPods | None = None,
    ) -> None:
        self._cri = cri
        self._reader = make_pod_reader(cri, settings, clock, role, watched=watched)
        self.pods: tuple[RunningPod, ...] = ()
        self.complete = False
        self._read_uids: frozenset[str] = frozenset()
        self._images: dict[str, str] = {}
        self._signals: dict[str, int | None] = {}
        self.processes = ContainerProcesses(clock)

    async def refresh(self) -> tuple[RunningPod, ...]:
        """Read every source and return the running pods; if an optional source fails, its last answer is used.

        Raises:
            NodeAgentError: the runtime does not answer.
        """
        pods = await self._read()
        self.complete = True
        ids = [each for running in pods for each in running.pod.container_ids]
        self.processes.forget_others(ids)
        await self.processes.locate(ids)
        await self._read_stop_signals()
        return pods

    async def refresh_quickly(self) -> tuple[RunningPod, ...]:
        """Return the running pods from the runtime's lists; for a new pod, read every source for a limited time.

        Without its definition, a pod created since the last reading would be stopped with priority 0.

        Raises:
            NodeAgentError: the runtime does not answer.
        """
        pods = self._store(await self._reader.read(with_usage=False, quick=True))
        if all(each.pod.uid in self._read_uids for each in pods):
            return pods
        with suppress(NodeAgentError, TimeoutError):
            async with asyncio.timeout(_NEW_PODS_WITHIN_S):
                return await self._read()
        return pods

    async def close(self) -> None:
        """Cancel pending readings of pods."""
        self.processes.close()
        await self._reader.close()

    async def _read_stop_signals(self) -> None:
        """Read the stop signals of images not read yet; after an error the next refresh retries."""
        self._signals = {each: known for each, known in self._signals.items() if each in self._images.values()}
        with suppress(NodeAgentError):
            for reference in sorted(set(self._images.values()) - self._signals.keys()):
                self._signals[reference] = signal_number(await self._cri.stop_signal(reference))
        numbers = {each: self._signals.get(reference) for each, reference in self._images.items()}
        self.processes.stop_signals = {each: number for each, number in numbers.items() if number is not None}

    async def _read(self) -> tuple[RunningPod, ...]:
        """Read every source and return the running pods."""
        pods = self._store(await self._reader.read(with_usage=False))
        self._read_uids = frozenset(each.pod.uid for each in pods)
        return pods

    def _store(self, inventory: PodInventory) -> tuple[RunningPod, ...]:
        handles = inventory.handles.values()
        self._images = {each.id: each.image_ref for handle in handles for each in handle.containers if each.image_ref}
        self.pods = tuple(RunningPod(each, inventory.handles[each.uid].sandbox_ids) for each in inventory.shutdown)
        return self.pods


class PodRuntime:
    """A runtime connection of the inhibitor task, with the pod cache that reads it.

    The connection is separate from the agent's, since a reload closes the latter and would abort pending stop requests.

    Attributes:
        cri: client for stop requests.
        pods: the pod cache.
    """

    def __init__(self, settings: Settings, context: DaemonContext) -> None:
        """Open a connection to the runtime of ``settings``, which may be newer than those in force.

        Raises:
            NodeAgentError: no runtime is configured and none is found.
        """
        roles = context.roles
        self._connection = configured_connection(settings, observer=context.counters.call)
        self.cri = CriClient(self._connection, context.lists)
        self.pods = RunningPods(self.cri, settings, context.clock, lambda: roles.current.role, context.watched_pods)

    async def close(self) -> None:
        """Cancel pending readings and close the connection."""
        await self.pods.close()
        await self._connection.close()


_RECORD_INTERVAL_S: Final = 300.0
_FIRST_LIST_WITHIN_S: Final = 2.0
_RETRY_S: Final = 0.2


class RunningPodMonitor:
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
            try:
                self._runtime = PodRuntime(self._settings, self._context)
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
