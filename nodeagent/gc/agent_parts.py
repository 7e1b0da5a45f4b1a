"""Parts of an agent from its settings: runtime clients, readers and removers on one connection and one clock.

Previews of commands without a daemon use only the parts that read and plan. The other parts (removers, recovery, undo
and history) are not imported here: their import takes as long as an observation of the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nodeagent.gc.hold_file import HoldFile
from nodeagent.gc.pass_state import Preview, preview_pass
from nodeagent.gc.snapshot.node import NodeSnapshotReader, StoredSnapshotUsage
from nodeagent.host.container_processes import find_running
from nodeagent.host.database_revision import read_database_revision
from nodeagent.host.filesystems import filesystem_type, read_filesystem
from nodeagent.host.lock import lock_identity
from nodeagent.host.node import boot_id
from nodeagent.kube.kubelet_pods import ManifestReader
from nodeagent.loops.clock_reading import read_clocks
from nodeagent.pods.images import PodImageReader, make_bound_pods
from nodeagent.pods.role import RoleWatch
from nodeagent.pods.watched import WatchedPods
from nodeagent.record import Record
from nodeagent.runtime.connection import CallObserver, RuntimeConnection, configured_connection
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.cri import CriClient, DecodedLists
from nodeagent.runtime.namespace_lists import DiskFormat, disk_format
from nodeagent.runtime.storage_backend import ContainerdStorage, CriOnlyStorage, StorageBackend
from nodeagent.runtime.storage_graph import LayerCache
from nodeagent.store.database import Store
from nodeagent.store.observation import gap_limits
from nodeagent.units import Clock, SystemClock

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import Scope, SpaceGoal
    from nodeagent.gc.snapshot.images import PodImageSource
    from nodeagent.model.node import CollectionForecast, Role
    from nodeagent.model.runtime import Container, FsObservation
    from nodeagent.pods.sources import BoundPods
    from nodeagent.settings.settings import Settings


class AgentParts(Record):
    """Parts of an agent that share its clients and its state.

    Attributes:
        storage: the runtime's own image and layer records.
        roles: role watch of this node, evaluated for every snapshot.
        bound_pods: pods bound to this node, with the state of the kubelet's list.
        watched_pods: pods of this node as watched at the API server.
        read_pod_images: reads the images that pods of this node reference.
    """

    settings: Settings
    clock: Clock
    cri: CriClient
    storage: StorageBackend
    store: Store
    roles: RoleWatch
    bound_pods: BoundPods
    watched_pods: WatchedPods
    read_pod_images: PodImageSource

    def read_filesystem(self, path: str) -> FsObservation:
        """Return the usage of the filesystem at a path."""
        return read_filesystem(path, self.clock)

    async def read_role(self) -> Role:
        """Return the current role of the node."""
        return (await self.roles.evaluate(self.settings.role)).role

    def is_clock_trusted(self) -> bool:
        """Return whether the wall clock agrees with the recorded times of this node."""
        return self.store.is_wall_trusted(read_clocks(self.clock, boot_id()))

    def make_observer(
        self, read_forecast: Callable[[], CollectionForecast | None] = lambda: None
    ) -> NodeSnapshotReader:
        """Return the reader of the node's snapshots; ``read_forecast`` returns the growth of the image filesystem."""
        settings = self.settings
        return NodeSnapshotReader(
            self.cri,
            self.storage,
            imagefs_path=settings.imagefs_path,
            pod_log_root=settings.pod_log_root,
            container_log_root=settings.container_log_root,
            clock=self.clock,
            read_boot_id=boot_id,
            read_filesystem=self.read_filesystem,
            memory=self.store,
            read_holds=HoldFile(settings.state_directory).read,
            read_role=self.read_role,
            find_running=partial(find_running, clock=self.clock),
            read_pod_images=self.read_pod_images,
            read_pod_list=self.watched_pods.pod_list,
            read_forecast=read_forecast,
            rules=settings.policy.images.protection.rules,
        )


