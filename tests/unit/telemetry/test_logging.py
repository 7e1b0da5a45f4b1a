"""The log's forms, with text of tenants in every place."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.telemetry import logging as log
from nodeagent.text import encodable, escape, escape_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = "[/x]\x1b[31m\n\r\u202e\x9b\udcff"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_log() -> Iterator[None]:
    yield
    log.configure("json", "info")


@given(st.text(st.characters(), max_size=30))
def test_any_text_is_one_line_of_json_with_the_same_values(text: str) -> None:
    stream = io.StringIO()
    log.configure("json", "info", stream).info("removal", name=text, names=[text], kept={text: 1})
    (line,) = stream.getvalue().splitlines()
    assert escape(line) == line
    shown = json.loads(line)
    assert (shown["name"], shown["names"]) == (encodable(text), [encodable(text)])


@given(st.text(st.characters(), max_size=30))
def test_any_text_is_one_line_of_a_console(text: str) -> None:
    stream = io.StringIO()
    log.configure("console", "info", stream).info("removal", name=text, names=[text], kept={text: 1})
    assert stream.getvalue().count("\n") == 1
    assert escape_lines(stream.getvalue()) == stream.getvalue()


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_with_hostile_text_is_escaped(form: str) -> None:
    stream = io.StringIO()
    logger = log.configure(form, "info", stream)
    try:
        int(HOSTILE)
    except ValueError:
        logger.exception("pass_crashed", loop=HOSTILE)
    assert "ValueError" in stream.getvalue()
    assert escape_lines(stream.getvalue()) == stream.getvalue()


def test_a_terminal_gets_colours_of_the_log_and_none_of_the_data() -> None:
    stream = Terminal()
    log.configure("auto", "info", stream).info("removal", name=HOSTILE)
    assert "\x1b[" in stream.getvalue()
    assert "[/x]\\x1b[31m\\n\\r\\u202e\\u009b\\xff" in stream.getvalue()
