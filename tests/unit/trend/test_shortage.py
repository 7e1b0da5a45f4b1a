"""Expected shortages: the first threshold, whether it is near, and how long a shortage lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.model.outlook import ExpectedShortage
from nodeagent.trend.shortage import (
    ENDED_AFTER_S,
    EVICTION,
    NEAR_S,
    SETTLED_S,
    SHORTAGE,
    expected_shortage,
    first_shortages,
    first_threshold,
    follow_shortages,
)
from tests.unit.outlooks import FULL, GIB, HOUR_S, NO_TREND, REACHED, SOFT, UNKNOWN, forecast, hard, outlook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.api.outlook import ForecastDocument

SOON, LATE = hard(2), hard(9)


@pytest.mark.parametrize(
    ("forecasts", "found"),
    [
        ([LATE, SOON], SOON),
        ([SOON, hard(**REACHED)], hard(**REACHED)),
        ([hard(**UNKNOWN), LATE], LATE),
        ([hard(**NO_TREND), hard(**UNKNOWN)], hard(**UNKNOWN)),
        ([hard(**NO_TREND)], hard(**NO_TREND)),
        ([LATE, forecast(SOFT), forecast()], LATE),
        ([forecast()], None),
        ([], None),
    ],
    ids=["earlier", "met", "known", "unknown may be earlier", "no trend", "other kinds", "no such kind", "none"],
)
def test_first_threshold_of_some_kinds(forecasts: Sequence[ForecastDocument], found: ForecastDocument | None) -> None:
    resources = [outlook(each, resource=f"r{number}.available") for number, each in enumerate(forecasts)]
    for outlooks in (resources, list(reversed(resources)), [outlook(*forecasts)]):
        first = first_threshold(outlooks, SHORTAGE)
        assert (None if first is None else first.forecast) == found


def test_soft_and_hard_thresholds_are_those_of_an_eviction() -> None:
    first = first_threshold([outlook(forecast(), forecast(SOFT), LATE)], EVICTION)
    assert first is not None
    assert first.forecast.threshold is SOFT


@pytest.mark.parametrize(
    ("found", "near"),
    [
        (hard(NEAR_S / HOUR_S), True),
        (hard((NEAR_S + 1) / HOUR_S), False),
        (forecast(FULL, 100 * GIB, expected_s=60.0), True),
        (hard(1, observed_s=SETTLED_S), True),
        (hard(1, observed_s=SETTLED_S - 1), False),
        (hard(**REACHED), True),
        (hard(**UNKNOWN), False),
        (hard(**NO_TREND), False),
    ],
)
def test_a_shortage_is_near_if_it_is_expected_within_four_hours_or_met(found: ForecastDocument, near: bool) -> None:
    (first,) = first_shortages([outlook(found)])
    assert first.is_near is near


def test_shortages_are_one_for_each_resource_the_nearest_first() -> None:
    late, soon = outlook(LATE, forecast(FULL, expected_s=1e9)), outlook(SOON, resource="imagefs.available")
    without = outlook(resource="io.psi.some")
    assert [each.outlook.resource for each in first_shortages([late, without, soon])] == [
        "imagefs.available",
        "nodefs.available",
    ]


@pytest.mark.parametrize(
    ("before", "found", "after"),
    [
        ({}, SOON, {"nodefs.available": 1e4}),
        ({}, LATE, {}),
        ({}, hard(**REACHED), {}),
        ({}, hard(**UNKNOWN), {}),
        ({"nodefs.available": 9e3}, SOON, {"nodefs.available": 1e4}),
        ({"nodefs.available": 9e3}, hard(**REACHED), {"nodefs.available": 1e4}),
        ({"nodefs.available": 1e4 - ENDED_AFTER_S + 1}, LATE, {"nodefs.available": 1e4 - ENDED_AFTER_S + 1}),
        ({"nodefs.available": 1e4 - ENDED_AFTER_S}, LATE, {}),
        ({"nodefs.available": 1e4 - ENDED_AFTER_S}, hard(**NO_TREND), {}),
        ({"nodefs.available": 0.0}, hard(**UNKNOWN), {"nodefs.available": 0.0}),
        ({"imagefs.available on /gone": 1e4}, LATE, {}),
    ],
    ids=[
        "starts", "too late", "met at once", "unknown", "goes on", "met", "no longer, for less than an hour",
        "no longer, for an hour", "no trend for an hour", "unknown goes on", "resource is gone",
    ],
)  # fmt: skip
def test_a_shortage_lasts_until_no_forecast_says_so_for_an_hour(
    before: Mapping[str, float], found: ForecastDocument, after: Mapping[str, float]
) -> None:
    assert follow_shortages(before, first_shortages([outlook(found)]), 1e4) == after


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_forecast_that_changes_every_five_minutes_is_one_shortage(near: list[bool]) -> None:
    lasting: Mapping[str, float] = {}
    onsets = 0
    for number, is_near in enumerate(near):
        shortages = first_shortages([outlook(SOON if is_near or number % 8 == 0 else hard(**NO_TREND))])
        after = follow_shortages(lasting, shortages, number * 300.0)
        onsets += len(after.keys() - lasting.keys())
        lasting = after
    assert onsets == 1


@pytest.mark.parametrize(
    ("forecasts", "lasting", "is_expected", "detail"),
    [
        ([SOON, hard(**UNKNOWN)], [], True, "r0"),
        ([LATE, hard(**UNKNOWN)], [], None, "r1"),
        ([LATE, hard(**UNKNOWN)], ["r0"], True, "expected earlier, now r0"),
        ([LATE, hard(**UNKNOWN)], ["r1"], True, "expected earlier, now r1"),
        ([LATE, hard(**NO_TREND)], ["r1"], True, "expected earlier, now r1"),
        ([SOON, hard(**NO_TREND)], ["r0", "r1"], True, "r0"),
        ([LATE, hard(**NO_TREND)], [], False, ""),
        ([SOON, SOON], [], True, "r0; r1"),
    ],
    ids=[
        "near beside unknown", "unknown", "lasting beside unknown", "lasting and unknown", "lasting",
        "near beside lasting", "none", "two",
    ],
)  # fmt: skip
def test_whether_a_shortage_is_expected(
    forecasts: Sequence[ForecastDocument], lasting: Sequence[str], is_expected: bool | None, detail: str
) -> None:
    shortages = first_shortages([outlook(each, resource=f"r{number}") for number, each in enumerate(forecasts)])
    found = expected_shortage(shortages, lasting, lambda each: each.outlook.resource)
    assert found == ExpectedShortage(is_expected, detail)


def test_without_forecasts_nothing_is_stated() -> None:
    assert expected_shortage((), (), str) is None
