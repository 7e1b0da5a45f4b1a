"""Usage, type and mount of filesystems."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nodeagent.errors import ObservationError
from nodeagent.model import FsObservation

if TYPE_CHECKING:
    from nodeagent.clock import Clock


def filesystem_type(path: str, mountinfo: str = "/proc/self/mountinfo") -> str:
    """Return the type of the filesystem of ``path``, such as ``ext4``; empty if unknown.

    The mount is identified by its id, since the device number of a Btrfs subvolume differs from that of its mount.
    Source: proc(5), the first field of ``mountinfo`` and the one after the separator ``-``.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            mount = mount_id(descriptor)
        finally:
            os.close(descriptor)
        with open(mountinfo, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - a fixed path
            for line in lines:
                left, _, right = line.partition(" - ")
                if left.split()[0] == mount:
                    return right.split()[0]
    except (OSError, IndexError):
        return ""
    return ""


def mount_id(descriptor: int) -> str:
    """Return the id of a descriptor's mount; empty if the kernel does not report it.

    Raises:
        OSError: ``fdinfo`` cannot be read.

    Source: proc(5), ``mnt_id`` of ``/proc/PID/fdinfo``.
    """
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:  # noqa: PTH123 - a fixed path
        return next((line.split()[1] for line in lines if line.startswith("mnt_id:")), "")


def read_filesystem(path: str, clock: Clock) -> FsObservation:
    """Return capacity and available space of the filesystem of ``path``.

    Raises:
        ObservationError: the path cannot be read, or the numbers are impossible.

    Source: statvfs(3); ``f_bavail`` is the space available to unprivileged users.
    """
    try:
        stats, device = os.statvfs(path), os.stat(path).st_dev  # noqa: PTH116 - one style for the pair
    except FileNotFoundError as error:
        raise ObservationError(
            f"{path} does not exist; if the runtime runs in another mount namespace, set runtime.imagefs_path to the "
            "path in the agent's namespace"
        ) from error
    except OSError as error:
        raise ObservationError(f"cannot read {path}: {error.strerror or error}") from error
    capacity, available = stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize
    if capacity <= 0:
        raise ObservationError(f"impossible reading of {path}: capacity {capacity}")
    if not 0 <= available <= capacity:
        raise ObservationError(f"impossible reading of {path}: {available} bytes available of {capacity}")
    return FsObservation(
        path=path,
        device_id=device,
        capacity_bytes=capacity,
        available_bytes=available,
        inodes=stats.f_files,
        inodes_free=stats.f_ffree,
        observed_at=clock.now(),
    )
