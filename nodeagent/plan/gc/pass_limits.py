"""Limits on the image removals of one pass."""

from __future__ import annotations

from typing import Final

from nodeagent.plan.decision import Reason, ReasonCode
from nodeagent.record import Record

LIMITS: Final = frozenset({ReasonCode.LIMIT_IMAGES_PER_PASS, ReasonCode.LIMIT_BYTES_PER_PASS})
"""Reason codes of images kept by a limit per pass."""


class Spent(Record):
    """Number and size of the images removed in earlier rounds of a pass, counted against the limits per pass."""

    images: int = 0
    size_bytes: int = 0


class PassLimits:
    """Limits per pass. After the first image that would exceed a limit, no further image of any size is removed."""

    def __init__(self, max_images: int, max_bytes: int, spent: Spent) -> None:
        """Count the removals of earlier rounds; a limit of 0 disables this limit."""
        self._max_images = max_images
        self._max_bytes = max_bytes
        self._images = spent.images
        self._bytes = spent.size_bytes
        self._exceeded: Reason | None = None

    def exceeded_by(self, size_bytes: int | None) -> Reason | None:
        """Return the reason if one more image of this size exceeds a limit; ``None`` within the limits."""
        if self._exceeded is None:
            if 0 < self._max_images <= self._images:
                self._exceeded = Reason(ReasonCode.LIMIT_IMAGES_PER_PASS, {"limit": self._max_images})
            elif 0 < self._max_bytes < self._bytes + (size_bytes or 0) and self._images:
                self._exceeded = Reason(ReasonCode.LIMIT_BYTES_PER_PASS, {"limit_bytes": self._max_bytes})
        return self._exceeded

    def count(self, size_bytes: int | None) -> None:
        """Count the removal of one more image of this size."""
        self._images += 1
        self._bytes += size_bytes or 0
