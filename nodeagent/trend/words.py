"""The outlook of resources in words, for commands, log events and the Node object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from nodeagent.model.outlook import Outlook, ThresholdKind
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from nodeagent.api.outlook import ForecastDocument, OutlookDocument

_NAMES: Final[Mapping[ThresholdKind, str]] = {
    ThresholdKind.COLLECTION: "image GC",
    ThresholdKind.SOFT: "soft eviction",
    ThresholdKind.HARD: "eviction",
    ThresholdKind.FULL: "full",
}
_COUNTED: Final = ("inodesFree", "pid.")


def short_name(outlook: OutlookDocument) -> str:
    """Return the name of a resource for display, since use is shown: ``imagefs`` for the signal of available bytes."""
    return outlook.resource.replace(".available", "", 1).replace(".inodesFree", " inodes", 1)


def next_words(outlook: OutlookDocument) -> str:
    """Return what happens next, such as ``image GC at 85% in 2h to 5h, at 1.2 GiB/h, 80% by a/b logs``."""
    coming = [each for each in outlook.forecasts if each.outlook is Outlook.RANGE]
    if coming:
        soonest = min(coming, key=lambda each: each.expected_s or 0.0)
        return ", ".join(filter(None, (forecast_words(outlook, soonest), driver(outlook))))
    reached = [each for each in outlook.forecasts if each.outlook is Outlook.REACHED]
    if reached:
        return forecast_words(outlook, reached[-1])
    unknown = [each for each in outlook.forecasts if each.outlook is Outlook.UNKNOWN]
    if unknown:
        return f"unknown: {format_duration(round(unknown[0].observed_s))} of readings"
    return "no trend"


def forecast_words(outlook: OutlookDocument, forecast: ForecastDocument) -> str:
    """Return a forecast in words; the times of a range are rounded to one unit."""
    at = f"{_NAMES[forecast.threshold]} at {forecast.used / outlook.capacity:.0%}"
    if forecast.outlook is Outlook.REACHED:
        return f"{at}: reached"
    if forecast.outlook is Outlook.NO_TREND:
        return f"{at}: no trend"
    if forecast.outlook is not Outlook.RANGE or forecast.expected_s is None:
        return f"{at}: unknown, {format_duration(round(forecast.observed_s))} of readings"
    rate = "" if forecast.rate_per_s is None else f", at {rate_words(outlook, forecast.rate_per_s)}"
    return f"{at} in {duration_range(forecast)}{rate}"


def duration_range(forecast: ForecastDocument) -> str:
    """Return the range of a forecast, such as ``2h to 5h``, or ``more than 2h`` without an end."""
    earliest = _rounded(forecast.earliest_s or 0.0)
    if forecast.latest_s is None:
        return f"more than {earliest}"
    latest = _rounded(forecast.latest_s)
    return f"about {latest}" if earliest == latest else f"{earliest} to {latest}"


def _rounded(seconds: float) -> str:
    """Return a duration in the unit that suits its size."""
    for unit_s in (86_400, 3_600, 60):
        if seconds >= 2 * unit_s:
            return format_duration(round(seconds / unit_s) * unit_s)
    return format_duration(max(60, round(seconds / 60) * 60))


def driver(outlook: OutlookDocument) -> str:
    """Return the part with the largest share of the growth, such as ``80% by a/b logs``; empty if it is unknown."""
    known = [each for each in outlook.growth if each.part]
    return f"{known[0].share:.0%} by {known[0].part}" if known else ""


def amount(outlook: OutlookDocument, value: float) -> str:
    """Return an amount of a resource: bytes, or a count of inodes or process ids."""
    return f"{int(value):,}" if any(each in outlook.resource for each in _COUNTED) else format_bytes(int(value))


def rate_words(outlook: OutlookDocument, per_s: float) -> str:
    """Return a rate per hour."""
    sign = "-" if per_s < 0 else ""
    return f"{sign}{amount(outlook, abs(per_s) * 3600)}/h"
