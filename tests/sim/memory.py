"""State between observations of a simulated node, in memory: image use observed for 30 days, clocks always trusted."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.model.clock import TRUSTED, ClockTrust
from nodeagent.model.runtime import GapCause, ImageUsage, ImageUseRecord
from nodeagent.store.state_file import merge_usage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from nodeagent.store.clock_record import ClockReading
    from nodeagent.store.observation import ItemKey

_OBSERVED: Final = timedelta(days=30)


class SimMemory:
    """In-memory implementation of ``NodeMemory``.

    The pull time of an image listed by the first observation is its first detection.
    """

    def __init__(self) -> None:
        """Create the state without any detection."""
        self._usage: dict[str, ImageUsage] | None = None

    def first_seen(
        self,
        _items: Mapping[ItemKey, datetime],
        _listed: Mapping[str, Collection[str]],
        _at: ClockReading,
        _states: Mapping[ItemKey, int],
        /,
    ) -> dict[ItemKey, datetime]:
        """Return an empty dictionary: no item has a time that contradicts the clock."""
        return {}

    def read_clock(self, _at: ClockReading) -> ClockTrust:
        """Return unlimited trust in the wall clock."""
        return TRUSTED

    def observe(
        self, listed: Mapping[str, datetime | None], in_use: Collection[str], at: ClockReading
    ) -> ImageUseRecord:
        """Record one detection and return the usage of each listed image."""
        if self._usage is None:
            self._usage = {key: ImageUsage(pulled, None, pulled) for key, pulled in listed.items() if pulled}
        self._usage = merge_usage(self._usage, listed, in_use, at.wall)
        return ImageUseRecord(dict(self._usage), at.wall - _OBSERVED)

    def interrupt(self, cause: GapCause) -> None:
        """Ignore the cause of a gap: image use is always observed."""
