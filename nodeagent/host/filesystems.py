"""How full a filesystem is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nodeagent.errors import ObservationError
from nodeagent.model import FsObservation

if TYPE_CHECKING:
    from nodeagent.clock import Clock


def filesystem_type(path: str, mountinfo: str = "/proc/self/mountinfo") -> str:
    """Return the type of the filesystem of ``path``, such as ``ext4``; empty where it cannot be told.

    The mount is looked up by its id, since a Btrfs subvolume has another device number than its mount tells.
    Source: proc(5), ``mnt_id`` of ``fdinfo``; the first field of ``mountinfo`` and the one after the lone dash.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:  # noqa: PTH123 - no path of ours
                mount_id = next((line.split()[1] for line in lines if line.startswith("mnt_id:")), "")
        finally:
            os.close(descriptor)
        with open(mountinfo, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - likewise
            for line in lines:
                left, _, right = line.partition(" - ")
                if left.split()[0] == mount_id:
                    return right.split()[0]
    except (OSError, IndexError):
        return ""
    return ""


def read_filesystem(path: str, clock: Clock) -> FsObservation:
    """Return how full the filesystem of ``path`` is.

    Raises:
        ObservationError: the path cannot be read, or the numbers are impossible; nothing may be decided on them.

    Source: statvfs(3); ``f_bavail`` is what an unprivileged user may still use.
    """
    try:
        stats, device = os.statvfs(path), os.stat(path).st_dev  # noqa: PTH116 - one style for the pair
    except FileNotFoundError as error:
        raise ObservationError(
            f"{path} does not exist here; if the runtime lives in another mount namespace, set runtime.imagefs_path to "
            "where the agent sees it"
        ) from error
    except OSError as error:
        raise ObservationError(f"{path} cannot be read: {error.strerror or error}") from error
    capacity, available = stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize
    if capacity <= 0:
        raise ObservationError(f"impossible reading: the filesystem of {path} has capacity {capacity}")
    if not 0 <= available <= capacity:
        raise ObservationError(
            f"impossible reading: the filesystem of {path} has {available} bytes available of {capacity}"
        )
    return FsObservation(
        path=path,
        device_id=device,
        capacity_bytes=capacity,
        available_bytes=available,
        inodes=stats.f_files,
        inodes_free=stats.f_ffree,
        observed_at=clock.now(),
    )
