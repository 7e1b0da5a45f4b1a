"""History of passes and node stops: queries, retention, failures of the file."""

from __future__ import annotations

import json
import shutil
import sqlite3
from base64 import b64encode
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from msgspec import UNSET

from nodeagent.api.common import encode
from nodeagent.errors import StoreError
from nodeagent.gc.documents.history import HistoryDocument
from nodeagent.model.stops import NodeStop, StopEnd, StopKind, StoppedPod
from nodeagent.record import replace
from nodeagent.store.history import FILE_NAME, MIGRATIONS, PASS_TABLES, History, PastAction, PastPass, Retention
from nodeagent.store.sqlite import connect
from nodeagent.text import encodable, raw_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

T0 = datetime(2026, 1, 10, 12, tzinfo=UTC)
KEEP = Retention(timedelta(days=30), 16 << 20)


def past(name: str, *images: str, at: datetime = T0, kind: str = "image") -> PastPass:
    actions = tuple(
        PastAction(
            kind, f"sha256:{each}", f"r/{each}:1", (f"r/{each}:1", f"r/{each}:x"), "done", "", "lru", "old", 7, 0.5
        )
        for each in images
    )
    return PastPass(name, at, 1.5, "interval", "images", "p", False, "complete", "", 7, 8, 91, 80, actions)


def test_passes_are_read_newest_first(tmp_path: Path) -> None:
    one, two = past("one", "a", "b"), past("two", "b", at=T0 + timedelta(hours=1))
    History(tmp_path).add(one, KEEP)
    History(tmp_path).add(two, KEEP)
    assert History(tmp_path).read() == (two, one)
    assert History(tmp_path).read(limit=1) == (two,)
    assert History(tmp_path).read(since=T0 + timedelta(minutes=1)) == (two,)
    assert History(tmp_path / "none").read() == ()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("image", "found"), [("r/a:x", ["a"]), ("sha256:b", ["b", "b"]), ("r/", ["b", "a", "b"]), ("%", []), ("_", [])]
)
def test_passes_of_an_image_are_found_by_any_of_its_names_or_its_id(
    tmp_path: Path, image: str, found: list[str]
) -> None:
    history = History(tmp_path)
    history.add(past("one", "a", "b"), KEEP)
    history.add(past("two", "b", at=T0 + timedelta(hours=1)), KEEP)
    history.add(past("three", "r/a:x", kind="container"), KEEP)
    names = [
        each.name.removeprefix("r/").removesuffix(":1") for one in history.read(image=image) for each in one.actions
    ]
    assert names == found


def test_wait_for_container_creations_is_recorded(tmp_path: Path) -> None:
    history = History(tmp_path)
    for each in (past("one"), replace(past("two"), settled_s=0.25)):
        history.add(each, KEEP)
    found = {each.id: each.settled_s for each in history.read(quiet=True)}
    assert found == {"one": 0.0, "two": 0.25}


def test_history_without_waits_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(past("one", "web"), KEEP)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("DROP TABLE settle_times")
        connection.commit()
    assert [each.settled_s for each in History(tmp_path).read()] == [0.0]
    History(tmp_path).add(replace(past("one", "web"), settled_s=0.25), KEEP)
    assert [each.settled_s for each in History(tmp_path).read()] == [0.25]


def test_eviction_is_recorded_with_its_document(tmp_path: Path) -> None:
    evicted = replace(past("one", "web", kind="pod"), scope="pods", eviction='{"victim": "uid"}')
    history = History(tmp_path)
    history.add(evicted, KEEP)
    history.add(past("two", "a", at=T0 + timedelta(hours=1)), KEEP)
    assert history.read(image="r/web") == (evicted,)
    assert [each.eviction for each in history.read()] == ["", '{"victim": "uid"}']


def test_history_of_the_first_schema_is_read_and_migrated_by_the_next_pass(tmp_path: Path) -> None:
    with closing(connect(tmp_path / FILE_NAME, MIGRATIONS[:1])):
        pass
    assert History(tmp_path).read() == ()
    evicted = replace(past("one", "web", kind="pod"), eviction="{}")
    History(tmp_path).add(evicted, KEEP)
    assert History(tmp_path).read() == (evicted,)


