"""Filesystem readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record

if TYPE_CHECKING:
    from datetime import datetime


class FsObservation(Record):
    """One plausible reading of a filesystem; the reader rejects implausible readings.

    Attributes:
        path: the path that was passed to statvfs.
        device_id: device id of the filesystem, equal for all its subvolumes and bind mounts.
        capacity_bytes: size, always positive.
        available_bytes: bytes available to unprivileged users, from 0 to the capacity.
        inodes: total inodes; 0 on filesystems without a fixed number.
        inodes_free: free inodes.
        observed_at: wall time of the reading.

    Source: statvfs(3), ``f_blocks`` and ``f_bavail`` times ``f_frsize``, ``f_files`` and ``f_ffree``.
    """

    path: str
    device_id: int
    capacity_bytes: int
    available_bytes: int
    inodes: int
    inodes_free: int
    observed_at: datetime

    @property
    def used_percent(self) -> int:
        """Usage in whole percent, rounded up by truncating the available share, as the kubelet does."""
        return 100 - self.available_bytes * 100 // self.capacity_bytes

    def bytes_until(self, percent: int) -> int:
        """Return the least further usage in bytes at which ``used_percent`` is ``percent``; 0 from there on."""
        return max(0, self.available_bytes - ((101 - percent) * self.capacity_bytes - 1) // 100)


class ImageFilesystem(Record):
    """One image filesystem of a node with several image filesystems.

    Attributes:
        path: a path on the filesystem: the mount point reported by the runtime, else the directory of a snapshotter.
        stores: names of the snapshotters on the filesystem, and the empty name for the content store.
        observed: reading of the filesystem; ``None`` after a failed reading.
        error: cause of the failed reading; empty after a successful reading.
    """

    path: str
    stores: frozenset[str] = frozenset()
    observed: FsObservation | None = None
    error: str = ""

    @property
    def label(self) -> str:
        """Names of the snapshotters, for display, such as ``native``; the path of a filesystem without snapshotter."""
        return ",".join(sorted(self.stores - {""})) or self.path
