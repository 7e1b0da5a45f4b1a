"""Log formats, with untrusted tenant text in every value."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.telemetry import logging as log
from nodeagent.telemetry.logging import subscribe, unsubscribe
from nodeagent.text import encodable, escape, escape_lines
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HOSTILE = "[/x]\x1b[31m\n\r\u202e\x9b\udcff"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_log() -> Iterator[None]:
    yield
    log.configure("json", "info")


@given(st.text(st.characters(), max_size=30))
def test_any_text_is_logged_as_one_json_line_with_equal_values(text: str) -> None:
    stream = io.StringIO()
    log.configure("json", "info", stream).info("removal", name=text, names=[text], kept={text: 1})
    (line,) = stream.getvalue().splitlines()
    assert escape(line) == line
    values = json.loads(line)
    assert (values["name"], values["names"]) == (encodable(text), [encodable(text)])


@given(st.text(st.characters(), max_size=30))
def test_any_text_is_logged_as_one_console_line(text: str) -> None:
    stream = io.StringIO()
    log.configure("console", "info", stream).info("removal", name=text, names=[text], kept={text: 1})
    assert stream.getvalue().count("\n") == 1
    assert escape_lines(stream.getvalue()) == stream.getvalue()


@pytest.mark.parametrize("form", ["console", "json"])
def test_traceback_with_hostile_text_is_escaped(form: str) -> None:
    stream = io.StringIO()
    logger = log.configure(form, "info", stream)
    try:
        int(HOSTILE)
    except ValueError:
        logger.exception("pass_crashed", loop=HOSTILE)
    assert "ValueError" in stream.getvalue()
    assert escape_lines(stream.getvalue()) == stream.getvalue()


def test_terminal_receives_colours_of_the_renderer_only() -> None:
    stream = Terminal()
    log.configure("auto", "info", stream).info("removal", name=HOSTILE)
    assert "\x1b[" in stream.getvalue()
    assert "[/x]\\x1b[31m\\n\\r\\u202e\\u009b\\xff" in stream.getvalue()


def of_states(level: str = "info") -> tuple[log.StateLog, io.StringIO, ManualClock]:
    stream, clock = io.StringIO(), ManualClock()
    return log.StateLog(log.configure("json", level, stream), clock), stream, clock


def logged(stream: io.StringIO) -> list[str]:
    return [json.loads(line)["value"] for line in stream.getvalue().splitlines()]


def test_lasting_state_is_logged_at_its_change_and_once_an_hour() -> None:
    states, stream, clock = of_states()
    for minute in range(200):
        clock.at_s = minute * 60.0
        states.log_once("removal", {"value": str(minute)}, about=["a"], state="x" if minute < 100 else "y")
    assert logged(stream) == ["0", "60", "100", "160"]


def test_states_of_other_subjects_are_logged_and_an_ended_state_begins_again() -> None:
    states, stream, _ = of_states()
    for value, about in (("1", "a"), ("2", "b"), ("3", "a"), ("4", "b")):
        states.log_once("removal", {"value": value}, about=["x", about])
    assert states.end("removal", "x", "a")
    assert not states.end("removal", "x", "a")
    for value, about in (("5", "a"), ("6", "b")):
        states.log_once("removal", {"value": value}, about=["x", about])
    assert logged(stream) == ["1", "2", "5"]


@pytest.mark.parametrize(("level", "values"), [("info", ["0"]), ("warning", ["0"]), ("debug", ["0", "1", "2"])])
def test_counted_repetition_is_published_but_logged_only_at_debug_level(level: str, values: list[str]) -> None:
    states, stream, _ = of_states(level)
    published: list[Mapping[str, object]] = []
    subscribe(published.append)
    try:
        for number in range(3):
            states.log_once("removal", {"value": str(number)}, counted=True)
    finally:
        unsubscribe(published.append)
    assert [each.get("repeated", False) for each in published] == [False, True, True]
    assert logged(stream) == values


def test_number_of_remembered_states_is_limited() -> None:
    states, stream, _ = of_states()
    for number in range(10_000):
        states.log_once("removal", {"value": str(number)}, about=[str(number)])
    assert len(states._logged) <= 500  # noqa: SLF001 - its memory is the subject
    assert len(logged(stream)) == 10_000
