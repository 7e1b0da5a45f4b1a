"""Reading the node into one immutable snapshot.

The order of the readings is part of safety. Log directories are listed before sandboxes, and images before
containers, so that a pod that starts meanwhile is seen as a user of what was listed, never the other way round.
A reading that a decision depends on and that fails makes the whole observation fail; one that only makes an answer
less exact becomes a warning in the snapshot.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from nodeagent.errors import (
    NodeAgentError,
    ObservationError,
    RuntimeNotFoundError,
    RuntimeRequestError,
    RuntimeUnsupportedError,
    StoreError,
)
from nodeagent.host import podlogs
from nodeagent.model import ContainerState, NodeSnapshot
from nodeagent.plan.gc.images import images_in_use
from nodeagent.plan.gc.scope import Scope
from nodeagent.runtime.containerd_facts import unlisted_containers, with_pins

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from nodeagent.clock import Clock
    from nodeagent.model import (
        Container,
        ContainerLogLink,
        FsObservation,
        Hold,
        Image,
        ImageUseRecord,
        PodLogDirectory,
        Role,
        RuntimeInfo,
        Sandbox,
        StorageGraph,
        UnreferencedPiece,
    )
    from nodeagent.runtime.containerd import ContainerdClient
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.cri_messages import RuntimeStatus
    from nodeagent.runtime.storage_graph import LayerCache

T = TypeVar("T")

_CONCURRENCY = 16
_STATVFS_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class ObserverSettings:
    """Where to look.

    Attributes:
        imagefs_path: overrides the mount point that ``ImageFsInfo`` names; empty for none.
        pod_log_root: where the kubelet keeps pod logs.
        container_log_root: where the links to them are.
    """

    imagefs_path: str
    pod_log_root: Path
    container_log_root: Path


class UsageMemory(Protocol):
    """Remembers when images were first detected and last used."""

    def __call__(
        self, listed: Mapping[str, datetime | None], in_use: Collection[str], now: datetime, monotonic_s: float, /
    ) -> ImageUseRecord:
        """Return the usage of each listed image (id to time of pull, if known) after this detection; blocking.

        ``now`` and ``monotonic_s`` are one reading of both clocks.
        """


class HoldReader(Protocol):
    """Reads operators' holds; blocking."""

    def __call__(self) -> tuple[Hold, ...]:
        """Return the holds. Raises StoreError where they cannot be told."""


class RoleReader(Protocol):
    """Reads the role of the agent on this node."""

    async def __call__(self) -> Role:
        """Return the role now."""


