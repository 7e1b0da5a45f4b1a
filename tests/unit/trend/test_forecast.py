"""Forecast of one resource: kinds of forecasts, excluded intervals, steps, cycles, and the parts that grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.model.outlook import GrowthCategory, Outlook, ThresholdKind
from nodeagent.trend.plan.forecast import Forecast, Growth, Sample, Threshold, forecast

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

T0 = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = 60  # minutes
DAY = 24 * HOUR
HARD = Threshold(ThresholdKind.HARD, 95.0, after_collection=True)
COLLECTION = Threshold(ThresholdKind.COLLECTION, 85.0, after_collection=False)


def readings(
    minutes: int,
    used: Callable[[int], float],
    *,
    every: int = 1,
    freeable: Callable[[int], float] = lambda _: 0.0,
    parts: Mapping[str, Callable[[int], float]] | None = None,
) -> list[Sample]:
    """Return readings with a noise of 0.05."""
    noise = Random(1)
    return [
        Sample(
            T0 + timedelta(minutes=minute),
            used(minute) + noise.gauss(0, 0.05),
            freeable(minute),
            {name: amount(minute) for name, amount in (parts or {}).items()},
        )
        for minute in range(0, minutes + 1, every)
    ]


def forecast_of(samples: list[Sample], threshold: Threshold = HARD) -> Forecast:
    return forecast(samples, [threshold], samples[-1].at).thresholds[0]


def growth_of(samples: list[Sample]) -> tuple[Growth, ...]:
    return forecast(samples, [], samples[-1].at).growth


def hours(seconds: float | None) -> float:
    assert seconds is not None
    return seconds / 3600


def test_steady_growth_has_a_range_around_the_remaining_time() -> None:
    result = forecast_of(readings(10 * HOUR, lambda minute: 45 + minute / 30))
    assert result.outlook is Outlook.RANGE
    assert hours(result.expected_s) == pytest.approx(15, rel=0.03)
    assert 11 < hours(result.earliest_s) < 14
    assert 16 < hours(result.latest_s) < 20
    assert result.rate_per_s == pytest.approx(1 / 30 / 60, rel=0.03)
    assert hours(result.observed_s) == 10


def test_forecasts_are_in_the_order_of_the_thresholds() -> None:
    samples = readings(HOUR, lambda minute: 60 + minute / 10)
    results = forecast(samples, [HARD, COLLECTION], samples[-1].at).thresholds
    assert [each.threshold for each in results] == [HARD, COLLECTION]
    assert hours(results[1].expected_s) < hours(results[0].expected_s)


@pytest.mark.parametrize(("minutes", "outlook"), [(6, Outlook.UNKNOWN), (7, Outlook.RANGE)])
def test_fewer_than_eight_readings_a_minute_apart_are_unknown(minutes: int, outlook: Outlook) -> None:
    result = forecast_of(readings(minutes, lambda minute: 50 + minute))
    assert result.outlook is outlook
    assert result.observed_s == minutes * 60


def test_no_reading_is_unknown() -> None:
    assert forecast([], [HARD], T0) == ((Forecast(HARD, Outlook.UNKNOWN),), ())


def test_old_newest_reading_is_unknown() -> None:
    samples = readings(10 * HOUR, lambda minute: 45 + minute / 30)
    results = forecast(samples, [HARD], samples[-1].at + timedelta(minutes=16))
    assert results == ((Forecast(HARD, Outlook.UNKNOWN),), ())


def test_age_of_the_newest_reading_shortens_the_remaining_time() -> None:
    samples = readings(10 * HOUR, lambda minute: 45 + minute / 30)
    result = forecast(samples, [HARD], samples[-1].at + timedelta(minutes=12)).thresholds[0]
    assert hours(result.expected_s) == pytest.approx(14.8, rel=0.03)


def test_met_threshold_is_reached_even_with_few_readings() -> None:
    assert forecast_of(readings(2, lambda _: 97)).outlook is Outlook.REACHED


def test_threshold_after_collection_ignores_the_freeable_amount() -> None:
    samples = readings(10 * HOUR, lambda _: 97, freeable=lambda _: 30)
    assert forecast_of(samples).outlook is Outlook.NO_TREND


@pytest.mark.parametrize("change", [0.0, -1 / 60], ids=["idle", "shrinking"])
def test_use_that_does_not_grow_has_no_trend(change: float) -> None:
    result = forecast_of(readings(20 * HOUR, lambda minute: 60 + change * minute))
    assert result.outlook is Outlook.NO_TREND
    assert result[2:6] == (None, None, None, None)


def test_time_beyond_ninety_days_is_no_trend() -> None:
    growing = readings(6 * DAY, lambda minute: 50 + minute / DAY / 2.2, every=10)
    assert forecast_of(growing).outlook is Outlook.NO_TREND


def test_sawtooth_of_collections_has_no_trend_after_collection_and_a_next_collection() -> None:
    def unused(minute: int) -> float:
        return 10 + 5 * (minute % (8 * HOUR)) / (8 * HOUR)

    samples = readings(5 * DAY + 4 * HOUR, lambda minute: 70 + unused(minute), freeable=unused, every=10)
    assert forecast_of(samples).outlook is Outlook.NO_TREND
    assert hours(forecast_of(samples, COLLECTION).expected_s) == pytest.approx(4, rel=0.1)


def test_log_rotation_that_has_recurred_has_no_trend() -> None:
    samples = readings(3 * DAY + 5 * HOUR, lambda minute: 60 + 6 * (minute % (7 * HOUR)) / (7 * HOUR), every=10)
    assert forecast_of(samples).outlook is Outlook.NO_TREND


def test_daily_cycle_has_no_trend_on_the_third_morning() -> None:
    samples = readings(2 * DAY + 10 * HOUR, lambda minute: 60 - 8 * math.cos(math.tau * minute / DAY), every=10)
    assert forecast_of(samples).outlook is Outlook.NO_TREND


def test_daily_peak_meets_the_threshold_before_the_mean() -> None:
    samples = readings(8 * DAY, lambda minute: 55 + 2 * minute / DAY - 5 * math.cos(math.tau * minute / DAY), every=10)
    assert hours(forecast_of(samples).expected_s) / 24 == pytest.approx((95 - 71 - 5) / 2, rel=0.1)


def test_isolated_step_is_no_trend() -> None:
    samples = readings(20 * HOUR, lambda minute: 50 + 20 * (minute > 9 * HOUR))
    assert forecast_of(samples).outlook is Outlook.NO_TREND


@pytest.mark.parametrize("height", [20, -20], ids=["up", "down"])
def test_isolated_step_does_not_change_the_rate(height: int) -> None:
    samples = readings(20 * HOUR, lambda minute: 40 + minute / HOUR + height * (minute > 9 * HOUR))
    assert hours(forecast_of(samples).expected_s) == pytest.approx(35 - height, rel=0.05)


def test_recurring_steps_are_a_trend() -> None:
    samples = readings(8 * DAY, lambda minute: 40 + minute // (3 * HOUR) / 2, every=10)
    assert hours(forecast_of(samples).expected_s) == pytest.approx(23 / 4 * 24, rel=0.1)


def test_growth_that_starts_after_idle_days_has_the_new_rate() -> None:
    samples = readings(3 * DAY, lambda minute: 50 + max(0, minute - 3 * DAY + 3 * HOUR) / 20, every=5)
    assert hours(forecast_of(samples).expected_s) == pytest.approx(12, rel=0.1)


def test_growth_that_ended_has_no_trend() -> None:
    samples = readings(3 * DAY, lambda minute: 50 + min(minute, 2 * DAY) / HOUR / 2, every=10)
    assert forecast_of(samples).outlook is Outlook.NO_TREND


@pytest.mark.parametrize("jump_h", [-5, 5])
def test_interval_before_a_new_start_is_excluded(jump_h: int) -> None:
    samples = [
        sample
        if number < 4 * HOUR
        else sample._replace(at=sample.at + timedelta(hours=jump_h), used=sample.used + 3, new_start=number == 4 * HOUR)
        for number, sample in enumerate(readings(10 * HOUR, lambda minute: 45 + minute / 30))
    ]
    result = forecast_of(samples)
    assert hours(result.expected_s) == pytest.approx(13.5, rel=0.05)
    assert hours(result.observed_s) == pytest.approx(10, abs=0.02)


def test_gap_does_not_change_the_rate() -> None:
    samples = readings(10 * HOUR, lambda minute: 45 + minute / 30)
    del samples[2 * HOUR : 5 * HOUR]
    assert hours(forecast_of(samples).expected_s) == pytest.approx(15, rel=0.05)


def test_growth_is_attributed_with_a_remainder() -> None:
    samples = readings(
        20 * HOUR,
        lambda minute: 40 + minute / 60,
        parts={
            "a/b logs": lambda minute: minute / 120,
            "a/c volumes": lambda minute: 5 + minute / 240,
            "images of r/a": lambda _: 20,
            "cache": lambda minute: 10 - minute / 1000,
        },
    )
    parts = growth_of(samples)
    assert [each.part for each in parts] == ["a/b logs", "a/c volumes", ""]
    assert [each.category for each in parts] == [GrowthCategory.LOGS, GrowthCategory.VOLUMES, GrowthCategory.OTHER]
    assert parts[0].rate_per_s == pytest.approx(1 / 120 / 60, rel=0.01)
    assert [round(each.share, 2) for each in parts] == [0.5, 0.25, 0.25]


def test_growth_of_a_category_without_its_named_parts_is_its_rest() -> None:
    samples = readings(
        20 * HOUR,
        lambda minute: 40 + minute / 60,
        parts={
            "a/b logs": lambda minute: minute / 240,
            "pod-logs": lambda minute: 30 + minute / 120,
            "images of r/a": lambda minute: minute / 240,
            "images": lambda minute: 5 + minute / 240,
            "pod-volumes": lambda minute: 10 + minute / 240,
        },
    )
    assert {each.part: (each.category, round(each.share, 2)) for each in growth_of(samples)} == {
        "a/b logs": (GrowthCategory.LOGS, 0.25),
        "logs of other pods": (GrowthCategory.LOGS, 0.25),
        "images of r/a": (GrowthCategory.IMAGES, 0.25),
        "volumes of other pods": (GrowthCategory.VOLUMES, 0.25),
    }


def test_part_that_is_read_for_an_hour_of_a_long_record_is_attributed() -> None:
    samples = [
        sample._replace(parts={"a/b volumes": float(number)} if number > 14 * 24 * 6 - 6 else {})
        for number, sample in enumerate(readings(14 * DAY, lambda minute: 40 + minute / HOUR / 10, every=10))
    ]
    assert [each.part for each in growth_of(samples)] == ["a/b volumes"]


def test_part_that_appears_later_is_attributed() -> None:
    samples = [
        sample._replace(parts={"pod-b": sample.used - 60} if sample.used > 60 else {})
        for sample in readings(20 * HOUR, lambda minute: 50 + minute / 30)
    ]
    assert growth_of(samples)[0].part == "pod-b"


def test_parts_that_are_read_less_often_than_the_use_are_attributed() -> None:
    samples = readings(20 * HOUR, lambda minute: 40 + minute / 60, parts={"logs": lambda minute: minute / 120})
    sparse = [each if number % 5 == 0 else each._replace(parts={}) for number, each in enumerate(samples)]
    assert [(each.part, round(each.share, 2)) for each in forecast(sparse, [], samples[-1].at).growth] == [
        ("logs", 0.5),
        ("", 0.5),
    ]


@pytest.mark.parametrize(
    ("amounts", "named"),
    [([1.0, 2.0, 3.0, 4.0], ["logs", ""]), ([1.0, 2.0, 2.0, 4.0], [""]), ([1.0, 2.0], [""])],
    ids=["grew each time", "rested once", "two readings"],
)
def test_few_readings_of_a_part_attribute_growth_if_it_grew_each_time(amounts: list[float], named: list[str]) -> None:
    found = readings(20, lambda minute: 40 + minute)
    every = len(found) // len(amounts)
    sparse = [
        each._replace(parts={"logs": amounts[number // every]})
        if number % every == 0 and number // every < len(amounts)
        else each
        for number, each in enumerate(found)
    ]
    assert [each.part for each in forecast(sparse, [], found[-1].at).growth] == named


@pytest.mark.parametrize("jump_at", [1, 7, 17, 25, 29])
@pytest.mark.parametrize("every", [1, 3, 5, 11])
def test_parts_across_a_jump_of_the_clock_have_a_finite_growth(jump_at: int, every: int) -> None:
    found = [
        each._replace(parts={"logs": float(number)} if number % every == 0 else {}, new_start=number == jump_at)
        for number, each in enumerate(readings(30, lambda minute: 40 + minute))
    ]
    assert all(math.isfinite(each.rate_per_s) for each in growth_of(found))


def test_use_that_does_not_grow_has_no_growing_part() -> None:
    samples = readings(20 * HOUR, lambda _: 50, parts={"logs": lambda _: 3})
    assert growth_of(samples) == ()


def test_shares_of_growing_parts_add_up_to_one() -> None:
    samples = readings(20 * HOUR, lambda minute: 50 + minute / 60, parts={"a": lambda minute: minute / 90})
    shares: list[Growth] = list(growth_of(samples))
    assert sum(each.share for each in shares) == pytest.approx(1)


def test_part_with_little_of_a_varying_growth_has_a_small_share() -> None:
    varying = Random(3)
    samples = readings(
        36, lambda minute: 26 + minute / 12 + varying.gauss(0, 1.5), parts={"shop/web": lambda minute: minute / 5000}
    )
    (part,) = growth_of(samples)
    assert part.part == "shop/web"
    assert part.share < 0.01


def test_part_of_a_deleted_pod_is_no_growing_part() -> None:
    grown = readings(36, lambda minute: 26 + minute / 12, parts={"shop/web": lambda minute: minute / 12})
    newest = grown[-1]._replace(at=grown[-1].at + timedelta(minutes=1), parts={"shop/other": 1.0})
    assert [each.part for each in growth_of(grown)] == ["shop/web"]
    assert [each.part for each in growth_of([*grown, newest])] == [""]


MINUTES = st.lists(st.sampled_from([0, 0.01, 1, 1, 1, 5, 60, 1440]), min_size=1, max_size=60)
AMOUNTS = st.sampled_from([0.0, 1.0, 50.0, 50.1, 60.0, 99.0, 1e15])


@given(st.data(), MINUTES)
def test_any_record_has_a_forecast_and_a_growth(data: DataObject, minutes: list[float]) -> None:
    at, samples = T0, list[Sample]()
    for step in minutes:
        at += timedelta(minutes=step)
        parts = data.draw(st.dictionaries(st.sampled_from(["a", "b"]), AMOUNTS, max_size=2))
        is_new = data.draw(st.booleans()) and step == 1
        samples.append(Sample(at, data.draw(AMOUNTS), data.draw(AMOUNTS), parts, is_new))
    for now in (at, at - timedelta(minutes=3), at + timedelta(hours=1)):
        found = forecast(
            samples,
            [
                Threshold(ThresholdKind.HARD, 95, after_collection=True),
                Threshold(ThresholdKind.FULL, 100, after_collection=False),
            ],
            now,
        )
        for each in found.thresholds:
            assert each.outlook is not Outlook.RANGE or (each.earliest_s or 0) <= (each.expected_s or 0)
        assert all(math.isfinite(each.rate_per_s) for each in found.growth)


def test_part_with_all_readings_in_one_moment_of_a_long_record_has_no_rate() -> None:
    samples = readings(3 * DAY, lambda minute: 40 + minute / 600, every=10)
    parts = [
        each._replace(parts={"pod": float(number)} if number >= len(samples) - 3 else {})
        for number, each in enumerate(samples)
    ]
    dense = [
        *parts,
        *(
            parts[-1]._replace(at=parts[-1].at + timedelta(seconds=each), parts={"pod": each * 9.0})
            for each in range(1, 20)
        ),
    ]
    assert all(math.isfinite(each.rate_per_s) for each in growth_of(dense))
