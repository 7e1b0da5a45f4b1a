"""Shortages that the outlook expects: the first threshold that a resource meets, and whether it is near.

A shortage is near if a hard eviction threshold, or the end of a resource, is expected within ``NEAR_S`` or met. It ends
once the forecasts have not said so for ``ENDED_AFTER_S``, so that a rate at the limit of a trend is one shortage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.outlook import ExpectedShortage, Outlook, ThresholdKind

if TYPE_CHECKING:
    from nodeagent.api.outlook import ForecastDocument, OutlookDocument

NEAR_S: Final = 4 * 3600.0
"""Largest expected time of a near shortage; as in the alert rule ``NodeagentThresholdExpected``."""
SETTLED_S: Final = 900.0
"""Least time of readings with a warning: the growth of the first minutes is often that of a start."""
ENDED_AFTER_S: Final = 3600.0
EVICTION: Final = frozenset({ThresholdKind.SOFT, ThresholdKind.HARD})
SHORTAGE: Final = frozenset({ThresholdKind.HARD, ThresholdKind.FULL})
_ORDER: Final = (Outlook.REACHED, Outlook.RANGE, Outlook.UNKNOWN, Outlook.NO_TREND)


class FirstThreshold(NamedTuple):
    """Threshold of some kinds that is met first, with its resource."""

    outlook: OutlookDocument
    forecast: ForecastDocument

    @property
    def is_near(self) -> bool:
        """Whether the threshold is met or near, see ``is_near``."""
        return is_near(self.forecast)


def is_near(forecast: ForecastDocument) -> bool:
    """Return whether a threshold is met, or by ``SETTLED_S`` of readings expected within ``NEAR_S``."""
    if forecast.outlook is Outlook.REACHED:
        return True
    return forecast.expected_s is not None and forecast.expected_s <= NEAR_S and forecast.observed_s >= SETTLED_S


def first_threshold(outlooks: Iterable[OutlookDocument], kinds: Collection[ThresholdKind]) -> FirstThreshold | None:
    """Return the threshold of these kinds that is met first; ``None`` without one.

    A threshold that is met precedes those with an expected time. An unknown time precedes no trend, since it may be
    earlier.
    """
    found = [FirstThreshold(each, one) for each in outlooks for one in each.forecasts if one.threshold in kinds]
    return min(found, key=_order, default=None)


def _order(value: FirstThreshold) -> tuple[int, float, str, float]:
    found = value.forecast
    return _ORDER.index(found.outlook), found.expected_s or 0.0, value.outlook.resource, found.used


def first_shortages(outlooks: Iterable[OutlookDocument]) -> tuple[FirstThreshold, ...]:
    """Return the first shortage of each resource with thresholds, the nearest first."""
    found = [first_threshold([each], SHORTAGE) for each in outlooks]
    return tuple(sorted((each for each in found if each is not None), key=_order))


def expected_shortage(
    shortages: Iterable[FirstThreshold], lasting: Collection[str], describe: Callable[[FirstThreshold], str]
) -> ExpectedShortage | None:
    """Return whether a shortage is expected; ``None`` without forecasts.

    A near shortage precedes one that lasts, and both precede the resources whose forecast is unknown.

    Args:
        shortages: first shortage of each resource.
        lasting: resources whose shortages last, see ``follow_shortages``.
        describe: returns the words for a shortage.
    """
    known = tuple(shortages)
    if not known:
        return None
    near = [each for each in known if each.is_near]
    unknown = [each for each in known if each.forecast.outlook is Outlook.UNKNOWN]
    ending = [each for each in known if each.outlook.resource in lasting and not near]
    words = [f"expected earlier, now {describe(each)}" for each in ending] or map(describe, near or unknown)
    is_expected = bool(near or ending)
    return ExpectedShortage(None if unknown and not is_expected else is_expected, "; ".join(words))


def follow_shortages(
    before: Mapping[str, float], shortages: Iterable[FirstThreshold], now_s: float
) -> Mapping[str, float]:
    """Return the lasting shortages: for each resource the time at which a forecast last said so, in monotonic seconds.

    A threshold that is met continues a shortage and starts none, since nothing is left to expect. An unknown forecast
    continues it too.

    Args:
        before: the lasting shortages so far.
        shortages: first shortage of each resource.
        now_s: time of the forecasts in monotonic seconds.
    """
    found = {}
    for each in shortages:
        resource, kind = each.outlook.resource, each.forecast.outlook
        last_s = before.get(resource)
        if each.is_near and (last_s is not None or kind is Outlook.RANGE):
            found[resource] = now_s
        elif last_s is not None and (kind is Outlook.UNKNOWN or now_s - last_s < ENDED_AFTER_S):
            found[resource] = last_s
    return found
