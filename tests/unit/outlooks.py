"""Outlooks of resources as documents, with one growing pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nodeagent.api.outlook import ForecastDocument, GrowthDocument, OutlookDocument
from nodeagent.model.outlook import Outlook, ThresholdKind
from tests.support.manual_clock import MIDNIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB: Final = 1 << 30
HOUR_S: Final = 3600.0
COLLECTION, SOFT, HARD, FULL = ThresholdKind
NO_TREND: Final[Mapping[str, Any]] = {
    "outlook": Outlook.NO_TREND,
    "earliest_s": None,
    "expected_s": None,
    "latest_s": None,
    "rate_per_s": None,
}
UNKNOWN: Final[Mapping[str, Any]] = {**NO_TREND, "outlook": Outlook.UNKNOWN, "observed_s": 240.0}
REACHED: Final[Mapping[str, Any]] = {**NO_TREND, "outlook": Outlook.REACHED}


def forecast(threshold: ThresholdKind = COLLECTION, used: float = 85 * GIB, **fields: Any) -> ForecastDocument:
    """Return a forecast of 2 to 5 hours; ``fields`` replace its values."""
    values: dict[str, Any] = {
        "outlook": Outlook.RANGE,
        "earliest_s": 2 * HOUR_S,
        "expected_s": 3 * HOUR_S,
        "latest_s": 5 * HOUR_S,
        "rate_per_s": GIB / HOUR_S,
        "observed_s": 6 * HOUR_S,
    }
    return ForecastDocument(threshold=threshold, used=used, **(values | fields))


def hard(expected_h: float | None = None, **fields: Any) -> ForecastDocument:
    """Return a forecast of a hard threshold at 90 GiB; with a range of half to twice ``expected_h`` if it is given."""
    if expected_h is not None:
        expected_s = expected_h * HOUR_S
        fields |= {"earliest_s": expected_s / 2, "expected_s": expected_s, "latest_s": 2 * expected_s}
    return forecast(HARD, 90 * GIB, **fields)


def outlook(*forecasts: ForecastDocument, resource: str = "nodefs.available", **fields: Any) -> OutlookDocument:
    """Return an outlook of 100 GiB, of which the volumes of one pod are 80 % of the growth."""
    values: dict[str, Any] = {
        "used": 78 * GIB,
        "capacity": 100 * GIB,
        "observed_at": MIDNIGHT,
        "growth": (
            GrowthDocument(part="shop/logger volumes", rate_per_s=0.8 * GIB / HOUR_S, share=0.8),
            GrowthDocument(part="", rate_per_s=0.2 * GIB / HOUR_S, share=0.2),
        ),
        "hours": (None,) * 12 + tuple(number / 12 for number in range(12)),
    }
    return OutlookDocument(resource=resource, forecasts=forecasts, **(values | fields))
