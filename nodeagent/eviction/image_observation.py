"""Observation of the images for node-level reclaim, begun during an earlier step if space runs out."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError
from nodeagent.gc.plan.policy import Scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodeagent.clock import Clock
    from nodeagent.model import NodeSnapshot

_USABLE_FOR_S: Final = 1.0
"""Age in seconds up to which an observation is used for an image reclaim step, as for the measurement of the pods."""


class ImageObservation:
    """Observes the node for reclaim steps; one observation of the images serves all steps until the first removal."""

    def __init__(self, observe: Callable[[Scope], Awaitable[NodeSnapshot]], clock: Clock) -> None:
        """Create it; ``observe`` returns a new node snapshot of a scope."""
        self._observe = observe
        self._clock = clock
        self._begun: asyncio.Future[NodeSnapshot] | None = None
        self._begun_s = 0.0

    async def prepare(self) -> None:
        """Observe the node once, so that the first reclaim finds the caches of the observation filled.

        A failure has no effect: a reclaim step observes the node itself.
        """
        with suppress(NodeAgentError):
            for scope in (Scope.IMAGES, Scope.CONTAINERS):
                await self._observe(scope)

    def begin(self) -> None:
        """Start an observation of the images for the next :meth:`observe`, unless a usable one exists."""
        if self._usable() is not None:
            return
        self._begun_s = self._clock.monotonic_s()
        self._begun = asyncio.ensure_future(self._observe(Scope.IMAGES))
        self._begun.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())

    async def observe(self, scope: Scope) -> NodeSnapshot:
        """Return the node snapshot of a scope: for images the begun observation, if it is usable.

        Raises:
            NodeAgentError: the node could not be observed.
        """
        begun = self._usable() if scope is Scope.IMAGES else None
        return await (self._observe(scope) if begun is None else begun)

    def discard(self) -> None:
        """End the use of a begun observation: before a removal, and at the end of a pass."""
        if self._begun is not None:
            self._begun.cancel()
            self._begun = None

    def _usable(self) -> asyncio.Future[NodeSnapshot] | None:
        """Return the begun observation if it is running, or succeeded within the age limit."""
        begun = self._begun
        if begun is None or not begun.done():
            return begun
        is_recent = self._clock.monotonic_s() - self._begun_s <= _USABLE_FOR_S
        return begun if is_recent and not begun.cancelled() and begun.exception() is None else None
