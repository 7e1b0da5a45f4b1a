"""Wait for container creations in progress, between the deletion of image names and the decision to remove.

A creation that read an image record before it was deleted creates a lease a few milliseconds later, then its snapshot,
then its container record. The wait has two parts:

1. A fixed time, within which every such creation requests its lease: it only builds the container's specification
   until then. This part cannot be observed. Then a write to containerd's metadata, which is completed after those
   requested before: creations can wait for a collection, or for the deletions of the next transaction. The longer the
   write or the process was delayed, the longer the wait: such a machine delays creations too.
2. Until each of the leases then seen without a snapshot has one or is deleted. Later leases belong to creations from
   images that still have their record.

A creation that needs more than the first part between record and lease is not seen. If it prepares its snapshot before
the release, the snapshot is seen in the reading that decides; otherwise it fails, as after any removal, and no
container is left without its image record. A creation that has its lease, but no snapshot at the end of the second
part, keeps every image of the batch.
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
"""Maximum wait below an eviction threshold, where a pod would be evicted otherwise."""

UNOBSERVABLE_S: Final = 0.25
"""Time between record and lease of a creation. Longest seen with 4 clients on 2 cores: see the tests of races."""

_POLL_S: Final = 0.03
_PROMPT_S: Final = 0.05
"""Delay of a write, and of this process, up to which the machine is not overloaded."""


class CreationReadings(Protocol):
    """Readings of the creations in progress."""

    async def leases(self) -> CreationLeases:
        """Return the recent leases of other clients."""


class Settled(Record):
    """Result of the wait.

    Attributes:
        unprepared: whether a creation still has no snapshot.
        others: whether other clients have recent leases: creations, pulls or imports in progress.
    """

    unprepared: bool
    others: bool


class Waits:
    """Measures the time in which concurrent transactions only wait.

    Attributes:
        total_s: the time until the last change.
    """

    def __init__(self, clock: Clock) -> None:
        self.total_s = 0.0
        self._clock = clock
        self._working = self._waiting = 0
        self._since_s: float | None = None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a transaction for the duration of the context."""
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
    """Wait for the creations in progress, ``within_s`` seconds at the latest, plus two writes and a reading.

    ``wait_for_writes`` returns after the writes to containerd's metadata that other clients requested before.
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
