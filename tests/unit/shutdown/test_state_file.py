"""Shutdown state files: records survive the process, and at most one process claims the shutdown."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import StoreError
from nodeagent.model.stops import (
    BootRecord,
    LastActivity,
    NodeStop,
    PodOutcome,
    SentTerm,
    StopEnd,
    StopKind,
    StoppedPod,
)
from nodeagent.record import replace
from nodeagent.shutdown.recorder import BOOT_FILE, STOP_FILE, ShutdownFiles
from nodeagent.store.history import History, Retention

if TYPE_CHECKING:
    from pathlib import Path

T0 = datetime(2026, 1, 10, 12, tzinfo=UTC)
RETENTION = Retention(timedelta(days=30), 1 << 20)
PODS = (
    StoppedPod("u1", "shop", "web", "ordinary", "priority 0", PodOutcome.STOPPED, 5, 1200),
    StoppedPod("u2", "shop", "db", "ordinary", "priority 0", PodOutcome.FAILED, 5, None, "no answer"),
    StoppedPod("u3", "kube-system", "dns", "critical", "a static pod"),
)
STOP = NodeStop("b1", StopKind.SIGNAL, T0, 123.5, 4500, pods=PODS, operation="reboot")


def test_records_are_read_by_the_next_process(tmp_path: Path) -> None:
    files = ShutdownFiles(tmp_path / "state")
    assert files.read_stop() is None
    assert files.read_boot() is None
    assert not (tmp_path / "state").exists()
    files.write_stop(replace(STOP, progress_s=124.5))
    assert ShutdownFiles(tmp_path / "state").read_stop() == replace(STOP, progress_s=124.5)
    files.write_stop(STOP)
    ended = replace(STOP, end=StopEnd.COMPLETE, ended_at=T0 + timedelta(seconds=4), dry_run=True)
    assert ShutdownFiles(tmp_path / "state").read_stop() == STOP
    files.write_stop(ended)
    assert ShutdownFiles(tmp_path / "state").read_stop() == ended
    record = BootRecord("b1", LastActivity.WATCHING, T0, (StoppedPod("u1", "shop", "web"),))
    files.write_boot(record)
    assert ShutdownFiles(tmp_path / "state").read_boot() == record
    assert sorted(each.name for each in (tmp_path / "state").iterdir()) == [BOOT_FILE, STOP_FILE]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": "nodeagent/shutdown-state/v2"}',
        '{"schema": "nodeagent/shutdown-state/v1"}',
        '{"schema": "nodeagent/shutdown-state/v1", "boot_id": "b", "kind": "other", "ended_at": null}',
        (
            '{"schema": "nodeagent/shutdown-state/v1", "boot_id": "b", "kind": "signal", "ended_at": null, '
            '"started_at": "2026-01-10T12:00:00", "started_s": 1, "granted_ms": 1, "end": "complete", '
            '"dry_run": false, "pods": []}'
        ),
        (
            '{"schema": "nodeagent/shutdown-state/v1", "boot_id": "b", "kind": "signal", "ended_at": null, '
            '"started_at": "2026-01-10T12:00:00Z", "started_s": "1", "granted_ms": 1, "end": "complete", '
            '"dry_run": false, "pods": 5}'
        ),
    ],
    ids=["empty", "list", "newer", "missing-keys", "unknown-kind", "no-zone", "wrong-types"],
)
def test_invalid_file_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / STOP_FILE).write_text(text)
    with pytest.raises(StoreError, match=STOP_FILE):
        ShutdownFiles(tmp_path).read_stop()


def test_failed_write_is_reported_and_the_claim_succeeds(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = ShutdownFiles(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot write"):
        files.write_stop(STOP)
    with files.claim() as claimed:
        assert claimed, "pods are stopped even without the claim"


def test_stop_that_the_state_directory_cannot_store_is_read_from_the_runtime_directory(tmp_path: Path) -> None:
    state, runtime = tmp_path / "state", tmp_path / "run"
    runtime.mkdir()
    ShutdownFiles(state, runtime).write_stop(STOP)
    state.rename(tmp_path / "kept")
    state.write_text("")
    ended = replace(STOP, end=StopEnd.COMPLETE, ended_at=T0 + timedelta(seconds=4))
    with pytest.raises(StoreError, match="cannot write"):
        ShutdownFiles(state, runtime).write_stop(ended)
    state.unlink()
    (tmp_path / "kept").rename(state)
    assert ShutdownFiles(state, runtime).read_stop() == ended, "the record in the state directory is older"
    later = replace(STOP, boot_id="b2")
    ShutdownFiles(state, runtime).write_stop(later)
    assert ShutdownFiles(state, runtime).read_stop() == ShutdownFiles(state).read_stop() == later
    assert list(runtime.iterdir()) == []


@pytest.mark.parametrize("runtime", ["run", "run/inaccessible", "absent"])
def test_unreadable_runtime_directory_hides_no_record(tmp_path: Path, runtime: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / STOP_FILE).write_text("{")
    (tmp_path / "run" / "inaccessible").write_text("")
    ShutdownFiles(tmp_path / "state").write_stop(STOP)
    assert ShutdownFiles(tmp_path / "state", tmp_path / runtime).read_stop() == STOP


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a full filesystem: files can be overwritten but not created."""

    opened = os.open

    def open_existing(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):  # noqa: PTH110 - a string or a path
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", open_existing)


