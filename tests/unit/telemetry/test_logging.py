"""Log formats, with untrusted tenant text in every value."""

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
