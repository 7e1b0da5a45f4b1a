"""Image filesystem of a simulated node, with the containerd metadata stored on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from tests.sim.clock import SimClock
from tests.sim.store import SNAPSHOTTER, MetadataStore

if TYPE_CHECKING:
    from datetime import datetime


GIB: Final = 1024**3
_FILE_BYTES: Final = 16384


class DiskProperties(TypedDict, total=False):
    """Optional arguments of ``SimDisk``."""

    clock: SimClock | None
    capacity_bytes: int
    other_bytes: int
    inodes: int
    other_inodes: int
    root_path: str


class SimDisk:
    """Simulated image filesystem with a manual clock.

    Attributes:
        clock: manual clock; ``now`` is its wall time.
        store: containerd's metadata.
        capacity_bytes: size of the image filesystem.
        other_bytes: usage of the image filesystem by other data.
        root_path: containerd's root directory, the mount point of the image filesystem.
        revision: number of changes of the node since its creation; caches compare it.
    """

    def __init__(
        self,
        *,
        clock: SimClock | None = None,
        capacity_bytes: int = 40 * GIB,
        other_bytes: int = 0,
        inodes: int = 0,
        other_inodes: int = 0,
        root_path: str = "/var/lib/containerd",
    ) -> None:
        """Create an empty filesystem; with ``inodes`` 0 it has one inode per 16 KiB, as ext4 does."""
        self.clock = clock or SimClock()
        self.store = MetadataStore()
        self.capacity_bytes = capacity_bytes
        self.other_bytes = other_bytes
        self.inodes = inodes or capacity_bytes // _FILE_BYTES
        self.other_inodes = other_inodes
        self.root_path = root_path
        self.revision = 0

    @property
    def now(self) -> datetime:
        """Wall time of the clock."""
        return self.clock.now()

    def advance(self, seconds: float) -> None:
        """Advance the manual clock."""
        self.clock.advance(seconds)

    @property
    def imagefs_path(self) -> str:
        """Mount point in containerd's response to ``ImageFsInfo``."""
        return f"{self.root_path}/io.containerd.snapshotter.v1.{SNAPSHOTTER}"

    @property
    def used_bytes(self) -> int:
        """Used bytes of the image filesystem."""
        return self.other_bytes + self.store.used_bytes

    @property
    def available_bytes(self) -> int:
        """Available bytes of the image filesystem, never below 0."""
        return max(0, self.capacity_bytes - self.used_bytes)

    @property
    def inodes_free(self) -> int:
        """Free inodes of the image filesystem, never below 0."""
        return max(0, self.inodes - self.other_inodes - self.store.inodes_used)

    def fill_to(self, used_percent: float) -> None:
        """Resize other data so that ``used_percent`` of the filesystem is used.

        Raises:
            ValueError: container data alone exceeds that usage.
        """
        other = int(self.capacity_bytes * used_percent / 100) - self.store.used_bytes
        if other < 0:
            raise ValueError(f"container data alone exceeds {used_percent} percent")
        self.other_bytes = other

    def collect_garbage(self) -> int:
        """Run the garbage collector; return the freed bytes."""
        before = self.store.used_bytes
        self.store.collect()
        self._changed()
        return before - self.store.used_bytes

    def _changed(self) -> None:
        self.revision += 1
