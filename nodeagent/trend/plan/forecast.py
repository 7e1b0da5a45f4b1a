"""Time until each threshold of a resource is met, as a range, and the parts that grow.

The rate is the median of the slopes between all pairs of 64 medians of a window (Theil and Sen); in a window of two
days or more only between equal times of day, of two weeks or more only between equal times of the week. The window is
the whole history up to 64 days, or the recent part of it in which the rate differs from any earlier rate: an ordinary
morning, log rotation or batch job has occurred before and is no new trend. Up to two isolated steps are excluded; more
of them are a part of the trend.

The error is estimated from the past deviations of the change over a quarter of the window, and grows with the time to
the threshold. A rate within twice its error is no trend.

Source: Theil 1950, Sen 1968; Hirsch, Slack and Smith 1982 (slopes within a season).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import combinations, pairwise
from math import inf, sqrt
from statistics import median
from types import MappingProxyType
from typing import Final, NamedTuple

from nodeagent.model.outlook import GrowthCategory, Outlook, ThresholdKind
from nodeagent.trend.plan.readings import REST_OF, category_of, is_total

MINIMUM_S: Final = 420.0
"""Shortest observed time with a forecast: that of eight readings a minute apart."""
OLDEST_S: Final = 900.0
"""Maximum age of the newest reading."""
HORIZON_S: Final = 90 * 86400.0
"""Longest forecast; a later time is no trend."""
_DAY_S: Final = 86400.0
_BINS: Final = 64
_SHORTEST_WINDOW_S: Final = _DAY_S / 128
"""Shortest window after a change of the rate, 11 minutes."""
_SHORTEST_WIDTH_S: Final = _SHORTEST_WINDOW_S / 8
_LONGEST_WINDOW_S: Final = _DAY_S * _BINS
"""Longest window with a median for each day."""
_COMPARED_WINDOWS: Final = 224
"""Windows of earlier readings, of which a recent rate must differ: a week for a window of 45 minutes."""
_FEWEST_MEDIANS: Final = 8
_REST: Final = 0.05
"""Smallest share of a growth that its parts do not explain."""
_FEWEST_OF_A_PART: Final = 3
"""Fewest slopes between readings of a part: those of three readings."""
_TREND_ERRORS: Final = 2.0
"""Smallest rate of a trend, in standard errors."""
_TREND_ERRORS_OF_FEW: Final = 4.0
"""The same with fewer than 16 medians, of which an ordinary fluctuation can be the longest part."""
_RANGE_ERRORS: Final = 2.7
"""Half of the range in standard errors: about 90 % for an error that is estimated from four parts of a window."""
_RATE_CHANGE: Final = 0.2
"""Relative change of the rate in the future that a range always includes."""
_WIDEST: Final = 0.9
"""Relative error from which the range has an open end."""
_COLLECTED: Final = 0.01
"""Fall of use and of the freeable amount between two readings, relative to the use, that is a collection."""
_STEP: Final = 8.0
"""Smallest step in typical deviations of the slope between neighbours."""

NO_PARTS: Final[Mapping[str, float]] = MappingProxyType({})

_Point = tuple[float, float]
"""Seconds relative to the time of the forecast, never positive, and an amount."""


class Sample(NamedTuple):
    """Reading of one resource.

    Attributes:
        at: aware time of the reading.
        used: amount in use, such as bytes or inodes.
        freeable: part of it that collection can free; 0 if unknown.
        parts: amounts in use by pod and image repository, and in total by category; may be empty.
        new_start: whether the interval before this reading is excluded, such as after a step of the clock.
    """

    at: datetime
    used: float
    freeable: float
    parts: Mapping[str, float] = NO_PARTS
    new_start: bool = False


class Threshold(NamedTuple):
    """Amount in use with a consequence.

    Attributes:
        name: kind of the threshold.
        used: amount in use at which the threshold is met.
        after_collection: whether only the amount counts that collection cannot free.
    """

    name: ThresholdKind
    used: float
    after_collection: bool


class Forecast(NamedTuple):
    """Time until a threshold is met.

    Attributes:
        threshold: the threshold.
        outlook: kind of the forecast.
        earliest_s: start of the range in seconds from now; ``None`` without a range.
        expected_s: most probable time; ``None`` without a range.
        latest_s: end of the range; ``None`` without a range, or if the end is open.
        rate_per_s: growth per second; ``None`` without a range.
        observed_s: seconds covered by the readings, without excluded intervals; 0 if the newest reading is too old.
    """

    threshold: Threshold
    outlook: Outlook
    earliest_s: float | None = None
    expected_s: float | None = None
    latest_s: float | None = None
    rate_per_s: float | None = None
    observed_s: float = 0.0


class Growth(NamedTuple):
    """Part that grows.

    Attributes:
        part: name of the part; empty for growth that no part explains.
        rate_per_s: growth per second.
        share: share of the growth of the use, or of the sum of all growing parts if that is larger.
        category: category of the part.
    """

    part: str
    rate_per_s: float
    share: float
    category: GrowthCategory = GrowthCategory.OTHER


class ResourceForecast(NamedTuple):
    """What is expected of one resource.

    Attributes:
        thresholds: forecast of each threshold, in the order of the thresholds.
        growth: growing parts of the use, fastest first, ties by name; growth that no part explains is last. The rates
            are those of the window of the forecast after collection. Empty without growth or with too few readings.
    """

    thresholds: tuple[Forecast, ...]
    growth: tuple[Growth, ...] = ()


class _Trend(NamedTuple):
    """Line through the readings of a window.

    Attributes:
        window_s: length of the window.
        rate: slope per second.
        error: standard error of the rate.
        spread: deviation of the change over ``lag_s`` from the rate.
        lag_s: seconds of such a change.
        level: height of the line now.
        peak: height of recent peaks above the line.
        medians: number of medians.
    """

    window_s: float
    rate: float
    error: float
    spread: float
    lag_s: float
    level: float
    peak: float
    medians: int

    @property
    def grows(self) -> bool:
        """Whether growth is distinguishable from none."""
        return self.rate > (_TREND_ERRORS if self.medians >= 16 else _TREND_ERRORS_OF_FEW) * self.error


def forecast(samples: Sequence[Sample], thresholds: Sequence[Threshold], now: datetime) -> ResourceForecast:
    """Return the forecast for each threshold in the given order, and the parts that grow.

    Args:
        samples: readings in the order of recording, at any intervals.
        thresholds: thresholds of this resource.
        now: time of the forecast, on the clock of the newest reading.
    """
    if not samples or (now - samples[-1].at).total_seconds() > OLDEST_S:
        return ResourceForecast(tuple(Forecast(each, Outlook.UNKNOWN) for each in thresholds))
    times = _times(samples, now)
    observed_s = times[-1] - times[0]
    is_enough = observed_s >= MINIMUM_S
    kept = _trend(_points(samples, times, _kept)) if is_enough else None
    used = kept
    if is_enough and any(each.freeable for each in samples):
        used = _trend(_points(samples, times, _used, without_collections=True))
    forecasts = []
    for each in thresholds:
        amount = _kept(samples[-1]) if each.after_collection else samples[-1].used
        trend = kept if each.after_collection else used
        if amount >= each.used:
            result = Forecast(each, Outlook.REACHED)
        elif trend is None:
            result = Forecast(each, Outlook.UNKNOWN)
        else:
            result = _reached(each, trend)
        forecasts.append(result._replace(observed_s=observed_s))
    return ResourceForecast(tuple(forecasts), () if kept is None else _growth(samples, now, kept.window_s))


def _growth(samples: Sequence[Sample], now: datetime, window_s: float) -> tuple[Growth, ...]:
    """Return the growing parts of the use.

    The growth of a category that its named parts do not explain, and of the use that no category explains, are parts
    too. The rates are those of a window, or of the readings with parts if these are fewer.
    """
    first = next((number for number, each in enumerate(samples) if each.parts), 0)
    samples = samples[first:]
    points = _points(samples, _times(samples, now), _used)
    window_s = min(window_s, _reach_s(points))
    rates = {}
    for part in next((each.parts for each in reversed(samples) if each.parts), NO_PARTS):  # not of a deleted pod
        with_part = _with_part(samples, part)
        rate = _growth_rate(_points(with_part, _times(with_part, now), _amount_of(part)), window_s)
        if rate > 0:
            rates[part] = rate
    totals = {part: rates.pop(part) for part in tuple(rates) if is_total(part)}
    found = [(part, category_of(part), rate) for part, rate in rates.items()]
    for part, total in totals.items():
        rest = total - sum(rate for _, category, rate in found if category == part)
        if rest > _REST * total:
            found.append((REST_OF[GrowthCategory(part)], GrowthCategory(part), rest))
    found.sort(key=lambda each: (-each[2], each[0]))
    explained = sum(rate for _, _, rate in found)
    used = _fit(points, window_s)
    if used is not None and used.rate - explained > max(_TREND_ERRORS * used.error, _REST * used.rate):
        found.append(("", GrowthCategory.OTHER, used.rate - explained))
    # An unexplained growth within its error is no part, but the parts are not the cause of it either.
    every = max(sum(rate for _, _, rate in found), 0.0 if used is None else used.rate)
    return tuple(Growth(part, rate, rate / every, category) for part, category, rate in found)


def _growth_rate(points: Sequence[_Point], window_s: float) -> float:
    """Return the rate of a part that grows, otherwise 0; with few readings, only a part that grew at each counts."""
    fit = _fit(points, min(window_s, _reach_s(points)))
    if fit is not None:
        return fit.rate if fit.grows else 0.0
    recent = _newest(points, window_s)
    # The readings before and after an excluded interval have the same time.
    pairs = [(before, after) for before, after in combinations(recent, 2) if after[0] > before[0]]
    slopes = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs]
    return median(slopes) if len(slopes) >= _FEWEST_OF_A_PART and min(slopes) > 0 else 0.0


def _reach_s(points: Sequence[_Point]) -> float:
    """Return the length of a window that includes the oldest reading."""
    return 1.0 - points[0][0]


def _reached(threshold: Threshold, trend: _Trend) -> Forecast:
    distance = max(0.0, threshold.used - trend.level - trend.peak)
    if not trend.grows or distance > HORIZON_S * trend.rate:
        return Forecast(threshold, Outlook.NO_TREND)
    expected_s = distance / trend.rate
    deviation = sqrt((trend.error * expected_s) ** 2 + trend.spread**2 * expected_s / trend.lag_s)
    error = sqrt((_RANGE_ERRORS * deviation / distance) ** 2 + _RATE_CHANGE**2) if distance else inf
    half_peak_s = trend.peak / 2 / trend.rate
    return Forecast(
        threshold,
        Outlook.RANGE,
        max(0.0, expected_s - half_peak_s) / (1 + error),
        expected_s,
        (expected_s + half_peak_s) / (1 - error) if error < _WIDEST else None,
        trend.rate,
    )


def _kept(sample: Sample) -> float:
    return sample.used - sample.freeable


def _used(sample: Sample) -> float:
    return sample.used


def _amount_of(part: str) -> Callable[[Sample], float]:
    return lambda sample: sample.parts[part]


def _with_part(samples: Sequence[Sample], part: str) -> list[Sample]:
    """Return the samples that have a part; a new start between two of them is that of the later one."""
    found, is_new = [], False
    for each in samples:
        is_new = is_new or each.new_start
        if part in each.parts:
            found.append(each._replace(new_start=is_new))
            is_new = False
    return found


def _times(samples: Sequence[Sample], now: datetime) -> list[float]:
    """Return the seconds of each reading relative to ``now``, without excluded intervals; never positive or falling."""
    after, at_s = samples[-1], min(0.0, (samples[-1].at - now).total_seconds())
    times = [at_s]
    for before in reversed(samples[:-1]):
        if not after.new_start:
            at_s -= max(0.0, (after.at - before.at).total_seconds())
        times.append(at_s)
        after = before
    times.reverse()
    return times


def _points(
    samples: Sequence[Sample],
    times: Sequence[float],
    amount: Callable[[Sample], float],
    *,
    without_collections: bool = False,
) -> list[_Point]:
    """Return the times and amounts, oldest first, without the change in excluded intervals.

    With ``without_collections`` the change by a collection is excluded too: the next collection depends on the growth
    until then.
    """
    amounts = [amount(each) for each in samples]
    excluded = 0.0
    for index in range(len(samples) - 1, 0, -1):
        before, after = samples[index - 1], samples[index]
        if after.new_start or (without_collections and _is_collection(before, after)):
            excluded = amounts[index] - amounts[index - 1]
        amounts[index - 1] += excluded
    return list(zip(times, amounts, strict=True))


def _is_collection(before: Sample, after: Sample) -> bool:
    return min(before.freeable - after.freeable, before.used - after.used) > _COLLECTED * before.used


def _newest(points: Sequence[_Point], seconds: float) -> Sequence[_Point]:
    return points[bisect_right(points, (-seconds, inf)) :]


def _medians(points: Sequence[_Point], width_s: float) -> dict[int, float]:
    """Return the median amounts by age in multiples of a width, oldest first."""
    groups: dict[int, list[float]] = {}
    last = None
    for at_s, amount in points:  # most of the time of a forecast of a long record
        age = int(-at_s / width_s)
        if age == last:
            groups[age].append(amount)
        else:
            groups[age] = [amount]
            last = age
    return {age: median(amounts) if len(amounts) > 1 else amounts[0] for age, amounts in groups.items()}


def _trend(points: Sequence[_Point]) -> _Trend | None:
    """Return the trend since the last change of the rate; ``None`` with too few readings.

    A longer window with a slightly larger error is preferred, since the rate of the last minutes may be a passing one.
    """
    windows = [_SHORTEST_WINDOW_S]
    while windows[-1] < min(-points[0][0], _LONGEST_WINDOW_S):
        windows.append(2 * windows[-1])
    for count in range(len(windows) - 1, 0, -1):
        if _has_new_rate(points, windows[count - 1]):
            fits = [fit for window_s in windows[:count] if (fit := _fit(points, window_s))]
            largest = 2 * min((fit.error for fit in fits), default=0.0)
            return next((fit for fit in reversed(fits) if fit.error <= largest), None)
    return _fit(points, windows[-1])


def _has_new_rate(points: Sequence[_Point], window_s: float) -> bool:
    """Return whether the median change over a quarter of a window is far from any earlier change over this time.

    The changes are those between medians of sixteenths of the window, of the shortest between eighths, and of the same
    intervals before the window.
    """
    width_s = max(window_s / 16, _SHORTEST_WIDTH_S)
    quarter = round(window_s / width_s / 4)
    medians = _medians(_newest(points, _COMPARED_WINDOWS * window_s), width_s)
    changes = {age: amount - medians[age + quarter] for age, amount in medians.items() if age + quarter in medians}
    recent = [change for age, change in changes.items() if age < 3 * quarter]
    earlier = [change for age, change in changes.items() if age >= 4 * quarter]
    if len(recent) < 1.5 * quarter or len(earlier) < 4:
        return False
    typical, change = median(earlier), median(recent)
    lowest, highest = min(earlier), max(earlier)
    return not lowest - (typical - lowest) / 2 <= change <= highest + (highest - typical) / 2


def _fit(points: Sequence[_Point], window_s: float) -> _Trend | None:
    """Return the line through the readings of a window that ends now; ``None`` with too few readings."""
    points = _newest(points, window_s)
    if len(points) < _FEWEST_MEDIANS:
        return None
    interval_s = median(after[0] - before[0] for before, after in pairwise(points))
    width_s = max(window_s / _BINS, interval_s)
    medians = _medians(points, width_s)
    if len(medians) < _FEWEST_MEDIANS:
        return None
    medians = _without_steps(medians)
    oldest, newest = max(medians), min(medians)
    count = oldest - newest + 1
    season = next((round(each / width_s) for each in (7 * _DAY_S, _DAY_S) if count * width_s >= 2 * each), 1)
    slopes = [
        (amount - earlier) / (before - age)
        for (before, earlier), (age, amount) in combinations(medians.items(), 2)
        if (before - age) % season == 0
    ]
    lag = max(1, round(count / 4 / season)) * season
    if len(slopes) < _FEWEST_MEDIANS:
        return None
    slope = median(slopes)
    deviations = [medians[age] - medians[age + lag] - slope * lag for age in medians if age + lag in medians]
    if len(deviations) < 4:
        return None
    spread = sqrt(sum(each**2 for each in deviations) / len(deviations))
    recent = newest + (season if season > 1 else max(4, count // 4))
    level = median(amount + slope * (age + 0.5) for age, amount in medians.items() if age < recent)
    rate = slope / width_s
    heights = sorted(amount - rate * at_s - level for at_s, amount in points if at_s > -recent * width_s)
    return _Trend(
        window_s,
        rate,
        error=spread / sqrt(lag * count) / width_s,
        spread=spread,
        lag_s=lag * width_s,
        level=level,
        peak=max(0.0, heights[int(0.98 * (len(heights) - 1))]),
        medians=len(medians),
    )


def _without_steps(medians: Mapping[int, float]) -> dict[int, float]:
    """Return the medians without up to two steps up and one down, at the height of the newest; else unchanged.

    One step down may be a manual removal; the second one is a sawtooth, such as log rotation.
    """
    neighbours = list(pairwise(medians))  # each older than the next
    slopes = [(medians[after] - medians[before]) / (before - after) for before, after in neighbours]
    typical = median(slopes)
    limit = _STEP * 1.5 * median(abs(slope - typical) for slope in slopes)
    steps = [0 if abs(slope - typical) <= limit else 1 if slope > typical else -1 for slope in slopes]
    starts = [step for before, step in pairwise([0, *steps]) if step != before]
    if starts.count(1) > 2 or starts.count(-1) > 1:
        return dict(medians)
    height = 0.0
    changed = {}
    for (before, after), slope, step in reversed(list(zip(neighbours, slopes, steps, strict=True))):
        if step:
            height += (slope - typical) * (before - after)
        changed[before] = medians[before] + height
    changed[neighbours[-1][1]] = medians[neighbours[-1][1]]
    return changed