class Observer:
    """Reads a node through its runtime, its filesystems and the agent's memory.

    What cannot change is read once and kept: details of exited containers and the images of sandboxes, by id.
    """

    def __init__(  # noqa: PLR0913 - it composes the room's readers
        self,
        cri: CriClient,
        containerd: ContainerdClient | None,
        make_layers: Callable[[str], LayerCache],
        *,
        settings: ObserverSettings,
        clock: Clock,
        read_filesystem: Callable[[str], FsObservation],
        remember: UsageMemory,
        read_holds: HoldReader,
        read_role: RoleReader,
        booted_at: datetime | None,
    ) -> None:
        self._cri = cri
        self._containerd = containerd
        self._make_layers = make_layers
        self._layers: LayerCache | None = None
        self._settings = settings
        self._clock = clock
        self._read_filesystem = read_filesystem
        self._remember = remember
        self._read_holds = read_holds
        self._read_role = read_role
        self._booted_at = booted_at
        self._details: dict[str, Container] = {}
        self._sandbox_details: dict[str, Sandbox] = {}
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def find_unreferenced(self) -> tuple[UnreferencedPiece, ...]:
        """Return the blobs and snapshots that nothing holds.

        Raises:
            ObservationError: this runtime does not tell what holds what, or may not be asked.
        """
        if self._containerd is None:
            raise ObservationError("only containerd's own services tell what holds what; they are off or not there")
        status = await self._cri.status()
        if self._layers is None:
            observed, _ = await self._image_filesystem()
            self._layers = self._make_layers(observed.path if observed else "/")
        try:
            return await self._layers.find_unreferenced(self._containerd, snapshotter=status.snapshotter)
        except RuntimeUnsupportedError as error:
            raise ObservationError(f"this runtime does not tell what holds what: {error}") from error

    async def observe(self, scope: Scope) -> NodeSnapshot:
        """Return the node as it is now.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            NodeAgentError: a reading that decisions depend on failed.
        """
        warnings: list[str] = []
        directories, links = await asyncio.to_thread(self._list_logs, scope, warnings)
        info, status = await asyncio.gather(self._cri.version(), self._cri.status())
        images = await self._cri.list_images() if scope is not Scope.CONTAINERS else ()
        containers, sandboxes = await asyncio.gather(self._cri.list_containers(), self._cri.list_sandboxes())
        now_s = self._clock.monotonic_s()  # first: a delay between the two makes observation look shorter, not longer
        now = self._clock.now()
        sandboxes, unread = await self._with_sandbox_images(sandboxes, scope)
        containers = await self._with_details(containers, sandboxes, info, scope)
        if self._containerd is not None:
            try:
                containers += await unlisted_containers(self._containerd, containers, sandboxes)
            except RuntimeUnsupportedError:
                self._containerd = None
        writable = await self._writable_bytes(containers, scope, warnings)
        role = await self._read_role()  # last, as a kubelet may have started meanwhile
        snapshot = NodeSnapshot(
            observed_at=now,
            runtime=info,
            role=role,
            images=images,
            containers=containers,
            sandboxes=sandboxes,
            sandbox_images=frozenset({status.sandbox_image} if status.sandbox_image else ()),
            sandboxes_unread=unread,
            writable_bytes=writable,
            pod_log_directories=directories,
            dead_log_links=links,
            booted_at=self._booted_at,
        )
        if scope is not Scope.CONTAINERS:
            snapshot = await self._with_images(snapshot, status, warnings, now_s)
        return replace(snapshot, warnings=tuple(warnings))

    def _list_logs(
        self, scope: Scope, warnings: list[str]
    ) -> tuple[tuple[PodLogDirectory, ...], tuple[ContainerLogLink, ...]]:
        if scope is Scope.IMAGES:
            return (), ()
        directories: tuple[PodLogDirectory, ...] = ()
        links: tuple[ContainerLogLink, ...] = ()
        try:
            directories = podlogs.list_pod_log_directories(self._settings.pod_log_root)
            if self._settings.pod_log_root.is_dir():  # without the targets' root every link would look dead
                links = podlogs.list_dead_log_links(self._settings.container_log_root)
        except ObservationError as error:
            warnings.append(f"pod logs are left alone: {error}")
        return directories, links

    async def _with_sandbox_images(
        self, sandboxes: Sequence[Sandbox], scope: Scope
    ) -> tuple[tuple[Sandbox, ...], frozenset[str]]:
        """Return the sandboxes with the image each runs from, and the ids of those where it could not be read."""
        if scope is Scope.CONTAINERS:
            return tuple(sandboxes), frozenset()
        listed = {sandbox.id for sandbox in sandboxes}
        known = self._sandbox_details = _only(self._sandbox_details, listed)
        if listed - known.keys():
            images = await self._stored_images()
            known.update(
                {each.id: replace(each, image=images[each.id]) for each in sandboxes if images.get(each.id, "")}
            )
        unread: set[str] = set()

        async def read(sandbox_id: str) -> None:
            async with self._slots:
                try:
                    known[sandbox_id] = await self._cri.sandbox_status(sandbox_id)
                except RuntimeNotFoundError:
                    return
                except RuntimeRequestError:
                    unread.add(sandbox_id)

        await asyncio.gather(*(read(sandbox_id) for sandbox_id in sorted(listed - known.keys())))
        filled = tuple(
            replace(sandbox, image=known[sandbox.id].image, log_directory=known[sandbox.id].log_directory)
            if sandbox.id in known
            else sandbox
            for sandbox in sandboxes
        )
        return filled, frozenset(unread)

    async def _stored_images(self) -> dict[str, str]:
        """Return the image of every container record, sandboxes included: one call where CRI needs one for each.

        Source: containerd ``containers.v1.Container.image``.
        """
        if self._containerd is None:
            return {}
        try:
            return {each.id: each.image for each in await self._containerd.list_containers()}
        except RuntimeRequestError:
            return {}

    async def _with_details(
        self, containers: Sequence[Container], sandboxes: Sequence[Sandbox], info: RuntimeInfo, scope: Scope
    ) -> tuple[Container, ...]:
        """Return the containers, with end time and mounted images where a decision depends on them.

        The end time matters only for pods that look gone; mounted images only on runtimes that can mount any.
        """
        known = self._details = _only(self._details, {container.id for container in containers})
        ready = {sandbox.uid for sandbox in sandboxes if sandbox.ready}
        mounting = scope is not Scope.CONTAINERS and mounts_images(info)
        ending = scope is not Scope.IMAGES

        def wanted(container: Container) -> bool:
            before = known.get(container.id)
            if before is not None and (before.state is ContainerState.EXITED or not ending):
                return False
            ended = container.state is ContainerState.EXITED and container.pod_uid not in ready
            return (mounting and before is None) or (ending and ended)

        async def read(container_id: str) -> None:
            async with self._slots:
                try:
                    known[container_id] = await self._cri.container_status(container_id)
                except RuntimeNotFoundError:
                    return
                except RuntimeRequestError as error:
                    if mounting:
                        raise ObservationError(f"it cannot be told which images are mounted: {error}") from error

        await asyncio.gather(*(read(container.id) for container in containers if wanted(container)))
        return tuple(_merged(container, known.get(container.id)) for container in containers)

    async def _writable_bytes(
        self, containers: Sequence[Container], scope: Scope, warnings: list[str]
    ) -> dict[str, int]:
        """Return what the writable layers of dead containers occupy, as far as the runtime tells.

        Source: CRI ``ContainerStats.writable_layer``; containerd leaves containers out that do not run.
        """
        dead = {each.id for each in containers if each.state is not ContainerState.RUNNING}
        if scope is Scope.IMAGES or not dead:
            return {}
        try:
            stats = await self._cri.list_container_stats()
        except RuntimeRequestError as error:
            warnings.append(f"the size of writable layers is not known: {error}")
            return {}
        return {
            each.container_id: each.writable_bytes
            for each in stats
            if each.container_id in dead and each.writable_bytes is not None
        }

    async def _with_images(
        self, snapshot: NodeSnapshot, status: RuntimeStatus, warnings: list[str], observed_s: float
    ) -> NodeSnapshot:
        """Return the snapshot with what images occupy, when they were used, and the filesystem they lie on."""
        observed, error = await self._image_filesystem()
        storage = await self._storage(snapshot.images, status, observed.path if observed else "/", warnings)
        if storage is not None and self._containerd is not None:
            snapshot = replace(snapshot, images=await with_pins(self._containerd, snapshot.images, storage))
        pulled = {image.id: _pulled_at(storage, image.id) for image in snapshot.images}
        in_use = images_in_use(snapshot)
        use = await asyncio.to_thread(self._remember, pulled, in_use, snapshot.observed_at, observed_s)
        holds: tuple[Hold, ...] = ()
        holds_error = ""
        try:
            holds = await asyncio.to_thread(self._read_holds)
        except StoreError as unreadable:
            holds_error = str(unreadable)
        return replace(
            snapshot,
            holds=holds,
            holds_error=holds_error,
            storage=storage,
            image_usage=use.usage,
            image_use_observed_since=use.observed_since,
            image_filesystem=observed,
            image_filesystem_error=error,
        )

    async def _storage(
        self, images: Sequence[Image], status: RuntimeStatus, path: str, warnings: list[str]
    ) -> StorageGraph | None:
        if self._containerd is None:
            return None
        if self._layers is None:
            self._layers = self._make_layers(path)
        try:
            return await self._layers.build(self._containerd, images, snapshotter=status.snapshotter)
        except NodeAgentError as error:
            warnings.append(f"sizes are upper bounds, as containerd's own services do not answer: {error}")
            return None

    async def _read_in_time(self, path: str) -> FsObservation:
        """Read a filesystem in a thread, since statvfs on a dead mount never returns."""
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._read_filesystem, path), _STATVFS_DEADLINE_S)
        except TimeoutError as error:
            raise ObservationError(f"{path}: statvfs gave no answer in {_STATVFS_DEADLINE_S:.0f} s") from error

    async def _image_filesystem(self) -> tuple[FsObservation | None, str]:
        """Return the filesystem images lie on, or why it cannot be judged.

        Several image filesystems are judged by the fullest. Source: CRI ``ImageFsInfo``.
        """
        try:
            if self._settings.imagefs_path:
                paths: tuple[str, ...] = (self._settings.imagefs_path,)
            else:
                paths = (await self._cri.image_fs_info()).image_mountpoints
            if not paths:
                return None, "the runtime names no image filesystem (ImageFsInfo is empty); set runtime.imagefs_path"
            readings = [await self._read_in_time(path) for path in paths]
        except (ObservationError, RuntimeRequestError) as error:
            return None, str(error)
        return max(readings, key=lambda reading: (reading.used_percent, reading.path)), ""


