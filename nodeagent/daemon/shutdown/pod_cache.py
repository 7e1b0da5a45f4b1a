"""The pod cache: the last list of running pods, so that a shutdown starts without a prior reading."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.act.shutdown.pod_record import RunningPod
from nodeagent.errors import NodeAgentError
from nodeagent.host.container_processes import ContainerProcesses
from nodeagent.observe.pods import make_pod_reader
from nodeagent.plan.shutdown.stop_signals import signal_number
from nodeagent.runtime.configured_connection import configured_connection
from nodeagent.runtime.cri import CriClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.clock import Clock
    from nodeagent.config.settings import Settings
    from nodeagent.model import Role
    from nodeagent.model.pods import PodInventory
    from nodeagent.observe.watched_pods import WatchedPods
    from nodeagent.runtime.connection import CallObserver

_NEW_PODS_WITHIN_S: Final = 0.5


class PodCache:
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

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        role: Callable[[], Role],
        observer: CallObserver | None = None,
        watched: WatchedPods | None = None,
    ) -> None:
        """Open a connection.

        Raises:
            NodeAgentError: no runtime is configured and none is found.
        """
        self._connection = configured_connection(settings, observer=observer)
        self.cri = CriClient(self._connection)
        self.pods = PodCache(self.cri, settings, clock, role, watched)

    async def close(self) -> None:
        """Cancel pending readings and close the connection."""
        await self.pods.close()
        await self._connection.close()
