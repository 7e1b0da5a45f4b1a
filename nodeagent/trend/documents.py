"""Documents of the node over time: the outlook of each resource, its record, and what happened meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.api.common import Document, Number, Part
from nodeagent.record import Time
from nodeagent.schemas import SchemaId
from nodeagent.trend.plan.forecast import Outlook

if TYPE_CHECKING:
    from nodeagent.trend.plan.forecast import Forecast
    from nodeagent.trend.plan.outlook import ResourceOutlook


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

    threshold: str
    used: Number
    outlook: Outlook
    earliest_s: Number | None
    expected_s: Number | None
    latest_s: Number | None
    rate_per_s: Number | None
    observed_s: Number

    @classmethod
    def of(cls, value: Forecast) -> ForecastDocument:
        """Return the document form of a forecast."""
        return cls(
            threshold=value.threshold.name,
            used=value.threshold.used,
            outlook=value.outlook,
            earliest_s=value.earliest_s,
            expected_s=value.expected_s,
            latest_s=value.latest_s,
            rate_per_s=value.rate_per_s,
            observed_s=value.observed_s,
        )


class GrowthDocument(Part, frozen=True, kw_only=True):
    """A growing part of a resource.

    Attributes:
        part: pod, repository or category; empty for the rest.
        rate_per_s: growth per second.
        share: share of the growth of all growing parts, from 0 to 1.
    """

    part: str
    rate_per_s: Number
    share: Number


class OutlookDocument(Part, frozen=True, kw_only=True):
    """Outlook of one resource.

    Attributes:
        resource: name of the signal, such as ``nodefs.available``.
        used: amount in use, in the unit of the signal.
        hours: highest used share of each of the last 24 hours, oldest first; ``None`` without a reading.
    """

    resource: str
    used: Number
    capacity: Number
    observed_at: Time
    forecasts: tuple[ForecastDocument, ...]
    growth: tuple[GrowthDocument, ...]
    hours: tuple[Number | None, ...]

    @classmethod
    def of(cls, value: ResourceOutlook) -> OutlookDocument:
        """Return the document form of an outlook."""
        return cls.from_value(
            value,
            forecasts=tuple(map(ForecastDocument.of, value.forecasts)),
            growth=tuple(
                GrowthDocument(part=each.part, rate_per_s=each.rate_per_s, share=each.share) for each in value.growth
            ),
        )


class TrendPoint(Part, frozen=True, kw_only=True):
    """Amount in use at one time; ``new_start`` after a jump of the clock, or a reboot that emptied the resource."""

    at: Time
    used: Number
    new_start: bool = False


class TrendMark(Part, frozen=True, kw_only=True):
    """Something that happened: ``kind`` is ``collection``, ``eviction`` or ``reboot``."""

    at: Time
    kind: str
    text: str


class ResourceTrend(Part, frozen=True, kw_only=True):
    """Record of one resource, thinned out to the highest reading of each period."""

    outlook: OutlookDocument
    points: tuple[TrendPoint, ...]


class Trend(Document, frozen=True, kw_only=True, tag=SchemaId.TREND.value):
    """The record of the node's resources and their outlook.

    Attributes:
        since: start of the record that was asked for.
        marks: passes that freed space, evictions and reboots, oldest first.
    """

    observed_at: Time
    since: Time
    resources: tuple[ResourceTrend, ...]
    marks: tuple[TrendMark, ...]
    warnings: tuple[str, ...] = ()