def _only(known: Mapping[str, T], listed: Collection[str]) -> dict[str, T]:
    """Return what is known of those that are listed, in a table of its own: another look may be under way."""
    return {each: told for each, told in known.items() if each in listed}


def _merged(container: Container, detail: Container | None) -> Container:
    """Return a listed container with what its status told; an end is taken only while it is listed as exited."""
    if detail is None:
        return container
    ended = container.state is ContainerState.EXITED and detail.state is ContainerState.EXITED
    return replace(
        container,
        finished_at=detail.finished_at if ended else None,
        exit_code=detail.exit_code if ended else None,
        log_path=detail.log_path,
        volume_images=detail.volume_images,
    )


def _pulled_at(storage: StorageGraph | None, image_id: str) -> datetime | None:
    record = storage.records.get(image_id) if storage is not None else None
    return record.pulled_at if record is not None else None


_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def mounts_images(info: RuntimeInfo) -> bool:
    """Return whether this runtime may mount images as volumes, so that containers' mounts have to be read.

    containerd can since 2.1, CRI-O since 1.31; an unknown runtime is taken to.
    """
    match = _VERSION.match(info.version)
    if match is None:
        return True
    version = (int(match[1]), int(match[2]))
    first = {"containerd": (2, 1), "cri-o": (1, 31)}.get(info.name.lower())
    return first is None or version >= first
