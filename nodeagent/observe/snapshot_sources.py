"""Sources of the node snapshot other than the runtime and the filesystems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from nodeagent.model import ClockTrust, GapCause, Hold, ImageUseRecord, PodImages, Role
    from nodeagent.observe.clock_reading import FirstSeenReader
    from nodeagent.store import ClockReading


class NodeMemory(Protocol):
    """State kept between observations; its methods block. Implemented by ``Store``."""

    @property
    def first_seen(self) -> FirstSeenReader:
        """Return the reader of the first observations of items with a time that contradicts the clock."""

    def read_clock(self, at: ClockReading) -> ClockTrust:
        """Record a reading of the clocks and return the trust in its wall clock."""

    def observe(
        self, listed: Mapping[str, datetime | None], in_use: Collection[str], at: ClockReading
    ) -> ImageUseRecord:
        """Record one detection and return the usage of each listed image.

        Args:
            listed: image id to time of pull; ``None`` if unknown.
            in_use: ids of the images in use.
            at: reading of the clocks at the detection.
        """

    def interrupt(self, cause: GapCause) -> None:
        """Record the cause of a gap in the observation of image use that begins now."""


class HoldReader(Protocol):
    """Reader of the image holds of operators. Blocks."""

    def __call__(self) -> tuple[Hold, ...]:
        """Return the holds. Raises StoreError if the holds cannot be read."""


class PodImageSource(Protocol):
    """Source of the images named by the pods of this node."""

    async def __call__(self) -> PodImages:
        """Return the images named by pods; the result includes the errors of failed readings."""


class RoleReader(Protocol):
    """Source of the role of the agent on this node."""

    async def __call__(self) -> Role:
        """Return the current role."""
