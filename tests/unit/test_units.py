"""Parsing and formatting of quantities, sizes, durations and times."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.units import (
    format_bytes,
    format_duration,
    format_local_time,
    format_quantity,
    localize_times,
    parse_bytes,
    parse_duration_s,
    parse_quantity,
    parse_since,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("1", 1),
        ("100", 100),
        ("1Ki", 1024),
        ("1.5Gi", 3 << 29),
        ("8Ei", 2**63),
        ("2k", 2000),
        ("1E", 10**18),
        ("1E3", 1000),
        ("12e6", 12_000_000),
        ("1e-3", Decimal("0.001")),
        ("100u", Decimal("0.0001")),
        ("5n", Decimal("5e-9")),
        ("0.1n", Decimal("1e-9")),
        ("128974848000m", 128_974_848),
        (".5", Decimal("0.5")),
        ("1.", 1),
        ("+1", 1),
        ("9007199254740993.000000001", Decimal("9007199254740993.000000001")),
    ],
)
def test_quantity_is_parsed_as_by_kubernetes(text: str, number: Decimal | int) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *("", "Mi", "-1", "1 Mi", " 1", "1mb", "1mi", "1Kib", "1e", "1e3Mi", "9Ei1", "0x10", "1_000", "."),
        *("\N{ARABIC-INDIC DIGIT ONE}", "1" * 65, "inf", "nan"),
    ],
)
def test_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity such as 500Mi"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1", 1),
        ("100Mi", 100 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("2G", 2 * 10**9),
        ("500k", 500_000),
        ("1Ki", 1024),
        (" 7M ", 7 * 10**6),
        (".5Ki", 512),
        ("0.3", 1),
        ("8Ei", 2**63),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1.", 1),
        ("1500m", 2),
        ("0m", 0),
    ],
)
def test_size_is_a_quantity_in_whole_bytes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "Mi", "-1", "1 Mi", "1mb", "1Kib", "0x10", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_invalid_size_is_rejected_with_the_allowed_form(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write a number of bytes"):
        parse_bytes(text)


@pytest.mark.difference("quantity-below-byte")
@pytest.mark.parametrize("text", ["500m", "1u", "999999999n"])
def test_size_below_a_byte_by_its_suffix_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is less than a byte: write a number of bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("2m", 120),
        ("1w", 604_800),
        ("1w2d", 777_600),
        ("1h30m", 5400),
        ("7d", 604800),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("1d2h3m4s", 93784),
        ("1us", 1e-6),
    ],
)
def test_duration_is_parsed_as_by_go(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "empty text"),
        ("5", "is not a duration"),
        ("-3s", "is negative"),
        ("1y", "not a duration"),
        ("m", "not a duration"),
        ("1h x", "not a duration"),
    ],
)
def test_invalid_duration_is_rejected_with_the_allowed_form(text: str, cause: str) -> None:
    with pytest.raises(ValueError, match=rf"{cause}.*: write numbers with the units"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536 * 2**20, "1.50 GiB"),
        (9 * 2**20 + 2**20 * 998 // 1000, "10.0 MiB"),
        (-2048, "-2.00 KiB"),
        (1023 * 2**20, "1.00 GiB"),
        (2**70, "1024 EiB"),
    ],
)
def test_size_is_formatted_with_three_digits(size_bytes: int, shown: str) -> None:
    assert format_bytes(size_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (1, "1s"),
        (59.6, "1m"),
        (90, "1m30s"),
        (9900, "2h45m"),
        (86400, "1d"),
        (90061, "1d1h"),
        (-90, "-1m30s"),
        (3601, "1h"),
        (0.9999, "1s"),
    ],
)
def test_duration_is_formatted_with_two_units(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@given(st.integers(0, 2**63))
def test_every_number_of_bytes_is_parsed(size_bytes: int) -> None:
    assert parse_bytes(str(size_bytes)) == size_bytes


@given(st.integers(1, 2**60))
def test_formatted_size_is_within_a_percent_of_the_size(size_bytes: int) -> None:
    number, unit = format_bytes(size_bytes).split()
    shown = parse_bytes(
        number + {"B": "", "KiB": "Ki", "MiB": "Mi", "GiB": "Gi", "TiB": "Ti", "PiB": "Pi", "EiB": "Ei"}[unit]
    )
    assert abs(shown - size_bytes) <= size_bytes * 0.01


@given(st.integers(0, 10**9))
def test_formatted_duration_parses_to_its_two_largest_units(seconds: int) -> None:
    back = parse_duration_s(format_duration(seconds))
    assert back <= seconds
    assert seconds - back < max(1, seconds * 0.05)


@given(st.floats(0, 10**12, allow_nan=False))
def test_every_duration_is_formatted(seconds: float) -> None:
    assert format_duration(seconds)


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0"), (1, "1"), (1023, "1023"), (1024, "1Ki"), (1536, "1536"), (3 * 2**30, "3Gi"), (2**70, "1024Ei")],
)
def test_quantity_is_formatted_without_rounding(size_bytes: int, shown: str) -> None:
    assert format_quantity(size_bytes) == shown


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("1G", "1G"),
        ("1000M", "1G"),
        ("1500M", "1500M"),
        ("1.5G", "1500M"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("1e9", "1e9"),
        ("1E12", "1e12"),
        ("1e10", "10e9"),
        ("15e-1", "2"),
        ("1Gi", "1Gi"),
        ("0.5Gi", "512Mi"),
        ("1024Mi", "1Gi"),
        ("0", "0"),
        ("0Gi", "0"),
        ("0e5", "0"),
    ],
)
def test_quantity_keeps_the_form_in_which_it_is_written(written: str, shown: str) -> None:
    assert format_quantity(parse_bytes(written), like=written) == shown


@pytest.mark.parametrize("like", ["", "10%", "unknown"])
def test_quantity_like_another_text_is_binary(like: str) -> None:
    assert format_quantity(2000 * 1024, like) == "2000Ki"


@given(st.integers(0, 2**63 - 1), st.sampled_from(["1", "1k", "1e3", "1Ki", ""]))
def test_quantity_in_any_form_is_the_same_number(number: int, like: str) -> None:
    assert parse_bytes(format_quantity(number, like)) == number


@given(st.integers(0, 2**63))
def test_formatted_quantity_is_the_same_number_and_canonical(size_bytes: int) -> None:
    text = format_quantity(size_bytes)
    assert parse_bytes(text) == size_bytes
    number = int(text.rstrip("KMGTPEi"))
    assert number % 1024 or not number or text.endswith("Ei")


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that sets the local time zone until the end of the test."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "zone_name", "expected"),
    [
        ("2h", "UTC", "2026-03-29T08:30:00+00:00"),
        ("today", "UTC", "2026-03-29T00:00:00+00:00"),
        ("today", "Europe/Berlin", "2026-03-28T23:00:00+00:00"),
        ("yesterday", "Europe/Berlin", "2026-03-27T23:00:00+00:00"),
        ("today", "Asia/Tokyo", "2026-03-28T15:00:00+00:00"),
        ("2026-03-29", "Europe/Berlin", "2026-03-28T23:00:00+00:00"),
        ("2026-03-29T12:00", "Europe/Berlin", "2026-03-29T10:00:00+00:00"),  # after the change to summer time
        ("2026-03-29 01:00:30", "Europe/Berlin", "2026-03-29T00:00:30+00:00"),
        ("2026-03-29T12:00:00Z", "Europe/Berlin", "2026-03-29T12:00:00+00:00"),
        (" 2026-03-29T12:00:00+09:00 ", "Europe/Berlin", "2026-03-29T03:00:00+00:00"),
        ("0", "UTC", "2026-03-29T10:30:00+00:00"),
    ],
)
def test_start_of_a_period_is_a_duration_a_day_or_a_time(
    zone: Callable[[str], None], text: str, zone_name: str, expected: str
) -> None:
    zone(zone_name)
    assert parse_since(text, datetime(2026, 3, 29, 10, 30, tzinfo=UTC)).isoformat() == expected


@pytest.mark.parametrize(
    ("zone_name", "moment", "text"),
    [
        ("UTC", "2026-03-29T00:30:05.999+00:00", "2026-03-29 00:30:05 UTC"),
        ("Europe/Berlin", "2026-03-29T00:59:59+00:00", "2026-03-29 01:59:59 CET"),
        ("Europe/Berlin", "2026-03-29T01:00:00+00:00", "2026-03-29 03:00:00 CEST"),
        ("Asia/Kolkata", "2026-12-31T23:00:00+00:00", "2027-01-01 04:30:00 IST"),
        ("<-03>3", "2026-03-29T01:00:00+00:00", "2026-03-28 22:00:00 -03"),
        ("Etc/GMT+12", "0001-01-01T00:00:00+00:00", "0001-01-01T00:00:00.000Z"),
    ],
)
def test_time_for_people_is_local_with_its_zone(
    zone: Callable[[str], None], zone_name: str, moment: str, text: str
) -> None:
    zone(zone_name)
    assert format_local_time(datetime.fromisoformat(moment)) == text


def test_times_in_a_sentence_are_local_with_their_zone(zone: Callable[[str], None]) -> None:
    zone("Europe/Berlin")
    text = "held until 2026-03-29T01:00:00.500Z, read at 2026-03-29T00:59:59Z; a:2026-03-29T00:59 2026-13-01T00:00:00Z"
    assert localize_times(text) == (
        "held until 2026-03-29 03:00:00 CEST, read at 2026-03-29 01:59:59 CET; a:2026-03-29T00:59 2026-13-01T00:00:00Z"
    )


@pytest.mark.parametrize(
    "text", ["", "-2h", "tomorrow", "2026", "2026-13-01", "2026-03-29T25:00", "2026-03-29 x", "1e9h"]
)
def test_start_of_a_period_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: write a duration such as 2h"):
        parse_since(text, datetime(2026, 3, 29, 10, 30, tzinfo=UTC))
