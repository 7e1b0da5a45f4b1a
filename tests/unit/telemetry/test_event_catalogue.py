"""Event catalogue: message ID, message and explanation of every event."""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.effects import EffectEnd, EndedEffect, OutstandingEffect
from nodeagent.eviction.plan.reclaim import Shortage
from nodeagent.gc.executor import MeasuredFilesystem
from nodeagent.model.pressure import Signal
from nodeagent.model.runtime import FsObservation
from nodeagent.telemetry.event_catalogue import EVENTS, journal_fields, sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
CATALOG = (ROOT / "systemd/nodeagent.catalog").read_text()
T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
_NAME = r"\"([a-z_]+)\""
_LOGGED = re.compile(
    r"(?:logger\.(?:info|warning|error|exception)|level|\w+_once|log_(?:pressure|step))\(\s*"
    rf"(?:{_NAME}(?: if [^,]+? else {_NAME})?)"
)


def logged() -> set[str]:
    """Return the events that the daemon logs above debug level."""
    events = set()
    for path in (ROOT / "nodeagent").rglob("*.py"):
        for match in _LOGGED.finditer(path.read_text()):
            events |= {name for name in match.groups() if name}
    return events


def test_every_logged_event_is_in_the_catalogue() -> None:
    assert len(logged()) > 40
    assert logged() - EVENTS.keys() == set()


def test_message_ids_are_unique_and_explained() -> None:
    ids = [event.message_id for event in EVENTS.values()]
    assert len(set(ids)) == len(ids)
    entries = dict(re.findall(r"^-- ([0-9a-f]{32})\nSubject: (.+)$", CATALOG, re.MULTILINE))
    assert set(entries) == set(ids)
    for text in CATALOG.split("\n-- ")[1:]:
        head, _, body = text.partition("\n\n")
        assert "Defined-By: nodeagent" in head
        assert body.strip(), head


def keys_of(template: str) -> frozenset[str]:
    return frozenset(re.findall(r"{(\w+)}", template))


def required(name: str) -> frozenset[str]:
    """Return the values without which an event has no sentence."""
    return keys_of(re.sub(r"\[.*?\]", "", EVENTS[name].sentence))


BOUND: Final = frozenset({"loop"})
"""Values of loggers, not of calls."""
LOGGING: Final = re.compile(r"\b(info|warning|error|exception|level|\w+_once|log_(pressure|step))$")


