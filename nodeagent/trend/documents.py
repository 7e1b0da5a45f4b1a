"""Documents of the node over time: the outlook of each resource, its record, and what happened meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.api.common import Document, Part
from nodeagent.api.outlook import Amount, ForecastDocument, GrowthDocument, OutlookDocument
from nodeagent.record import Time
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.trend.plan.forecast import Forecast
    from nodeagent.trend.plan.outlook import ResourceOutlook


def outlook_document(value: ResourceOutlook) -> OutlookDocument:
    """Return the document form of an outlook."""
    return OutlookDocument.from_value(
        value,
        forecasts=tuple(ForecastDocument.from_value(each, **_of_threshold(each)) for each in value.forecasts),
        growth=tuple(map(GrowthDocument.from_value, value.growth)),
    )


def _of_threshold(value: Forecast) -> dict[str, object]:
    return {"threshold": value.threshold.name, "used": value.threshold.used}


class TrendPoint(Part, frozen=True, kw_only=True):
    """Amount in use at one time; ``new_start`` after a jump of the clock, or a reboot that emptied the resource."""

    at: Time
    used: Amount
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
