"""Wait for container creations in progress, between the deletion of image names and the final check for use.

A creation that read an image record before its deletion creates a lease a few milliseconds later, then a snapshot, then
a container record. The wait has two parts:

1. A fixed time, in which every such creation builds its container specification and requests its lease; neither can be
   observed. Then a write to containerd's metadata, which completes after all earlier writes, since creations can wait
   for a garbage collection or for the deletions of the next transaction. The wait is extended if the write or the
   agent is delayed, because the machine then delays creations too.
2. A wait until each lease that had no snapshot after the first part has a snapshot or is deleted. Leases created later
   are of creations from images that still have their record.

A creation that takes longer than the first part from record to lease is not detected. If its snapshot exists before the
release, the last reading finds the snapshot. Otherwise the creation fails, as after any removal, and no container
exists without its image record. A creation with a lease, but without a snapshot at the end of the second part, prevents
the removal of all images of the transaction.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from nodeagent.clock import Clock
    from nodeagent.runtime.creations import CreationLeases

DEFAULT_SETTLE_S: Final = 1.0
HURRIED_SETTLE_S: Final = 0.3
"""Maximum wait in a pass for an exceeded eviction threshold: a longer wait would cause the eviction of a pod."""

UNOBSERVABLE_S: Final = 0.25
"""Maximum time from image record to lease of a creation. Source: the race tests, with 4 clients on 2 cores."""

_POLL_S: Final = 0.03
_PROMPT_S: Final = 0.05
"""Maximum delay of a write, and of this process, on a machine that is not overloaded."""


class CreationReadings(Protocol):
    """Readings of the creations in progress."""

    async def leases(self) -> CreationLeases:
        """Return the recent leases of other clients."""


class Settled(Record):
    """Result of a wait for container creations.

    Attributes:
        unprepared: whether a creation still has no snapshot.
        others: whether other clients have recent leases: creations, pulls or imports in progress.
    """

    unprepared: bool
    others: bool


class Waits:
    """Measurement of the time in which all concurrent transactions are waiting.

    Attributes:
        total_s: that time in seconds, up to the last state change of a transaction.
    """

    def __init__(self, clock: Clock) -> None:
        self.total_s = 0.0
        self._clock = clock
        self._working = self._waiting = 0
        self._since_s: float | None = None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a transaction as working for the duration of the context."""
        self._change(1, 0)
        try:
            yield
        finally:
            self._change(-1, 0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a transaction as waiting for the duration of the context."""
        self._change(-1, 1)
        try:
            yield
        finally:
            self._change(1, -1)

    def _change(self, working: int, waiting: int) -> None:
        now_s = self._clock.monotonic_s()
        if self._since_s is not None:
            self.total_s += now_s - self._since_s
        self._working += working
        self._waiting += waiting
        self._since_s = now_s if self._waiting and not self._working else None


async def settle(
    creations: CreationReadings, wait_for_writes: Callable[[], Awaitable[None]], clock: Clock, within_s: float
) -> Settled:
    """Wait for container creations in progress, at most ``within_s`` seconds plus two writes and a reading.

    ``wait_for_writes`` returns once the earlier writes of other clients to containerd's metadata have completed.
    """
    waited_s, pause_s = 0.0, min(UNOBSERVABLE_S, within_s)
    while True:
        started_s = clock.monotonic_s()
        await asyncio.sleep(pause_s)
        await wait_for_writes()
        delay_s = max(0.0, clock.monotonic_s() - started_s - pause_s)
        waited_s += pause_s + delay_s
        if delay_s <= _PROMPT_S or waited_s >= within_s:
            break
        pause_s = min(delay_s, within_s - waited_s)
    leases = await creations.leases()
    pending = leases.empty
    while pending and waited_s < within_s:
        await asyncio.sleep(_POLL_S)
        waited_s += _POLL_S
        leases = await creations.leases()
        pending &= leases.empty
    return Settled(bool(pending), bool(leases.recent))
