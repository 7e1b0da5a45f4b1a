"""Disk usage of a pod on the node's own filesystem (logs and volumes), and directories of writable layers.

The runtime also measures the writable layers of running containers, but containerd only every ten seconds. In outdated
readings, a pod that fills a disk appears small, and another pod would be evicted.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import time
from collections.abc import Collection, Generator, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

from nodeagent.host.disk_usage import Tree, TreeReader
from nodeagent.host.filesystems import MOUNTINFO, filesystem_id, mount_lines, unescape
from nodeagent.model.pressure import Footprint, LayerUsage
from nodeagent.record import Record, field

_EMPTY_DIRS: Final = "kubernetes.io~empty-dir"
# Volume types on the node's own disk. Other volumes are not examined: a stat of a dead network mount never returns.
_LOCAL: Final = ("kubernetes.io~configmap", "kubernetes.io~downward-api", "kubernetes.io~git-repo")
_BLOCK_BYTES: Final = 512  # Source: stat(2), st_blocks
_LARGE_FILE_BYTES: Final = 1 << 20
_LARGE_DIRECTORY_BYTES: Final = 64 << 10
_MEMORY_TYPES: Final = frozenset({"tmpfs", "ramfs"})


class PodDisk(Record):
    """Disk usage of one pod; unknown values are ``None`` or missing.

    Attributes:
        log_tree: usage of the whole log directory.
        logs: usage of the log directories of its containers.
        container_logs_bytes: log usage by container name.
        volumes: usage of emptyDirs on disk, other volumes on the node's own disk, and the files of the kubelet's
            directory that containers can write to: ``/etc/hosts`` and the termination messages.
        empty_dir_bytes: usage by volume name; for an emptyDir in memory, the usage of its tmpfs.
        layers: writable layers by container id.
        sandbox_files: large files of its sandboxes that the runtime mounts into containers; ``None`` without large
            files.
        image_volumes: volumes declared by images, on the runtime's filesystem; ``None`` without volumes.
        complete: false before the end of the walk and after a read error: the values are then lower bounds.
    """

    log_tree: Footprint | None = None
    logs: Footprint | None = None
    container_logs_bytes: Mapping[str, int] = field(default_factory=dict)
    volumes: Footprint | None = None
    empty_dir_bytes: Mapping[str, int] = field(default_factory=dict)
    layers: Mapping[str, Tree] = field(default_factory=dict)
    sandbox_files: LayerUsage | None = None
    image_volumes: LayerUsage | None = None
    complete: bool = True


@dataclasses.dataclass(slots=True)
class _Measured:
    """Trees of a pod measured up to now, written by the walk and read by another thread.

    Attributes:
        log_rest: files of the log directory outside the log directories of containers.
        log_trees: log directories by container name; ``None`` before they are listed, or if listing failed.
        volume_trees: local volumes, including emptyDirs on disk; ``None`` before they are listed, or if listing failed.
        image_volume_trees: volumes declared by images; ``None`` without volumes.
        is_complete: false after an error.
    """

    log_rest: Tree
    is_complete: bool
    log_trees: dict[str, Tree] | None = None
    volume_trees: list[Tree] | None = None
    empty_dirs: dict[str, Tree] = dataclasses.field(default_factory=dict)
    empty_dirs_in_memory: dict[str, int] = dataclasses.field(default_factory=dict)
    layers: dict[str, Tree] = dataclasses.field(default_factory=dict)
    sandbox_files: LayerUsage | None = None
    image_volume_trees: list[Tree] | None = None
    image_volume_device: int | None = None
    image_volumes_ended: bool = False
    logs_ended: bool = False
    volumes_ended: bool = False
    ended: bool = False

    def reading(self) -> PodDisk:
        logs = None if self.log_trees is None else dict(self.log_trees)
        volumes = None if self.volume_trees is None else list(self.volume_trees)
        layers = dict(self.layers)
        image_volumes = None if self.image_volume_trees is None else list(self.image_volume_trees)
        trees = [*(logs or {}).values(), self.log_rest, *(volumes or ()), *layers.values(), *(image_volumes or ())]
        return PodDisk(
            None if logs is None else _sum([*logs.values(), self.log_rest], ended=self.logs_ended),
            None if logs is None else _sum(logs.values(), ended=self.logs_ended),
            {name: tree.size_bytes for name, tree in (logs or {}).items()},
            None if volumes is None else _sum(volumes, ended=self.volumes_ended),
            {name: tree.size_bytes for name, tree in dict(self.empty_dirs).items()} | self.empty_dirs_in_memory,
            layers,
            self.sandbox_files,
            None
            if image_volumes is None
            else LayerUsage(_sum(image_volumes, ended=self.image_volumes_ended), self.image_volume_device, ""),
            self.ended and self.is_complete and all(each.complete for each in trees),
        )


class PodDiskWalk:
    """Measurement of one pod's disk usage in steps. Symlinks are not followed, and mounts are not crossed.

    Attributes:
        name: name of the pod's log directory.

    Source: kubelet ``GetPodVolumesDir``, ``podLocalEphemeralStorageUsage``.
    """

    def __init__(  # noqa: PLR0913 - the places of a pod's files
        self,
        uid: str,
        log_directory: Path,
        kubelet_root: Path,
        *,
        upper_directories: Mapping[str, str] | None = None,
        sandbox_files: Collection[str] = (),
        image_volumes: Collection[str] = (),
        mounts: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the walk without reading a directory.

        Args:
            uid: pod UID, which is the name of the pod's directory below ``kubelet_root``.
            log_directory: log directory of the pod.
            kubelet_root: the kubelet's root directory, which contains the volumes of pods.
            upper_directories: upper directories of the writable layers, by container id.
            sandbox_files: paths of sandbox files; see ``ContainerTraits``.
            image_volumes: directories of image volumes; see ``ContainerTraits``.
            mounts: type of the filesystem by mount point; these paths are not walked.
        """
        parent = str(log_directory.parent)
        if "\0" not in parent:  # realpath rejects a NUL; the walk reports unknown usage
            parent = os.path.realpath(parent)
        self._logs_path = f"{parent}/{log_directory.name}"
        self.name = log_directory.name
        valid = bool(uid) and "/" not in uid and "\0" not in uid and uid not in {".", ".."}
        self._pod_path = f"{os.path.realpath(kubelet_root)}/pods/{uid}" if valid else None
        self._upper_directories = upper_directories or {}
        self._sandbox_files = sandbox_files
        self._mounts = mounts or {}
        self._image_volumes = image_volumes
        self._measured = _Measured(
            Tree(self._logs_path), is_complete=valid, image_volume_trees=[] if image_volumes else None
        )
        self._steps = self._walk()

    def advance(self, until_s: float) -> bool:
        """Continue until ``until_s`` of ``time.monotonic``, by at least one step; return whether the walk ended."""
        for _ in self._steps:
            if time.monotonic() >= until_s:
                return False
        self._measured.ended = True
        return True

    def close(self) -> None:
        """Close the descriptors of a walk before its end."""
        self._steps.close()

    def reading(self) -> PodDisk:
        """Return the usage measured up to now; another thread may continue the walk."""
        return self._measured.reading()

    def _walk(self) -> Generator[None, None, None]:
        """Walk logs and volumes, which usually have few files, before the writable layers."""
        measured = self._measured
        yield from self._walk_logs()
        measured.logs_ended = True
        if self._pod_path is not None:
            yield from self._walk_volumes(f"{self._pod_path}/volumes")
            yield from self._walk_mounted_files(self._pod_path)
        measured.volumes_ended = True
        self._measure_sandbox_files()
        yield from self._walk_image_volumes()
        for container_id, upper in self._upper_directories.items():
            device = _device(upper)
            if device is not None:
                measured.layers[container_id] = _tree(upper)
                yield from self._reader(device).walk(measured.layers[container_id])

    def _walk_logs(self) -> Generator[None, None, None]:
        measured = self._measured
        directory = self._logs_path
        device = _device(directory)
        if device is None:
            missing = "\0" not in directory and not os.path.lexists(directory)
            measured.log_trees = {} if missing else None
            measured.is_complete = measured.is_complete and missing
            return
        try:
            with os.scandir(directory) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            measured.is_complete = False
            return
        reader = self._reader(device)
        measured.log_trees = {}
        for name in names:
            path = f"{directory}/{name}"
            if path not in self._mounts and _device(path) == device:
                measured.log_trees[name] = Tree(path)
                yield from reader.walk(measured.log_trees[name])
        yield from reader.walk(measured.log_rest, skip=[tree.path for tree in measured.log_trees.values()])

    def _walk_volumes(self, directory: str) -> Generator[None, None, None]:
        measured = self._measured
        device = _device(directory)
        if device is None:
            missing = not os.path.lexists(directory)
            measured.volume_trees = [] if missing else None
            measured.is_complete = measured.is_complete and missing
            return
        reader = self._reader(device)
        measured.volume_trees = []
        parent = f"{directory}/{_EMPTY_DIRS}"
        for name in _directories(parent):
            path = f"{parent}/{name}"
            if path in self._mounts:
                if self._mounts[path] in _MEMORY_TYPES and (size_bytes := _filesystem_bytes(path)) is not None:
                    measured.empty_dirs_in_memory[name] = size_bytes
            elif _device(path) == device:
                measured.empty_dirs[name] = _tree(path)
                measured.volume_trees.append(measured.empty_dirs[name])
                yield from reader.walk(measured.empty_dirs[name])
        for path in (f"{directory}/{name}" for name in _LOCAL):
            if path not in self._mounts and _device(path) == device:
                measured.volume_trees.append(Tree(path))
                yield from reader.walk(measured.volume_trees[-1])

    def _walk_mounted_files(self, directory: str) -> Generator[None, None, None]:
        """Add the files in the kubelet's pod directory that are mounted into containers.

        Source: kubelet ``GetPodDir``, ``managedHostsFileContent`` and ``terminationMessagePath``.
        """
        found = self._measured.volume_trees
        device = _device(directory)
        if found is None or device is None:
            return
        hosts = _file(f"{directory}/etc-hosts")
        if hosts is not None:
            found.append(Tree(f"{directory}/etc-hosts", hosts.st_blocks * _BLOCK_BYTES, inodes=1))
        messages = f"{directory}/containers"
        if messages not in self._mounts and _device(messages) == device:
            found.append(Tree(messages))
            yield from self._reader(device).walk(found[-1])

    def _measure_sandbox_files(self) -> None:
        """Measure the large files of sandboxes, which are on one filesystem."""
        found = [status for path in self._sandbox_files if (status := large_file(path)) is not None]
        if found:
            used_bytes = sum(each.st_blocks * _BLOCK_BYTES for each in found)
            self._measured.sandbox_files = LayerUsage(Footprint(used_bytes, len(found)), found[0].st_dev, "")

    def _walk_image_volumes(self) -> Generator[None, None, None]:
        """Add the volumes declared by images, which are on one filesystem."""
        measured = self._measured
        for path in self._image_volumes:
            device = None if path in self._mounts else _device(path)
            if device is not None and measured.image_volume_trees is not None:
                measured.image_volume_device = device
                measured.image_volume_trees.append(_tree(path))
                yield from self._reader(device).walk(measured.image_volume_trees[-1])
        measured.image_volumes_ended = True

    def _reader(self, device: int) -> TreeReader:
        return TreeReader(device, mounts=self._mounts)