def test_record_of_the_boot_is_overwritten_in_a_full_filesystem(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    files, pods = ShutdownFiles(tmp_path), tuple(StoppedPod(f"u{number}", "shop", "web") for number in range(5))
    files.write_boot(BootRecord("b1", LastActivity.WATCHING, T0, pods))
    request.getfixturevalue("full")
    going_down = BootRecord("b1", LastActivity.GOING_DOWN, T0)
    files.write_boot(going_down)
    assert files.read_boot() == going_down
    many = tuple(StoppedPod(f"u{number}", "shop", "web") for number in range(500))
    with pytest.raises(StoreError, match="No space left"):
        files.write_boot(BootRecord("b1", LastActivity.WATCHING, T0, many))
    assert files.read_boot() == going_down
    with pytest.raises(StoreError, match=f"{STOP_FILE}: No space left"):
        files.write_stop(STOP)


def test_claim_without_a_state_directory_is_made_in_the_runtime_directory(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    files = ShutdownFiles(tmp_path / "state", tmp_path)
    with files.claim() as first, files.claim() as second:
        assert (first, second) == (True, False)


@pytest.mark.parametrize("first_mode", ["writable", "read-only"])
def test_claim_in_a_state_directory_that_became_read_only_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_mode: str
) -> None:
    files, open_file = ShutdownFiles(tmp_path / "state", tmp_path), os.open
    with files.claim():
        """Create the lock file."""

    def open_read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR and path.parent.name == "state":
            raise OSError(errno.EROFS, "Read-only file system")
        return open_file(path, flags, mode)

    if first_mode == "read-only":
        monkeypatch.setattr(os, "open", open_read_only)
    with files.claim() as first:
        monkeypatch.setattr(os, "open", open_read_only)
        with files.claim() as second:
            assert (first, second) == (True, False)


def test_second_claim_fails_until_the_first_ends(tmp_path: Path) -> None:
    with ShutdownFiles(tmp_path).claim() as first, ShutdownFiles(tmp_path).claim() as second:
        assert (first, second) == (True, False)
    with ShutdownFiles(tmp_path).claim(0.1) as third:
        assert third


def test_stops_are_part_of_the_history(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert history.read_stops() == ()
    history.add_stop(STOP, RETENTION, T0)
    ended = replace(STOP, end=StopEnd.COMPLETE, ended_at=T0 + timedelta(seconds=4))
    history.add_stop(ended, RETENTION, T0)
    later = replace(STOP, boot_id="b2", started_at=T0 + timedelta(days=1), pods=())
    history.add_stop(later, RETENTION, T0)
    assert history.read_stops() == (later, ended)
    assert history.read_stops(limit=1) == (later,)
    assert history.read_stops(since=T0 + timedelta(hours=1)) == (later,)
    history.add_stop(replace(later, boot_id="b3"), RETENTION, T0 + timedelta(days=30, hours=1))
    assert ended not in history.read_stops()
    assert history.problem == ""


def test_failed_write_of_the_history_is_reported_without_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file")
    history.add_stop(STOP, RETENTION, T0)
    assert "history" in history.problem


def test_containers_and_term_of_a_pod_are_read_by_the_process_that_resumes(tmp_path: Path) -> None:
    terms = {"c1": SentTerm(40), "c2": SentTerm(50, direct=True)}
    known = StoppedPod("u1", "shop", "web", outcome=PodOutcome.STOPPING, container_ids=("c1", "c2"), terms=terms)
    ShutdownFiles(tmp_path).write_stop(replace(STOP, pods=(known, *PODS)))
    read = ShutdownFiles(tmp_path).read_stop()
    assert read is not None
    assert [(each.container_ids, each.terms) for each in read.pods[:2]] == [(("c1", "c2"), terms), ((), {})]


def test_history_of_an_earlier_version_has_no_operations(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add_stop(replace(STOP, end=StopEnd.COMPLETE), RETENTION, T0)
    with closing(sqlite3.connect(tmp_path / "history.db")) as connection:
        connection.execute("DROP TABLE node_stop_operations")
        connection.commit()
    assert [each.operation for each in History(tmp_path).read_stops()] == [""]
