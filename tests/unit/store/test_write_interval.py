"""Interval between writes of image usage if only times changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.model.runtime import GapCause, ImageUsage, ObservationGap
from nodeagent.record import replace
from nodeagent.store.clock_record import ClockReading, ClockRecord
from nodeagent.store.database import Store
from nodeagent.store.observation import ObservationPeriod
from nodeagent.store.state_file import UNWRITTEN_S, StoredUsage, is_due

if TYPE_CHECKING:
    from pathlib import Path

T0 = datetime(2026, 1, 10, 12, tzinfo=UTC)
LITTLE, MUCH = timedelta(seconds=UNWRITTEN_S - 1), timedelta(seconds=UNWRITTEN_S)
READING = ClockReading("boot", 1000.0, T0)
CLOCK = ClockRecord("boot", 0.0, 1000.0, READING, T0, known_wall=T0)
WRITTEN = StoredUsage(
    {"a": ImageUsage(T0, T0, T0, T0), "b": ImageUsage(T0)}, CLOCK, ObservationPeriod("boot", 0, 1000, T0)
)
GAP = ObservationGap(None, T0, GapCause.NO_PASS)


def used(**fields: ImageUsage) -> StoredUsage:
    return replace(WRITTEN, usage={**WRITTEN.usage, **fields})


def observed(since_s: float, last_s: float, boot_id: str = "boot") -> StoredUsage:
    return replace(WRITTEN, observation=ObservationPeriod(boot_id, since_s, last_s, T0))


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (WRITTEN, False),
        (used(a=ImageUsage(T0, T0 + LITTLE, T0, T0)), False),
        (used(a=ImageUsage(T0, T0 + MUCH, T0, T0)), True),
        (used(a=ImageUsage(T0, None, T0, T0)), True),
        (used(b=ImageUsage(T0, T0)), True),
        (used(a=ImageUsage(T0 + LITTLE, T0, T0, T0)), True),
        (used(a=ImageUsage(T0, T0, T0 + LITTLE, T0)), True),
        (used(a=ImageUsage(T0, T0, T0, T0 + LITTLE)), True),
        (used(c=ImageUsage(T0)), True),
        (replace(WRITTEN, usage={"a": WRITTEN.usage["a"]}), True),
        (observed(0, 1000 + UNWRITTEN_S - 1), False),
        (observed(0, 1000 + UNWRITTEN_S), True),
        (observed(0, 999), True),
        (observed(1, 1000), True),
        (observed(0, 1000, "later"), True),
        (replace(WRITTEN, observation=None), True),
        (replace(WRITTEN, gaps=(GAP,)), True),
        (replace(WRITTEN, first_seen={("log", "x"): (1, "boot", 1.0)}), True),
        (replace(WRITTEN, clock=replace(CLOCK, last_s=1001.0, known_wall=T0 + LITTLE, known_node=T0)), False),
        (replace(WRITTEN, clock=replace(CLOCK, jumped_s=1.0)), True),
        (replace(WRITTEN, clock=replace(CLOCK, node_zero=T0 + LITTLE)), True),
        (replace(WRITTEN, clock=replace(CLOCK, calendar_zero=T0)), True),
        (replace(WRITTEN, clock=replace(CLOCK, boot_id="later")), True),
        (replace(WRITTEN, clock=None), True),
    ],
    ids=[
        *("same", "used for seconds", "used for longer", "never used", "first use", "detected again", "pulled again"),
        *("present again", "new image", "removed image", "seconds later", "later", "before", "restarted observation"),
        *("other boot", "no observation", "gap", "contradictory time", "clock advanced", "clock jumped"),
        *("other node time", "calendar", "clock of another boot", "no clock"),
    ],
)
def test_only_seconds_of_the_same_observation_are_not_written(now: StoredUsage, due: bool) -> None:
    assert is_due(now, WRITTEN) is due


def test_state_is_written_if_the_file_has_none() -> None:
    assert is_due(WRITTEN, None)


def test_restart_loses_only_seconds_of_use(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for second in range(100):
        at = ClockReading("boot", 1000.0 + second, T0 + timedelta(seconds=second))
        store.observe({"a": None, "b": None}, {"a"}, at)
        known, stored = store.usage(), Store(tmp_path).usage()
        assert known.keys() == stored.keys()
        assert all(known[key].first_detected == stored[key].first_detected for key in known)
        ahead = (known["a"].last_used or T0) - (stored["a"].last_used or T0)
        assert 0 <= ahead.total_seconds() < UNWRITTEN_S


def test_replaced_file_is_written_at_the_next_detection(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.observe({"a": None}, {"a"}, READING)
    (tmp_path / "nodeagent.db").unlink()
    store.observe({"a": None}, {"a"}, READING)
    assert set(Store(tmp_path).usage()) == {"a"}
