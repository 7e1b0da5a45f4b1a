"""Observation of the node as one immutable snapshot.

The order of the readings is part of safety: log directories are listed before sandboxes and images before
containers, so a pod that starts during the observation counts as a user of the listed images and logs. With the
reverse order its image could be listed as unused. A failed reading fails the observation if decisions depend on it;
otherwise it becomes a warning in the snapshot.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from nodeagent.errors import (
    NodeAgentError,
    ObservationError,
    RuntimeNotFoundError,
    RuntimeRequestError,
    RuntimeUnavailableError,
    RuntimeUnsupportedError,
    StoreError,
)
from nodeagent.host import podlogs
from nodeagent.model import ContainerState, GapCause, ImageUseRecord, NodeSnapshot, StorageGraph
from nodeagent.observe.clock_reading import read_clocks, with_valid_times
from nodeagent.observe.dead_layers import DeadLayers
from nodeagent.observe.image_filesystems import ImageFilesystemReader
from nodeagent.observe.list_check import CONFIRM_S, ListCheck
from nodeagent.observe.log_trees import LogTreeReadings
from nodeagent.observe.pod_images import no_pod_images
from nodeagent.plan.gc.holds import holds_in_force
from nodeagent.plan.gc.image_users import images_in_use
from nodeagent.plan.gc.scope import Scope
from nodeagent.runtime.containerd_facts import unlisted_containers, with_pins
from nodeagent.runtime.features import mounts_images
from nodeagent.runtime.storage_backend import CriOnlyStorage

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
        ImageFilesystem,
        PodLogDirectory,
        RuntimeInfo,
        Sandbox,
        UnreferencedPiece,
    )
    from nodeagent.observe.list_check import FindRunning
    from nodeagent.observe.snapshot_sources import HoldReader, NodeMemory, PodImageSource, RoleReader
    from nodeagent.runtime.containerd_records import StoredContainer
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.cri_messages import RuntimeStatus
    from nodeagent.runtime.storage_backend import StorageBackend
    from nodeagent.store import ClockReading

T = TypeVar("T")

_CONCURRENCY = 16
_NOT_OBSERVED = ImageUseRecord({}, None)


@dataclass(frozen=True, slots=True)
class ObserverSettings:
    """Paths on the node, and the time before a second listing.

    Attributes:
        imagefs_path: overrides the mount point in ``ImageFsInfo``; empty for no override.
        pod_log_root: directory of the pod logs.
        container_log_root: directory of the links to container logs.
        confirm_s: time before a second reading of contradictory lists.
    """

    imagefs_path: str
    pod_log_root: Path
    container_log_root: Path
    confirm_s: float = CONFIRM_S


class Observer:  # 20 attributes: the sources of the snapshot, and its caches
    """Reads a node from its runtime, its filesystems and the agent's state database.

    Immutable facts are cached by id: details of exited containers and the images of sandboxes.

    Attributes:
        list_problem: contradictions between the lists of the last observation; empty normally.
        image_filesystems: the several image filesystems of the last observation; empty on a node with one, ``None``
            before the first observation with images.
    """

    def __init__(  # noqa: PLR0913 - one argument per source of the snapshot
        self,
        cri: CriClient,
        storage: StorageBackend,
        *,
        settings: ObserverSettings,
        clock: Clock,
        read_boot_id: Callable[[], str],
        read_filesystem: Callable[[str], FsObservation],
        memory: NodeMemory,
        read_holds: HoldReader,
        read_role: RoleReader,
        find_running: FindRunning,
        read_pod_images: PodImageSource = no_pod_images,
    ) -> None:
        self._cri = cri
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._read_boot_id = read_boot_id
        self._filesystems = ImageFilesystemReader(cri, read_filesystem, settings.imagefs_path)
        self._memory = memory
        self._read_holds = read_holds
        self._read_role = read_role
        self._read_pod_images = read_pod_images
        self._log_trees = LogTreeReadings(settings.pod_log_root, clock)
        self._dead_layers = DeadLayers(cri)
        self._details: dict[str, Container] = {}
        self._sandbox_details: dict[str, Sandbox] = {}
        self._filled_sandboxes: dict[str, tuple[Sandbox, Sandbox]] = {}
        self._sources: dict[str, frozenset[str]] = {}
        self._slots = asyncio.Semaphore(_CONCURRENCY)
        self._lists = ListCheck(cri, find_running, self._list_stored, confirm_s=settings.confirm_s)
        self.list_problem = ""
        self.image_filesystems: tuple[ImageFilesystem, ...] | None = None

    async def find_unreferenced(self) -> tuple[UnreferencedPiece, ...]:
        """Return the unreferenced blobs and snapshots.

        Raises:
            ObservationError: the runtime has no records of references, or they are disabled.
        """
        status = await self._cri.status()
        paths, _ = await self._filesystems.reported_paths()
        return await self._storage.find_unreferenced(snapshotter=status.snapshotter, path=next(iter(paths), "/"))

    async def find_image_filesystems(self) -> tuple[ImageFilesystem, ...]:
        """Return the several image filesystems of the node; none on a node with one.

        They are those of the last observation; before the first, those of the runtime's report and of its handlers.

        Raises:
            NodeAgentError: the runtime does not answer.
        """
        if self.image_filesystems is not None:
            return self.image_filesystems
        (paths, error), status = await asyncio.gather(self._filesystems.reported_paths(), self._cri.status())
        known = StorageGraph(store_paths=await self._storage.read_store_paths())
        return (await self._filesystems.read(paths, error, known, status.snapshotters)).several

    async def observe(self, scope: Scope) -> NodeSnapshot:
        """Return the current state of the node.

        Raises:
            RuntimeUnavailableError: no connection to the runtime.
            NodeAgentError: a required reading failed.
        """
        try:
            return await self._observe(scope)
        except RuntimeUnavailableError:
            await asyncio.to_thread(self._memory.interrupt, GapCause.RUNTIME_UNAVAILABLE)
            raise

    async def _observe(self, scope: Scope) -> NodeSnapshot:
        warnings: list[str] = []
        directories, links = await asyncio.to_thread(self._list_logs, scope, warnings)
        info, status = await asyncio.gather(self._cri.version(), self._cri.status())
        lists, stored, contradictions = await self._lists.read(with_images=scope is not Scope.CONTAINERS)
        self.list_problem = "; ".join(each.detail for each in contradictions)
        at = read_clocks(self._clock, self._read_boot_id())
        trust = await asyncio.to_thread(self._memory.read_clock, at)
        sandboxes, unread = await self._with_sandbox_images(lists.sandboxes, stored or (), scope)
        containers = await self._with_details(lists.containers, sandboxes, info, scope)
        containers += unlisted_containers(stored or (), containers, sandboxes)
        writable = await self._dead_layers.read(containers, warnings) if scope is not Scope.IMAGES else {}
        if scope is not Scope.IMAGES:  # a reading without directories would forget the unchanged trees
            directories = await self._log_trees.read(directories, sandboxes)
        role = await self._read_role()  # read last, since a kubelet may have started during the observation
        snapshot = NodeSnapshot(
            observed_at=at.wall,
            runtime=info,
            role=role,
            images=lists.images or (),
            containers=containers,
            sandboxes=sandboxes,
            sandbox_images=frozenset({status.sandbox_image} if status.sandbox_image else ()),
            sandboxes_unread=unread,
            writable_bytes=writable,
            pod_log_directories=directories,
            dead_log_links=links,
            booted_at=at.wall - timedelta(seconds=at.boottime_s),
            contradictions=contradictions,
            clock=trust,
        )
        snapshot = await asyncio.to_thread(
            with_valid_times, snapshot, at, self._memory.first_seen, logs=scope is not Scope.IMAGES
        )
        if scope is not Scope.CONTAINERS:
            snapshot = await self._with_images(snapshot, stored, status, warnings, at)
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
            if self._settings.pod_log_root.is_dir():  # without this directory the target of every link is missing
                links = podlogs.list_dead_log_links(self._settings.container_log_root)
        except ObservationError as error:
            warnings.append(f"pod logs are kept: {error}")
        return directories, links

    async def _with_sandbox_images(
        self, sandboxes: Sequence[Sandbox], stored: Sequence[StoredContainer], scope: Scope
    ) -> tuple[tuple[Sandbox, ...], frozenset[str]]:
        """Return the sandboxes with their own images, and the ids of sandboxes whose image could not be read."""
        if scope is Scope.CONTAINERS:
            return tuple(sandboxes), frozenset()
        listed = {sandbox.id for sandbox in sandboxes}
        known = self._sandbox_details = _only(self._sandbox_details, listed)
        if listed - known.keys():
            # one list instead of a status per sandbox; source: containerd ``containers.v1.Container.image``
            images = {each.id: each.image for each in stored}
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
        before, filled = self._filled_sandboxes, {}
        for sandbox in sandboxes:
            details = known.get(sandbox.id)
            earlier = before.get(sandbox.id)
            if earlier is not None and earlier[0] is sandbox:  # unchanged since the previous listing
                filled[sandbox.id] = earlier
            elif details is not None:
                complete = replace(sandbox, image=details.image, log_directory=details.log_directory)
                filled[sandbox.id] = sandbox, complete
        self._filled_sandboxes = filled
        return tuple(filled.get(each.id, (each, each))[1] for each in sandboxes), frozenset(unread)

    async def _list_stored(self) -> tuple[StoredContainer, ...] | None:
        """Return containerd's own records of containers; ``None`` on other runtimes."""
        if isinstance(self._storage, CriOnlyStorage):
            return None
        try:
            return await self._storage.list_containers()
        except RuntimeUnsupportedError:  # not containerd
            self._storage = CriOnlyStorage()
            return None

    async def _with_details(
        self, containers: Sequence[Container], sandboxes: Sequence[Sandbox], info: RuntimeInfo, scope: Scope
    ) -> tuple[Container, ...]:
        """Return the containers, with finish time and mounted images where a decision depends on them.

        Finish times are read only for pods without a ready sandbox, mounted images only on runtimes with image volumes.
        """
        known = self._details = _only(self._details, {each.id for each in containers}) if self._details else {}
        ready = {sandbox.uid for sandbox in sandboxes if sandbox.ready}
        mounting = scope is not Scope.CONTAINERS and mounts_images(info)
        ending = scope is not Scope.IMAGES

        def must_read(container: Container) -> bool:
            cached = known.get(container.id)
            if cached is not None and (cached.state is ContainerState.EXITED or not ending):
                return False
            ended = container.state is ContainerState.EXITED and container.pod_uid not in ready
            return (mounting and cached is None) or (ending and ended)

        async def read(container_id: str) -> None:
            async with self._slots:
                try:
                    known[container_id] = await self._cri.container_status(container_id)
                except RuntimeNotFoundError:
                    return
                except RuntimeRequestError as error:
                    if mounting:
                        raise ObservationError(f"cannot read the image volumes of containers: {error}") from error

        await asyncio.gather(*(read(container.id) for container in containers if must_read(container)))
        if not known:
            return tuple(containers)
        return tuple([_merged(each, known[each.id]) if each.id in known else each for each in containers])

    async def _with_images(
        self,
        snapshot: NodeSnapshot,
        stored: tuple[StoredContainer, ...] | None,
        status: RuntimeStatus,
        warnings: list[str],
        at: ClockReading,
    ) -> NodeSnapshot:
        """Return the snapshot with the storage graph, the usage of images, the holds and the image filesystem."""
        paths, error = await self._filesystems.reported_paths()
        storage = await self._build_graph(snapshot.images, stored, status, next(iter(paths), "/"), warnings)
        filesystems = await self._filesystems.read(paths, error, storage, status.snapshotters)
        self.image_filesystems = filesystems.several
        if storage is not None:
            snapshot = replace(snapshot, images=with_pins(snapshot.images, storage))
        pulled = {image.id: _pulled_at(storage, image.id) for image in snapshot.images}
        in_use = images_in_use(snapshot)
        use = _NOT_OBSERVED  # contradictory lists would record used images as unused, and unlisted ones as removed
        if not snapshot.contradictions:
            use = await asyncio.to_thread(self._memory.observe, pulled, in_use, at)
        holds: tuple[Hold, ...] = ()
        holds_error = ""
        try:
            read = await asyncio.to_thread(self._read_holds)
            holds = holds_in_force(read, snapshot.clock, snapshot.observed_at)
        except StoreError as unreadable:
            holds_error = str(unreadable)
        pods = await self._read_pod_images()  # read last, since pods may have been bound during the observation
        warnings += pods.warnings
        return replace(
            snapshot,
            holds=holds,
            pod_images=pods,
            image_sources=self._image_sources(storage),
            holds_error=holds_error,
            storage=storage,
            image_usage=use.usage,
            image_use_observed_since=use.observed_since,
            image_filesystem=filesystems.first,
            image_filesystem_error=filesystems.error,
            image_filesystems=filesystems.several,
        )

    async def _build_graph(
        self,
        images: Sequence[Image],
        stored: tuple[StoredContainer, ...] | None,
        status: RuntimeStatus,
        path: str,
        warnings: list[str],
    ) -> StorageGraph | None:
        try:
            return await self._storage.build_graph(images, snapshotter=status.snapshotter, path=path, containers=stored)
        except NodeAgentError as error:
            warnings.append(f"sizes are upper bounds: containerd's own services failed: {error}")
            return None

    def _image_sources(self, storage: StorageGraph | None) -> Mapping[str, frozenset[str]] | None:
        """Return the sources of images; those of the last storage graph if there is none now, ``None`` with CRI alone.

        The content of an image id never changes, and a later pull only adds sources.
        """
        if storage is not None:
            self._sources = {
                image_id: record.sources for image_id, record in storage.records.items() if record.sources is not None
            }
        elif isinstance(self._storage, CriOnlyStorage):
            return None
        return self._sources


def _only(known: Mapping[str, T], listed: Collection[str]) -> dict[str, T]:
    """Return the cached entries of listed ids in a new dictionary, since a concurrent observation may use the other."""
    return {each: value for each, value in known.items() if each in listed}


def _merged(container: Container, detail: Container) -> Container:
    """Return a listed container with the fields of its status; a finish time only if it is listed as exited."""
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
