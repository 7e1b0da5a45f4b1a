"""Disk usage of a pod on the node's own filesystem: logs and volumes."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nodeagent.host.disk_usage import TreeReader
from nodeagent.host.filesystems import filesystem_type
from nodeagent.model.pressure import Footprint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodeagent.host.disk_usage import Tree

_EMPTY_DIRS: Final = "kubernetes.io~empty-dir"
# Volumes on the node's own disk. Others are not even examined: a stat of a dead network mount never returns.
_LOCAL: Final = ("kubernetes.io~configmap", "kubernetes.io~downward-api", "kubernetes.io~git-repo")
_MEMORY_TYPES: Final = frozenset({"tmpfs", "ramfs"})
_NOTHING: Final = Footprint(0, 0)


@dataclass(frozen=True, slots=True)
class PodDisk:
    """Disk usage of one pod; ``None`` and missing entries where unknown.

    Attributes:
        log_tree: the whole log directory.
        logs: the log directories of its containers.
        container_logs_bytes: by container name.
        volumes: emptyDirs on disk, and other volumes on the node's own disk.
        empty_dir_bytes: by volume name; for one in memory the usage of its tmpfs.
        complete: false after a timeout or read error: the values are then lower bounds.
    """

    log_tree: Footprint | None = None
    logs: Footprint | None = None
    container_logs_bytes: Mapping[str, int] = field(default_factory=dict)
    volumes: Footprint | None = None
    empty_dir_bytes: Mapping[str, int] = field(default_factory=dict)
    complete: bool = True


def read_pod_disk(uid: str, log_directory: Path, kubelet_root: Path, *, deadline_s: float) -> PodDisk:
    """Return the disk usage of a pod. Links and mounts are not followed.

    Args:
        uid: names the pod's directory below ``kubelet_root``.
        log_directory: log directory of the pod.
        kubelet_root: the kubelet's root directory, which has the volumes of pods.
        deadline_s: deadline on the clock of ``time.monotonic``.

    Source: kubelet ``GetPodVolumesDir``, ``podLocalEphemeralStorageUsage``.
    """
    log_tree, logs, by_container, logs_complete = _logs(str(log_directory), deadline_s)
    if not uid or "/" in uid or "\0" in uid or uid in (".", ".."):
        return PodDisk(log_tree, logs, by_container, complete=False)
    volumes, empty_dirs, complete = _volumes(str(kubelet_root / "pods" / uid / "volumes"), deadline_s)
    return PodDisk(log_tree, logs, by_container, volumes, empty_dirs, complete and logs_complete)


def _logs(directory: str, deadline_s: float) -> tuple[Footprint | None, Footprint | None, dict[str, int], bool]:
    device = _device(directory)
    if device is None:
        missing = "\0" not in directory and not os.path.lexists(directory)
        return (_NOTHING, _NOTHING, {}, True) if missing else (None, None, {}, False)
    reader = TreeReader(device, deadline_s)
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return None, None, {}, False
    trees = {name: reader.measure(f"{directory}/{name}") for name in names if _device(f"{directory}/{name}") == device}
    rest = reader.measure(directory, skip=[tree.path for tree in trees.values()])
    by_container = {name: tree.size_bytes for name, tree in trees.items()}
    complete = rest.complete and all(tree.complete for tree in trees.values())
    return _sum(*trees.values(), rest), _sum(*trees.values()), by_container, complete


def _volumes(directory: str, deadline_s: float) -> tuple[Footprint | None, dict[str, int], bool]:
    device = _device(directory)
    if device is None:
        missing = not os.path.lexists(directory)
        return (_NOTHING, {}, True) if missing else (None, {}, False)
    reader = TreeReader(device, deadline_s)
    found: dict[str, int] = {}
    trees: list[Tree] = []
    parent = f"{directory}/{_EMPTY_DIRS}"
    for name in _directories(parent):
        path = f"{parent}/{name}"
        if _device(path) == device:
            trees.append(reader.measure(path))
            found[name] = trees[-1].size_bytes
        elif (size_bytes := _in_memory_bytes(path)) is not None:
            found[name] = size_bytes
    others = [f"{directory}/{name}" for name in _LOCAL]
    trees += [reader.measure(path) for path in others if _device(path) == device]
    return _sum(*trees), found, all(tree.complete for tree in trees)


def _directories(path: str) -> list[str]:
    if _device(path) is None:
        return []
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _device(path: str) -> int | None:
    """Return the device of a directory; ``None`` for a link, another kind of file, or a missing one."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):  # ValueError: the runtime reported a path with a NUL
        return None
    return status.st_dev if stat.S_ISDIR(status.st_mode) else None


def _in_memory_bytes(path: str) -> int | None:
    """Return the usage of a filesystem in memory; ``None`` for other types, whose statvfs could hang."""
    if filesystem_type(path) not in _MEMORY_TYPES:
        return None
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _sum(*trees: Tree) -> Footprint:
    return Footprint(sum(tree.size_bytes for tree in trees), sum(tree.inodes for tree in trees))


def deadline_in(seconds: float) -> float:
    """Return the deadline ``seconds`` from now on the clock of ``time.monotonic``."""
    return time.monotonic() + seconds
