"""The kubelet's list of pods as it was last told, so that a slow kubelet holds nothing up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.errors import ObservationError

if TYPE_CHECKING:
    from nodeagent.clock import Clock
    from nodeagent.model.pods import PodSpec

_ASK_AGAIN_S: Final = 1.0
_PATIENCE_S: Final = 0.25


class PodLister(Protocol):
    """The kubelet's list of pods."""

    async def read(self) -> tuple[PodSpec, ...]:
        """Return all pods the kubelet knows. Raises ObservationError where it does not tell."""


class KubeletListing:
    """The kubelet's list as it was last read.

    A kubelet that is slow to answer holds a pass up only while there is no list at all; after that a pass goes on
    with the list there is and the answer serves the next one.
    """

    def __init__(self, source: PodLister | None, clock: Clock, max_age_s: float) -> None:
        self._source = source
        self._clock = clock
        self._max_age_s = max_age_s
        self._asked_s: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._uids: frozenset[str] = frozenset()
        self._error = ""
        self.configured = source is not None
        self.pods: tuple[PodSpec, ...] | None = None

    @property
    def complete(self) -> bool:
        """Whether the list is the one last asked for, so that a pod missing from it is none of the kubelet's."""
        return self.pods is not None and not self._error and (self._asking is None or self._asking.done())

    async def read_if_due(self) -> None:
        """Ask where the list has grown too old."""
        if self._asked_s is None or self._clock.monotonic_s() - self._asked_s >= self._max_age_s:
            await self._read()

    async def read_for(self, uids: set[str]) -> None:
        """Ask again where a pod is missing from the list, but not at once after it was asked for."""
        if self._asked_s is None or uids <= self._uids or self._clock.monotonic_s() - self._asked_s < _ASK_AGAIN_S:
            return
        await self._read()

    def warn(self, warnings: list[str]) -> None:
        """Say if the list is not known."""
        if self._error:
            warnings.append(
                f"the kubelet's list of pods is not known; pods it did not list before are kept: {self._error}"
            )

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
            self._asking = None

    async def _read(self) -> None:
        if self._source is None:
            return
        patience_s = None if self._asked_s is None else _PATIENCE_S
        if self._asking is None or self._asking.done():
            self._asked_s = self._clock.monotonic_s()
            self._asking = asyncio.create_task(self._ask(self._source))
        await asyncio.wait([self._asking], timeout=patience_s)
        if self._asking.done():
            self._asking.result()

    async def _ask(self, source: PodLister) -> None:
        try:
            self.pods = await source.read()
        except ObservationError as error:
            # What a pod's definition says does not change, so what was read before holds for the pods in it.
            self._error = str(error)
        else:
            self._error = ""
            self._uids = frozenset(each.uid for each in self.pods)
