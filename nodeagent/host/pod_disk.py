"""What a pod keeps on the node's own filesystem: logs and volumes."""

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
# What lies on the node itself. Nothing else is so much as looked at: a stat of a dead network mount never returns.
_LOCAL: Final = ("kubernetes.io~configmap", "kubernetes.io~downward-api", "kubernetes.io~git-repo")
_MEMORY_TYPES: Final = frozenset({"tmpfs", "ramfs"})
_NOTHING: Final = Footprint(0, 0)


@dataclass(frozen=True, slots=True)
class PodDisk:
    """What was found of one pod; ``None`` and missing entries where it could not be read.

    Attributes:
        log_tree: all of its log directory; ``logs`` is what lies in the directories of its containers.
        container_logs_bytes: by container name.
        volumes: emptyDirs on disk, and what of other volumes lies on the node itself.
        empty_dir_bytes: by volume name; one in memory counts as what its own filesystem holds.
        complete: false where the time ran out, or a part could not be read: the figures are then lower bounds.
    """

    log_tree: Footprint | None = None
    logs: Footprint | None = None
    container_logs_bytes: Mapping[str, int] = field(default_factory=dict)
    volumes: Footprint | None = None
    empty_dir_bytes: Mapping[str, int] = field(default_factory=dict)
    complete: bool = True


def read_pod_disk(uid: str, log_directory: Path, kubelet_root: Path, *, deadline_s: float) -> PodDisk:
    """Return what a pod keeps on disk; nothing is followed out of its directories: neither links nor mounts.

    Args:
        uid: names the pod's directory below ``kubelet_root``.
        log_directory: the pod's own.
        kubelet_root: where the kubelet keeps pods' volumes; without one, pods have none.
        deadline_s: on the clock of ``time.monotonic``.

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
        gone = "\0" not in directory and not os.path.lexists(directory)
        return (_NOTHING, _NOTHING, {}, True) if gone else (None, None, {}, False)
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
        gone = not os.path.lexists(directory)
        return (_NOTHING, {}, True) if gone else (None, {}, False)
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
    """Return the device of a real directory; ``None`` for a link, for what is no directory, and where it is gone."""
    try:
        about = os.lstat(path)
    except (OSError, ValueError):  # also a NUL in what the runtime calls the directory
        return None
    return about.st_dev if stat.S_ISDIR(about.st_mode) else None


def _in_memory_bytes(path: str) -> int | None:
    """Return what a filesystem in memory holds; ``None`` for any other kind, which is not asked at all."""
    if filesystem_type(path) not in _MEMORY_TYPES:
        return None
    try:
        about = os.statvfs(path)
    except OSError:
        return None
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def _sum(*trees: Tree) -> Footprint:
    return Footprint(sum(tree.size_bytes for tree in trees), sum(tree.inodes for tree in trees))


def deadline_in(seconds: float) -> float:
    """Return the time so many seconds from now, on the clock that walks are bounded by."""
    return time.monotonic() + seconds