def memory_volumes_bytes(uid: str, kubelet_root: str, mounts: Mapping[str, str]) -> int:
    """Return the used bytes of the memory volumes of a pod, such as emptyDirs with ``medium: Memory``.

    Args:
        uid: pod UID.
        kubelet_root: the kubelet's root directory without symlinks.
        mounts: type of the filesystem by mount point.
    """
    below = f"{kubelet_root}/pods/{uid}/volumes/"
    found = (
        _filesystem_bytes(path) for path, kind in mounts.items() if kind in _MEMORY_TYPES and path.startswith(below)
    )
    return sum(each or 0 for each in found)


def _directories(path: str) -> list[str]:
    if _device(path) is None:
        return []
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _tree(path: str) -> Tree:
    """Return the tree of a directory before its walk, with the size of the directory inode if it is large.

    On ext4 a directory with millions of names uses a gigabyte, and keeps this size after the names are removed.
    """
    try:
        size_bytes = os.lstat(path).st_blocks * _BLOCK_BYTES
    except OSError:
        return Tree(path)
    return Tree(path, size_bytes, inodes=1) if size_bytes >= _LARGE_DIRECTORY_BYTES else Tree(path)


def _device(path: str) -> int | None:
    """Return the device of a directory; ``None`` for a symlink, another file type, or a missing path."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):  # ValueError: the runtime reported a path with a NUL
        return None
    return status.st_dev if stat.S_ISDIR(status.st_mode) else None


def large_file(path: str) -> os.stat_result | None:
    """Return the status of a regular file of a sandbox with at least 1 MiB on the disk; ``None`` for other paths.

    A runtime writes a few kilobytes to such a file, but a container without a read-only root filesystem can write any
    amount. Blocks.
    """
    status = _file(path)
    return status if status is not None and status.st_blocks * _BLOCK_BYTES >= _LARGE_FILE_BYTES else None


def _file(path: str) -> os.stat_result | None:
    try:
        status = os.lstat(path)
    except (OSError, ValueError):  # ValueError: the runtime reported a path with a NUL
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _sum(trees: Iterable[Tree], *, ended: bool) -> Footprint:
    found = tuple(trees)
    complete = ended and all(each.complete for each in found)
    return Footprint(
        sum(each.size_bytes for each in found), sum(each.inodes for each in found), is_lower_bound=not complete
    )


def _filesystem_bytes(path: str) -> int | None:
    """Return the used bytes of a memory filesystem; ``None`` if unreadable."""
    try:
        return psutil.disk_usage(path).used
    except OSError:
        return None


_UPPER: Final = "upperdir="
_SNAPSHOTTER: Final = "io.containerd.snapshotter.v1."


def find_upper_directories(container_ids: Collection[str], mountinfo: str = MOUNTINFO) -> dict[str, str]:
    """Return the directories of writable layers by container id.

    The source is the mount table of this process: containerd mounts the overlay root filesystem of a container directly
    below a directory with the container id. Other containers are omitted.

    Source: proc(5) on ``mountinfo``; the kernel's overlayfs document, ``upperdir``.
    """
    ids, found = frozenset(container_ids), dict[str, str]()
    try:
        for fields, right in mount_lines(mountinfo):
            if not right.startswith("overlay "):
                continue
            name = fields[4].rpartition("/")[0].rpartition("/")[2]
            if name in ids and (upper := _upper_of(right)):  # the ids also exclude mounts made inside a container
                found[name] = upper
    except (OSError, IndexError):
        return {}
    return found


def find_layer_devices(container_ids: Collection[str], mountinfo: str = MOUNTINFO) -> dict[str, int]:
    """Return the devices of the writable layers by container id.

    The device of an overlay root filesystem is the device of its upper directory. Any other root filesystem has its own
    device: the snapshotters native and btrfs mount directories of their filesystem. Containers without a root
    filesystem in the mount table, or with root filesystems on several devices, are omitted.

    Source: proc(5) on ``mountinfo``; containerd, ``rootfs`` in the directory of a task.
    """
    ids, found, devices_of = frozenset(container_ids), dict[str, set[int | None]](), _DeviceIds(mountinfo)
    try:
        for fields, right in mount_lines(mountinfo):
            point = PurePosixPath(unescape(fields[4]))
            if point.name != "rootfs" or point.parent.name not in ids:
                continue
            upper = _upper_of(right)
            if upper or not right.startswith("overlay "):
                major, minor = fields[2].split(":")
                device = devices_of.find(upper) if upper else os.makedev(int(major), int(minor))
                found.setdefault(point.parent.name, set()).add(device)
    except (OSError, IndexError, ValueError, OverflowError):
        return {}
    known = {key: next(iter(devices)) for key, devices in found.items() if len(devices) == 1}
    return {key: device for key, device in known.items() if device is not None}


class _DeviceIds:
    """Cache of filesystem devices, with one search in ``mountinfo`` for each ``st_dev``."""

    def __init__(self, mountinfo: str) -> None:
        self._mountinfo = mountinfo
        self._known: dict[int, int | None] = {}

    def find(self, path: str) -> int | None:
        """Return the device of the filesystem of a path; ``None`` if it cannot be read."""
        try:
            device = os.stat(path).st_dev  # noqa: PTH116 - one call, no object
        except (OSError, ValueError):
            return None
        if device not in self._known:
            self._known[device] = filesystem_id(path, self._mountinfo)
        return self._known[device]


def _upper_of(right: str) -> str:
    """Return the upper directory in a ``mountinfo`` line, from its part after the separator; empty if missing."""
    if not right.startswith("overlay "):
        return ""
    upper = next((each for each in right.rsplit(maxsplit=1)[-1].split(",") if each.startswith(_UPPER)), "")
    return unescape(upper.removeprefix(_UPPER)) if upper.startswith(f"{_UPPER}/") else ""


def snapshotter_of(upper: str) -> str:
    """Return the containerd snapshotter of a writable layer's directory; empty if unknown.

    Source: containerd; the root directory of a plugin is named by its type and id.
    """
    names = (each.removeprefix(_SNAPSHOTTER) for each in PurePosixPath(upper).parts if each.startswith(_SNAPSHOTTER))
    return next(names, "")
