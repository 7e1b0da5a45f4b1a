"""Parsing of untrusted JSON and YAML: oversized or deeply nested documents are refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.parsing import parse_json, parse_yaml

LEVELS = range(1, 12)


def levels(form: str) -> str:
    """Return a YAML mapping of levels; each level has nine aliases of the previous level."""
    return "a0: &a0 {k: v}\n" + "".join(
        f"a{level}: &a{level} {form.format(', '.join([f'*a{level - 1}'] * 9))}\n" for level in LEVELS
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(levels("[{}]"), "more than 10000 values", id="aliases"),
        pytest.param(levels("{{<<: [{}]}}"), "more than 10000 values", id="merges"),
        pytest.param("[" + "1," * 10_001 + "]", "more than 10000 values", id="long list"),
        pytest.param("[" * 100_000, "nested more than 64 levels", id="deep lists"),
        pytest.param("- " * 100_000, "nested more than 64 levels", id="deep blocks"),
        pytest.param('{"a": ' * 65 + "1" + "}" * 65, "nested more than 64 levels", id="deep JSON"),
        pytest.param("a: &a [*a]", "contains itself", id="cycle"),
        pytest.param("a: &a\n  <<: *a\n", "contains itself", id="merged cycle"),
        pytest.param("a: 1" + ":1" * 100_000, "more than 64 characters", id="colons"),
        pytest.param("a: 1" + ":1" * 100_000 + ".0", "more than 64 characters", id="colons of a fraction"),
        pytest.param("a: !!int " + "9" * 5000, "more than 64 characters", id="digits"),
        pytest.param("a: !!bool x", "'x'", id="no bool"),
        pytest.param("a: !!int ''", "index out of range", id="no int"),
        pytest.param("a: !!timestamp x", "NoneType", id="no time"),
        pytest.param("a: !!python/name:os.system", "could not determine a constructor", id="python"),
        pytest.param("a: [", "expected", id="syntax"),
        pytest.param("\x00", "unacceptable character", id="control character"),
        pytest.param(b"\xff\xfe\x00\xd8", "unexpected end of data", id="encoding"),
    ],
)
def test_yaml_bomb_or_malformed_yaml_is_an_error(text: str | bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        list(parse_yaml(text))
    assert 0 < len(str(caught.value)) <= 200


def test_yaml_with_aliases_and_merges_has_its_values() -> None:
    text = "base: &b {a: 1, b: [x]}\nother: {<<: *b, a: 2}\nsame: [*b, *b]\n---\n2001-01-01\n---\n"
    base = {"a": 1, "b": ["x"]}
    assert list(parse_yaml(text)) == [
        {"base": base, "other": {"a": 2, "b": ["x"]}, "same": [base] * 2},
        "2001-01-01",
        None,
    ]


@pytest.mark.parametrize("value", [{"a": [1, {"b": None}]}, {}, {"key" * 400: "\u00e9 /"}, {"many": [0] * 20_000}])
@pytest.mark.parametrize("indent", [None, 2, "\t"], ids=["one line", "spaces", "tabs"])
@pytest.mark.parametrize("encode", [str, str.encode], ids=["text", "bytes"])
def test_object_in_json_has_its_value_whatever_its_indentation(
    value: object, indent: str | int | None, encode: Any
) -> None:
    assert list(parse_yaml(encode(f"\n{json.dumps(value, indent=indent)}\n"))) == [value]


def test_yaml_mapping_in_braces_is_no_json() -> None:
    assert list(parse_yaml("{a: 1}\n---\n{b: 2}")) == [{"a": 1}, {"b": 2}]


def test_documents_before_a_malformed_one_are_read() -> None:
    documents = parse_yaml("a: 1\n---\n[")
    assert next(documents) == {"a": 1}
    with pytest.raises(ValueError, match="expected"):
        next(documents)


@given(st.binary(max_size=200) | st.text("{}[]&*<:-,'\"! \nab01.~?|>%#", max_size=80))
def test_any_text_is_yaml_or_an_error(text: bytes | str) -> None:
    with suppress(ValueError):
        list(parse_yaml(text))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "{", b"\xff", "9" * 5000])
def test_malformed_or_nested_json_is_an_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
