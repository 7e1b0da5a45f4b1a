"""``nodeagent trend``: the outlook in words, the chart with its events, and widths."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.api.outlook import ForecastDocument, GrowthDocument
from nodeagent.cli.trend import sparkline, trend_view
from nodeagent.text import display_width
from nodeagent.trend.documents import (
    ResourceTrend,
    Trend,
    TrendMark,
    TrendPoint,
)
from nodeagent.trend.words import duration_range, forecast_words, next_words
from tests.support.manual_clock import MIDNIGHT
from tests.unit.outlooks import FULL, GIB, HARD, NO_TREND, REACHED, SOFT, UNKNOWN, forecast, outlook

if TYPE_CHECKING:
    from collections.abc import Sequence

DAY_S = 86_400.0
IMAGE_GC = "image GC at 85% in 2h to 5h"
HOSTILE = "shop/\x1b[31mred\nline"


@pytest.mark.parametrize(
    ("forecasts", "words"),
    [
        ((forecast(),), "image GC at 85% in 2h to 5h, at 1.00 GiB/h, 80% by shop/logger volumes"),
        ((forecast(latest_s=None),), "image GC at 85% in more than 2h, at 1.00 GiB/h, 80% by shop/logger volumes"),
        ((forecast(), forecast(HARD, 90 * GIB, expected_s=60.0, earliest_s=60.0, latest_s=60.0)),
         "eviction at 90% in about 1m, at 1.00 GiB/h, 80% by shop/logger volumes"),
        ((forecast(**REACHED), forecast(HARD, 90 * GIB)),
         "image GC at 85%: reached; eviction at 90% in 2h to 5h, at 1.00 GiB/h, 80% by shop/logger volumes"),
        ((forecast(FULL, 100 * GIB, expected_s=9e5), forecast(HARD, 90 * GIB, expected_s=1.1e4), forecast()),
         f"{IMAGE_GC}, at 1.00 GiB/h; eviction at 90% in 2h to 5h, at 1.00 GiB/h, 80% by shop/logger volumes"),
        ((forecast(**REACHED), forecast(SOFT, 88 * GIB, **REACHED), forecast(HARD, 90 * GIB, **NO_TREND)),
         "soft eviction at 88%: reached"),
        ((forecast(**REACHED), forecast(HARD, 90 * GIB, **NO_TREND)), "image GC at 85%: reached"),
        ((forecast(**NO_TREND),), "no trend"),
        ((forecast(**UNKNOWN),), "unknown: 4m of readings"),
    ],
    ids=["range", "open end", "soonest", "then coming", "both", "reached twice", "reached", "no trend", "unknown"],
)  # fmt: skip
def test_the_next_event_in_words(forecasts: Sequence[ForecastDocument], words: str) -> None:
    assert next_words(outlook(*forecasts)) == words


@pytest.mark.parametrize(
    ("earliest_s", "latest_s", "words"),
    [
        (10.0, 20.0, "about 1m"),
        (90.0, 400.0, "2m to 7m"),
        (7200.0, 90_000.0, "2h to 1d1h"),
        (3 * DAY_S, 9 * DAY_S, "3d to 9d"),
        (0.0, None, "more than 1m"),
    ],
)
def test_times_of_a_range_are_rounded_to_one_unit(earliest_s: float, latest_s: float | None, words: str) -> None:
    assert duration_range(forecast(earliest_s=earliest_s, latest_s=latest_s)) == words


def test_counts_are_counts_and_not_bytes() -> None:
    pids = outlook(resource="pid.available", used=900, capacity=1000)
    assert forecast_words(pids, forecast(HARD, 990, rate_per_s=1 / 36)) == "eviction at 99% in 2h to 5h, at 100/h"


def test_a_sparkline_has_a_cell_for_each_hour_and_shows_gaps() -> None:
    assert sparkline([None, 0.0, 0.5, 1.0]) == "\u00b7\u2581\u2585\u2588"


def record(*marks: TrendMark, gap: bool = False, **fields: Any) -> Trend:
    points = tuple(
        TrendPoint(at=MIDNIGHT - timedelta(minutes=10 * number), used=(78 - number / 4) * GIB)
        for number in reversed(range(144))
        if not (gap and 40 < number < 80)
    )
    found = outlook(forecast(), forecast(HARD, 90 * GIB, **NO_TREND), **fields)
    return Trend(
        observed_at=MIDNIGHT,
        since=MIDNIGHT - timedelta(days=1),
        resources=(ResourceTrend(outlook=found, points=points),),
        marks=marks,
    )


def shown(trend: Trend, columns: int | None = 80, *, chart: bool = True) -> list[str]:
    return [line.text for line in trend_view(trend, columns, chart=chart)]


def mark(hours_ago: float, kind: str) -> TrendMark:
    return TrendMark(at=MIDNIGHT - timedelta(hours=hours_ago), kind=kind, text=kind)


def test_a_chart_rises_with_the_use_and_marks_events_below_their_time() -> None:
    lines = shown(record(mark(12, "collection"), mark(6, "eviction"), mark(23.9, "reboot")))
    top, bottom = lines[1], lines[10]
    assert top.rstrip()[-1] in "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
    assert top.count("\u2588") < bottom.count("\u2588")
    marks = lines[11][5:]
    assert (marks[0], marks[37], marks[56]) == ("R", "c", "E")
    assert lines[13] == "c collection, E eviction, R reboot"


def test_a_time_without_readings_is_empty_in_the_chart() -> None:
    bottom = shown(record(gap=True))[10][5:]
    assert " " in bottom[30:50]


@pytest.mark.parametrize("columns", [50, 60, 80, 120, 200])
@pytest.mark.parametrize("chart", [True, False])
def test_no_line_of_the_chart_is_wider_than_the_terminal(columns: int, chart: bool) -> None:
    lines = shown(record(mark(1, "eviction")), columns, chart=chart)
    drawn = lines[:14] if chart else lines[::2]  # sentences are wrapped by the display
    assert max(map(display_width, drawn)) <= columns


def test_shares_of_the_growth_add_up_with_those_of_the_parts_that_are_not_listed() -> None:
    parts = tuple(GrowthDocument(part=f"a/{number}", rate_per_s=GIB / 3600, share=0.125) for number in range(8))
    lines = shown(record(growth=parts))
    assert lines[-2:] == [" 12% a/4: 1.00 GiB/h", " 38% 3 more: 3.00 GiB/h"]
    assert not any("more" in line for line in shown(record(growth=parts[:5])))


def test_names_from_tenants_are_escaped() -> None:
    hostile = record(growth=(GrowthDocument(part=HOSTILE, rate_per_s=1.0, share=1.0),))
    for chart in (True, False):
        text = "\n".join(shown(hostile, 120, chart=chart))
        assert "\x1b" not in text
        assert "shop/" in text


def test_without_a_record_a_warning_says_so() -> None:
    empty = Trend(observed_at=MIDNIGHT, since=MIDNIGHT, resources=(), marks=(), warnings=("nothing is recorded yet",))
    assert shown(empty, chart=False) == ["warning: nothing is recorded yet"]
