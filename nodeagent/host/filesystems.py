"""Usage, type and mount of filesystems.

Mounts are read from ``mountinfo``, which contains their ids and devices, unlike the mounts of psutil. psutil also cuts
lines at 4096 bytes, which is less than the options of an overlay of many layers, and reads with Python's global lock
held: on a disk that does not answer, the kernel can block in the name of a Btrfs subvolume, and all threads with it.
Capacity, inodes and flags of a filesystem are read in one ``statvfs``, since psutil returns no inodes and no flags.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.files import closing_descriptor
from nodeagent.model.runtime import FsObservation

if TYPE_CHECKING:
    from nodeagent.units import Clock

_OCTAL: Final = re.compile(r"\\([0-7]{3})")


MOUNTINFO: Final = "/proc/self/mountinfo"


def filesystem_type(path: str, mountinfo: str = MOUNTINFO) -> str:
    """Return the type of the filesystem of ``path``, such as ``ext4``; empty if unknown.

    Source: proc(5), the field of ``mountinfo`` after the separator ``-``.
    """
    line = _mount_of(path, mountinfo)
    return line.partition(" - ")[2].split()[0] if line else ""


def filesystem_id(path: str, mountinfo: str = MOUNTINFO) -> int | None:
    """Return the device of the filesystem of ``path``; ``None`` if the path cannot be read.

    The device is that of the superblock, which is equal for all Btrfs subvolumes and bind mounts of one filesystem,
    whereas ``st_dev`` and the id in ``statvfs`` differ between subvolumes. Without ``mountinfo`` the result is
    ``st_dev``.

    Source: proc(5), the field ``major:minor`` of ``mountinfo``; btrfs(5), subvolumes have device numbers of their own.
    """
    try:
        device = os.stat(path).st_dev  # noqa: PTH116 - one call, no object
    except (OSError, ValueError):
        return None
    try:
        major, minor = _mount_of(path, mountinfo).split()[2].split(":")
        return os.makedev(int(major), int(minor))
    except (ValueError, IndexError, OverflowError):
        return device


def is_read_only(path: str) -> bool:
    """Return whether a filesystem is mounted read-only, such as after an I/O error; false if it cannot be read.

    Source: statvfs(3), ``ST_RDONLY``.
    """
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except (OSError, ValueError):
        return False


def _mount_of(path: str, mountinfo: str) -> str:
    """Return the line in ``mountinfo`` of the mount of a path; empty if unknown.

    The mount is identified by its id, since the device number of a Btrfs subvolume differs from that of its mount.
    """
    try:
        with closing_descriptor(os.open(path, os.O_PATH | os.O_CLOEXEC)) as descriptor:
            mount = mount_id(descriptor)
        with open(mountinfo, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - a fixed path
            return next((line for line in lines if mount and line.partition(" ")[0] == mount), "")
    except OSError:
        return ""


def read_mounts(mountinfo: str = MOUNTINFO) -> dict[str, str]:
    """Return the filesystem type by mount point, of the last mount if several are stacked. Empty if unreadable.

    Source: proc(5) on ``mountinfo``.
    """
    try:
        return {unescape(fields[4]): right.split()[0] for fields, right in mount_lines(mountinfo)}
    except (OSError, IndexError):
        return {}


def mount_lines(mountinfo: str) -> Iterator[tuple[list[str], str]]:
    """Yield each line as the fields before the separator ``-``, and the text after it.

    Raises:
        OSError: the file cannot be read.

    Source: proc(5) on ``mountinfo``.
    """
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123 - a fixed path
        for line in lines:
            left, _, right = line.partition(" - ")
            yield left.split(), right


def mount_point(path: str, mountinfo: str = MOUNTINFO) -> str:
    """Return the mount point of the filesystem of a path that shows the largest part of it, if possible the path's own.

    Source: proc(5) on ``mountinfo``, the field ``root``.
    """
    mounts = _read_roots(mountinfo)
    own = _point_of(os.path.realpath(path), mounts)
    points = [point for point, (device, _) in mounts.items() if own in mounts and device == mounts[own][0]]
    return min(points, key=lambda point: (len(mounts[point][1]), point != own, point), default=own)


class FilesystemMounts:
    """Mounts of one filesystem, for walks that count each of its files once: a bind mount shows a directory again.

    Attributes:
        others: mount points of other filesystems, and of directories that ``top`` shows at another path.
    """

    def __init__(self, top: str, mountinfo: str = MOUNTINFO) -> None:
        """Read the mounts of the filesystem mounted at ``top``."""
        self._top, self._mounts = top, _read_roots(mountinfo)
        device, _ = self._mounts.get(top, ("", ""))
        self.others = frozenset(
            point
            for point, (its_device, _) in self._mounts.items()
            if point != top and (its_device != device or self._path_below_top(point) != point)
        )

    def path_below_top(self, path: str) -> str:
        """Return the path below ``top`` of the file at ``path``; its real path if ``top`` does not show the file."""
        return self._path_below_top(os.path.realpath(path))

    def _path_below_top(self, real: str) -> str:
        point = _point_of(real, self._mounts)
        (device, root), (top_device, top_root) = (self._mounts.get(each, ("", "/")) for each in (point, self._top))
        inside = _joined(root, real.removeprefix(point))
        if device != top_device or not f"{inside}/".startswith(_joined(top_root, "")):
            return real
        return _joined(self._top, inside.removeprefix(top_root)).rstrip("/") or "/"


def _read_roots(mountinfo: str) -> dict[str, tuple[str, str]]:
    """Return device and root by mount point, of the last mount if several are stacked; empty if unreadable."""
    try:
        return {unescape(fields[4]): (fields[2], unescape(fields[3])) for fields, _ in mount_lines(mountinfo)}
    except (OSError, IndexError):
        return {}


def _point_of(real: str, mounts: Collection[str]) -> str:
    """Return the mount point of a path without symlinks."""
    while real not in mounts and real != "/":
        real = os.path.dirname(real)  # noqa: PTH120 - the path is a text
    return real


def _joined(path: str, rest: str) -> str:
    return f"{path.rstrip('/')}/{rest.lstrip('/')}"


def unescape(text: str) -> str:
    """Return a path of ``mountinfo`` with its octal escapes decoded.

    Source: proc(5), ``/proc/PID/mounts``.
    """
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


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
        stats = os.statvfs(path)
    except FileNotFoundError as error:
        raise ObservationError(
            f"{path} does not exist; if the runtime runs in another mount namespace, set runtime.imagefs_path to the "
            "path in the agent's namespace"
        ) from error
    except OSError as error:
        raise ObservationError(f"cannot read {path}: {error.strerror or error}") from error
    device = filesystem_id(path)
    if device is None:
        raise ObservationError(f"cannot read {path}: it no longer exists")
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


def read_reserved_bytes(path: str) -> int:
    """Return the free space of a filesystem that only root can use, such as 5 % by default on ext4; 0 if unreadable.

    Btrfs reserves none: its difference is space for its own metadata.

    Source: statvfs(3), ``f_bfree`` minus ``f_bavail``; kernel ``btrfs_statfs``.
    """
    if filesystem_type(path) == "btrfs":
        return 0
    try:
        stats = os.statvfs(path)
    except OSError:
        return 0
    return max(0, stats.f_bfree - stats.f_bavail) * stats.f_frsize


_START_SYNC: Final = 0x80089418
"""``BTRFS_IOC_START_SYNC``. Source: kernel, include/uapi/linux/btrfs.h."""


def start_commits(paths: Iterable[str]) -> None:
    """Start a commit on each Btrfs filesystem of these paths, without waiting for its end.

    A removed path is replaced by its nearest existing parent. Other filesystems and unreadable paths are skipped.
    """
    existing = dict.fromkeys(_existing(Path(each)) for each in paths)
    for path in existing:
        if filesystem_type(path) != "btrfs":
            continue
        with suppress(OSError), closing_descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            fcntl.ioctl(descriptor, _START_SYNC, struct.pack("Q", 0))


def _existing(path: Path) -> str:
    """Return a path or its nearest existing parent."""
    return str(next((each for each in (path, *path.parents) if os.path.lexists(each)), path))
