"""Guards of a removal: runtime state read again, and the wait for container creations in progress.

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
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError, RuntimeUnsupportedError
from nodeagent.pods.images import no_pod_images
from nodeagent.record import Record, replace
from nodeagent.runtime.storage_graph import unlisted_containers, with_labels

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot, PodImages
    from nodeagent.model.runtime import Container, Image, Sandbox
    from nodeagent.runtime.containerd import StoredImage
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.leases import CreationLeases
    from nodeagent.runtime.storage_backend import StorageBackend
    from nodeagent.units import Clock

_CONCURRENCY = 8


@dataclass(eq=False)
class CurrentReader:
    """Reader of the current images, containers and sandboxes.

    Facts that never change for an id (the image of a sandbox, the images mounted by a container) are copied from the
    plan's snapshot, and read from the runtime only for ids that are missing in the snapshot.

    Attributes:
        layers: source of writable layers, also for a snapshot without storage records.
        read_pod_images: returns the images referenced by the pods of this node.
    """

    cri: CriClient
    storage: StorageBackend
    snapshot: NodeSnapshot
    _: KW_ONLY
    mounts_images: bool
    layers: StorageBackend
    read_pod_images: Callable[[], Awaitable[PodImages]] = no_pod_images
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENCY), init=False)

    @cached_property
    def _sandbox_images(self) -> dict[str, str]:
        return {each.id: each.image for each in self.snapshot.sandboxes if each.image}

    @cached_property
    def _volume_images(self) -> dict[str, tuple[str, ...]]:
        return {each.id: each.volume_images for each in self.snapshot.containers}

    @cached_property
    def _names(self) -> dict[str, tuple[str, ...]]:
        records = self.snapshot.storage.records if self.snapshot.storage is not None else {}
        return {image_id: record.names for image_id, record in records.items()}

    async def image(self, image_id: str) -> Image | None:
        """Return the current state of an image; ``None`` if the image does not exist."""
        return (await self.image_and_names(image_id))[0]

    async def image_and_names(self, image_id: str) -> tuple[Image | None, tuple[StoredImage, ...]]:
        """Return the current state of an image, ``None`` if it does not exist, and containerd's records of its names.

        Names from the plan's snapshot are read concurrently with the image. Without the containerd API, the result has
        no names.
        """
        known = dict.fromkeys((*self._names.get(image_id, ()), image_id))
        image, names = await asyncio.gather(self.cri.image_status(image_id), self.storage.get_image_names(known))
        if image is None:
            return None, ()
        names += await self.storage.get_image_names(name for name in image.references if name not in known)
        return with_labels(image, names), names

    async def users(self) -> tuple[tuple[Container, ...], tuple[Sandbox, ...]]:
        """Return all containers and sandboxes, including containers not listed by CRI."""
        containers, sandboxes, stored = await asyncio.gather(
            self.cri.list_containers(), self.cri.list_sandboxes(), self.storage.list_containers()
        )
        containers += unlisted_containers(stored, containers, sandboxes)
        if self.mounts_images:
            await self._read_volume_images(
                each.id for each in containers if each.sandbox_id and each.id not in self._volume_images
            )
            containers = tuple(replace(each, volume_images=self._volume_images.get(each.id, ())) for each in containers)
        return containers, await self._with_images(sandboxes)

    async def _read_volume_images(self, container_ids: Iterable[str]) -> None:
        async def read(container_id: str) -> None:
            async with self._slots:
                try:
                    status = await self.cri.container_status(container_id)
                except RuntimeNotFoundError:
                    return
                self._volume_images[container_id] = status.volume_images

        await asyncio.gather(*(read(container_id) for container_id in container_ids))

    async def _with_images(self, listed: tuple[Sandbox, ...]) -> tuple[Sandbox, ...]:
        for sandbox in listed:
            if sandbox.id not in self._sandbox_images:
                try:
                    status = await self.cri.sandbox_status(sandbox.id)
                except RuntimeNotFoundError:
                    continue
                self._sandbox_images[sandbox.id] = status.image
        return tuple(replace(each, image=self._sandbox_images.get(each.id, "")) for each in listed)

    async def sandbox_listed(self, sandbox_id: str) -> bool:
        """Return whether a sandbox exists in the runtime."""
        try:
            await self.cri.sandbox_status(sandbox_id)
        except RuntimeNotFoundError:
            return False
        return True

    async def has_writable_layer(self, container_id: str) -> bool | None:
        """Return whether the writable layer of a container or sandbox exists; ``None`` if unreadable."""
        try:
            return await self.layers.has_writable_layer(container_id)
        except RuntimeUnsupportedError:  # not containerd: no snapshots
            return False
        except RuntimeRequestError:
            return None


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
