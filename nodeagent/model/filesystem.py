"""Filesystem readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record

if TYPE_CHECKING:
    from datetime import datetime


class FsObservation(Record):
    """One plausible reading of a filesystem; implausible ones are rejected by the reader.

    Attributes:
        path: path of the reading.
        device_id: device of the filesystem, the same for all its subvolumes and bind mounts.
        capacity_bytes: size, always positive.
        available_bytes: bytes available to unprivileged users, 0 up to the capacity.
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


class ImageFilesystem(Record):
    """One of the image filesystems of a node with several.

    Attributes:
        path: a path on it: the mount point reported by the runtime, else the directory of a snapshotter.
        stores: names of the snapshotters on it, and the empty name for the content store.
        observed: its reading; ``None`` if it could not be read.
        error: cause of a missing reading; empty normally.
    """

    path: str
    stores: frozenset[str] = frozenset()
    observed: FsObservation | None = None
    error: str = ""

    @property
    def label(self) -> str:
        """The snapshotters, for display, such as ``native``; the path without any."""
        return ",".join(sorted(self.stores - {""})) or self.path
