"""The outlook of resources in words, for commands, log events and the Node object."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from math import floor
from typing import TYPE_CHECKING, Final

from nodeagent.eviction.plan.thresholds import Unit, unit_of
from nodeagent.model.outlook import Outlook, ThresholdKind
from nodeagent.trend.shortage import SHORTAGE, FirstThreshold, first_threshold
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from nodeagent.api.outlook import ForecastDocument, GrowthDocument, OutlookDocument

_NAMES: Final[Mapping[ThresholdKind, str]] = {
    ThresholdKind.COLLECTION: "image GC",
    ThresholdKind.SOFT: "soft eviction",
    ThresholdKind.HARD: "eviction",
    ThresholdKind.FULL: "full",
}
_LEAST_SHARE: Final = 0.01
"""Smallest share of a growth with a statement of its part."""


def short_name(outlook: OutlookDocument) -> str:
    """Return the name of a resource for display, since use is shown: ``imagefs`` for the signal of available bytes."""
    return short_resource(outlook.resource)


def short_resource(resource: str) -> str:
    """Return the name of a resource as ``short_name`` does."""
    if resource == "swap.free":
        return "swap"
    return resource.replace(".available", "", 1).replace(".inodesFree", " inodes", 1)


def next_words(outlook: OutlookDocument) -> str:
    """Return what happens next, such as ``image GC at 85%: reached; eviction at 90% in 2h to 5h, at 1.2 GiB/h``.

    It is the last threshold that is reached, then the next one; after image GC also the one that follows.
    """
    reached = [each for each in outlook.forecasts if each.outlook is Outlook.REACHED]
    coming = _coming(outlook)
    collections = list(takewhile(lambda each: each.threshold is ThresholdKind.COLLECTION, coming))
    named = [*reached[-1:], *coming[: len(collections) + 1]]
    if named:
        before = [forecast_words(outlook, each) for each in named[:-1]]
        return "; ".join([*before, driven_words(outlook, named[-1])])
    unknown = [each for each in outlook.forecasts if each.outlook is Outlook.UNKNOWN]
    return f"unknown: {readings_words(unknown[0])}" if unknown else "no trend"


def shortage_words(first: FirstThreshold) -> str:
    """Return the first threshold of a resource, such as ``imagefs: eviction at 90% in 2h to 5h, at 1.2 GiB/h``."""
    return f"{short_name(first.outlook)}: {driven_words(*first)}"


def part_words(outlook: OutlookDocument, growing: GrowthDocument) -> str:
    """Return the growth of one part, such as ``a/b logs: 1.2 GiB/h on nodefs, 80% of its growth``, and what follows."""
    first = first_threshold([outlook], SHORTAGE)
    share = f"{rate_words(outlook, growing.rate_per_s)} on {short_name(outlook)}, {growing.share:.0%} of its growth"
    return f"{growing.part}: {share}{'' if first is None else f'; {threshold_words(*first)}'}"


def growth_words(outlook: OutlookDocument) -> str:
    """Return the rate with which the next threshold is expected and the part that grows most; empty if unknown."""
    rates = [f"at {rate_words(outlook, each.rate_per_s)}" for each in _coming(outlook) if each.rate_per_s is not None]
    return ", ".join(filter(None, (*rates[:1], driver(outlook))))


def _coming(outlook: OutlookDocument) -> list[ForecastDocument]:
    """Return the forecasts with a range of time, soonest first."""
    coming = [each for each in outlook.forecasts if each.outlook is Outlook.RANGE]
    return sorted(coming, key=lambda each: each.expected_s or 0.0)


def driven_words(outlook: OutlookDocument, forecast: ForecastDocument) -> str:
    """Return a forecast in words; of a range with its rate and the part that grows most."""
    growing = driver(outlook) if forecast.outlook is Outlook.RANGE else ""
    return ", ".join(filter(None, (forecast_words(outlook, forecast), growing)))


def forecast_words(outlook: OutlookDocument, forecast: ForecastDocument) -> str:
    """Return a forecast in words, of a range with its rate."""
    rate = "" if forecast.rate_per_s is None else f", at {rate_words(outlook, forecast.rate_per_s)}"
    return f"{threshold_words(outlook, forecast)}{rate}"


def threshold_words(outlook: OutlookDocument, forecast: ForecastDocument) -> str:
    """Return a threshold and when it is met; the times of a range are rounded to one unit."""
    at = f"{_NAMES[forecast.threshold]} at {_percent(forecast.used / outlook.capacity)}"
    return (
        f"{at} in {duration_range(forecast)}" if forecast.outlook is Outlook.RANGE else f"{at}: {when_words(forecast)}"
    )


def _percent(share: float) -> str:
    """Return a share in percent; one below 1 is never shown as 100%, such as that of 100 MiB on a large machine."""
    return f"{floor(share * 1000) / 10:.1f}%" if 0.995 <= share < 1 else f"{share:.0%}"


def when_words(forecast: ForecastDocument) -> str:
    """Return when a threshold is met, such as ``2h to 5h``, ``reached`` or ``unknown, 4m of readings``."""
    match forecast.outlook:
        case Outlook.RANGE:
            return duration_range(forecast)
        case Outlook.REACHED:
            return "reached"
        case Outlook.NO_TREND:
            return "no trend"
        case Outlook.UNKNOWN:
            return f"unknown, {readings_words(forecast)}"


def readings_words(forecast: ForecastDocument) -> str:
    """Return how long the readings of a forecast are, such as ``4m of readings``."""
    if not forecast.observed_s:
        return "too few recent readings"
    return f"{format_duration(round(forecast.observed_s))} of readings"


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
    """Return the part with the largest share of the growth, such as ``80% by a/b logs``; empty if none is known."""
    known = [each for each in outlook.growth if each.part and each.share >= _LEAST_SHARE]
    return f"{known[0].share:.0%} by {known[0].part}" if known else ""


def used_words(outlook: OutlookDocument) -> str:
    """Return the amount in use and the capacity, such as ``1.20 GiB of 4.00 GiB``."""
    return f"{quantity(outlook.resource, outlook.used)} of {quantity(outlook.resource, outlook.capacity)}"


def quantity(signal: str, value: float) -> str:
    """Return an amount of a signal in its unit by :func:`~nodeagent.eviction.plan.thresholds.unit_of`."""
    match unit_of(signal):
        case Unit.BYTES:
            return format_bytes(int(value))
        case Unit.STALL_PERCENT:
            return f"{round(value, 1):g}%"
        case Unit.INODES | Unit.PIDS:
            return f"{int(value):,}"


def rate_words(outlook: OutlookDocument, per_s: float) -> str:
    """Return a rate per hour."""
    sign = "-" if per_s < 0 else ""
    return f"{sign}{quantity(outlook.resource, abs(per_s) * 3600)}/h"
