"""Escaping of untrusted text: visible, printable, encodable."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from nodeagent.text import encodable, escape, escape_lines, raw_bytes, to_json

ANYTHING = st.text(st.characters())  # includes surrogates
NAME_BYTES = st.binary(max_size=40)
BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("web-0", "web-0"),
        ("umläut → ≤ 你好 😀", "umläut → ≤ 你好 😀"),
        ("[/x] :skull: {0} %s", "[/x] :skull: {0} %s"),
        ("a\x1b[31mb\x07\x00", r"a\x1b[31mb\x07\x00"),
        ("\n\r\t\x0b", r"\n\r\t\x0b"),
        ("\x7f\x80\x9b", r"\x7f\u0080\u009b"),
        ("\u202e\u2066\u200b\ufeff\u2028\u2029", r"\u202e\u2066\u200b\ufeff\u2028\u2029"),
        ("\u00a0\u00ad\u3000", r"\u00a0\u00ad\u3000"),
        ("\u3164\ufe0f\u034f", r"\u3164\ufe0f\u034f"),
        ("\U000e0041\U000e0101", r"\U000e0041\U000e0101"),
        (b"a\xff\x80".decode(errors="surrogateescape"), r"a\xff\x80"),
        ("\ud800", r"\ud800"),
        (r"regex:^a\.b\\c$", r"regex:^a\.b\\c$"),
        ("", ""),
    ],
)
def test_text_is_escaped_as_documented(text: str, shown: str) -> None:
    assert escape(text) == shown


@given(ANYTHING)
def test_escaped_text_is_printable_encodable_and_unchanged_by_a_second_escape(text: str) -> None:
    shown = escape(text)
    assert shown.isprintable()
    assert not set(shown) & set(BIDIRECTIONAL)
    assert shown.encode().decode() == shown
    assert escape(shown) == shown
    assert len(shown) >= len(text)


@given(ANYTHING)
def test_lines_of_escaped_text_are_the_lines_of_the_text(text: str) -> None:
    assert escape_lines(text).split("\n") == [escape(each) for each in text.split("\n")]


@given(ANYTHING)
def test_encodable_text_is_unchanged_unless_it_cannot_be_encoded(text: str) -> None:
    made = encodable(text)
    assert made.encode().decode() == made
    assert encodable(made) == made
    if not any("\ud800" <= each <= "\udfff" for each in text):
        assert made == text


@given(NAME_BYTES)
def test_raw_bytes_of_a_name_that_is_not_utf_8_are_returned(name: bytes) -> None:
    text = name.decode(errors="surrogateescape")
    found = raw_bytes(text)
    assert found in (None, name)
    assert (found is None) == (encodable(text) == text)


@given(st.recursive(ANYTHING | st.integers() | st.booleans() | st.none(), lambda each: st.lists(each, max_size=3)))
def test_json_is_printable_and_parsed_to_the_same_value(value: object) -> None:
    for text in (to_json(value), to_json(value, indent=2)):
        assert escape_lines(text) == text
        assert json.loads(text) == _encodable(value)


VALUES = st.recursive(
    ANYTHING | st.integers() | st.floats() | st.none(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(ANYTHING, each, max_size=3),
)


@given(VALUES)
def test_large_document_is_indented_like_a_small_one(value: object) -> None:
    small = to_json(value, indent=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nodeagent.text._MAX_INDENTED_LENGTH", -1)
        large = to_json(value, indent=2)
    if "NaN" in small or "Infinity" in small:
        assert escape_lines(large) == large
    else:
        assert large == small


def _encodable(value: object) -> object:
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    return encodable(value) if isinstance(value, str) else value