def test_quiet_passes_are_shown_on_request_and_kept_for_a_day(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(past("quiet"), KEEP)
    history.add(past("busy", "a"), KEEP)
    assert [each.id for each in history.read()] == ["busy"]
    assert {each.id for each in history.read(quiet=True)} == {"busy", "quiet"}
    history.add(past("later", at=T0 + timedelta(days=1, seconds=1)), KEEP)
    assert {each.id for each in history.read(quiet=True)} == {"busy", "later"}


def test_refused_passes_of_the_daemon_are_shown_and_kept_for_a_day(tmp_path: Path) -> None:
    (history := History(tmp_path)).add(refused := replace(past("one"), result="refused", detail="contradictory"), KEEP)
    assert history.read() == tuple(each.past for each in history.count(limit=5)) == (refused,)
    history.add(past("later", at=T0 + timedelta(days=1, seconds=1)), KEEP)
    assert history.read() == ()


@pytest.mark.parametrize(
    ("trigger", "result", "kept"),
    [
        ("command", "shortfall", True),
        ("control", "refused", True),
        ("command", "nothing-to-do", False),
        ("interval", "shortfall", False),
    ],
)
def test_requested_pass_without_removals_is_recorded_unless_its_result_is_nothing_to_do(
    tmp_path: Path, trigger: str, result: str, kept: bool
) -> None:
    history = History(tmp_path)
    history.add(replace(past("short"), trigger=trigger, result=result), KEEP)
    assert [each.id for each in history.read()] == ["short"] * kept
    assert [each.id for each in history.read(quiet=True)] == ["short"]
    history.add(past("later", "a", at=T0 + timedelta(days=1, seconds=1)), KEEP)
    assert [each.id for each in history.read(quiet=True)] == ["later", *["short"] * kept]


def test_history_is_pruned_by_age_and_size(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(past("old", "a"), KEEP)
    history.add(past("new", "a", at=T0 + timedelta(days=31)), KEEP)
    assert [each.id for each in history.read()] == ["new"]
    small = Retention(timedelta(days=30), 200_000)
    for number in range(200):
        history.add(
            past(f"p{number:03}", *(f"{n}" for n in range(20)), at=T0 + timedelta(days=31, minutes=number)), small
        )
    ids = [each.id for each in history.read(limit=1000)]
    assert ids[0] == "p199"
    assert ids == sorted(ids, reverse=True)
    assert 5 < len(ids) < 150
    assert (tmp_path / "history.db").stat().st_size < 400_000


def test_passes_are_kept_in_memory_until_the_file_is_writable(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("a file in place of the directory")
    history = History(state)
    history.add(past("one", "a"), KEEP)
    assert "continuing in memory" in history.problem
    state.unlink()
    history.add(past("two", "b", at=T0 + timedelta(hours=1)), KEEP)
    assert history.problem == ""
    assert [each.id for each in History(state).read()] == ["two", "one"]


def test_corrupt_history_is_quarantined_and_waiting_passes_are_written(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreError, match="cannot read history"):
        History(tmp_path).read()
    history = History(tmp_path)
    history.add(past("one", "a"), KEEP)
    assert history.problem == ""
    assert "quarantined as" in history.take_notices()[0]
    assert [each.id for each in history.read()] == ["one"]
    history.add(past("two", "b"), KEEP)
    assert {each.id for each in history.read()} == {"one", "two"}
    assert [each.name for each in tmp_path.glob("*corrupt*")]


def test_corrupt_history_that_cannot_be_renamed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "history.db").write_bytes(b"no database at all" * 1000)

    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("nodeagent.store.sqlite.quarantine", refuse)
    history = History(tmp_path)
    history.add(past("one", "a"), KEEP)
    assert "cannot quarantine the corrupt file" in history.problem
    assert "Permission denied" in history.problem


NOT_UTF_8 = b"ns\xff_pod_uid".decode(errors="surrogateescape")


def test_name_that_is_not_utf_8_is_recorded_exactly_and_found(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(past("one", NOT_UTF_8), KEEP)
    history.add(past("two", "a", at=T0 + timedelta(hours=1)), KEEP)
    assert (history.problem, history.take_notices()) == ("", ())
    assert [each.id for each in history.read()] == ["two", "one"]
    (found,) = history.read(image=NOT_UTF_8)
    assert found.actions[0].name == f"r/{NOT_UTF_8}:1"
    assert found.actions[0].references == (f"r/{NOT_UTF_8}:1", f"r/{NOT_UTF_8}:x")
    assert history.read(image=NOT_UTF_8.replace("\udcff", "\udcfe")) == ()


def test_names_that_differ_only_in_bytes_that_are_not_utf_8_are_distinguished(tmp_path: Path) -> None:
    names = [NOT_UTF_8, NOT_UTF_8.replace("\udcff", "\udcfe"), r"ns\xff_pod_uid"]
    history = History(tmp_path)
    history.add(past("one", *names), KEEP)
    (found,) = history.read()
    assert [each.item_id for each in found.actions] == [f"sha256:{each}" for each in names]
    document = HistoryDocument.of([found], ())
    assert [each.id_base64 for each in document.passes[0].actions] == [
        b64encode(b"sha256:ns\xff_pod_uid").decode(),
        b64encode(b"sha256:ns\xfe_pod_uid").decode(),
        UNSET,
    ]
    assert [each["id"] for each in json.loads(encode(document))["passes"][0]["actions"]] == [
        r"sha256:ns\xff_pod_uid",
        r"sha256:ns\xfe_pod_uid",
        r"sha256:ns\xff_pod_uid",
    ]


def test_size_above_64_bits_is_recorded_as_the_maximum(tmp_path: Path) -> None:
    huge = replace(past("one", "a"), freed_bytes=2**70, predicted_bytes=-(2**70))
    history = History(tmp_path)
    history.add(huge, KEEP)
    assert [(each.freed_bytes, each.predicted_bytes) for each in history.read()] == [(2**63 - 1, -(2**63))]


def test_record_that_cannot_be_written_is_dropped_and_reported_and_the_others_are_written(tmp_path: Path) -> None:
    history = History(tmp_path / "state")
    (tmp_path / "state").write_text("a file in place of the directory")
    bad: object = object()
    impossible = past("bad", "a")
    history.add(replace(impossible, actions=(replace(impossible.actions[0], detail=bad),)), KEEP)  # type: ignore[arg-type]
    history.add(past("waiting", "b"), KEEP)
    assert "continuing in memory" in history.problem
    (tmp_path / "state").unlink()
    history.add(past("good", "c", at=T0 + timedelta(hours=1)), KEEP)
    assert history.problem == ""
    assert [each.id for each in history.read(quiet=True)] == ["good", "waiting"]
    (notice,) = history.take_notices()
    assert "pass bad cannot be recorded and was dropped" in notice
    assert history.take_notices() == ()


def test_node_stop_that_cannot_be_written_is_dropped_and_reported(tmp_path: Path) -> None:
    history = History(tmp_path)
    bad: object = object()
    pods = (StoppedPod("u", "ns", NOT_UTF_8), StoppedPod("v", "ns", bad))  # type: ignore[arg-type]
    history.add_stop(NodeStop("boot", StopKind.UNCLEAN, T0, end=StopEnd.UNKNOWN, pods=pods), KEEP, T0)
    assert history.read_stops() == ()
    assert "cannot be recorded" in history.take_notices()[0]
    history.add_stop(NodeStop("boot", StopKind.UNCLEAN, T0, end=StopEnd.UNKNOWN, pods=pods[:1]), KEEP, T0)
    assert [each.pods[0].name for each in history.read_stops()] == [NOT_UTF_8]


@given(st.text(st.characters(), max_size=20), st.integers())
def test_any_text_and_number_is_recorded(text: str, number: int) -> None:
    with TemporaryDirectory() as directory:
        history = History(Path(directory))
        written = replace(past("one", text), detail=text, eviction=text, freed_bytes=number)
        history.add(written, KEEP)
        assert (history.problem, history.take_notices()) == ("", ())
        (found,) = history.read(quiet=True)
        assert found.detail.encode(errors="surrogateescape") == stored(text)
        assert found.actions[0].name.encode(errors="surrogateescape") == stored(f"r/{text}:1")


def stored(text: str) -> bytes:
    """Return the stored bytes of a text: raw bytes of a file name, or UTF-8 with other surrogates escaped."""
    raw = raw_bytes(text)
    return encodable(text).encode() if raw is None else raw


def test_number_of_passes_and_node_stops_is_limited(tmp_path: Path) -> None:
    history, keep = History(tmp_path), replace(KEEP, maximum_records=3)
    for number in range(5):
        history.add(past(f"p{number}", "a", at=T0 + timedelta(minutes=number)), keep)
        stop = NodeStop(f"boot{number}", StopKind.UNCLEAN, T0 + timedelta(minutes=number), end=StopEnd.UNKNOWN)
        history.add_stop(stop, keep, T0)
    assert [each.id for each in history.read()] == ["p4", "p3", "p2"]
    assert [each.boot_id for each in history.read_stops()] == ["boot4", "boot3", "boot2"]
    unlimited = replace(KEEP, maximum_records=0)
    history.add(past("p5", "a", at=T0 + timedelta(minutes=5)), unlimited)
    history.add_stop(NodeStop("boot5", StopKind.UNCLEAN, T0, end=StopEnd.UNKNOWN), unlimited, T0)
    assert (len(history.read()), len(history.read_stops())) == (4, 4)


def test_nothing_is_pruned_by_age_while_the_wall_clock_is_not_trusted(tmp_path: Path) -> None:
    history, later = History(tmp_path), T0 + timedelta(days=3650)
    stop = NodeStop("boot", StopKind.UNCLEAN, T0, end=StopEnd.UNKNOWN)
    history.add(past("old", "a"), KEEP)
    history.add_stop(stop, KEEP, T0)
    history.add(past("new", "a", at=later), KEEP, clock_trusted=False)
    history.add_stop(replace(stop, boot_id="next", started_at=later), KEEP, later, clock_trusted=False)
    assert [each.id for each in history.read()] == ["new", "old"]
    assert len(history.read_stops()) == 2
    history.add(past("newer", "a", at=later), KEEP)
    history.add_stop(replace(stop, boot_id="last", started_at=later), KEEP, later)
    assert {each.id for each in history.read()} == {"newer", "new"}
    assert len(history.read_stops()) == 2


def test_oldest_waiting_passes_are_dropped_and_reported_above_the_limit_of_memory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("a file where the directory should be")
    history = History(state)
    large = past("first", *map(str, range(15_000)))
    history.add(large, KEEP)
    history.add(replace(large, id="second"), KEEP)
    assert history.dropped == 1
    assert "pass first cannot be recorded and was dropped: too many passes wait" in history.take_notices()[0]
    state.unlink()
    history.add(past("third", "a", at=T0 + timedelta(hours=1)), KEEP)
    assert [each.id for each in history.read()] == ["third", "second"]


def empty(path: Path) -> None:
    path.touch()


def without_tables(path: Path) -> None:
    with closing(connect(path, ())):
        pass


def first_tables(path: Path) -> None:
    with closing(connect(path, ((PASS_TABLES[0],),))):
        pass


def log_only(path: Path) -> None:
    with closing(connect(path, MIGRATIONS)) as connection:
        connection.execute("BEGIN")
        shutil.copy(f"{path}-wal", path.with_name("kept"))
    path.unlink()
    path.with_name("kept").rename(f"{path}-wal")


@pytest.mark.parametrize("killed", [empty, without_tables, first_tables, log_only])
def test_file_of_a_writer_killed_during_its_creation_has_no_passes(
    tmp_path: Path, killed: Callable[[Path], None]
) -> None:
    killed(tmp_path / FILE_NAME)
    history = History(tmp_path)
    assert (history.read(), history.read_stops(), history.count(limit=5)) == ((), (), ())
    history.check()


@pytest.mark.parametrize("killed", [empty, without_tables, log_only])
def test_history_is_continued_in_a_file_of_a_writer_killed_during_its_creation(
    tmp_path: Path, killed: Callable[[Path], None]
) -> None:
    killed(tmp_path / FILE_NAME)
    history = History(tmp_path)
    history.add(past("one", "a"), KEEP)
    assert (history.problem, [each.id for each in history.read()]) == ("", ["one"])


def test_passes_are_counted_without_their_actions(tmp_path: Path) -> None:
    history = History(tmp_path)
    failed = past("one", "a", "b")
    history.add(replace(failed, actions=(failed.actions[0], replace(failed.actions[1], outcome="failed"))), KEEP)
    history.add(past("quiet"), KEEP)
    (counted,) = history.count(limit=5)
    assert (counted.past.id, counted.removed, counted.planned, counted.past.actions) == ("one", 1, 2, ())


def test_damage_is_found_by_the_check_of_the_file(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(past("one", *map(str, range(500))), KEEP)
    content = bytearray((tmp_path / FILE_NAME).read_bytes())
    content[len(content) // 2 :] = b"x" * (len(content) - len(content) // 2)
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(StoreError, match="cannot read history"):
        history.check()


def test_reading_does_not_wait_for_a_write_in_progress(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(past("one", "a"), KEEP)
    with closing(connect(tmp_path / FILE_NAME, MIGRATIONS)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert [each.id for each in history.read()] == ["one"]
