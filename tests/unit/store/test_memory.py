"""Database of image usage: detections, restarts, clock jumps, failures of the file."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.model.runtime import ImageUsage
from nodeagent.store.clock_record import ClockReading, find_jump
from nodeagent.store.database import SnapshotFigures, Store
from nodeagent.store.sqlite import identity
from nodeagent.store.state_file import merge_usage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

T0 = datetime(2026, 1, 10, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
TICK = timedelta(microseconds=1)


def remember(
    store: Store, listed: Mapping[str, datetime | None], in_use: Collection[str], now: datetime
) -> Mapping[str, ImageUsage]:
    """Record listed and used images at a time without a clock jump; return the image usage."""
    return store.observe(listed, in_use, ClockReading("boot", 1000 + (now - T0).total_seconds(), now)).usage


@pytest.mark.parametrize(
    ("known", "pulled", "used", "expected"),
    [
        (None, None, False, ImageUsage(T0)),
        (None, T0 - HOUR, False, ImageUsage(T0)),
        (None, T0 + HOUR, False, ImageUsage(T0)),
        (None, None, True, ImageUsage(T0, T0)),
        (ImageUsage(T0 - HOUR), None, False, ImageUsage(T0 - HOUR)),
        (ImageUsage(T0 - 2 * HOUR), T0 - HOUR, False, ImageUsage(T0 - 2 * HOUR)),
        (ImageUsage(T0 - 2 * HOUR, None, T0 - 3 * HOUR), T0 - HOUR, False, ImageUsage(T0)),
        (ImageUsage(T0 - HOUR, None, T0 - 2 * HOUR), T0 - 2 * HOUR, False, ImageUsage(T0 - HOUR)),
        (ImageUsage(T0 - HOUR, None, T0 - 2 * HOUR), None, False, ImageUsage(T0 - HOUR)),
        (ImageUsage(T0 - HOUR, None, T0 + 99 * HOUR), T0 - HOUR, False, ImageUsage(T0)),
        (ImageUsage(T0 - HOUR, T0 - HOUR), None, False, ImageUsage(T0 - HOUR, T0 - HOUR)),
        (ImageUsage(T0 + HOUR, T0 + HOUR), None, False, ImageUsage(T0, T0)),
    ],
    ids=[
        "new",
        "pulled before",
        "pulled later",
        "new in use",
        "kept",
        "pull unknown before",
        "pulled again",
        "old pull",
        "pull unknown",
        "pulled again after the clock was set back",
        "unused",
        "future",
    ],
)
def test_usage_at_a_first_detection_follows_from_pull_and_use(
    known: ImageUsage | None, pulled: datetime | None, used: bool, expected: ImageUsage
) -> None:
    before = {} if known is None else {"a": known}
    assert merge_usage({**before, "removed": ImageUsage(T0)}, {"a": pulled}, {"a"} if used else (), T0) == {
        "a": expected
    }


@pytest.mark.parametrize(
    ("known", "pulled", "used", "expected"),
    [
        (None, None, False, ImageUsage(T0)),
        (None, T0 - HOUR, False, ImageUsage(T0)),
        (None, T0 - 2 * HOUR, False, ImageUsage(T0)),
        (ImageUsage(T0 - 9 * HOUR, T0 - HOUR), None, False, ImageUsage(T0 - 9 * HOUR, T0 - TICK)),
        (ImageUsage(T0 - 9 * HOUR, T0 - HOUR - TICK), None, False, ImageUsage(T0 - 9 * HOUR, T0 - HOUR - TICK)),
        (ImageUsage(T0 - 9 * HOUR, T0 - HOUR), None, True, ImageUsage(T0 - 9 * HOUR, T0)),
    ],
    ids=["new", "pulled since", "pulled earlier, not listed", "use ended", "unused before", "still in use"],
)
def test_usage_at_a_second_detection_follows_from_the_first_one(
    known: ImageUsage | None, pulled: datetime | None, used: bool, expected: ImageUsage
) -> None:
    before = {} if known is None else {"a": known}
    found = merge_usage(before, {"a": pulled}, {"a"} if used else (), T0, previous_at=T0 - HOUR)
    assert found == {"a": expected}


@pytest.mark.difference("image-use-recorded")
def test_usage_survives_a_restart(tmp_path: Path) -> None:
    remember(Store(tmp_path), {"a": None, "b": None}, {"b"}, T0)
    later = remember(Store(tmp_path), {"a": None, "b": None}, (), T0 + HOUR)
    assert later == {"a": ImageUsage(T0), "b": ImageUsage(T0, T0)}


def test_snapshot_usage_survives_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    figures = SnapshotFigures(1, 2, 3, 4)
    store.note_snapshot_usage({("overlayfs", "a"): figures, ("overlayfs", "b"): figures}, ())
    store.note_snapshot_usage({("overlayfs", "c"): figures}, [("overlayfs", "b")])
    remember(store, {"a": None}, (), T0)
    assert Store(tmp_path, read_only=True).snapshot_usage() == dict.fromkeys(
        [("overlayfs", "a"), ("overlayfs", "c")], figures
    )


def test_database_of_the_first_schema_is_read_and_migrated(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "nodeagent.db")) as old:
        old.executescript(
            "CREATE TABLE image_usage (image_id TEXT PRIMARY KEY NOT NULL, first_detected_us INTEGER NOT NULL,"
            " last_used_us INTEGER) WITHOUT ROWID;"
            "CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID;"
            "INSERT INTO image_usage VALUES ('a', 1, NULL); PRAGMA user_version = 1;"
        )
    reader = Store(tmp_path, read_only=True)
    assert (reader.snapshot_usage(), list(reader.usage()), reader.problem) == ({}, ["a"], "")
    store = Store(tmp_path)
    store.note_snapshot_usage({("overlayfs", "a"): SnapshotFigures(1, 2, 3, 4)}, ())
    again = Store(tmp_path)
    assert (len(again.snapshot_usage()), list(again.usage())) == (1, ["a"])


def test_read_only_store_creates_no_files(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    assert remember(Store(missing, read_only=True), {"a": None}, (), T0) == {"a": ImageUsage(T0)}
    assert not missing.exists()
    remember(Store(tmp_path), {"a": None}, (), T0)
    before = {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()}
    reader = Store(tmp_path, read_only=True)
    assert remember(reader, {"a": None}, {"a"}, T0 + HOUR) == {"a": ImageUsage(T0, T0 + HOUR)}
    assert {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()} == before


def test_usage_is_read_on_a_full_disk_after_a_failed_write(tmp_path: Path) -> None:
    remember(Store(tmp_path), {"a": None}, {"a"}, T0)
    (tmp_path / "nodeagent.db-wal").touch()
    (tmp_path / "nodeagent.db-shm").write_bytes(bytes(3))  # as on a full disk
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no file can grow
    try:
        store = Store(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (store.usage(), store.problem) == ({"a": ImageUsage(T0, T0)}, "")


def test_usage_is_read_while_another_program_closes_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(Store(tmp_path), {"a": None}, {"a"}, T0)
    (tmp_path / "nodeagent.db-wal").touch()

    def identity_before_removal(path: Path) -> tuple[int, int] | None:
        found = identity(path)
        if path.suffix != ".db":
            path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr("nodeagent.store.state_file.identity", identity_before_removal)
    store = Store(tmp_path)
    assert (store.usage(), store.problem) == ({"a": ImageUsage(T0, T0)}, "")


def test_corrupt_database_is_quarantined(tmp_path: Path) -> None:
    content = b"this is no database " * 300
    (tmp_path / "nodeagent.db").write_bytes(content)
    store = Store(tmp_path)
    assert "quarantined as" in store.take_notices()[0]
    remember(store, {"a": None}, (), T0)
    assert store.problem == ""
    (quarantined,) = tmp_path.glob("nodeagent.db.corrupt-*")
    assert quarantined.read_bytes() == content
    assert Store(tmp_path).usage() == {"a": ImageUsage(T0)}


@pytest.mark.parametrize("value", ["'x'", "9e18", "1 << 62"])
def test_database_with_impossible_values_is_corrupt(tmp_path: Path, value: str) -> None:
    remember(Store(tmp_path), {"a": None}, (), T0)
    connection = sqlite3.connect(tmp_path / "nodeagent.db")
    connection.execute(f"UPDATE image_usage SET first_detected_us = {value}")
    connection.commit()
    connection.close()
    store = Store(tmp_path)
    assert store.take_notices()
    assert remember(store, {"a": None}, (), T0) == {"a": ImageUsage(T0)}


def test_database_of_a_newer_schema_is_not_changed(tmp_path: Path) -> None:
    remember(Store(tmp_path), {"a": None}, (), T0)
    connection = sqlite3.connect(tmp_path / "nodeagent.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = (tmp_path / "nodeagent.db").read_bytes()
    store = Store(tmp_path)
    remember(store, {"a": None}, (), T0 + HOUR)
    assert "newer agent" in store.problem
    assert (tmp_path / "nodeagent.db").read_bytes() == before


def test_store_continues_in_memory_until_its_directory_is_usable(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.write_text("a file in place of the directory")
    store = Store(directory)
    remember(store, {"a": None}, (), T0)
    assert "continuing in memory" in store.problem
    directory.unlink()
    remember(store, {"a": None, "b": None}, (), T0 + HOUR)
    assert store.problem == ""
    assert Store(directory).usage() == {"a": ImageUsage(T0), "b": ImageUsage(T0 + HOUR)}


@pytest.mark.parametrize("replaced", [False, True], ids=["moved away", "replaced by an earlier copy"])
@pytest.mark.parametrize("with_snapshots", [False, True])
def test_usage_is_written_completely_after_the_file_was_replaced(
    tmp_path: Path, replaced: bool, with_snapshots: bool
) -> None:
    path, copy = tmp_path / "nodeagent.db", tmp_path / "copy"
    remember(Store(tmp_path), {"a": None}, (), T0)
    copy.write_bytes(path.read_bytes())
    store = Store(tmp_path)
    remember(store, {"a": None, "b": None}, {"a"}, T0 + HOUR)
    path.rename(tmp_path / "moved")
    if replaced:
        copy.rename(path)
    if with_snapshots:
        store.note_snapshot_usage({("overlayfs", "a"): SnapshotFigures(1, 2, 3, 4)}, ())
    remember(store, {"a": None, "b": None}, (), T0 + 2 * HOUR)
    (notice,) = store.take_notices()
    assert "was removed or replaced" in notice
    assert Store(tmp_path).usage() == {"a": ImageUsage(T0, T0 + HOUR), "b": ImageUsage(T0 + HOUR)}
    remember(store, {"a": None, "b": None}, (), T0 + 3 * HOUR)
    assert (store.take_notices(), store.problem) == ((), "")


def test_usage_is_written_completely_after_a_backup_was_copied_over_the_file(tmp_path: Path) -> None:
    path, store = tmp_path / "nodeagent.db", Store(tmp_path)
    remember(store, {"a": None, "b": None}, (), T0)
    backup = path.read_bytes()
    remember(store, {"a": None, "b": None}, {"a"}, T0 + HOUR)
    path.write_bytes(backup)
    remember(store, {"a": None, "b": None}, (), T0 + 2 * HOUR)
    assert Store(tmp_path).usage()["a"] == ImageUsage(T0, T0 + HOUR)
    (notice,) = store.take_notices()
    assert "was overwritten" in notice
    remember(store, {"a": None, "b": None}, (), T0 + 3 * HOUR)
    assert (store.take_notices(), store.problem) == ((), "")


def test_usage_is_kept_while_the_file_is_locked(tmp_path: Path) -> None:
    remember(Store(tmp_path), {"a": None}, (), T0)
    holder = sqlite3.connect(tmp_path / "nodeagent.db", isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    try:
        store = Store(tmp_path)
        remember(store, {"a": None}, (), T0 + HOUR)
    finally:
        holder.execute("COMMIT")
        holder.close()
    remember(store, {"a": None}, (), T0 + 2 * HOUR)
    assert Store(tmp_path).usage() == {"a": ImageUsage(T0)}


def test_ages_are_unchanged_by_a_jump_of_the_clock_within_a_boot(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.observe({"a": None}, {"a"}, ClockReading("boot", 100.0, T0))
    jumped = ClockReading("boot", 3700.0, T0 + timedelta(days=30, hours=1))
    assert store.observe({"a": None}, (), jumped).usage == {
        "a": ImageUsage(T0 + timedelta(days=30), T0 + timedelta(days=30))
    }


@pytest.mark.parametrize(
    ("now", "jump"),
    [
        (ClockReading("boot", 160.0, T0 + timedelta(days=30, seconds=60)), 30 * 86_400.0),
        (ClockReading("boot", 160.0, T0 - timedelta(days=30)), -30 * 86_400.0 - 60),
        (ClockReading("boot", 160.0, T0 + timedelta(seconds=61)), None),
        (ClockReading("other boot", 1.0, T0 + timedelta(days=90)), None),
        (ClockReading("", 160.0, T0 + timedelta(days=90)), None),
    ],
    ids=["forward", "back", "within the tolerance", "another boot", "no boot id"],
)
def test_jump_is_the_difference_between_the_clocks(now: ClockReading, jump: float | None) -> None:
    assert find_jump(ClockReading("boot", 100.0, T0), now) == jump


_WRITER = """
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from nodeagent.store.clock_record import ClockReading
from nodeagent.store.database import Store
store, now = Store(Path(sys.argv[1])), datetime(2026, 1, 10, tzinfo=UTC)
print("writing", flush=True)
for turn in range(10**9):
    at = ClockReading('boot', turn, now + timedelta(seconds=turn))
    store.observe({str(each): None for each in range(500)}, {str(turn % 500)}, at)
"""


def test_database_is_usable_after_a_kill_during_a_write(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        while not (tmp_path / "nodeagent.db").exists():
            assert writer.poll() is None
        os.kill(writer.pid, signal.SIGKILL)
    store = Store(tmp_path)
    remember(store, {"a": None}, (), T0)
    assert store.problem == ""
    assert not list(tmp_path.glob("*.corrupt-*"))
