"""Parts of documents that several features share: the outlook of a resource, with the forecast of each threshold."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from nodeagent.api.common import Part
from nodeagent.model.outlook import GrowthCategory, Outlook, ThresholdKind
from nodeagent.record import Time

_MOST: Final = 1 << 62
Amount = Annotated[int, Meta(ge=-_MOST, le=_MOST)] | Annotated[float, Meta(ge=-_MOST, le=_MOST)]
"""An amount, rate or duration, limited so that those of a foreign report can be computed with and formatted."""
Capacity = Annotated[int, Meta(gt=0, le=_MOST)] | Annotated[float, Meta(gt=0, le=_MOST)]


class ForecastDocument(Part, frozen=True, kw_only=True):
    """When one threshold of a resource will be met.

    Attributes:
        threshold: ``collection`` (image GC), ``soft`` or ``hard`` (eviction), or ``full``.
        used: amount in use at which it is met.
        outlook: ``range``, ``reached``, ``no-trend``, or ``unknown`` with too few readings.
        earliest_s: seconds until the earliest, expected and latest time of a range; ``None`` otherwise. The latest is
            ``None`` without an end.
        rate_per_s: growth per second of what counts for the threshold; ``None`` without a trend.
        observed_s: seconds of readings that were used.
    """

    threshold: ThresholdKind
    used: Amount
    outlook: Outlook
    earliest_s: Amount | None
    expected_s: Amount | None
    latest_s: Amount | None
    rate_per_s: Amount | None
    observed_s: Amount


class GrowthDocument(Part, frozen=True, kw_only=True):
    """A growing part of a resource.

    Attributes:
        part: pod, repository, or the rest of a category; empty for growth that no category explains.
        rate_per_s: growth per second.
        share: share of the growth of the use, or of the sum of all growing parts if that is larger, from 0 to 1.
        category: category of the part; ``other`` in the response of an older daemon.
    """

    part: str
    rate_per_s: Amount
    share: Amount
    category: GrowthCategory = GrowthCategory.OTHER


class OutlookDocument(Part, frozen=True, kw_only=True):
    """Outlook of one resource.

    Attributes:
        resource: name of the signal, such as ``nodefs.available``.
        used: amount in use, in the unit of the signal.
        hours: highest used share of each of the last 24 hours, oldest first; ``None`` without a reading.
    """

    resource: str
    used: Amount
    capacity: Capacity
    observed_at: Time
    forecasts: tuple[ForecastDocument, ...]
    growth: tuple[GrowthDocument, ...]
    hours: tuple[Amount | None, ...]
