"""What is up on the node, kept at hand so that nothing has to be asked first when the node goes down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.act.shutdown.executor import RunningPod
from nodeagent.observe.pods import make_pod_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.clock import Clock
    from nodeagent.config.settings import Settings
    from nodeagent.model import Role
    from nodeagent.model.pods import PodInventory
    from nodeagent.runtime.cri import CriClient


class PodCache:
    """The pods of the node as last seen.

    Attributes:
        pods: what was up then.
        known: whether every source was asked since the agent began.
    """

    def __init__(self, cri: CriClient, settings: Settings, clock: Clock, role: Callable[[], Role]) -> None:
        self._reader = make_pod_reader(cri, settings, clock, role)
        self.pods: tuple[RunningPod, ...] = ()
        self.known = False

    async def refresh(self) -> tuple[RunningPod, ...]:
        """Ask every source anew; where the better ones fail, what they told before stays.

        Raises:
            NodeAgentError: the runtime does not answer.
        """
        found = self._take(await self._reader.read(with_usage=False))
        self.known = True
        return found

    async def look(self) -> tuple[RunningPod, ...]:
        """Return what is up now, asking only for the runtime's lists.

        Raises:
            NodeAgentError: the runtime does not answer.
        """
        return self._take(await self._reader.read(with_usage=False, quick=True))

    async def close(self) -> None:
        """Stop what is still being asked for."""
        await self._reader.close()

    def _take(self, seen: PodInventory) -> tuple[RunningPod, ...]:
        self.pods = tuple(RunningPod(each, seen.handles[each.uid].sandbox_ids) for each in seen.shutdown)
        return self.pods
