"""Readings for the usage breakdown of the image filesystem.

No decision depends on the breakdown, so that a failed reading only omits its part. Directory walks have a time limit.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.errors import NodeAgentError, ObservationError, RuntimeRequestError
from nodeagent.gc.plan.breakdown import Breakdown, MeasuredTree, MeasuredUsage, Member, Share, break_down, pods_by_id
from nodeagent.host.deleted_files import DeletedFile, read_deleted_files
from nodeagent.host.disk_usage import BLOCK_BYTES, Tree, TreeReader
from nodeagent.host.filesystems import (
    FilesystemMounts,
    filesystem_id,
    mount_point,
    read_filesystem,
    read_reserved_bytes,
)
from nodeagent.host.kubelet_traces import KUBELET_ROOT
from nodeagent.host.pod_disk import find_upper_directories
from nodeagent.model.node import NodeSnapshot, RuntimeInfo
from nodeagent.model.runtime import PieceKind, Space, StorageGraph, total_space
from nodeagent.record import replace
from nodeagent.runtime.held_content import is_lost
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    from nodeagent.gc.snapshot.node import NodeSnapshotReader
    from nodeagent.model.runtime import FsObservation, HeldContent
    from nodeagent.runtime.storage_backend import StorageBackend

POD_VOLUMES: Final = KUBELET_ROOT / "pods"
LARGEST: Final = 10
_ROOTS: Final = (
    Path("/var/lib/containerd"),
    Path("/var/lib/rancher/k3s/agent/containerd"),
    Path("/var/lib/k0s/containerd"),
    Path("/var/snap/microk8s/common/var/lib/containerd"),
    Path("/var/lib/containers/storage"),
)
"""Default data directories: containerd, K3s and RKE2, k0s, MicroK8s, CRI-O."""

_HELD_WITHIN_S: Final = 5.0
"""Time limit in seconds for reading stored content, unless directories are walked for longer."""

_FOR_ALL: Final = stat.S_IROTH | stat.S_IXOTH


async def read_breakdown(  # noqa: PLR0913 - one argument per source of the breakdown
    snapshot: NodeSnapshot,
    observer: NodeSnapshotReader,
    storage: StorageBackend,
    pod_log_root: Path,
    *,
    within_s: float,
    walk: bool = True,
    cancelled: threading.Event | None = None,
    private: bool = False,
) -> Breakdown:
    """Return the usage breakdown of a snapshot's image filesystem.

    Args:
        snapshot: snapshot of all scopes, with the storage graph if available.
        observer: the observer of the snapshot.
        storage: source of the sizes of writable layers.
        pod_log_root: directory of the pod logs.
        within_s: time limit in seconds for walking directories.
        walk: whether directories are walked; without a walk, logs and volumes count as other data.
        cancelled: ends the walk when set, since a thread cannot be cancelled.
        private: whether to name entries of directories that not every user may read; otherwise their sizes are added up
            under the name of the directory.

    Raises:
        ObservationError: the image filesystem cannot be read.
    """
    filesystem = snapshot.image_filesystem
    if filesystem is None:
        raise ObservationError(snapshot.image_filesystem_error or "no reading of the image filesystem")
    held: tuple[HeldContent, ...] | None = None
    with suppress(NodeAgentError, TimeoutError):
        async with asyncio.timeout(max(_HELD_WITHIN_S, within_s)):  # many snapshots of another namespace take long
            held = (await observer.images.find_unlisted(snapshot.images)).held
    writable = {key: Space(size_bytes) for key, size_bytes in snapshot.writable_bytes.items()}
    if snapshot.storage is not None:
        with suppress(RuntimeRequestError):
            writable.update(await storage.read_writable())
    reserved_bytes = await asyncio.to_thread(read_reserved_bytes, filesystem.path)
    measured = MeasuredUsage(held=held, writable=writable, reserved_bytes=reserved_bytes)
    if walk:
        directories = _runtime_directories(snapshot, filesystem)
        deadline_s = time.monotonic() + within_s
        limit = _Limit(deadline_s, cancelled or threading.Event())
        measured = await asyncio.to_thread(_walk, measured, filesystem, pod_log_root, directories, limit)
    if snapshot.storage is not None:
        snapshot = replace(snapshot, storage=await asyncio.to_thread(_without_lost_files, snapshot.storage))
    found = break_down(snapshot, filesystem, measured)
    return found if private else await asyncio.to_thread(_public, found)


def _without_lost_files(storage: StorageGraph) -> StorageGraph:
    """Return the storage with blobs without a file as empty: the runtime lists their size."""
    content_path = storage.store_paths.get("", "")
    lost = {each.key for each in storage.pieces if each.kind is PieceKind.BLOB and is_lost(content_path, each.key)}
    if not lost:
        return storage
    return replace(
        storage,
        pieces=tuple(replace(each, size_bytes=0, inodes=0) if each.key in lost else each for each in storage.pieces),
    )


def read_directories(imagefs_path: str, pod_log_root: Path, *, within_s: float, why: str) -> Breakdown:
    """Return the usage breakdown without the runtime, whose data is one category. Blocks.

    Args:
        imagefs_path: a path on the image filesystem; empty for the first existing default directory of a runtime.
        pod_log_root: directory of the pod logs.
        within_s: time limit in seconds.
        why: cause of the missing reading of the runtime.

    Raises:
        ObservationError: no directory of a runtime exists, or its filesystem cannot be read.
    """
    root = Path(imagefs_path) if imagefs_path else next((each for each in _ROOTS if os.access(each, os.F_OK)), None)
    if root is not None and root.name.startswith("io.containerd."):  # a store: containerd reports its snapshotter
        root = root.parent
    if root is None:
        raise ObservationError(f"{why}; no directory of a runtime found: set runtime.imagefs_path")
    filesystem = read_filesystem(str(root), SystemClock())
    measured = MeasuredUsage(held=None, reserved_bytes=read_reserved_bytes(str(root)))
    limit = _Limit(time.monotonic() + within_s, threading.Event())
    measured = _walk(measured, filesystem, pod_log_root, _RuntimeDirectories((), None, root), limit)
    snapshot = NodeSnapshot(filesystem.observed_at, RuntimeInfo("", "", ""), image_filesystem=filesystem)
    warning = f"read from directories, used and unused images are not distinguished: {why}"
    found = break_down(snapshot, filesystem, measured)
    return replace(found, warnings=(warning, *found.warnings))


def _public(breakdown: Breakdown) -> Breakdown:
    """Return a breakdown without the names of entries of directories that not every user may read."""
    return replace(breakdown, shares=tuple(replace(each, members=_public_members(each)) for each in breakdown.shares))


def _public_members(share: Share) -> tuple[Member, ...]:
    """Return the members with public paths; the sizes of equal paths are added up."""
    found: dict[tuple[str, str, str], list[Space]] = {}
    for each in share.members:
        name = _public_path(each.name) if each.name.startswith("/") else each.name
        found.setdefault((name, each.pod, each.detail), []).append(Space(each.size_bytes, each.inodes))
    members = (Member(name, *total_space(sizes), pod, detail) for (name, pod, detail), sizes in found.items())
    return tuple(sorted(members, key=lambda each: (-each.size_bytes, each.name)))


def _public_path(path: str) -> str:
    """Return the path up to the first directory that not every user may read, or that cannot be read."""
    shown = ""
    for name in path.removeprefix("/").split("/"):
        try:
            mode = os.stat(shown or "/", follow_symlinks=False).st_mode  # noqa: PTH116 - the path is a text
        except OSError:
            return shown.rpartition("/")[0] or "/"
        if mode & _FOR_ALL != _FOR_ALL:
            break
        shown += f"/{name}"
    return shown or "/"


class _RuntimeDirectories(NamedTuple):
    """Directories of the runtime, and its pods.

    Attributes:
        stores: directories whose content is known from the runtime.
        root: containerd's root directory, which contains the stores; ``None`` if unknown.
        data: directory to measure as a whole, if the runtime does not answer.
        pods: ``NAMESPACE/NAME`` of the pod by id of a container or sandbox.
    """

    stores: tuple[Path, ...]
    root: Path | None
    data: Path | None = None
    pods: Mapping[str, str] = {}


def _runtime_directories(snapshot: NodeSnapshot, filesystem: FsObservation) -> _RuntimeDirectories:
    """Return the directories of the runtime; ``runtime.imagefs_path`` may be another path on that filesystem."""
    path = Path(filesystem.path)
    paths = {} if snapshot.storage is None else snapshot.storage.store_paths
    content = paths.get("")
    stores = (path, path.parent / "io.containerd.content.v1.content", *map(Path, paths.values()))
    return _RuntimeDirectories(stores, Path(content).parent if content else None, pods=pods_by_id(snapshot))


class _Limit(NamedTuple):
    """End of a walk: a deadline on the clock of ``time.monotonic``, and an event for an earlier cancellation."""

    deadline_s: float
    cancelled: threading.Event


def _walk(
    measured: MeasuredUsage,
    filesystem: FsObservation,
    pod_log_root: Path,
    runtime: _RuntimeDirectories,
    limit: _Limit,
) -> MeasuredUsage:
    """Return the measurements, completed by the directories on the image filesystem and deleted files."""
    top = mount_point(filesystem.path)
    deleted, unread = read_deleted_files({_device_of(top)}, limit.deadline_s)  # before the walks use up the time
    mounts = FilesystemMounts(top)
    readers = _Readers(filesystem, mounts.others, limit)
    logs, volumes = readers.measure_each(pod_log_root), readers.measure_each(POD_VOLUMES)
    stores = sorted({str(each) for each in runtime.stores})
    metadata: list[Tree] = []
    directories: list[str] = []
    if runtime.root is not None and _is_on(runtime.root, filesystem):
        directories = [str(each) for each in (*runtime.root.glob("io.containerd.*"), runtime.root / "tmpmounts")]
        metadata, of_pods = _measure_metadata(readers, runtime.root, directories, stores)
        volumes += of_pods
    data = readers.measure(str(runtime.data)) if runtime.data is not None else None
    known = [*stores, *directories, *([data.path] if data is not None else []), str(pod_log_root), str(POD_VOLUMES)]
    largest: tuple[Tree, ...] = ()
    host = Tree(top)
    if runtime.data is None or not Path(top).is_relative_to(runtime.data):  # otherwise it is measured as a whole
        largest, host = readers.of(top).largest(top, [mounts.path_below_top(each) for each in known], LARGEST)
    writable = measured.writable or {}
    unmeasured = runtime.pods.keys() - writable.keys()  # containerd measures no path longer than PATH_MAX
    layers = {key: readers.measure(upper) for key, upper in find_upper_directories(unmeasured).items()}
    return replace(
        measured,
        writable={**writable, **{key: Space(tree.size_bytes, tree.inodes) for key, tree in layers.items()}},
        incomplete_layers=frozenset(key for key, tree in layers.items() if not tree.complete),
        logs=tuple(_measured_tree(part) for tree in logs for part in tree.without_large_files()),
        volumes=tuple(_measured_tree(part) for tree in volumes for part in tree.without_large_files()),
        metadata=tuple(map(_measured_tree, metadata)),
        runtime_data=_measured_tree(data) if data is not None else None,
        deleted=tuple(
            MeasuredTree(
                f"{each.process} (process {each.pid})", each.size_bytes, not unread, 1, _pod_of(each, runtime.pods)
            )
            for each in deleted
        ),
        unread_processes=unread,
        host=_measured_tree(host),
        largest=tuple(map(_measured_tree, largest)),
    )


class _Readers:
    """Readers of the directories of a filesystem, which count a file with links in several categories once.

    Btrfs subvolumes have different devices, and a reader each.
    """

    def __init__(self, filesystem: FsObservation, mounts: Collection[str], limit: _Limit) -> None:
        self._filesystem = filesystem
        self._mounts = mounts
        self._limit = limit
        self._by_device: dict[int, TreeReader] = {}

    def of(self, path: str) -> TreeReader:
        """Return the reader of the device of a path."""
        device, limit = _device_of(path), self._limit
        if device not in self._by_device:
            is_cancelled = limit.cancelled.is_set
            self._by_device[device] = TreeReader(device, limit.deadline_s, self._mounts, is_cancelled=is_cancelled)
        return self._by_device[device]

    def measure(self, path: str, skip: Collection[str] = ()) -> Tree:
        """Return the usage of a directory without the paths in ``skip``."""
        return self.of(path).measure(path, skip)

    def measure_each(self, directory: Path) -> list[Tree]:
        """Return the usage of each entry of a directory; empty if it is on another filesystem."""
        if not _is_on(directory, self._filesystem):
            return []
        try:
            with os.scandir(directory) as entries:
                found = sorted((each.path, each.is_dir(follow_symlinks=False)) for each in entries)
        except OSError:
            return [Tree(str(directory), complete=False)]
        return [self.measure(path) if is_directory else _file(path) for path, is_directory in found]


def _measure_metadata(
    readers: _Readers, root: Path, directories: Iterable[str], stores: Sequence[str]
) -> tuple[list[Tree], list[Tree]]:
    """Return the usage of containerd's own directories without the stores, and of files in them that pods write.

    Pods write to the volumes that images declare, and can write any amount to the files of their sandboxes.
    """
    of_images = [str(each) for each in root.glob("io.containerd.*/containers/*/volumes")]
    sandboxes = [str(each) for each in root.glob("io.containerd.*/sandboxes/*")]
    of_pods = [readers.measure(each) for each in of_images]
    own = []
    for sandbox in sandboxes:
        *files, rest = readers.measure(sandbox).without_large_files()
        of_pods += files
        own.append(rest)
    omitted = [*stores, *of_images, *sandboxes]
    own += [readers.measure(each, omitted) for each in directories if each not in stores]
    return own + [_file(f"{each}/metadata.db") for each in stores], of_pods


def _pod_of(file: DeletedFile, pods: Mapping[str, str]) -> str:
    """Return the pod of the process that keeps a deleted file open; empty if it is in no known container."""
    return next((pods[each] for each in pods if any(each in name for name in file.cgroups)), "")


def _file(path: str) -> Tree:
    """Return the disk usage of a file; 0 if the file cannot be read."""
    with suppress(OSError):
        return Tree(path, os.lstat(path).st_blocks * BLOCK_BYTES, inodes=1)
    return Tree(path)


def _device_of(path: str) -> int:
    """Return the device of a path, 0 if unreadable; a Btrfs subvolume has a separate device."""
    try:
        return os.stat(path).st_dev  # noqa: PTH116 - one call, no object
    except OSError:
        return 0


def _is_on(path: Path, filesystem: FsObservation) -> bool:
    return filesystem_id(str(path)) == filesystem.device_id


def _measured_tree(tree: Tree) -> MeasuredTree:
    return MeasuredTree(tree.path, tree.size_bytes, tree.complete, tree.inodes)
