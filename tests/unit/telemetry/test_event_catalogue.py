"""Event catalogue: message ID, message and explanation of every event."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodeagent.telemetry.event_catalogue import EVENTS, journal_fields, sentence

ROOT = Path(__file__).parents[3]
CATALOG = (ROOT / "systemd/nodeagent.catalog").read_text()
_NAME = r"\"([a-z_]+)\""
_LOGGED = re.compile(
    r"(?:logger\.(?:info|warning|error|exception)|level|\w+_once|log_(?:pressure|step))\(\s*"
    rf"(?:{_NAME}(?: if [^,]+? else {_NAME})?)"
)


def logged() -> set[str]:
    """Return the events that the daemon logs above debug level."""
    events = set()
    for path in (ROOT / "nodeagent/daemon").rglob("*.py"):
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


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_message_is_complete_without_values(name: str) -> None:
    assert sentence(name, {})
    assert sentence("unknown_event", {"a": 1}) == "unknown_event a=1"


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
    assert fields["MESSAGE"] == r"container [/x]\x1b[31m\n\u202e\xff: done; ?"
    assert fields["CONTAINER_NAME"] == name


def test_traceback_has_several_lines_in_the_journal() -> None:
    fields = journal_fields({"event": "pass_crashed", "loop": "images", "exception": "Traceback:\n  \x1b"})
    assert fields["MESSAGE"].splitlines()[1:] == ["Traceback:", "  \\x1b"]
