"""The record's file: lines by age, restarts, jumps of the clock, damage, and its size."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.errors import StoreError
from nodeagent.model.outlook import GrowthCategory
from nodeagent.store.clock_record import ClockReading
from nodeagent.trend.plan.readings import LONGEST_NAME, MOST_PARTS, MOST_RESOURCES, ResourceReading
from nodeagent.trend.sample_file import PARTS_EVERY, RecordedLine, SampleFile, has_jumped
from tests.support.manual_clock import MIDNIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DISK, MEMORY = "nodefs.available", "memory.available"
MINUTE_S = 60.0
MOST_BYTES = 20 << 20


def reading(minute: int, *, wall_s: float | None = None, boot: str = "b1") -> ClockReading:
    at_s = minute * MINUTE_S
    return ClockReading(boot, at_s, MIDNIGHT + timedelta(seconds=at_s if wall_s is None else wall_s))


def line(minute: int, *resources: str, wall_s: float | None = None, boot: str = "b1", **more: object) -> RecordedLine:
    found = tuple(
        ResourceReading(each, float(minute), 1000.0, **more)  # type: ignore[arg-type]
        for each in resources or (DISK,)
    )
    return RecordedLine(reading(minute, wall_s=wall_s, boot=boot), found)


def minutes(file: SampleFile, resource: str = DISK) -> list[int]:
    return [round(each.used) for series in file.read() if series.resource == resource for each in series.samples]


def test_lines_are_kept_by_age_in_steps_of_1_10_and_60_minutes(tmp_path: Path) -> None:
    file, last = SampleFile(tmp_path), 12_000
    file.append(line(minute) for minute in range(1, last + 1))
    expected = [
        minute
        for minute in range(1, last + 1)
        if minute > last - 360 or (minute % 10 == 0 and minute > last - 10_080) or minute % 60 == 0
    ]
    assert minutes(file) == expected


def test_lines_recorded_during_a_reading_are_not_part_of_it(tmp_path: Path) -> None:
    file = SampleFile(tmp_path)
    file.append([line(1, DISK, MEMORY)])
    series = file.read_each((DISK, MEMORY))
    found = [next(series)]
    file.append([line(2, DISK, MEMORY)])
    found.extend(series)
    assert [len(each.samples) for each in found] == [1, 1]


def test_a_restarted_agent_continues_the_record_after_an_outage(tmp_path: Path) -> None:
    SampleFile(tmp_path).append([line(1), line(2)])
    assert SampleFile(tmp_path).last_number() == 2
    SampleFile(tmp_path).append([line(500)])
    assert minutes(SampleFile(tmp_path)) == [1, 2, 500]
    assert SampleFile(tmp_path).last_number() == 3


@pytest.mark.parametrize(
    ("before", "now", "jumped"),
    [
        (reading(1), reading(2), False),
        (reading(1), reading(500), False),
        (reading(1), reading(2, wall_s=120 + 3600), True),
        (reading(1), reading(2, wall_s=-3600), True),
        (reading(500), reading(1, wall_s=40_000, boot="b2"), False),
        (reading(500), reading(1, wall_s=0, boot="b2"), True),
        (reading(1, boot=""), reading(2, boot=""), False),
    ],
    ids=["a minute", "suspended", "forwards", "backwards", "reboot", "reboot with an older time", "unknown boot"],
)
def test_a_jump_is_a_difference_of_the_clocks(before: ClockReading, now: ClockReading, jumped: bool) -> None:
    assert has_jumped(before, now) is jumped


def test_a_jump_remains_marked_when_its_line_is_no_longer_kept(tmp_path: Path) -> None:
    file = SampleFile(tmp_path)
    jumped_s = 7 * 86_400.0
    file.append([line(1), line(2), *(line(minute, wall_s=minute * 60 + jumped_s) for minute in range(3, 400))])
    (series,) = file.read()
    new = [round(each.used) for each in series.samples if each.new_start]
    assert new == [10]


def test_a_reboot_empties_memory_and_not_disks(tmp_path: Path) -> None:
    file = SampleFile(tmp_path)
    file.append([line(1, DISK, MEMORY), line(2, DISK, MEMORY, wall_s=300, boot="b2")])
    starts = {series.resource: [each.new_start for each in series.samples] for series in file.read()}
    assert starts == {DISK: [False, False], MEMORY: [False, True]}
    assert file.read_boots(MIDNIGHT) == (MIDNIGHT + timedelta(seconds=300),)


def test_an_unknown_freeable_amount_is_that_of_the_line_before(tmp_path: Path) -> None:
    file = SampleFile(tmp_path)
    file.append([line(100, freeable=40.0), line(101), line(20)])
    assert [each.freeable for each in file.read()[0].samples] == [40.0, 40.0, 20.0]


@pytest.mark.parametrize("name", ["a\nb", "\udcff", "\x1b[31m", "x" * LONGEST_NAME])
def test_any_name_is_recorded(tmp_path: Path, name: str) -> None:
    file = SampleFile(tmp_path)
    file.append([line(1, f"nodefs.available on {name}", parts={name: 3.0})])
    (series,) = file.read()
    assert series.resource == f"nodefs.available on {name}"
    assert series.samples[0].parts == {name: 3.0}


def test_a_corrupt_file_is_set_aside_and_a_new_record_begins(tmp_path: Path) -> None:
    file = SampleFile(tmp_path)
    file.path.write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="cannot read"):
        file.read()
    assert "quarantined" in file.append([line(1)])
    assert minutes(file) == [1]


COLUMNS = {
    "lines": ("number", "at_us", "boot_id", "boottime_s", "jumped"),
    "samples": ("resource", "number", "used", "capacity", "freeable"),
    "parts": ("resource", "number", "part", "amount"),
}


DAMAGE = st.one_of(
    st.binary(max_size=9),
    st.text("0a-", max_size=3),
    st.floats(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([2**63 - 1, 10**18, -(2**63), 1e300, b"12"]),
)


@pytest.mark.parametrize(("table", "column"), [(table, each) for table, found in COLUMNS.items() for each in found])
@given(damage=DAMAGE)
def test_any_damaged_value_of_the_newest_line_is_a_store_error_or_replaced(
    tmp_path_factory: pytest.TempPathFactory, table: str, column: str, damage: object
) -> None:
    file = SampleFile(tmp_path_factory.mktemp("state"))
    file.append([line(1, parts={"a": 1.0}), line(2, parts={"a": 1.0})])
    with closing(sqlite3.connect(file.path)) as connection, suppress(sqlite3.IntegrityError):
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE number = 2", (damage,))
        connection.commit()
    for read in (file.last_number, file.read_names, file.read, partial(file.read_boots, MIDNIGHT)):
        with suppress(StoreError):
            read()
    file.append([line(3, parts={"a": 1.0})])
    assert file.last_number() > 0
    if table == "lines":
        assert minutes(file)[-1] == 3


@pytest.mark.parametrize(
    ("table", "column"), [(table, each) for table, found in COLUMNS.items() for each in found if each != "number"]
)
@given(damaged=st.sampled_from([1, 2, 3]), damage=DAMAGE)
def test_any_damaged_value_costs_its_row_only(
    tmp_path_factory: pytest.TempPathFactory, table: str, column: str, damaged: int, damage: object
) -> None:
    file = SampleFile(tmp_path_factory.mktemp("state"))
    file.append([line(minute, parts={"a": 1.0}) for minute in (1, 2, 3)])
    with closing(sqlite3.connect(file.path)) as connection, suppress(sqlite3.IntegrityError):
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE number = ?", (damage, damaged))
        connection.commit()
    file.read_boots(MIDNIGHT)
    assert {1, 2, 3} - set(minutes(file)) <= {damaged}
    assert file.append([line(4)]) == ""
    assert {1, 2, 3, 4} - set(minutes(file)) <= {damaged}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE lines SET at_us = 'x'",
        "UPDATE lines SET at_us = 9000000000000000000",
        "UPDATE samples SET used = CAST(X'ff' AS TEXT)",
        "UPDATE samples SET used = -1",
        "UPDATE samples SET capacity = 9e999",
        "UPDATE samples SET freeable = X'00'",
        "UPDATE parts SET amount = 'x'",
    ],
)
def test_damaged_row_is_reported(tmp_path: Path, damage: str) -> None:
    file = SampleFile(tmp_path)
    file.append([line(minute, parts={"a": 1.0}) for minute in (1, 2, 3)])
    assert (minutes(file), file.warnings) == ([1, 2, 3], ())
    with closing(sqlite3.connect(file.path)) as connection:
        connection.execute(f"{damage} WHERE number = 1")
        connection.commit()
    assert minutes(file)[-2:] == [2, 3]
    (warning,) = file.warnings
    assert "the record is incomplete" in warning


@pytest.mark.parametrize(
    "statement", ["DROP TABLE lines", "DROP TABLE parts", "ALTER TABLE samples DROP COLUMN freeable"]
)
def test_a_file_with_another_schema_is_set_aside_and_a_new_record_begins(tmp_path: Path, statement: str) -> None:
    file = SampleFile(tmp_path)
    file.append([line(1)])
    with closing(sqlite3.connect(file.path)) as connection:
        connection.execute(statement)
    assert "quarantined" in file.append([line(2, parts={"a": 1.0})])
    assert minutes(file) == [2]


def test_a_series_is_read_alone(tmp_path: Path) -> None:
    file = SampleFile(tmp_path)
    file.append([line(1, DISK, MEMORY)])
    assert file.read_names() == (MEMORY, DISK)
    assert [each.resource for each in file.read_each([DISK])] == [DISK]


@pytest.mark.parametrize(("missing", "is_current"), [(59, True), (60, False)])
def test_a_resource_without_a_reading_in_the_newest_lines_is_recorded_and_not_current(
    tmp_path: Path, missing: int, is_current: bool
) -> None:
    file = SampleFile(tmp_path)
    file.append([line(1, DISK, MEMORY), *(line(2 + number, MEMORY) for number in range(missing))])
    assert file.read_names() == (MEMORY, DISK)
    assert file.read_names(newest=60) == ((MEMORY, DISK) if is_current else (MEMORY,))


def test_a_file_of_a_newer_version_is_neither_read_nor_changed(tmp_path: Path) -> None:
    file = SampleFile(tmp_path)
    file.append([line(1)])
    with closing(sqlite3.connect(file.path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer"):
        file.append([line(2)])
    with pytest.raises(StoreError, match="newer"):
        file.read()


def _full_record() -> Iterator[RecordedLine]:
    names = [f"resource {number} {'r' * LONGEST_NAME}"[:LONGEST_NAME] for number in range(MOST_RESOURCES)]
    last = 100 * 24 * 60
    for minute in range(1, last + 1):
        # Lines that are deleted before the end need no content: they only count.
        is_kept = minute % 60 == 0 or (minute % 10 == 0 and minute > last - 10_080) or minute > last - 360
        with_parts = is_kept and minute % PARTS_EVERY == 0
        long = "p" * LONGEST_NAME
        parts = {
            f"{minute} {number:02} {long}"[:LONGEST_NAME]: 1.0 for number in range(MOST_PARTS if with_parts else 0)
        }
        sums = dict.fromkeys(tuple(GrowthCategory)[:3] if with_parts else (), 1.0)
        found = [
            ResourceReading(name, 1.0, 2.0, 0.5, parts | sums if number < 3 else {})
            for number, name in enumerate(names if is_kept else ())
        ]
        yield RecordedLine(reading(minute), tuple(found))


def test_the_file_of_100_days_with_the_longest_names_is_below_its_bound(tmp_path: Path) -> None:
    file, lines = SampleFile(tmp_path), []
    largest = 0
    for each in _full_record():
        lines.append(each)
        if len(lines) == 28_800:
            file.append(lines)
            largest = max(largest, file.path.stat().st_size)
            lines = []
    assert largest <= MOST_BYTES
    print(f"largest size {largest / 2**20:.1f} MiB, with all resources and the longest names")
