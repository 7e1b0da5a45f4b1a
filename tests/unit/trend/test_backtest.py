"""Backtest of the forecast on simulated readings; with ``-s`` it prints a table.

Each case is one threshold of one course. The forecast is made at half of the time between the start of the trend and
the first reading that meets the threshold; ``predict_linear`` of Prometheus over one and six hours has equal readings.
``NODEAGENT_TEST_RUNS`` is the number of seeds; see ``make campaign-forecast``. The constants of the forecast were
chosen with the seeds 0 to 13; the campaign uses others.
"""

from __future__ import annotations

import os
from math import inf
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from nodeagent.model.outlook import Outlook
from nodeagent.trend.plan.forecast import Forecast, Threshold, forecast
from tests.unit.trend.traces import (
    DAY_S,
    FLAT,
    GROWING,
    HARD,
    HOUR_S,
    SOFT,
    Course,
    Trace,
    recorded,
    simulate,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RUNS: Final = int(os.environ.get("NODEAGENT_TEST_RUNS", "0"))
SEEDS: Final = range(1000, 1000 + RUNS) if RUNS else range(2)
ALARM_S: Final = 4 * HOUR_S


class Case(NamedTuple):
    """Forecast at half time beside the true remaining time."""

    result: Forecast
    true_s: float
    linear_1h_s: float
    linear_6h_s: float

    @property
    def is_covered(self) -> bool:
        earliest_s, latest_s = self.result.earliest_s, self.result.latest_s
        return earliest_s is not None and earliest_s <= self.true_s <= (inf if latest_s is None else latest_s)

    @property
    def error(self) -> float:
        return self.error_of(inf if self.result.expected_s is None else self.result.expected_s)

    @property
    def width(self) -> float:
        if self.result.earliest_s is None or self.result.latest_s is None:
            return inf
        return (self.result.latest_s - self.result.earliest_s) / self.true_s

    @property
    def is_open(self) -> bool:
        return self.result.outlook is Outlook.RANGE and self.result.latest_s is None

    def error_of(self, remaining_s: float) -> float:
        return abs(remaining_s - self.true_s) / self.true_s


def simulated(make: Callable[[Random], Course], seed: int) -> Trace:
    rng = Random(f"{make.__name__}{seed}")
    return simulate(make(rng), rng)


def cases(make: Callable[[Random], Course], seeds: Sequence[int]) -> Iterator[Case]:
    for seed in seeds:
        trace = simulated(make, seed)
        step_s, readings = trace.course.step_s, trace.readings
        start = round(trace.course.start_s / step_s)
        for threshold in trace.course.thresholds:
            met = [number for number, each in enumerate(readings) if each and each.used >= threshold.used]
            half = (start + next(number for number in met if number >= start)) // 2
            if readings[half] is None:  # in a gap
                continue
            samples, now = recorded(trace, half + 1)
            yield Case(
                forecast(samples, [threshold], now).thresholds[0],
                (next(number for number in met if number >= start) - half) * step_s,
                predict_linear(trace, half + 1, threshold, HOUR_S),
                predict_linear(trace, half + 1, threshold, 6 * HOUR_S),
            )


def predict_linear(trace: Trace, count: int, threshold: Threshold, range_s: int) -> float:
    """Return the seconds until the line of least squares through the last readings meets the threshold."""
    first = max(0, count - range_s // trace.course.step_s)
    points = [(number, each.used) for number, each in enumerate(trace.readings[first:count]) if each]
    mean_x, mean_y = (sum(each) / len(points) for each in zip(*points, strict=True))
    variance = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / variance if variance else 0.0
    now = mean_y + slope * (points[-1][0] - mean_x)
    return max(0.0, (threshold.used - now) / slope * trace.course.step_s) if slope > 0 else inf


def run(seeds: Sequence[int]) -> list[Case]:
    """Return the cases of all courses, and print a table."""
    print(f"\n{'course':26}{'cases':>6}{'in range':>10}{'error':>8}{'width':>8}{'open':>6}{'1 h':>8}{'6 h':>8}")
    every: list[Case] = []
    for make in GROWING:
        of_course = list(cases(make, seeds))
        print_row(make.__name__, of_course)
        every += of_course
    print_row("all", every)
    return every


def print_row(name: str, some: Sequence[Case]) -> None:
    linear_1h = median(each.error_of(each.linear_1h_s) for each in some)
    linear_6h = median(each.error_of(each.linear_6h_s) for each in some)
    print(
        f"{name:26}{len(some):6}{covered_share(some):10.0%}{median(each.error for each in some):8.0%}"
        f"{median(each.width for each in some):8.2f}{sum(each.is_open for each in some):6}"
        f"{linear_1h:8.0%}{linear_6h:8.0%}",
        flush=True,
    )


def covered_share(some: Sequence[Case]) -> float:
    return sum(each.is_covered for each in some) / len(some)


def check(every: Sequence[Case]) -> None:
    assert covered_share(every) >= 0.9
    error = median(each.error for each in every)
    assert error < 0.2
    assert error < median(each.error_of(each.linear_1h_s) for each in every) / 2
    assert error < median(each.error_of(each.linear_6h_s) for each in every) / 2
    assert median(each.width for each in every) < 1.3  # wide ranges would contain any time
    assert sum(each.is_open for each in every) < 0.15 * len(every)


@pytest.mark.campaign
def test_true_time_is_in_the_range_and_the_error_is_small() -> None:
    check(run(SEEDS))


def outlooks(make: Callable[[Random], Course], seed: int, every_s: int) -> list[tuple[int, Forecast]]:
    """Return the forecasts for the thresholds after collection at regular times of 30 days, with the time."""
    trace = simulated(make, seed)
    step_s = trace.course.step_s
    results = []
    for count in range(2, len(trace.readings), every_s // step_s):
        samples, now = recorded(trace, count)
        results += [(count * step_s, each) for each in forecast(samples, [SOFT, HARD], now).thresholds]
    return results


def check_flat(seeds: Sequence[int], every_s: int) -> None:
    """Check that no forecast is an alarm, and that a trend is rarely assumed; print a table."""
    print(f"\n{'course':26}{'forecasts':>10}{'no trend':>10}{'after 2 d':>10}{'alarms':>8}")
    for make in FLAT:
        results = [each for seed in seeds for each in outlooks(make, seed, every_s)]
        without = share_without_trend([each for _, each in results])
        later = share_without_trend([each for at_s, each in results if at_s > 2 * DAY_S])
        alarms = [each for _, each in results if each.expected_s is not None and each.expected_s < ALARM_S]
        print(f"{make.__name__:26}{len(results):10}{without:10.1%}{later:10.1%}{len(alarms):8}", flush=True)
        assert not alarms
        assert without > 0.9
        assert later > 0.9


def share_without_trend(results: Sequence[Forecast]) -> float:
    return sum(each.outlook in {Outlook.NO_TREND, Outlook.UNKNOWN} for each in results) / len(results)


@pytest.mark.campaign
def test_thirty_days_without_trend_raise_no_alarm() -> None:
    check_flat(SEEDS[: RUNS or 1], HOUR_S if RUNS else 26 * HOUR_S)
