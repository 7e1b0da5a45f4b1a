"""Upgrade from 0.1: a state directory, a saved plan and a configuration written by version 0.1 (``tests/data``).

The state directory was written on a simulated node by container and image GC, one eviction, a hold, a pause and an
interrupted shutdown.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nodeagent.errors import ConfigError
from nodeagent.eviction.effects import EvictionFile
from nodeagent.gc.documents.history import HistoryDocument
from nodeagent.gc.hold_file import HoldFile
from nodeagent.gc.plan.saved_plan import parse_plan
from nodeagent.loops.pause_file import PauseFile
from nodeagent.loops.reload_grace import mode_file
from nodeagent.model.runtime import ImageUsage
from nodeagent.model.stops import LastActivity, StopEnd
from nodeagent.record import replace
from nodeagent.settings.loading import load
from nodeagent.shutdown.recorder import ShutdownFiles
from nodeagent.store.clock_record import ClockReading
from nodeagent.store.database import Store
from nodeagent.store.history import History, PastPass, Retention
from nodeagent.store.sqlite import micros

WRITTEN = Path(__file__).parents[2] / "data/state-0.1"
NOW = datetime(2026, 11, 21, 20, tzinfo=UTC)
STOP_ENDS = [StopEnd.IN_PROGRESS, StopEnd.INCOMPLETE, StopEnd.COMPLETE, StopEnd.UNKNOWN]
"""Results of node stops, stored by version 0.1 as under-way, cut-short, complete and unknown."""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return Path(shutil.copytree(WRITTEN, tmp_path / "state"))


def test_history_of_0_1_is_read_with_its_reason_codes_as_recorded(state: Path) -> None:
    passes = History(state).read(limit=1000, quiet=True)
    assert len(passes) == 10
    reasons = {action.reason for each in passes for action in each.actions}
    assert reasons >= {"pod-gone", "link-target-gone", "least-recently-used", "low-on-resource"}
    (evicted,) = (each for each in passes if each.eviction)
    assert json.loads(evicted.eviction)["ranking"][0]["reason"] == "low-on-resource"


def test_history_of_0_1_becomes_a_document(state: Path) -> None:
    history = History(state)
    document = HistoryDocument.of(history.read(limit=1000, quiet=True), history.read_stops())
    assert "pod-gone" in {action.reason.code for each in document.passes for action in each.actions}
    assert [each.end for each in document.node_stops] == STOP_ENDS


def test_history_of_0_1_is_continued(state: Path) -> None:
    history, keep = History(state), Retention(timedelta(days=30), 16 << 20)
    past = PastPass("new", NOW, 1.0, "interval", "images", "p", False, "shortfall", "", 0, 0, 90, 90, ())
    history.add(past, keep)
    assert (history.problem, history.take_notices()) == ("", ())
    found = history.read(limit=1000, quiet=True)
    assert found[0] == past
    assert sum(len(each.actions) for each in found) == 63


def test_node_stops_of_0_1_are_read_with_the_current_ends(state: Path) -> None:
    assert [each.end for each in History(state).read_stops()] == STOP_ENDS


def test_interrupted_shutdown_of_0_1_is_in_progress(state: Path) -> None:
    files = ShutdownFiles(state)
    stop, boot = files.read_stop(), files.read_boot()
    assert stop is not None
    assert boot is not None
    assert (stop.end, stop.ended_at, len(stop.pods)) == (StopEnd.IN_PROGRESS, None, 2)
    assert (boot.activity, len(boot.pods)) == (LastActivity.GOING_DOWN, 2)
    files.write_stop(stop)
    assert files.read_stop() == stop
    assert '"in-progress"' in (state / "shutdown.json").read_text()


def test_unknown_end_of_a_shutdown_is_refused() -> None:
    with pytest.raises(ValueError, match="'elsewhere' is not a valid StopEnd"):
        StopEnd("elsewhere")


def test_hold_of_0_1_is_in_force(state: Path) -> None:
    (hold,) = HoldFile(state).read()
    assert (hold.id, hold.image, hold.why, hold.by) == ("1", "docker.io/library/*", "audit of the web images", "root")
    assert hold.until > NOW


def test_pause_of_0_1_is_in_force(state: Path) -> None:
    pause = PauseFile(state).read()
    assert pause is not None
    assert (pause.by, pause.why, pause.until > NOW) == ("root", "kernel update", True)


def test_image_usage_of_0_1_is_kept_and_its_observation_begins_with_the_first_detection(state: Path) -> None:
    store = Store(state)
    known = store.usage()
    assert (len(known), store.problem, len(store.snapshot_usage())) == (16, "", 26)
    now = ClockReading("another-boot", 60.0, NOW)
    assert store.observed_since(now) is None
    record = store.observe(dict.fromkeys(known), (), now)
    assert record.observed_since == NOW
    assert record.usage == known
    assert Store(state).usage() == known


def write_as_0_1(directory: Path, image_id: str, first: datetime, used: datetime, at: ClockReading) -> None:
    """Write an image use with the SQL statements of version 0.1, which checks only the schema version."""
    with closing(sqlite3.connect(directory / "nodeagent.db")) as old, old:
        assert old.execute("PRAGMA user_version").fetchone() == (2,)
        old.execute(
            "INSERT INTO image_usage VALUES (?, ?, ?) ON CONFLICT (image_id) DO UPDATE SET"
            " first_detected_us = excluded.first_detected_us, last_used_us = excluded.last_used_us",
            (image_id, micros(first), micros(used)),
        )
        clock = {"boot_id": at.boot_id, "boottime_s": str(at.boottime_s), "wall_us": str(micros(at.wall))}
        old.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", clock.items())


def test_image_usage_is_continued_by_0_1_and_by_this_version_again(tmp_path: Path) -> None:
    minute = timedelta(minutes=1)
    first, later, last = (ClockReading("boot", 1000.0 + 60 * each, NOW + each * minute) for each in range(3))
    pulled = {"kept": NOW - minute, "again": NOW - minute}
    known = Store(tmp_path).observe(pulled, ("kept",), first).usage
    assert known["kept"] == ImageUsage(NOW, NOW, NOW - minute, NOW - minute)
    write_as_0_1(tmp_path, "kept", NOW, later.wall, later)
    write_as_0_1(tmp_path, "again", later.wall, later.wall, later)
    store = Store(tmp_path)
    assert store.problem == ""
    assert store.usage() == {
        "kept": ImageUsage(NOW, later.wall, NOW - minute, NOW - minute),
        "again": ImageUsage(later.wall, later.wall),
    }
    store.read_clock(replace(last, boot_id="next boot", boottime_s=10.0))
    assert Store(tmp_path).observed_since(last) is None
    store = Store(tmp_path)
    assert store.observe(pulled, (), last).observed_since == last.wall
    assert Store(tmp_path).observed_since(last) == last.wall


def test_use_written_by_0_1_after_a_jump_back_is_as_recent_as_recorded(tmp_path: Path) -> None:
    store, day = Store(tmp_path), timedelta(days=30)
    store.observe({"a": None}, (), ClockReading("boot", 1000.0, NOW))
    store.observe({"a": None}, (), ClockReading("boot", 1060.0, NOW - day))
    write_as_0_1(tmp_path, "a", NOW - day, NOW - day, ClockReading("boot", 1120.0, NOW - day + timedelta(minutes=1)))
    last = ClockReading("boot", 1180.0, NOW - day + timedelta(minutes=2))
    assert Store(tmp_path).observe({"a": None}, (), last).usage["a"].last_used == NOW - day


def test_files_unknown_to_0_1_are_read_as_absent(state: Path) -> None:
    assert mode_file(state).read() is None
    assert EvictionFile(state).read("boot") == ((), ())


def test_saved_plan_of_0_1_is_refused(state: Path) -> None:
    text = (state / "plan.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"unknown schema 'nodeagent/plan/v1'.*; create a new plan"):
        parse_plan(text)


def test_configuration_of_0_1_is_accepted(state: Path) -> None:
    in_force = load(state / "config.toml", environment={}).config.settings()
    assert in_force.policy.images.high_threshold_percent == 2


def test_configuration_with_an_unknown_key_is_refused_with_key_and_reason(state: Path) -> None:
    path = state / "config.toml"
    path.write_text(path.read_text().replace("minimum_gain = ", "least_gain = "))
    with pytest.raises(ConfigError, match=r'image_gc\.least_gain = "0": unknown key'):
        load(path, environment={})