def calls() -> Iterator[tuple[str, str, frozenset[str], bool]]:
    """Yield each call that logs an event of the catalogue: place, event, literal keys, and whether these are all keys.

    The events of a conditional expression are yielded one by one.
    """
    for path in sorted((ROOT / "nodeagent").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not call.args or not LOGGING.search(ast.unparse(call.func)):
                continue
            literals = [each for each in ast.walk(call.args[0]) if isinstance(each, ast.Constant)]
            names = [each.value for each in literals if isinstance(each.value, str) and each.value in EVENTS]
            tables = [each for each in call.args[1:] if isinstance(each, ast.Dict)]
            keys = [each for table in tables for each in table.keys]
            own = {each.value for each in keys if isinstance(each, ast.Constant)} | {each.arg for each in call.keywords}
            is_complete = None not in (*keys, *own) and len(tables) == len(call.args) - 1
            for name in names:
                yield f"{path.name}:{call.lineno}", name, frozenset(map(str, own - {None})), is_complete


def test_every_call_passes_the_values_of_its_sentence() -> None:
    found = list(calls())
    complete = [(place, name, required(name) - keys - BOUND) for place, name, keys, is_complete in found if is_complete]
    assert len(complete) > 60
    assert [each for each in complete if each[2]] == []


def test_value_of_a_sentence_is_passed_by_a_call() -> None:
    known: dict[str, set[str]] = {}
    for _, name, keys, is_complete in calls():
        known.setdefault(name, set()).update(keys if is_complete else keys_of(EVENTS[name].sentence))
    assert {name: unknown for name in known if (unknown := keys_of(EVENTS[name].sentence) - known[name])} == {}


GAPS: Final = re.compile(r"\?|''|\"\"|\(\s*\)|None|  |[\[\]{}]|\s[,;:.)]|[:,;(\s]$|^[\s:,;]")


@pytest.mark.parametrize("name", sorted(EVENTS))
@pytest.mark.parametrize("absent", [None, "", [], {}, ...], ids=repr)
def test_sentence_without_a_value_has_no_gap(name: str, absent: object) -> None:
    values: dict[str, object] = dict.fromkeys(keys_of(EVENTS[name].sentence), "value")
    assert not GAPS.search(sentence(name, values))
    for keys in (*([key] for key in values), list(values)):
        given = {key: absent if key in keys else value for key, value in values.items()}
        given = {key: value for key, value in given.items() if value is not ...}
        shown = sentence(name, given)
        assert not GAPS.search(shown), shown
        is_stated = not required(name) & set(keys)
        assert (shown == name or "=" in shown) is not is_stated, shown


def test_event_without_an_entry_is_its_name_and_values() -> None:
    assert sentence("unknown_event", {"a": 1}) == "unknown_event a=1"


def test_brackets_and_braces_of_a_value_are_text() -> None:
    assert (
        sentence("paused", {"by": "{until}", "until": "[x]", "why": "[{by}]"}) == "paused by {until} until [x]: [{by}]"
    )


def test_bytes_of_a_sentence_are_not_negative() -> None:
    """The measurement is the only value that a subtraction of readings could make negative."""
    in_bytes = {key for event in EVENTS.values() for key in keys_of(event.sentence) if key.endswith("_bytes")}
    assert in_bytes == {"freed_bytes", "frees_bytes", "images_in_use_bytes"}
    for before, after in ((1 << 30, (1 << 30) - 12_288), (1 << 30, 0), (5, 5), (5, 9)):
        readings = [FsObservation("/", 1, 1 << 40, each, 0, 0, T0) for each in (before, after)]
        freed = MeasuredFilesystem(*readings).freed_bytes
        assert freed == (after - before if after >= before else None)
        shown = sentence("pass_finished", {"scope": "images", "end": "complete", "removed": 3, "freed_bytes": freed})
        assert shown == f"images pass finished (complete): 3 removed{'' if freed is None else f', {freed} bytes freed'}"


@given(st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_change_of_a_signal_has_a_direction_and_no_sign(gained: float | None) -> None:
    effect = OutstandingEffect("eviction of shop/web", Shortage.NODEFS, Signal.NODEFS_AVAILABLE, None, None, 0.0, 1.0)
    values = {
        **effect.details,
        "waited_s": 10.6,
        "change": EndedEffect(effect, EffectEnd.CONFIRMED, gained, 10.6).change,
    }
    for name in ("effect_measured", "effect_missing", "eviction_ineffective"):
        shown = sentence(name, values)
        assert not GAPS.search(shown)
        assert "by -" not in shown
        assert ("rose" in shown) is (gained is not None and gained > 0)


def test_journal_fields_have_established_names() -> None:
    fields = journal_fields(
        {
            "event": "removal",
            "level": "info",
            "timestamp": "2026-01-10T12:00:00Z",
            "kind": "image",
            "id": "sha256:1",
            "name": "web:v1",
            "outcome": "done",
            "reason": "least-recently-used",
            "why": "least recently used",
            "frees_bytes": 10,
            "dry_run": False,
        }
    )
    assert fields["MESSAGE"] == "image web:v1: done; least recently used"
    assert fields["PRIORITY"] == "6"
    assert fields["IMAGE_ID"] == "sha256:1"
    assert fields["IMAGE_REF"] == "web:v1"
    assert fields["REASON"] == "least-recently-used"
    assert fields["BYTES_PREDICTED"] == "10"
    assert fields["NODEAGENT_DRY_RUN"] == "False"
    assert fields["MESSAGE_ID"] == EVENTS["removal"].message_id


def test_traceback_is_part_of_the_message() -> None:
    fields = journal_fields({"event": "pass_crashed", "level": "error", "loop": "images", "exception": "Traceback"})
    assert fields["MESSAGE"].endswith("\nTraceback")
    assert fields["PRIORITY"] == "3"


def test_message_is_one_printable_line_and_the_field_is_unchanged() -> None:
    name = "[/x]\x1b[31m\n\u202e\udcff"
    event = {"event": "removal", "level": "info", "kind": "container", "id": "1", "name": name, "outcome": "done"}
    fields = journal_fields(event)
    assert fields["MESSAGE"] == r"container [/x]\x1b[31m\n\u202e\xff: done"
    assert fields["CONTAINER_NAME"] == name


def test_traceback_has_several_lines_in_the_journal() -> None:
    fields = journal_fields({"event": "pass_crashed", "loop": "images", "exception": "Traceback:\n  \x1b"})
    assert fields["MESSAGE"].splitlines()[1:] == ["Traceback:", "  \\x1b"]
