"""Documents of operators' image holds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Self

from nodeagent.api.common import Document, Part
from nodeagent.gc.plan.image_protection import holds_in_force, left_in_boot_s
from nodeagent.model.clock import TRUSTED, ClockTrust
from nodeagent.model.node import ALL_IMAGES, Hold
from nodeagent.record import Time
from nodeagent.schemas import SchemaId


class HoldFields(Part, frozen=True, kw_only=True):
    """An image hold: temporary protection of images from removal.

    Attributes:
        image: reference, id, digest or pattern; ``None`` for all images.
        seconds_left: remaining seconds at the time of the document; 0 if the hold ends once the clock is trusted.
    """

    id: str
    image: str | None
    all: bool
    why: str
    by: str
    placed_at: Time
    until: Time
    seconds_left: int

    @classmethod
    def of(cls, value: Hold, now: datetime, clock: ClockTrust = TRUSTED) -> Self:
        """Return the document form of a hold; ``now`` is the wall time of ``clock``."""
        left_s = left_in_boot_s(value, clock)
        if left_s is None:
            left_s = (value.until - now).total_seconds()
        image, is_all, seconds_left = value.image or None, value.image == ALL_IMAGES, max(0, round(left_s))
        return cls.from_value(value, image=image, all=is_all, seconds_left=seconds_left)

    @property
    def target(self) -> str:
        """The protected images, for display."""
        return self.image or "all images"


class HoldDocument(HoldFields, Document, frozen=True, kw_only=True, tag=SchemaId.HOLD.value, tag_field="schema"):
    """One added or removed hold."""


class HoldList(Document, frozen=True, kw_only=True, tag=SchemaId.HOLD_LIST.value):
    """All holds in force."""

    holds: tuple[HoldFields, ...]

    @classmethod
    def of(cls, holds: Iterable[Hold], now: datetime, clock: ClockTrust) -> HoldList:
        """Return the document of the holds that have not ended."""
        return cls(holds=tuple(HoldFields.of(each, now, clock) for each in holds_in_force(holds, clock, now)))
