"""What is up on the node, kept at hand so that nothing has to be asked first when the node goes down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nodeagent.plan.pods_up import PodUp, pods_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model import Container, Sandbox, ShutdownPod


class PodLists(Protocol):
    """The runtime's two lists; both calls raise errors of the runtime."""

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        """Return all sandboxes."""

    async def list_containers(self) -> tuple[Container, ...]:
        """Return all containers."""


class PodFactsSource(Protocol):
    """Tells of pods what the runtime does not."""

    async def gather(self) -> Mapping[str, ShutdownPod]:
        """Return what is known of each pod, by UID; may take seconds, and raises errors of the runtime."""


class LabelsOnly:
    """No source but the runtime's labels and annotations."""

    async def gather(self) -> Mapping[str, ShutdownPod]:
        """Return nothing."""
        return {}


@dataclass
class WarmPods:
    """The pods of the node as last seen.

    Attributes:
        pods: what was up then.
        known: whether every source was asked.
    """

    lists: PodLists
    source: PodFactsSource

    def __post_init__(self) -> None:
        self.pods: tuple[PodUp, ...] = ()
        self.known = False
        self._facts: Mapping[str, ShutdownPod] = {}

    async def refresh(self) -> tuple[PodUp, ...]:
        """Ask every source anew; where the better ones fail, what they told before stays.

        Raises:
            NodeAgentError: the runtime does not answer.
        """
        self._facts = await self.source.gather()
        self.known = True
        return await self.look()

    async def look(self) -> tuple[PodUp, ...]:
        """Return what is up now, asking only the runtime's lists.

        Raises:
            NodeAgentError: the runtime does not answer.
        """
        sandboxes, containers = await asyncio.gather(self.lists.list_sandboxes(), self.lists.list_containers())
        self.pods = pods_up(sandboxes, containers, self._facts)
        return self.pods
