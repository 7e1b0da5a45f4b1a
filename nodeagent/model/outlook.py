"""Values of the forecasts: kinds of thresholds and of forecasts, and whether a shortage is expected.

The values of the closed sets are part of the JSON output; existing values never change.
"""

from __future__ import annotations

from enum import StrEnum

from nodeagent.record import Record


class ThresholdKind(StrEnum):
    """What happens once a threshold of a resource is met: image GC, a soft or hard eviction, or nothing is left."""

    COLLECTION = "collection"
    SOFT = "soft"
    HARD = "hard"
    FULL = "full"


class Outlook(StrEnum):
    """Kind of a forecast: a range of time, met already, use that does not grow, or too few readings."""

    RANGE = "range"
    REACHED = "reached"
    NO_TREND = "no-trend"
    UNKNOWN = "unknown"


class ExpectedShortage(Record):
    """Whether a shortage of a resource of the node is expected within hours.

    Attributes:
        is_expected: ``None`` if it is unknown.
        detail: time and growth of each expected shortage, or the unknown resources, for display; else empty.
    """

    is_expected: bool | None
    detail: str = ""


class GrowthCategory(StrEnum):
    """Category of the use of a resource that grows. The values are part of the JSON output and of the metrics.

    ``PODS`` is the category of memory and process ids, ``OTHER`` growth that no reading explains.
    """

    IMAGES = "images"
    UNREFERENCED = "unreferenced"
    UNDO = "undo-windows"
    WRITABLE = "writable-layers"
    LOGS = "pod-logs"
    VOLUMES = "pod-volumes"
    PODS = "pods"
    OTHER = "other"
