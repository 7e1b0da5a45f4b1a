"""Directories of the writable layers of running containers.

The runtime also measures these layers, but containerd only every ten seconds. In outdated readings, a pod that fills a
disk appears small, and another pod would be evicted.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from nodeagent.host.filesystems import MOUNTINFO, filesystem_id, unescape

if TYPE_CHECKING:
    from collections.abc import Collection

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
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123 - a fixed path
            for line in lines:
                left, _, right = line.partition(" - ")
                if not right.startswith("overlay "):
                    continue
                name = left.split()[4].rpartition("/")[0].rpartition("/")[2]
                if name not in ids:  # also excludes mounts made inside a container
                    continue
                if upper := _upper_of(right):
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
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123 - a fixed path
            for line in lines:
                left, _, right = line.partition(" - ")
                fields = left.split()
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
