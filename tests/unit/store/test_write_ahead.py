"""Records of unfinished passes: planned removals, outcomes, and a killed process between both."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.processes import is_running, own_process
from nodeagent.model.stops import ProcessIdentity
from nodeagent.record import replace
from nodeagent.store.history import FILE_NAME, MIGRATIONS, History, PastAction, PastPass, Retention
from nodeagent.store.sqlite import WriteConnection, connect

if TYPE_CHECKING:
    from collections.abc import Callable

T0 = datetime(2026, 1, 10, 12, tzinfo=UTC)
KEEP = Retention(timedelta(days=30), 16 << 20)
SELF = own_process()
WRITTEN_BY_0_1 = Path(__file__).parents[2] / "data/state-0.1"
KILLED = "outcome unknown, killed before the result was recorded"
ROOT = Path(__file__).parents[3]


def action(name: str, outcome: str = "planned") -> PastAction:
    return PastAction("image", name, f"r/{name}:1", (f"r/{name}:1",), outcome, "", "all-unused", "unused", 7, 0.0)


def begun(name: str = "one", *images: str, at: datetime = T0) -> PastPass:
    actions = tuple(map(action, images or ("a", "b", "c")))
    return PastPass(name, at, 0.0, "interval", "images", "p", False, "running", "", 0, None, 91, None, actions)


def finished(past: PastPass) -> PastPass:
    return replace(past, result="complete", actions=tuple(replace(each, outcome="done") for each in past.actions))


def open_history(directory: Path) -> History:
    return History(directory, writer=SELF, is_running=is_running)


def reader(directory: Path, *, running: bool = True) -> History:
    """Return the history as another process reads it.

    Args:
        directory: directory of the history file.
        running: whether the processes that wrote unfinished passes are running.
    """
    return History(directory, is_running=lambda _: running)


def outcomes(past: PastPass) -> list[tuple[str, str]]:
    return [(each.item_id, each.outcome) for each in past.actions]


def test_planned_removals_are_on_disk_before_the_pass_ends(tmp_path: Path) -> None:
    open_history(tmp_path).begin(begun())
    (found,) = open_history(tmp_path).read()
    assert found == begun()


def test_pass_of_an_ended_process_is_interrupted_and_its_outcomes_are_kept(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    history.begin(begun())
    history.update("one", {0: action("a", "done"), 1: action("b", "failed")}, 1.5)
    (found,) = reader(tmp_path, running=False).read()
    assert (found.result, found.detail, found.duration_s) == ("interrupted", "killed before the pass finished", 1.5)
    assert outcomes(found) == [("a", "done"), ("b", "failed"), ("c", "unknown")]
    assert [each.detail for each in found.actions] == ["", "", KILLED]
    assert found.predicted_bytes == 7
    (counted,) = reader(tmp_path, running=False).count(limit=5)
    assert (counted.past.result, counted.removed, counted.planned) == ("interrupted", 1, 3)


def test_interrupted_pass_is_found_by_the_name_of_its_image(tmp_path: Path) -> None:
    open_history(tmp_path).begin(begun())
    (found,) = reader(tmp_path, running=False).read(image="r/b")
    assert outcomes(found) == [("b", "unknown")]


def test_removals_of_a_further_round_are_added(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    history.begin(begun("one", "a"))
    history.update("one", {0: action("a", "failed")}, 1.0)
    history.extend("one", [action("b"), action("c")])
    history.update("one", {2: action("c", "done")}, 2.0)
    (found,) = reader(tmp_path).read()
    assert outcomes(found) == [("a", "failed"), ("b", "planned"), ("c", "done")]
    (counted,) = reader(tmp_path).count(limit=5)
    assert counted.planned == 3


def test_finished_pass_replaces_the_record_of_its_beginning(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    history.begin(begun())
    history.add(finished(begun()), KEEP)
    assert reader(tmp_path, running=False).read() == (finished(begun()),)
    assert history.close_interrupted() == ()


def test_abandoned_pass_of_a_running_process_is_interrupted_with_its_cause(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    history.begin(begun())
    history.update("one", {0: action("a", "done")}, 1.0)
    history.interrupt("one", "cancelled", KEEP)
    history.interrupt("unknown pass", "cancelled", KEEP)
    (found,) = reader(tmp_path).read()
    assert (found.result, found.detail) == ("interrupted", "cancelled before the pass finished")
    assert outcomes(found) == [("a", "done"), ("b", "unknown"), ("c", "unknown")]


def test_killed_process_leaves_its_removals_and_planned_removals(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
from pathlib import Path
from tests.unit.store import test_write_ahead as made
history = made.open_history(Path({str(tmp_path)!r}))
history.begin(made.begun())
history.update("one", {{0: made.action("a", "done")}}, 1.0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    history = open_history(tmp_path)
    (found,) = history.read()
    assert outcomes(found) == [("a", "done"), ("b", "unknown"), ("c", "unknown")]
    (closed,) = history.close_interrupted()
    assert (closed.id, closed.removed, closed.unknown) == ("one", 1, 2)
    assert reader(tmp_path).read() == (found,)
    assert history.close_interrupted() == ()
    history.check()


def test_pass_of_a_running_process_is_not_closed(tmp_path: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        started = int(Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19])
        writer = ProcessIdentity(other.pid, SELF.boot_id, started)
        try:
            History(tmp_path, writer=writer).begin(begun("other"))
            open_history(tmp_path).begin(begun("own"))
            assert open_history(tmp_path).close_interrupted() == ()
            assert {each.result for each in open_history(tmp_path).read()} == {"running"}
        finally:
            other.kill()
    assert [each.id for each in open_history(tmp_path).close_interrupted()] == ["other"]


@pytest.mark.parametrize(
    "writer",
    [
        replace(SELF, started_ticks=SELF.started_ticks + 1),
        replace(SELF, boot_id="an earlier boot"),
        replace(SELF, pid=2**22 + 1),
    ],
    ids=["reused pid", "another boot", "no such process"],
)
def test_pass_of_another_process_with_a_similar_identity_is_closed(tmp_path: Path, writer: ProcessIdentity) -> None:
    History(tmp_path, writer=writer).begin(begun())
    assert [each.id for each in open_history(tmp_path).close_interrupted()] == ["one"]


def test_unreadable_process_counts_as_running(tmp_path: Path) -> None:
    (tmp_path / f"proc/{SELF.pid}").mkdir(parents=True)
    (tmp_path / f"proc/{SELF.pid}/stat").mkdir()
    assert is_running(SELF, tmp_path)
    assert own_process(tmp_path).started_ticks == 0


def test_process_hidden_in_proc_counts_as_running(tmp_path: Path) -> None:
    assert is_running(SELF, tmp_path)
    assert not is_running(replace(SELF, pid=2**22 + 1), tmp_path)


def test_zombie_counts_as_ended() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(ProcessIdentity(pid, SELF.boot_id, 0))
    finally:
        os.waitpid(pid, 0)


def test_pass_wrongly_closed_is_corrected_by_its_own_record(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    history.begin(begun())
    assert len(reader(tmp_path, running=False).close_interrupted()) == 1
    history.update("one", {1: action("b", "done")}, 1.0)
    (found,) = reader(tmp_path).read()
    assert (found.result, outcomes(found)[1]) == ("running", ("b", "done"))
    history.add(finished(begun()), KEEP)
    assert reader(tmp_path).read() == (finished(begun()),)


def delete(path: Path) -> None:
    for each in path.parent.iterdir():
        each.unlink()


def overwrite(path: Path) -> None:
    delete(path)
    path.write_bytes(b"no database at all" * 1000)


def restore_older(path: Path) -> None:
    delete(path)
    with closing(connect(path, MIGRATIONS)):
        pass


@pytest.mark.parametrize("damage", [delete, overwrite, restore_older])
@pytest.mark.parametrize("late", ["update", "extend", "begin", "add"])
def test_pass_is_recorded_completely_after_a_loss_of_the_file(
    tmp_path: Path, damage: Callable[[Path], None], late: str
) -> None:
    history = open_history(tmp_path)
    history.begin(begun())
    history.update("one", {0: action("a", "done")}, 1.0)
    damage(tmp_path / FILE_NAME)
    expected = [("a", "done"), ("b", "planned"), ("c", "planned")]
    if late == "update":
        history.update("one", {1: action("b", "done")}, 2.0)
        expected[1] = ("b", "done")
    elif late == "extend":
        history.extend("one", [action("d")])
        expected.append(("d", "planned"))
    elif late == "begin":
        history.begin(begun("two", at=T0 + timedelta(hours=1)))
    else:
        history.add(finished(begun("two", at=T0 + timedelta(hours=1))), KEEP)
    assert history.problem == ""
    assert outcomes(reader(tmp_path).read()[-1]) == expected


@pytest.mark.parametrize("late", ["update", "add"])
def test_backup_copied_over_the_file_during_a_pass_is_quarantined_and_the_pass_is_recorded(
    tmp_path: Path, late: str
) -> None:
    path, history = tmp_path / "state" / FILE_NAME, open_history(tmp_path / "state")
    backup = open_history(tmp_path)
    for number in range(20):
        backup.add(finished(begun(f"old {number}", at=T0 + timedelta(minutes=number))), KEEP)
        history.add(finished(begun(f"{number}", at=T0 + timedelta(minutes=number))), KEEP)
    history.begin(begun(at=T0 + timedelta(hours=1)))
    path.write_bytes((tmp_path / FILE_NAME).read_bytes()[: 6 * 4096])
    if late == "update":
        history.update("one", {0: action("a", "done")}, 1.0)
        found, *_ = reader(path.parent).read()
        assert outcomes(found)[0] == ("a", "done")
    history.add(finished(begun(at=T0 + timedelta(hours=1))), KEEP)
    found, *_ = reader(path.parent).read()
    assert found == finished(begun(at=T0 + timedelta(hours=1)))
    assert history.problem == ""
    (notice,) = history.take_notices()
    assert "quarantined" in notice


def test_unwritable_file_is_reported_and_the_pass_is_recorded_once_it_is_writable(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("a file in place of the directory")
    history = open_history(state)
    history.begin(begun())
    assert "cannot write history" in history.problem
    history.update("one", {0: action("a", "done")}, 1.0)
    assert history.problem
    state.unlink()
    history.update("one", {1: action("b", "failed")}, 2.0)
    assert history.problem == ""
    (found,) = reader(state).read()
    assert outcomes(found) == [("a", "done"), ("b", "failed"), ("c", "planned")]


def test_record_of_a_pass_that_cannot_be_written_is_dropped_and_its_end_is_recorded(tmp_path: Path) -> None:
    history, bad = open_history(tmp_path), object()
    history.begin(replace(begun(), detail=bad))  # type: ignore[arg-type]
    assert (history.problem, history.dropped) == ("", 1)
    assert "pass one cannot be recorded" in history.take_notices()[0]
    history.update("one", {0: action("a", "done"), 99: action("z")}, 1.0)
    history.add(finished(begun()), KEEP)
    assert reader(tmp_path).read() == (finished(begun()),)


def test_outcome_beyond_the_planned_removals_is_ignored(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    history.begin(begun())
    history.update("one", {3: action("z", "done")}, 1.0)
    assert (history.problem, outcomes(reader(tmp_path).read()[0])[-1]) == ("", ("c", "planned"))


def test_running_pass_is_kept_by_every_limit(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    history.begin(begun("running", at=T0 - timedelta(days=365)))
    tight = Retention(timedelta(days=1), 1, 1)
    for number in range(3):
        history.add(finished(begun(f"p{number}", at=T0 + timedelta(minutes=number))), tight)
    assert "running" in {each.id for each in reader(tmp_path).read()}


def test_interrupted_pass_without_removals_is_kept_and_shown(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    collects = replace(begun(), actions=())  # a pass that only triggers garbage collection of the runtime
    History(tmp_path, writer=replace(SELF, boot_id="an earlier boot")).begin(collects)
    assert len(history.close_interrupted()) == 1
    history.add(finished(begun("later", at=T0 + timedelta(days=2))), KEEP)
    assert [each.id for each in history.read()] == ["later", "one"]


@pytest.mark.parametrize(("durable", "synchronous"), [(True, 2), (False, 1)])
def test_planned_removals_are_synced_and_outcomes_are_not(tmp_path: Path, durable: bool, synchronous: int) -> None:
    connection = WriteConnection(tmp_path / FILE_NAME, MIGRATIONS, ())
    with connection.transaction(durable=durable) as (made, _):
        assert made.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    connection.close()


def test_begin_syncs_its_record_and_update_does_not(tmp_path: Path) -> None:
    calls: list[bool] = []
    original = WriteConnection.transaction

    def noting(self: WriteConnection, *, durable: bool) -> object:
        calls.append(durable)
        return original(self, durable=durable)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteConnection, "transaction", noting)
        history = open_history(tmp_path)
        history.begin(begun())
        history.update("one", {0: action("a", "done")}, 1.0)
        history.extend("one", [action("d")])
        history.add(finished(begun()), KEEP)
    assert calls == [True, False, True, False]


def test_history_of_0_1_is_continued_by_an_unfinished_pass(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes((WRITTEN_BY_0_1 / FILE_NAME).read_bytes())
    before = reader(tmp_path).read(limit=1000, quiet=True)
    assert len(before) == 10
    History(tmp_path, writer=replace(SELF, boot_id="an earlier boot")).begin(begun(at=T0 + timedelta(days=365)))
    found = open_history(tmp_path).read(limit=1000, quiet=True)
    assert (found[0].result, found[1:]) == ("interrupted", before)


def test_version_0_1_writes_and_prunes_the_file_of_this_version(tmp_path: Path) -> None:
    """Execute the SQL statements of version 0.1, which checks only the schema version of the file."""
    History(tmp_path, writer=replace(SELF, boot_id="an earlier boot")).begin(begun("one", "a", "ns\udcff"))
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (3,)
        old.execute("PRAGMA foreign_keys = ON")
        row = ("old", 1, 1.0, "interval", "images", "p", 0, "complete", "", 0, None, None, None, 1)
        old.execute("INSERT OR REPLACE INTO passes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        columns = ("old", 0, "image", "a", "a", "", "done", "", "lru", "old", 7, 0.5)
        old.execute("INSERT OR REPLACE INTO actions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", columns)
        assert {each[0] for each in old.execute("SELECT result FROM passes")} == {"running", "complete"}
        assert old.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert {each.result for each in open_history(tmp_path).read()} == {"interrupted", "complete"}
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as old:
        old.execute("PRAGMA foreign_keys = ON")
        old.execute("DELETE FROM passes WHERE id = 'one'")
    assert open_history(tmp_path).close_interrupted() == ()
    assert [each.id for each in open_history(tmp_path).read()] == ["old"]
