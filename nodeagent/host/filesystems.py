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

    Source: proc(5), ``mountinfo``: the third field is the device, the one after the lone dash the type.
    """
    try:
        device = os.stat(path).st_dev  # noqa: PTH116 - as below
        with open(mountinfo, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - as above
            wanted = f"{os.major(device)}:{os.minor(device)}"
            for line in lines:
                left, _, right = line.partition(" - ")
                if left.split()[2] == wanted:
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
