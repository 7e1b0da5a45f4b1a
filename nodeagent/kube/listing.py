"""Latest pod list of the kubelet, cached so that a slow kubelet does not delay passes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.errors import ObservationError

if TYPE_CHECKING:
    from nodeagent.clock import Clock
    from nodeagent.model.pods import PodSpec

_REREAD_S: Final = 1.0
_WAIT_S: Final = 0.25


class PodLister(Protocol):
    """Source of the kubelet's pod list."""

    async def read(self) -> tuple[PodSpec, ...]:
        """Return all pods of the kubelet.

        Raises:
            ObservationError: the list cannot be read.
        """


class KubeletListing:
    """Cached pod list of the kubelet.

    Only the first request waits until the kubelet answers. Later requests wait at most 0.25 s: the pass then uses the
    cached list, and the next pass uses the answer.

    Attributes:
        configured: whether a kubelet is configured.
        pods: pods of the latest list; ``None`` before the first successful request.
    """

    def __init__(self, source: PodLister | None, clock: Clock, max_age_s: float) -> None:
        self._source = source
        self._clock = clock
        self._max_age_s = max_age_s
        self._requested_s: float | None = None
        self._request: asyncio.Task[None] | None = None
        self._uids: frozenset[str] = frozenset()
        self._error = ""
        self.configured = source is not None
        self.pods: tuple[PodSpec, ...] | None = None

    @property
    def complete(self) -> bool:
        """Whether the latest request succeeded. A running pod that the list lacks is then a contradiction, and kept."""
        return self.pods is not None and not self._error and (self._request is None or self._request.done())

    async def read_if_due(self) -> None:
        """Request the list if the latest request is older than the maximum age."""
        if self._requested_s is None or self._clock.monotonic_s() - self._requested_s >= self._max_age_s:
            await self._read()

    async def read_for(self, uids: set[str]) -> None:
        """Request the list if the cached list lacks one of the pods, at most once per second."""
        if self._requested_s is None or uids <= self._uids or self._clock.monotonic_s() - self._requested_s < _REREAD_S:
            return
        await self._read()

    def warn(self, warnings: list[str]) -> None:
        """Add a warning if the latest request failed, and a warning if the list has malformed pods."""
        if self._error:
            warnings.append(f"cannot list the kubelet's pods: {self._error}; pods missing from its last list are kept")
        malformed = [each.malformed for each in self.pods or () if each.malformed]
        if malformed:
            more = f" and {len(malformed) - 1} more" if len(malformed) > 1 else ""
            warnings.append(f"malformed pod in the kubelet's list, kept: {malformed[0]}{more}")

    async def close(self) -> None:
        """Cancel a pending request."""
        if self._request is not None:
            self._request.cancel()
            await asyncio.wait([self._request])
            self._request = None

    async def _read(self) -> None:
        if self._source is None:
            return
        wait_s = None if self._requested_s is None else _WAIT_S
        if self._request is None or self._request.done():
            self._requested_s = self._clock.monotonic_s()
            self._request = asyncio.create_task(self._update(self._source))
        await asyncio.wait([self._request], timeout=wait_s)
        if self._request.done():
            self._request.result()

    async def _update(self, source: PodLister) -> None:
        try:
            self.pods = await source.read()
        except ObservationError as error:
            # The cached list is kept: apart from in-place resizes, the spec of a pod is immutable.
            self._error = str(error)
        else:
            self._error = ""
            self._uids = frozenset(each.uid for each in self.pods)
