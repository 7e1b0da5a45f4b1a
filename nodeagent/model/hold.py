"""Holds: temporary exemptions of images from garbage collection, placed by operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record

if TYPE_CHECKING:
    from datetime import datetime

ALL_IMAGES = ""
LONGEST_HOLD_S = 365 * 86_400.0
"""Maximum duration of a hold; longer exemptions are protection rules of the configuration."""


class Hold(Record):
    """An image hold, which expires.

    Attributes:
        id: identifier of the hold, used to release the hold.
        image: an image's id, reference, digest or a pattern in the form of protection rules; ``ALL_IMAGES`` for every
            image.
        why: the operator's reason.
        by: the operator.
        placed_at: creation time, aware UTC.
        until: time of expiry, aware UTC.
        boot_id: id of the boot in which the hold was placed; empty if unknown.
        placed_s: CLOCK_BOOTTIME at the creation of the hold, in seconds; ``None`` if unknown.
    """

    id: str
    image: str
    why: str
    by: str
    placed_at: datetime
    until: datetime
    boot_id: str = ""
    placed_s: float | None = None

    @property
    def duration_s(self) -> float:
        """Seconds from the creation to the expiry of the hold."""
        return (self.until - self.placed_at).total_seconds()
