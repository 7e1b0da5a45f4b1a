"""Observation of the node as one immutable snapshot.

The order of the readings is part of safety: log directories are listed before sandboxes and images before
containers, so that a pod that starts during the observation counts as a user of the listed images and logs. With the
reverse order the image of the pod could be listed as unused. A failed reading fails the observation if decisions depend
on the reading; otherwise the failure becomes a warning in the snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError, RuntimeUnavailableError
from nodeagent.gc.plan.policy import Scope
from nodeagent.gc.snapshot.details import DeadLayers, ItemDetails
from nodeagent.gc.snapshot.images import ImageFilesystemReader, ImageObserver, ObservationStore, PodImageSource
from nodeagent.gc.snapshot.lists import CONFIRM_S, FindRunning, ListCheck
from nodeagent.host import pod_logs as podlogs
from nodeagent.host.pod_logs import FAR_FUTURE, MAX_TREE_S, read_log_tree
from nodeagent.loops.clock_reading import read_clocks, with_valid_times
from nodeagent.model.node import (
    CollectionForecast,
    ContainerLogLink,
    Hold,
    LogTree,
    NodeSnapshot,
    PodLogDirectory,
    Role,
)
from nodeagent.model.runtime import FsObservation, GapCause, Sandbox, Space
from nodeagent.pods.images import no_pod_images
from nodeagent.pods.plan.deletion import checked_pod_list
from nodeagent.record import Record, replace
from nodeagent.runtime.connection import gather_all
from nodeagent.runtime.containerd import Stamp
from nodeagent.runtime.namespace_lists import SNAPSHOTS, GraphNode
from nodeagent.runtime.storage_graph import snapshotters_by_container, unlisted_containers
from nodeagent.store.database import SnapshotFigures, Store

if TYPE_CHECKING:
    from nodeagent.gc.plan.image_protection import ProtectionRule
    from nodeagent.model.pods import PodList
    from nodeagent.model.runtime import Container, Label
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.storage_backend import StorageBackend
    from nodeagent.store.clock_record import ClockReading
    from nodeagent.units import Clock

MAX_TREES_S: Final = 30.0
"""Time limit in seconds for all log trees of one observation; unread trees count as incomplete."""


class PodLogReader:
    """Reader of pod logs, which records the time since which each removable directory is unchanged."""

    def __init__(self, root: Path, link_root: Path, clock: Clock) -> None:
        """Create a reader of pod log directories in ``root`` and of links to container logs in ``link_root``."""
        self._root = root
        self._link_root = link_root
        self._clock = clock
        self._first_equal: Mapping[str, tuple[str, float]] = {}

    def list_entries(self, warnings: list[str]) -> tuple[tuple[PodLogDirectory, ...], tuple[ContainerLogLink, ...]]:
        """Return the pod log directories and the links without target; none, with a warning, if unreadable. Blocks."""
        directories: tuple[PodLogDirectory, ...] = ()
        links: tuple[ContainerLogLink, ...] = ()
        try:
            directories = podlogs.list_pod_log_directories(self._root)
            if self._root.is_dir():  # without this directory the target of every link is missing
                links = podlogs.list_dead_log_links(self._link_root)
        except ObservationError as error:
            warnings.append(f"pod logs are kept: {error}")
        return directories, links

    async def read(
        self, directories: Sequence[PodLogDirectory], sandboxes: Iterable[Sandbox]
    ) -> tuple[PodLogDirectory, ...]:
        """Return the directories; directories of pods without a ready sandbox include their trees."""
        ready = {sandbox.uid for sandbox in sandboxes if sandbox.ready}
        read = [each for each in directories if each.is_directory and each.uid and each.uid not in ready]
        if not read:
            self._first_equal = {}
            return tuple(directories)
        trees = await asyncio.to_thread(self._read, [each.name for each in read])
        # a directory removed since the listing is omitted
        return tuple(
            replace(each, tree=trees.get(each.name))
            for each in directories
            if each.name not in trees or trees[each.name] is not None
        )

    def _read(self, names: Sequence[str]) -> dict[str, LogTree | None]:
        before, first_equal = self._first_equal, {}
        trees: dict[str, LogTree | None] = {}
        deadline_s = self._clock.monotonic_s() + MAX_TREES_S
        for name in names:
            now_s = self._clock.monotonic_s()
            if now_s >= deadline_s:
                trees[name] = LogTree(FAR_FUTURE, "", f"not reached within {MAX_TREES_S:.0f} s of this observation")
                continue
            tree = read_log_tree(self._root, name, self._clock, within_s=min(MAX_TREE_S, deadline_s - now_s))
            if tree is not None and not tree.problem:
                digest, since_s = before.get(name, ("", now_s))
                since_s = since_s if digest == tree.digest else now_s
                first_equal[name] = tree.digest, since_s
                tree = replace(tree, unchanged_s=max(0.0, now_s - since_s))
            trees[name] = tree
        self._first_equal = first_equal
        return trees


async def _no_paths() -> tuple[tuple[str, ...], str]:
    return (), ""


class NodeSnapshotReader:
    """Observer of a node through its runtime, its filesystems and the agent's state database.

    Attributes:
        images: the image part of the observations.
        list_problem: contradictions between the lists of the last observation; empty normally.
    """

    def __init__(  # noqa: PLR0913 - one argument per source of the snapshot
        self,
        cri: CriClient,
        storage: StorageBackend,
        *,
        imagefs_path: str,
        pod_log_root: Path,
        container_log_root: Path,
        clock: Clock,
        read_boot_id: Callable[[], str],
        read_filesystem: Callable[[str], FsObservation],
        memory: ObservationStore,
        read_holds: Callable[[], tuple[Hold, ...]],
        read_role: Callable[[], Awaitable[Role]],
        find_running: FindRunning,
        read_pod_images: PodImageSource = no_pod_images,
        read_pod_list: Callable[[], PodList | None] = lambda: None,
        read_forecast: Callable[[], CollectionForecast | None] = lambda: None,
        rules: Sequence[ProtectionRule] = (),
        confirm_s: float = CONFIRM_S,
    ) -> None:
        """Compose the observer.

        Args:
            cri: the runtime.
            storage: the runtime's own image and layer records.
            imagefs_path: overrides the mount point in ``ImageFsInfo``; empty for no override.
            pod_log_root: directory of the pod logs.
            container_log_root: directory of the links to container logs.
            clock: dates the readings.
            read_boot_id: returns the id of the boot.
            read_filesystem: reads the usage of a filesystem.
            memory: state kept between observations.
            read_holds: reads the holds; blocking.
            read_role: returns the current role of the node.
            find_running: finds running containers by the kernel's cgroups; blocking.
            read_pod_images: reads the images that pods of this node reference.
            read_pod_list: returns the pod list of the API server.
            read_forecast: returns the growth of the image filesystem.
            rules: protection rules, whose labels are read.
            confirm_s: time in seconds before a second reading of contradictory lists.
        """
        self._cri = cri
        self._monotonic_s = clock.monotonic_s
        self._read_clocks: Callable[[], ClockReading] = lambda: read_clocks(clock, read_boot_id())
        self._memory = memory
        self._read_role = read_role
        self._read_pod_list = read_pod_list
        self._read_forecast = read_forecast
        self._logs = PodLogReader(pod_log_root, container_log_root, clock)
        self._dead_layers = DeadLayers(cri, storage.measure_layer)
        self._details = ItemDetails(cri)
        self.images = ImageObserver(
            cri,
            storage,
            filesystem_reader=ImageFilesystemReader(cri, read_filesystem, imagefs_path),
            memory=memory,
            read_holds=read_holds,
            read_pod_images=read_pod_images,
            rules=rules,
        )
        list_stored, list_records = self.images.list_stored, self.images.list_records
        self._lists = ListCheck(cri, find_running, list_stored, list_records, confirm_s=confirm_s)
        self.list_problem = ""

    async def observe(self, scope: Scope, labels: frozenset[Label] = frozenset()) -> NodeSnapshot:
        """Return the current state of the node; ``labels`` of images are read besides those of rules and holds.

        Raises:
            RuntimeUnavailableError: no connection to the runtime.
            NodeAgentError: a required reading failed.
        """
        began_s = self._monotonic_s()
        try:
            snapshot = await self._observe(scope, labels)
        except RuntimeUnavailableError:
            await asyncio.to_thread(self._memory.interrupt, GapCause.RUNTIME_UNAVAILABLE)
            raise
        return replace(snapshot, reading_s=self._monotonic_s() - began_s)

    async def _observe(self, scope: Scope, labels: frozenset[Label]) -> NodeSnapshot:
        warnings: list[str] = []
        directories, links = await self._list_logs(scope, warnings)
        with_images = scope is not Scope.CONTAINERS
        info, status, reported, checked = await gather_all(
            self._cri.version(),
            self._cri.status(),
            self.images.reported_paths() if with_images else _no_paths(),
            self._lists.read(with_images=with_images),
        )
        lists, stored, _, contradictions = checked
        self.list_problem = "; ".join(each.detail for each in contradictions)
        at = self._read_clocks()
        trust = await asyncio.to_thread(self._memory.read_clock, at)
        sandboxes, unread = await self._details.with_images(lists.sandboxes, stored or (), scope)
        containers = await self._details.with_details(lists.containers, sandboxes, info, scope)
        containers += unlisted_containers(stored or (), containers, sandboxes)
        snapshotters = snapshotters_by_container(stored or ())
        layers = await self._dead_layers.read(containers, warnings, snapshotters) if scope is not Scope.IMAGES else {}
        if scope is not Scope.IMAGES:  # a reading without directories would discard the times of unchanged trees
            directories = await self._logs.read(directories, sandboxes)
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
            writable_bytes={key: each.size_bytes for key, each in layers.items()},
            writable_inodes={key: each.inodes for key, each in layers.items() if each.inodes is not None},
            snapshotters=snapshotters,
            pod_log_directories=directories,
            dead_log_links=links,
            booted_at=at.wall - timedelta(seconds=at.boottime_s),
            pod_list=checked_pod_list(self._read_pod_list(), sandboxes),
            contradictions=contradictions,
            collection_forecast=self._read_forecast(),
            clock=trust,
        )
        snapshot = await asyncio.to_thread(
            with_valid_times, snapshot, at, self._memory.first_seen, with_details=scope is not Scope.IMAGES
        )
        if with_images:
            snapshot = await self.images.complete(snapshot, checked, status, reported, warnings, at, labels)
        return replace(snapshot, warnings=tuple(warnings))

    async def read_exits(self, containers: Sequence[Container]) -> tuple[Container, ...]:
        """Return the containers with exit code, reason and finish time of the exited ones, for display only."""
        return await self._details.with_exits(containers)

    async def _list_logs(
        self, scope: Scope, warnings: list[str]
    ) -> tuple[tuple[PodLogDirectory, ...], tuple[ContainerLogLink, ...]]:
        if scope is Scope.IMAGES:
            return (), ()
        return await asyncio.to_thread(self._logs.list_entries, warnings)


class StoredSnapshotUsage(Record):
    """Snapshot usage recorded by earlier processes, by node of the storage graph."""

    store: Store

    def read(self) -> dict[GraphNode, tuple[Stamp, Space]]:
        """Return the usage of each recorded snapshot, with the creation time of the snapshot."""
        return {
            GraphNode(SNAPSHOTS + snapshotter, key): (
                Stamp(figures.created_s, figures.created_ns),
                Space(figures.size_bytes, figures.inodes),
            )
            for (snapshotter, key), figures in self.store.snapshot_usage().items()
        }

    def write(self, read: Mapping[GraphNode, tuple[Stamp, Space]], removed: Collection[GraphNode]) -> None:
        """Record the usage of ``read`` and delete the records of ``removed``."""
        self.store.note_snapshot_usage(
            {_store_key(node): SnapshotFigures(*created, *used) for node, (created, used) in read.items()},
            [_store_key(node) for node in removed],
        )


def _store_key(node: GraphNode) -> tuple[str, str]:
    return node.kind.removeprefix(SNAPSHOTS), node.id
