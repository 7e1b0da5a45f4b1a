"""How full a filesystem is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nodeagent.errors import ObservationError
from nodeagent.model import FsObservation

if TYPE_CHECKING:
    from nodeagent.clock import Clock


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
