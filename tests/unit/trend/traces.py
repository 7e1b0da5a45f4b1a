"""Simulated readings of one resource in percent of its capacity: use that grows in typical ways, and a collector.

A course is the use that collection cannot free, in parts, and the images that become unused. ``simulate`` adds the
collector, which starts at 85 % and stops at 80 %, and the errors of the readings: noise, unused images known with an
error of some percent and only every ten minutes. Everything is random with a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.outlook import ThresholdKind
from nodeagent.trend.plan.forecast import Sample, Threshold

if TYPE_CHECKING:
    from random import Random

T0: Final = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86400
COLLECTION: Final = Threshold(ThresholdKind.COLLECTION, 85.0, after_collection=False)
SOFT: Final = Threshold(ThresholdKind.SOFT, 90.0, after_collection=True)
HARD: Final = Threshold(ThresholdKind.HARD, 95.0, after_collection=True)
_STOP: Final = 80.0
_PASS_S: Final = 300


class Course(NamedTuple):
    """Amounts at each step.

    Attributes:
        step_s: seconds between steps.
        parts: amounts that collection cannot free.
        unused: images that become unused at each step.
        noise: standard deviation of a reading.
        start_s: start of the trend.
        thresholds: thresholds of the backtest.
        jumps: steps of the wall clock in seconds, by step number.
        gap: step numbers without readings.
    """

    step_s: int
    parts: Mapping[str, Sequence[float]]
    unused: Sequence[float]
    noise: float = 0.1
    start_s: float = 0.0
    thresholds: tuple[Threshold, ...] = (COLLECTION, SOFT, HARD)
    jumps: Mapping[int, float] = {}
    gap: range = range(0)


class Trace(NamedTuple):
    """Readings of a course, one at each step; ``None`` in a gap."""

    course: Course
    readings: Sequence[Sample | None]


def simulate(course: Course, rng: Random) -> Trace:
    """Return the readings of a course under a collector."""
    readings: list[Sample | None] = []
    unused = known = offset_s = churn = 0.0
    churn_size, churn_s = rng.uniform(0.05, 0.4), rng.uniform(0.2, 6) * HOUR_S
    remaining = math.exp(-course.step_s / churn_s)
    known_share = 1 + rng.uniform(-0.03, 0.03)
    names = tuple(course.parts)
    new_start = False
    for number, (unused_now, amounts) in enumerate(
        zip(course.unused, zip(*course.parts.values(), strict=True), strict=True)
    ):
        at_s = number * course.step_s
        churn = remaining * churn + rng.gauss(0, churn_size * math.sqrt(1 - remaining**2))
        kept = sum(amounts) + churn
        unused += unused_now
        if at_s % (2 * _PASS_S) == 0:
            known = unused * known_share
        if number in course.jumps:
            offset_s += course.jumps[number]
            new_start = True
        if number in course.gap:
            readings.append(None)
            continue
        used = kept + unused + rng.gauss(0, course.noise)
        parts = {**dict(zip(names, amounts, strict=True)), "images": unused}
        at = T0 + timedelta(seconds=at_s + offset_s)
        readings.append(Sample(at, used, min(known, used), parts, new_start))
        new_start = False
        if at_s % _PASS_S == 0 and used >= COLLECTION.used:
            unused -= min(unused, kept + unused - _STOP)
            known = unused * known_share
    return Trace(course, readings)


def recorded(trace: Trace, count: int) -> tuple[list[Sample], datetime]:
    """Return the recorded samples of the first ``count`` readings, in three resolutions, and the time of the last."""
    step_s = trace.course.step_s
    samples: list[Sample] = []
    new_start, last = False, None
    for number in range(count):
        reading = trace.readings[number]
        if reading is None:
            continue
        age_s = (count - 1 - number) * step_s
        every_s = MINUTE_S if age_s <= 6 * HOUR_S else 600 if age_s <= 7 * DAY_S else HOUR_S
        new_start |= reading.new_start
        if (number * step_s) // every_s != last or age_s <= 6 * HOUR_S:
            last = (number * step_s) // every_s
            samples.append(reading._replace(new_start=new_start))
            new_start = False
    return samples, samples[-1].at


def _growth(total_s: float, rng: Random, low: float = 25.0, high: float = 60.0) -> tuple[int, int, float, float]:
    """Return step, number of steps, start and rate per second of growth that reaches 95 % about after a time."""
    step_s = MINUTE_S if total_s <= 3 * DAY_S else 300 if total_s <= 20 * DAY_S else 600
    base = rng.uniform(low, high)
    return step_s, int(1.7 * total_s / step_s), base, (95 - base) / total_s


def _line(count: int, step_s: int, base: float, rate: float, rng: Random) -> list[float]:
    """Return growth whose rate varies by half from one twentieth to the next."""
    part = count // 20
    factors = [rng.uniform(0.5, 1.5) for _ in range(21)]
    return _total([rate * step_s * factors[number // part % 21] for number in range(count)], base)


def _day(count: int, step_s: int, amplitude: float, phase_s: float = 0.0) -> list[float]:
    """Return a daily cycle: load in the afternoon, quiet at night."""
    turn = 2 * math.pi / DAY_S
    return [amplitude * (1 - math.cos(turn * (number * step_s + phase_s))) / 2 for number in range(count)]


def _added(*courses: Sequence[float]) -> list[float]:
    return [sum(each) for each in zip(*courses, strict=True)]


def _total(increments: Sequence[float], base: float) -> list[float]:
    totals = []
    for each in increments:
        base += each
        totals.append(base)
    return totals


def _none(count: int) -> list[float]:
    return [0.0] * count


def _pulls(count: int, step_s: int, per_s: float, rng: Random) -> list[float]:
    """Return images of 0.2 to 1.5 % that become unused at random times."""
    return [rng.uniform(0.2, 1.5) if rng.random() < per_s * step_s / 0.85 else 0.0 for _ in range(count)]


def steady(rng: Random) -> Course:
    step_s, count, base, rate = _growth(rng.uniform(0.3, 20) * DAY_S, rng)
    return Course(
        step_s, {"volumes": _line(count, step_s, base, rate, rng)}, _none(count), noise=rng.uniform(0.02, 0.3)
    )


def fast(rng: Random) -> Course:
    step_s, count, base, rate = _growth(rng.uniform(1, 6) * HOUR_S, rng)
    return Course(
        step_s, {"volumes": _line(count, step_s, base, rate, rng)}, _none(count), noise=rng.uniform(0.02, 0.3)
    )


def day_and_night(rng: Random) -> Course:
    step_s, count, base, rate = _growth(rng.uniform(6, 25) * DAY_S, rng)
    day = _day(count, step_s, rng.uniform(3, 10), rng.uniform(0, DAY_S))
    return Course(step_s, {"volumes": _line(count, step_s, base, rate, rng), "cache": day}, _none(count))


def sawtooth(rng: Random) -> Course:
    total_s = rng.uniform(2, 10) * DAY_S
    step_s, count, base, rate = _growth(total_s, rng, 30, 50)
    unused = _pulls(count, step_s, rate * rng.uniform(2, 5), rng)
    return Course(step_s, {"volumes": _line(count, step_s, base, rate, rng)}, unused)


def slow_leak_under_sawtooth(rng: Random) -> Course:
    total_s = rng.uniform(8, 30) * DAY_S
    step_s, count, base, rate = _growth(total_s, rng, 40, 60)
    unused = _pulls(count, step_s, rate * rng.uniform(15, 40), rng)
    return Course(step_s, {"volumes": _line(count, step_s, base, rate, rng)}, unused, thresholds=(SOFT, HARD))


def bursts(rng: Random) -> Course:
    total_s = rng.uniform(2, 12) * DAY_S
    step_s, count, base, rate = _growth(total_s, rng)
    number = rng.uniform(40, 100)
    increments = _none(count)
    start_s = 0.0
    while start_s < count * step_s:
        length = max(1, int(rng.uniform(600, 3600) / step_s))
        size = rng.uniform(0.5, 1.5) * rate * total_s / number
        for step in range(int(start_s / step_s), min(count, int(start_s / step_s) + length)):
            increments[step] += size / length
        start_s += rng.expovariate(number / total_s)
    return Course(step_s, {"volumes": _total(increments, base)}, _none(count))


def step(rng: Random) -> Course:
    step_s, count, base, rate = _growth(rng.uniform(1, 15) * DAY_S, rng, 25, 50)
    height = rng.uniform(4, 15)
    place = rng.uniform(0.05, 0.4) * (95 - base - height) / rate / step_s
    steps = [height if number > place else 0.0 for number in range(count)]
    return Course(step_s, {"volumes": _line(count, step_s, base, rate, rng), "models": steps}, _none(count))


def weekly(rng: Random) -> Course:
    step_s, count, base, rate = _growth(rng.uniform(28, 60) * DAY_S, rng)
    weekday = [1.35 if (number * step_s // DAY_S) % 7 < 5 else 0.125 for number in range(count)]
    day = _day(count, step_s, rng.uniform(1, 4))
    volumes = _total([rate * step_s * each for each in weekday], base)
    return Course(step_s, {"volumes": volumes, "cache": day}, _none(count))


def log_rotation(rng: Random) -> Course:
    total_s = rng.uniform(5, 15) * DAY_S
    step_s, count, base, rate = _growth(total_s, rng)
    period_s, size = rng.uniform(6, 30) * HOUR_S, rng.uniform(2, 6)
    logs = [size * ((number * step_s) % period_s) / period_s for number in range(count)]
    return Course(step_s, {"volumes": _line(count, step_s, base, rate, rng), "logs": logs}, _none(count))


def deploy_waves(rng: Random) -> Course:
    total_s = rng.uniform(10, 25) * DAY_S
    step_s, count, base, rate = _growth(total_s, rng)
    a_day = rng.uniform(5, 12)
    increments, unused = _none(count), _none(count)
    previous = rng.uniform(0.5, 2)
    for number in range(count):
        hour = number * step_s % DAY_S / HOUR_S
        if 8 <= hour < 18 and rng.random() < a_day * step_s / (10 * HOUR_S):
            size = rng.uniform(0.5, 2)
            increments[number] += size - previous + rng.uniform(0.5, 1.5) * rate * DAY_S / a_day
            unused[number] += previous
            previous = size
    return Course(step_s, {"volumes": _total(increments, base)}, unused)


def two_growers(rng: Random) -> Course:
    total_s = rng.uniform(1, 12) * DAY_S
    step_s, count, base, rate = _growth(total_s, rng)
    share = rng.uniform(0.5, 0.8)
    lumps = [rng.uniform(0.1, 0.3) if rng.random() < (1 - share) * rate * step_s / 0.2 else 0.0 for _ in range(count)]
    parts = {"volumes": _line(count, step_s, base, rate * share, rng), "logs": _total(lumps, 0.0)}
    return Course(step_s, parts, _none(count))


def memory_leak(rng: Random) -> Course:
    step_s, count, base, rate = _growth(rng.uniform(3, 40) * HOUR_S, rng, 35, 60)
    heap, garbage = [], 0.0
    for _ in range(count):
        garbage = rng.uniform(0, 0.3) if garbage > 3 or rng.random() < 0.02 else garbage + rng.uniform(0, 0.2)
        heap.append(garbage)
    parts = {"leaking": _line(count, step_s, base, rate, rng), "heap": heap}
    return Course(step_s, parts, _none(count), noise=0.3, thresholds=(SOFT, HARD))


def cache(rng: Random) -> Course:
    total_s = rng.uniform(3, 15) * DAY_S
    step_s, count, base, rate = _growth(total_s, rng, 20, 35)
    size, fill_s = rng.uniform(8, 20), rng.uniform(0.01, 0.05) * total_s
    filled = [size * (1 - math.exp(-number * step_s / fill_s)) for number in range(count)]
    return Course(step_s, {"volumes": _line(count, step_s, base, rate, rng), "cache": filled}, _none(count))


def clock_jump(rng: Random) -> Course:
    course = steady(rng)
    count = len(course.unused) / 1.7
    jumps = {int(count * rng.uniform(0.05, 0.4)): rng.choice([-1, 1]) * rng.uniform(600, 5 * HOUR_S) for _ in range(2)}
    return course._replace(jumps=jumps)


def gap(rng: Random) -> Course:
    course = day_and_night(rng)
    start = int(len(course.unused) / 1.7 * rng.uniform(0.05, 0.25))
    return course._replace(gap=range(start, start + int(len(course.unused) / 1.7 * rng.uniform(0.03, 0.12))))


def onset(rng: Random) -> Course:
    """Return a trend that starts after idle time."""
    total_s = rng.uniform(0.2, 4) * DAY_S
    step_s, count, base, rate = _growth(total_s, rng, 40, 65)
    idle = int(rng.uniform(1, 4) * DAY_S / step_s)
    line = [base] * idle + _line(count, step_s, base, rate, rng)
    return Course(step_s, {"volumes": line}, _none(len(line)), start_s=idle * step_s)


GROWING: Final[tuple[Callable[[Random], Course], ...]] = (
    steady,
    fast,
    day_and_night,
    sawtooth,
    slow_leak_under_sawtooth,
    bursts,
    step,
    weekly,
    log_rotation,
    deploy_waves,
    two_growers,
    memory_leak,
    cache,
    clock_jump,
    gap,
    onset,
)
"""Courses that reach the thresholds."""

_MONTH: Final = 30 * DAY_S // 600


def idle(rng: Random) -> Course:
    return Course(600, {"volumes": [rng.uniform(30, 75)] * _MONTH}, _none(_MONTH), noise=rng.uniform(0.02, 0.5))


def flat_day_and_night(rng: Random) -> Course:
    day = _day(_MONTH, 600, rng.uniform(3, 15), rng.uniform(0, DAY_S))
    return Course(600, {"volumes": [rng.uniform(30, 65)] * _MONTH, "cache": day}, _none(_MONTH))


def flat_weekly(rng: Random) -> Course:
    base, high = rng.uniform(30, 60), rng.uniform(5, 15)
    week = [base + high * ((number * 600 // DAY_S) % 7 < 5) for number in range(_MONTH)]
    smooth = _smoothed(week, 60)
    return Course(600, {"volumes": smooth, "cache": _day(_MONTH, 600, rng.uniform(1, 5))}, _none(_MONTH))


def flat_log_rotation(rng: Random) -> Course:
    period_s, size = rng.uniform(6, 30) * HOUR_S, rng.uniform(3, 10)
    logs = [size * ((number * 600) % period_s) / period_s for number in range(_MONTH)]
    return Course(600, {"volumes": [rng.uniform(30, 70)] * _MONTH, "logs": logs}, _none(_MONTH))


def flat_sawtooth(rng: Random) -> Course:
    unused = _pulls(_MONTH, 600, rng.uniform(2, 20) / DAY_S, rng)
    return Course(600, {"volumes": [rng.uniform(30, 65)] * _MONTH}, unused)


def wandering(rng: Random) -> Course:
    """Return a level that wanders around its mean within hours."""
    base, level, levels = rng.uniform(35, 70), 0.0, []
    for _ in range(_MONTH):
        level += -level / rng.uniform(20, 200) + rng.gauss(0, 0.3)
        levels.append(base + level)
    return Course(600, {"volumes": levels}, _none(_MONTH))


def batch_jobs(rng: Random) -> Course:
    """Return temporary files of nightly jobs."""
    files = _none(_MONTH)
    for day in range(30):
        start = day * 144 + rng.randint(6, 24)
        length, size = rng.randint(6, 30), rng.uniform(2, 8)
        for number in range(start, min(_MONTH, start + length)):
            files[number] = size * (number - start + 1) / length
    return Course(600, {"volumes": [rng.uniform(30, 70)] * _MONTH, "build": files}, _none(_MONTH))


def flat_steps(rng: Random) -> Course:
    level, levels = rng.uniform(40, 60), []
    for _ in range(_MONTH):
        if rng.random() < 6 / _MONTH:
            level = min(75.0, max(25.0, level + rng.uniform(-12, 12)))
        levels.append(level)
    return Course(600, {"volumes": levels}, _none(_MONTH))


def flat_deploys(rng: Random) -> Course:
    course = deploy_waves(rng)
    volumes, unused, size = _none(_MONTH), _none(_MONTH), 1.0
    base = rng.uniform(30, 60)
    for number in range(_MONTH):
        if 8 <= number * 600 % DAY_S / HOUR_S < 18 and rng.random() < 4 / 60:
            unused[number], size = size, rng.uniform(0.5, 2)
        volumes[number] = base + size
    return course._replace(step_s=600, parts={"volumes": volumes}, unused=unused)


def _smoothed(values: Sequence[float], width: int) -> list[float]:
    mean, means = values[0], []
    for each in values:
        mean += (each - mean) / width * 4
        means.append(mean)
    return means


FLAT: Final[tuple[Callable[[Random], Course], ...]] = (
    idle,
    flat_day_and_night,
    flat_weekly,
    flat_log_rotation,
    flat_sawtooth,
    wandering,
    batch_jobs,
    flat_steps,
    flat_deploys,
)
"""Courses of 30 days without trend."""