@asynccontextmanager
async def open_parts(  # noqa: PLR0913 - the options of open_agent
    settings: Settings,
    *,
    record: bool,
    clock: Clock,
    roles: RoleWatch,
    watched_pods: WatchedPods | None = None,
    observer_of_calls: CallObserver | None = None,
    lists: DecodedLists,
) -> AsyncIterator[AgentParts]:
    """Compose the parts of an agent on a new connection to the runtime, closed on exit.

    The arguments are those of ``open_agent``.

    Raises:
        RuntimeUnavailableError: no endpoint is configured and no well-known socket exists.
    """
    gaps = gap_limits(settings.image_interval_s, settings.policy.images.maximum_unused_age_s)
    store = await asyncio.to_thread(Store, settings.state_directory, read_only=not record, gaps=gaps)
    watched = WatchedPods(clock) if watched_pods is None else watched_pods
    async with configured_connection(settings, with_removals=True, observer=observer_of_calls) as connection:
        storage = _storage_backend(settings, connection, clock, store, reuses_lists=lists.reuses)
        cri = CriClient(connection, lists)
        bound_pods = make_bound_pods(settings.kubelet, clock, cri.list_sandboxes)
        manifests = None if settings.kubelet.manifests is None else ManifestReader(settings.kubelet.manifests)
        read_pod_images = PodImageReader(clock, bound=bound_pods, manifests=manifests, watched=watched).read
        yield AgentParts(settings, clock, cri, storage, store, roles, bound_pods, watched, read_pod_images)


def pass_lock(settings: Settings) -> Path:
    """Return the path of the node's pass lock file."""
    return settings.state_directory / "pass.lock"


def _storage_backend(
    settings: Settings, connection: RuntimeConnection, clock: Clock, store: Store, *, reuses_lists: bool
) -> StorageBackend:
    """Return the storage backend: the containerd API, or CRI alone if ``runtime.containerd_api`` is off.

    With a runtime other than containerd, the first call of the containerd backend fails.
    """
    if not settings.containerd_api:
        return CriOnlyStorage()

    def read_format(path: str) -> DiskFormat:
        return disk_format(filesystem_type(path))

    def make_cache(path: str) -> LayerCache:
        return LayerCache(read_format(path), clock, StoredSnapshotUsage(store))

    read_owner = partial(lock_identity, pass_lock(settings))
    return ContainerdStorage(
        ContainerdClient(connection, reuses_lists=reuses_lists),
        clock,
        make_cache,
        read_format,
        read_owner,
        read_revision=partial(read_database_revision, connection.socket),
    )


class Previews(Protocol):
    """Source of previews of this node: a :class:`Previewer`, or the daemon's agent."""

    @property
    def settings(self) -> Settings:
        """The settings with the policies of the plans."""

    async def preview(self, scope: Scope) -> Preview:
        """Observe and plan a pass without any change to the node."""

    async def read_exits(self, containers: Sequence[Container]) -> tuple[Container, ...]:
        """Return the containers with exit code, reason and finish time of the exited ones, for display only."""


class Previewer(Record):
    """Observer and planner of a node, with the settings; writes no state files."""

    settings: Settings
    observer: NodeSnapshotReader

    async def preview(self, scope: Scope, patterns: Sequence[str] = (), goal: SpaceGoal | None = None) -> Preview:
        """Observe and plan a pass without any change to the node; arguments as in ``preview_pass``."""
        return await preview_pass(self.observer, self.settings.policy, scope, patterns, goal)

    async def read_exits(self, containers: Sequence[Container]) -> tuple[Container, ...]:
        """Return the containers with exit code, reason and finish time of the exited ones, for display only."""
        return await self.observer.read_exits(containers)


@asynccontextmanager
async def open_previewer(settings: Settings) -> AsyncIterator[Previewer]:
    """Compose a previewer from validated settings; the connection to the runtime is closed on exit.

    Raises:
        RuntimeUnavailableError: no endpoint is configured and no well-known socket exists.
    """
    clock, lists = SystemClock(), DecodedLists(reuses=False)
    async with open_parts(settings, record=False, clock=clock, roles=RoleWatch(clock), lists=lists) as parts:
        yield Previewer(settings, parts.make_observer())
