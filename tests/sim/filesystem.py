"""Reader of the image filesystem of a simulated node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.model.runtime import FsObservation
from nodeagent.record import replace
from tests.sim.clock import SimClock

if TYPE_CHECKING:
    from nodeagent.units import Clock
    from tests.sim.node import SimNode

DEVICE_ID: Final = 0x51

__all__ = ["DEVICE_ID", "SimClock", "SimFilesystem"]


class SimFilesystem:
    """Reader of the node's image filesystem; a reading of any other path fails as for a missing file.

    Attributes:
        failing: error text of all readings; empty for successful readings.
    """

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.failing = ""

    def read_filesystem(self, path: str, clock: Clock) -> FsObservation:
        """Return the current usage of the node's filesystem.

        Raises:
            ObservationError: the path is outside the runtime's root directory, or ``failing`` is set.
        """
        root = self._node.root_path
        if self.failing:
            raise ObservationError(f"{path}: {self.failing}")
        if path != root and not path.startswith(f"{root}/"):
            raise ObservationError(f"{path}: no such file or directory")
        return FsObservation(
            path=path,
            device_id=DEVICE_ID,
            capacity_bytes=self._node.capacity_bytes,
            available_bytes=self._node.available_bytes,
            inodes=self._node.inodes,
            inodes_free=self._node.inodes_free,
            observed_at=clock.now(),
        )

    def read_node_filesystem(self, path: str, clock: Clock) -> FsObservation:
        """Return the current usage for any path: the simulated node has one filesystem.

        Raises:
            ObservationError: ``failing`` is set.
        """
        return replace(self.read_filesystem(self._node.root_path, clock), path=path)

    def read(self, path: str) -> FsObservation:
        """Return the current filesystem usage, with the time of the node's clock."""
        return self.read_filesystem(path, self._node.clock)
