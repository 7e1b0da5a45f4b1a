"""Closed sets of values of the forecasts: the thresholds of a resource, and the kinds of a forecast.

The values are part of the JSON output; existing values never change.
"""

from __future__ import annotations

from enum import StrEnum


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
