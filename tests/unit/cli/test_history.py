"""``nodeagent history`` and ``nodeagent explain`` for killed passes and for history files left by a killed process."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cli.history import summary
from nodeagent.cli.table import done_cell
from nodeagent.gc.documents.history import PastPassDocument
from nodeagent.host.processes import own_process
from nodeagent.record import replace
from nodeagent.store.history import FILE_NAME, History, PastAction, PastPass, Retention
from tests.support.command import nodeagent
from tests.support.terminal import Session, on_terminal
from tests.unit.builders import NOW

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PLANNED = PastAction("image", "sha256:1", "r/a:1", ("r/a:1",), "planned", "", "all-unused", "unused", 7, 0.0)
UNKNOWN = "outcome unknown, killed before the result was recorded"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.toml"
    path.write_text(f'[state]\ndirectory = "{tmp_path}/state"\n[control]\nsocket = ""\n')
    (tmp_path / "state").mkdir()
    return str(path)


def leave_unfinished(directory: Path, *, running: bool = False) -> None:
    actions = (replace(PLANNED, outcome="done"), *(replace(PLANNED, item_id=f"sha256:{n}") for n in range(2, 5)))
    started_at = datetime.now(UTC) - timedelta(minutes=5)
    past = PastPass(
        "killed", started_at, 1.0, "interval", "images", "", False, "running", "", 0, None, 91, None, actions
    )
    writer = own_process() if running else replace(own_process(), boot_id="an earlier boot")
    History(directory, writer=writer).begin(past)


def test_killed_pass_is_listed_as_interrupted_with_its_unknown_removals(tmp_path: Path, config: str) -> None:
    leave_unfinished(tmp_path / "state")
    (row,) = nodeagent("history", "--config", config).stdout.splitlines()[1:]
    assert row.split()[3:] == ["killed", "interval", "images", "interrupted", "1/4", "1", "image", "-"]
    shown = nodeagent("history", "--details", "--config", config).stdout
    assert "interrupted: killed before the pass finished" in shown
    assert f"  unknown: 3 items: {UNKNOWN}" in shown
    (past,) = json.loads(nodeagent("history", "-o", "json", "--config", config).stdout)["passes"]
    assert (past["end"], past["end_detail"]) == ("interrupted", "killed before the pass finished")
    assert [(each["outcome"], each["detail"]) for each in past["actions"]] == [
        ("done", ""),
        *[("unknown", UNKNOWN)] * 3,
    ]


def test_pass_of_a_running_process_is_listed_as_running(tmp_path: Path, config: str) -> None:
    leave_unfinished(tmp_path / "state", running=True)
    (past,) = json.loads(nodeagent("history", "-o", "json", "--config", config).stdout)["passes"]
    assert past["end"] == "running"
    assert {each["outcome"] for each in past["actions"]} == {"done", "planned"}


@pytest.mark.parametrize(
    ("trigger", "settled_s", "shown"),
    [
        ("manual", 0.25, "1 of 2 removed in 2s (250ms waiting for container creations)"),
        ("manual", 0.0, "1 of 2 removed in 2s, predicted"),
        ("undo", 0.0, "1 of 2 restored in 2s"),
    ],
    ids=["wait", "no wait", "undo"],
)
def test_headline_has_the_wait_for_creations_and_the_images_restored_by_an_undo(
    tmp_path: Path, config: str, trigger: str, settled_s: float, shown: str
) -> None:
    outcome = "restored" if trigger == "undo" else "done"
    actions = (replace(PLANNED, outcome=outcome), replace(PLANNED, item_id="sha256:2", outcome="failed"))
    past = PastPass(
        "p", datetime.now(UTC), 2.0, trigger, "images", "", False, "complete", "", 7, 7, None, None, actions
    )
    History(tmp_path / "state").add(replace(past, settled_s=settled_s), Retention(timedelta(days=30), 16 << 20))
    assert shown in nodeagent("history", "--details", "--config", config).stdout


@pytest.mark.parametrize(
    ("trigger", "outcomes", "freed_bytes", "cells"),
    [
        ("undo", ("restored", "restored", "restored"), None, ["3/3", "restored", "-"]),
        ("undo", ("restored", "present", "failed"), None, ["1/3", "restored", "-"]),
        ("manual", ("done", "gone", "failed"), 1 << 20, ["2/3", "1.00MiB"]),
        ("manual", ("done", "done", "done"), -20 << 10, ["3/3", "-"]),  # recorded by an earlier version
        ("manual", ("failed", "skipped", "skipped"), None, ["0/3", "-"]),
    ],
)
def test_row_of_a_pass_has_its_removed_or_restored_items_and_no_negative_size(
    tmp_path: Path, config: str, *, trigger: str, outcomes: tuple[str, ...], freed_bytes: int | None, cells: list[str]
) -> None:
    actions = tuple(replace(PLANNED, item_id=str(number), outcome=each) for number, each in enumerate(outcomes))
    past = PastPass("p", datetime.now(UTC), 2.0, trigger, "images", "", False, "complete", "", 7, freed_bytes, 1, 1)
    store = History(tmp_path / "state")
    store.add(replace(past, actions=actions), Retention(timedelta(days=30), 16 << 20))
    (row,) = nodeagent("history", "--config", config).stdout.splitlines()[1:]
    done = int(cells[0].partition("/")[0])
    kinds = [str(done), "image" if done == 1 else "images"] if done else ["-"]
    assert row.split()[3:] == ["p", trigger, "images", "complete", *cells[:-1], *kinds, cells[-1]]
    (counted,) = store.count(limit=1)
    assert done_cell(trigger, counted.removed, counted.planned).split() == cells[:-1]


@pytest.mark.parametrize("content", ["none", "empty", "no tables"])
def test_history_after_an_early_kill_has_no_passes(tmp_path: Path, config: str, content: str) -> None:
    path = tmp_path / "state" / FILE_NAME
    if content == "empty":
        path.touch()
    elif content == "no tables":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
    ended = nodeagent("history", "--all", "--config", config)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, f"no passes in {tmp_path}/state\n")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ((), "no passes with removals in "),
        (("--details",), "no passes with removals in "),
        (("--since", "1h"), "no matching passes with removals in "),
        (("--image", "app"), "no matching passes with removals in "),
        (("--filter", "scope=images"), "no matching passes with removals in "),
        (("--all", "--since", "1h"), "no matching passes in "),
        (("--all", "--filter", "scope=containers"), "no matching passes in "),
    ],
)
def test_empty_list_states_the_selection_and_not_an_empty_history(
    tmp_path: Path, config: str, options: tuple[str, ...], shown: str
) -> None:
    started_at = datetime.now(UTC) - timedelta(hours=2)
    past = PastPass("idle", started_at, 1.0, "interval", "images", "", False, "nothing-to-do", "", 0, None, 41, 41, ())
    History(tmp_path / "state").add(past, Retention(timedelta(days=30), 16 << 20))
    ended = nodeagent("history", *options, "--config", config)
    hint = "" if "--all" in options else "; 'nodeagent history --all' lists the other passes"
    assert ended.stdout + ended.stderr == f"{shown}{tmp_path}/state{hint}\n"
    assert "idle" in nodeagent("history", "--all", "--config", config).stdout


def test_number_of_queries_does_not_depend_on_the_number_of_passes(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    connect = sqlite3.connect

    def tracing(*arguments: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)  # type: ignore[call-overload]
        connection.set_trace_callback(statements.append)
        return connection

    counts = []
    for number in (1, 50):
        for each in range(number):
            removed = replace(PLANNED, item_id=f"sha256:{each}")
            past = PastPass(f"p{each}", datetime.now(UTC), 1.0, "once", "images", "", False, "complete", "", 0, 0, 1, 1)
            History(tmp_path / "state", writer=own_process()).begin(replace(past, actions=(removed,)))
        statements.clear()
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", tracing)
            found = json.loads(nodeagent("history", "--limit", "1000", "-o", "json", "--config", config).stdout)
        assert len(found["passes"]) == number
        counts.append(len(statements))
    assert counts[0] == counts[1] > 0
    assert not [each for each in statements if "quick_check" in each or "integrity_check" in each]


def test_details_are_those_of_the_filtered_passes(tmp_path: Path, config: str) -> None:
    leave_unfinished(tmp_path / "state")
    shown = nodeagent("history", "--details", "--filter", "scope=containers", "--config", config)
    assert (shown.returncode, "interrupted" in shown.stdout) == (0, False)
    assert "interrupted" in nodeagent("history", "--details", "--filter", "scope=images", "--config", config).stdout


@pytest.mark.parametrize("options", [("--since", "1h"), ("--image", "app"), ("--filter", "scope=images")])
def test_selection_of_passes_with_the_id_of_a_pass_is_a_usage_error(config: str, options: tuple[str, str]) -> None:
    ended = nodeagent("history", "killed", *options, "--config", config)
    assert (ended.returncode, "omit --since" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("since", "listed"),
    [("2h", ["new"]), ("yesterday", ["new", "old"]), ("2026-03-01", ["new", "old"]), ("today", ["new"]), ("1m", [])],
)
def test_passes_since_a_day_or_a_time_are_listed_in_local_time(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch, since: str, listed: list[str]
) -> None:
    now = datetime(2026, 3, 2, 7, 30, tzinfo=UTC)
    monkeypatch.setattr("nodeagent.units.SystemClock.now", lambda _: now)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        store = History(tmp_path / "state")
        for name, started_at in (("old", datetime(2026, 3, 1, 2, 0, 7, tzinfo=UTC)), ("new", now - timedelta(hours=1))):
            past = PastPass(
                name, started_at, 2.0, "interval", "images", "", False, "complete", "", 7, 7, 1, 1, (PLANNED,)
            )
            store.add(past, Retention(timedelta(days=30), 16 << 20))
        rows = nodeagent("history", "--since", since, "--config", config).stdout.splitlines()[1:]
        details = nodeagent("history", "old", "--config", config).stdout
        printed = nodeagent("history", "old", "-o", "json", "--config", config).stdout
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [row.split()[3] for row in rows] == listed
    assert [row[:23] for row in rows] == ["2026-03-02 07:30:00 CET", "2026-03-01 03:00:07 CET"][: len(listed)]
    assert details.startswith("2026-03-01 03:00:07 CET  old  interval, images")
    assert json.loads(printed)["passes"][0]["started_at"] == "2026-03-01T02:00:07.000Z"


def test_time_of_history_in_another_form_is_refused(config: str) -> None:
    ended = nodeagent("history", "--since", "last week", "--config", config)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--since: 'last week' is not a time: write a duration such as 2h, today, yesterday" in ended.stderr


def past_document(outcomes: Sequence[str] = (), kind: str = "image", **fields: Any) -> PastPassDocument:
    actions = tuple(replace(PLANNED, kind=kind, outcome=each) for each in outcomes)
    past = PastPass("p", NOW, 2.0, "interval", "images", "", False, "complete", "", 7, None, 1, 1, actions)
    return PastPassDocument.of(replace(past, **fields))


def test_summary_counts_removals_by_kind_freed_bytes_and_failures() -> None:
    passes = [
        past_document(outcomes=("done", "done", "failed"), freed_bytes=1 << 30, result="shortfall"),
        past_document(outcomes=("gone",), kind="container", started_at=NOW - timedelta(hours=8)),
        past_document(outcomes=("done",), kind="future-kind"),
        past_document(outcomes=("restored",), trigger="undo"),
        past_document(outcomes=("done", "unknown"), dry_run=True, freed_bytes=1 << 40, result="interrupted"),
    ]
    assert summary(passes) == (
        "5 passes from 2026-03-01 04:00:00 UTC to 2026-03-01 12:00:00 UTC: removed 2 images, 1 container, "
        "1 future-kind, restored 1 image, freed 1.00 GiB, 1 failed, 1 with end shortfall"
    )
    assert summary([past_document()]) == "1 pass: nothing removed"
    same_second = past_document(started_at=NOW + timedelta(milliseconds=999))
    assert summary([same_second, past_document()]) == "2 passes: nothing removed"
    assert summary([past_document()] * 2, limit=2) == "2 passes (--limit): nothing removed"


def test_summary_is_printed_on_a_terminal_only(tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    past = PastPass("p", NOW, 2.0, "interval", "images", "", False, "complete", "", 7, 7, 1, 1, (PLANNED,))
    History(tmp_path / "state").add(past, Retention(timedelta(days=3650), 16 << 20))
    assert on_terminal(120, "history", "--config", config).out.splitlines()[-1] == "1 pass: nothing removed"
    assert "pass:" not in nodeagent("history", "--config", config).stdout
    assert "pass:" not in on_terminal(120, "history", "-q", "--config", config).out


@pytest.mark.parametrize(
    ("threshold", "capacity", "before", "after", "words", "usage"),
    [
        ("memory.psi.some>30%", 100, 35.24, None, "35.2% stalled, ? afterwards", "2.00 GiB"),
        ("memory.available<5%", 64 << 30, 2 << 30, 6 << 30, "2.00 GiB available of 64.0 GiB, 6.00 GiB aft", "2.00 GiB"),
        ("nodefs.inodesFree<5% on /a.available", 9000, 40, 900, "40 available of 9,000, 900 aft", "2,147,483,648"),
        ("imagefs.available<5% on /pid.x", None, 1 << 30, 2 << 30, "1.00 GiB available, 2.00 GiB aft", "2.00 GiB"),
        ("future.available<1", 4 << 30, 1024, 2048, "1.00 KiB available of 4.00 GiB, 2.00 KiB aft", "2.00 GiB"),
    ],
    ids=["stalls", "memory", "inodes", "no capacity", "unknown signal"],
)
def test_eviction_is_printed_in_the_unit_of_its_signal(
    tmp_path: Path,
    config: str,
    *,
    threshold: str,
    capacity: int | None,
    before: float,
    after: float | None,
    words: str,
    usage: str,
) -> None:
    rank = {"rank": 1, "name": "shop/big", "usage": 2 << 30, "request": 0, "priority": 0, "reason": "largest"}
    document = {
        "threshold": {"threshold": threshold, "capacity": capacity},
        "ranking": [rank],
        "available_before": before,
        "available_after": after,
    }
    past = PastPass(
        "p", datetime.now(UTC), 1.0, "pressure", "pods", "", False, "complete", eviction=json.dumps(document)
    )
    store = History(tmp_path / "state")
    store.add(replace(past, actions=(replace(PLANNED, kind="pod"),)), Retention(timedelta(days=30), 16 << 20))
    shown = nodeagent("history", "p", "--config", config).stdout
    assert f"  {threshold}: {words}" in shown
    assert f"{usage}  " in shown.splitlines()[-1]


def recorded(directory: Path, *identities: str, reason: str = "all-unused") -> None:
    for number, identity in enumerate(identities):
        started_at = datetime.now(UTC) - timedelta(minutes=5 - number)
        action = replace(PLANNED, outcome="done", reason=reason)
        past = PastPass(
            identity, started_at, 2.0, "command", "images", "", False, "complete", "", 7, 7, None, None, (action,)
        )
        History(directory).add(past, Retention(timedelta(days=30), 16 << 20))


@pytest.mark.parametrize("form", ["table", "name"])
def test_watched_history_in_a_pipe_is_printed_again_after_a_pass(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    steps = [lambda: None, lambda: recorded(tmp_path / "state", "second")]

    def sleep(seconds: float) -> None:
        assert seconds == 3.0
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    recorded(tmp_path / "state", "first")
    monkeypatch.setattr("time.sleep", sleep)
    ended = nodeagent("history", "-w", "--every", "3", "-o", form, "--config", config)
    assert ended.returncode == 130
    shown = [word for line in ended.stdout.splitlines() for word in line.split() if word in ("first", "second")]
    assert shown == ["first", "second", "first"]
    monkeypatch.undo()


def test_watched_history_on_a_terminal_has_the_summary_below_the_list(tmp_path: Path, config: str) -> None:
    recorded(tmp_path / "state", "first", "second")
    with Session("history", "-w", "--config", config, environment={}, columns=120) as session:
        session.shown("2 passes")
        session.press("q")
        assert session.wait() == 0


@pytest.mark.parametrize("given", [("first",), ("--details",)])
def test_details_of_passes_are_not_watched(tmp_path: Path, config: str, given: tuple[str, ...]) -> None:
    recorded(tmp_path / "state", "first")
    ended = nodeagent("history", *given, "-w", "--config", config)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--watch prints the list of passes: omit PASS and --details" in ended.stderr


def test_passes_are_selected_by_the_reason_of_a_removal(tmp_path: Path, config: str) -> None:
    recorded(tmp_path / "state", "by-age", reason="unused-too-long")
    recorded(tmp_path / "state", "by-space", reason="least-recently-used")
    ended = nodeagent("history", "--filter", "reason=unused-too-long", "-o", "name", "--config", config)
    assert ended.stdout == "by-age\n"
    assert nodeagent("history", "--filter", "trigger=command", "-q", "--config", config).stdout.count("by-") == 2


def test_watched_holds_in_a_pipe_are_printed_again_only_after_a_change(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [2, 1, 0]

    def sleep(_: float) -> None:
        left = readings.pop(0)
        if left == 1:
            nodeagent("hold", "add", "b", "--why", "audit", "--config", config)
        if not left:
            raise KeyboardInterrupt

    assert nodeagent("hold", "add", "a", "--why", "audit", "--config", config).returncode == 0
    monkeypatch.setattr("nodeagent.cli.lists.time.sleep", sleep)
    ended = nodeagent("hold", "list", "-w", "-o", "name", "--config", config)
    monkeypatch.undo()
    assert (ended.returncode, ended.stdout.split()) == (130, ["a", "a", "b"])


@pytest.mark.parametrize("command", ["history", "logs"])
def test_empty_time_such_as_an_unset_variable_is_an_error(command: str) -> None:
    result = nodeagent(command, "--since", "")
    assert result.returncode == 2
    assert "--since: empty" in result.stderr
