"""Templates of ``-o jsonpath`` and columns of ``-o custom-columns``."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import given, strategies as st

from nodeagent.cli.jsonpath import column_text, parse_columns, parse_template
from nodeagent.cli.listing import IMAGES, ListOptions
from nodeagent.cli.lists import ListRequest
from nodeagent.errors import UsageError
from tests.support.command import nodeagent
from tests.unit.builders import NOW
from tests.unit.cli.test_listing import document_of, image

DOCUMENT: Final[dict[str, Any]] = {
    "schema": "nodeagent/containers/v1",
    "items": [
        {"name": "web", "code": 137, "state": "exited", "tags": ["a", "b"], "ready": True, "a.b": 1, "none": None},
        {"name": "db", "code": 1, "state": "running", "tags": [], "ready": False, "share": 0.5, "o": {"x": "y"}},
        {"name": "\x1b[2J", "code": None, "state": "a==b"},
    ],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.items[*].name}", "web db \\x1b[2J"),
        ("{$.items[*].code}", "137 1 null"),
        ("{.items[0].name}: {.schema}!", "web: nodeagent/containers/v1!"),
        ("{.items[-1].state}", "a==b"),
        ("{.items[7].name}", ""),
        ("{.items[0:2].name}", "web db"),
        ("{.items[:-1].name}", "web db"),
        ("{.items[1:].name}", "db \\x1b[2J"),
        ("{.items[*]['name']}", "web db \\x1b[2J"),
        ('{.items[0]["a.b"]}{.items[0].a\\.b}', "11"),
        ("{.items[0].ready} {.items[1].share} {.items[0].none}", "true 0.5 null"),
        ("{.items[1].tags}{.items[1].o}", '[]{"x": "y"}'),
        ("{.items[1].o.*}", "y"),
        ("{.nothing.at.all}", ""),
        ('{range .items[*]}{.name}{"\\t"}{.code}{"\\n"}{end}', "web\t137\ndb\t1\n\\x1b[2J\tnull\n"),
        ("{range .items[*]}{range .tags[*]}{@}{'-'}{end};{end}", "a-b-;;;"),
        ("{range .items[0:2]}{$.schema} {end}", "nodeagent/containers/v1 nodeagent/containers/v1 "),
        ('{.items[?(@.state=="exited")].name}', "web"),
        ("{.items[?(@.state == 'exited')].name}", "web"),
        ('{.items[?(@.state!="exited")].name}', "db \\x1b[2J"),
        ('{.items[?(@.state=="a==b")].code}', "null"),
        ("{.items[?(@.code>1)].name}", "web"),
        ("{.items[?(@.code>=1)].name}", "web db"),
        ("{.items[?(@.code<137)].name}", "db"),
        ("{.items[?(@.code==1)].name}", "db"),
        ("{.items[?(@.ready==true)].name}", "web"),
        ("{.items[?(@.ready==1)].name}", ""),
        ("{.items[?(@.code)].name}", "web db"),
        ("{.items[?(@.share)].name}", "db"),
        ('{.items[*].tags[?(@=="b")]}', "b"),
        ('{"{}"}', "{}"),
    ],
)
def test_template_is_printed_as_by_kubectl(template: str, text: str) -> None:
    assert parse_template(template).text(DOCUMENT) == text


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (".items[*].name", "no expression in braces"),
        ("{.items[*].name", "unbalanced braces or quotes"),
        ("a}", "unbalanced braces or quotes"),
        ('{"a}', "unbalanced braces or quotes"),
        ("{}", "an empty expression"),
        ("{..name}", "the recursive step '..' is unsupported"),
        ("{.items[?(@.a=~'x')]}", "unsupported at"),
        ("{.items[?(@.a==x)]}", "x is no text in quotes and no number"),
        ("{.items[?(@.a==1 && @.b==2)]}", "unsupported at"),
        ("{.items[0,1]}", "unsupported at '[0,1]'"),
        ("{.items[::2]}", "unsupported at"),
        ("{.items[(@.length-1)]}", "unsupported at"),
        ("{range .items[*]}{.name}", "{range ...} without {end}"),
        ("{.name}{end}", "no {range ...} before it"),
        ("{range}{end}", "an empty expression"),
        ("{.a b}", "unsupported at ' b'"),
        ("{.a\x1b[2J}", "unsupported at"),
        ("{.a}" * 2000, "longer than 4096 characters"),
        ("{range .a}" * 20 + "{end}" * 20, "more than 16 nested ranges"),
    ],
)
def test_unsupported_template_is_refused_with_its_place(template: str, problem: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_template(template)
    assert problem in str(refused.value)
    assert str(refused.value).startswith("-o jsonpath: ")


def test_field_of_a_list_is_an_error_and_not_an_empty_output() -> None:
    with pytest.raises(UsageError, match="'name' is a field of a list: write"):
        parse_template("{.items.name}").text(DOCUMENT)


@given(st.text(st.sampled_from("{}[]().*@$?'\"\\=<>!,:ab0-1 \n\u202e"), max_size=40), st.booleans())
def test_any_expression_is_refused_or_printed(text: str, columns: bool) -> None:
    with suppress(UsageError):
        if columns:
            cells = [column_text(path, row, DOCUMENT) for _, path in parse_columns(text) for row in DOCUMENT["items"]]
            assert all(isinstance(each, str) for each in cells)
        else:
            parse_template(f"{{.items[0]{text}}}").text(DOCUMENT)


@pytest.mark.parametrize(
    ("columns", "cells"),
    [
        ("NAME:.name", ["web"]),
        ("NAME:name,CODE:{.code}", ["web", "137"]),
        ("TAGS:.tags[*],TAG:.tags[0],ALL:.tags", ["a,b", "a", '["a", "b"]']),
        ("X:.nothing,Y:.none,Z:.tags[9]", ["<none>", "<none>", "<none>"]),
        ("S:$.schema", ["nodeagent/containers/v1"]),
        ("T:.tags[?(@!='a,b')]", ["a,b"]),
    ],
)
def test_custom_column_has_the_values_of_its_path(columns: str, cells: list[str]) -> None:
    assert [column_text(path, DOCUMENT["items"][0], DOCUMENT) for _, path in parse_columns(columns)] == cells


@pytest.mark.parametrize("columns", ["NAME", "NAME:", ":.name", "NAME:.name,", "A:..b", ""])
def test_custom_column_without_title_or_path_is_refused(columns: str) -> None:
    with pytest.raises(UsageError, match=r"^-o custom-columns: "):
        parse_columns(columns)


@pytest.mark.parametrize("output", ["xml", "jsonpath", "jsonpath=", "custom-columns", "JSON", "wide=x", ""])
@pytest.mark.parametrize("command", ["images", "containers", "pods", "history", "hold list"])
def test_unknown_output_format_of_a_list_is_refused_with_the_formats(command: str, output: str) -> None:
    ended = nodeagent(*command.split(), "-o", output)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "must be table, wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=TITLE:PATH,..." in ended.stderr


def test_filters_order_and_headings_apply_to_values(capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of([image("a", size=1), image("b", size=3), image("c\x1b", size=2)])
    for form, expression, headers, expected in (
        ("jsonpath", "{.images[*].repo_tags[0]}", True, "b c\\x1b"),
        ("custom-columns", "NAME:.repo_tags[0],SIZE:.size_bytes", True, "NAME   SIZE\nb      3\nc\\x1b  2\n"),
        ("custom-columns", "NAME:.repo_tags[0]", False, "b\nc\\x1b\n"),
    ):
        options = ListOptions(form, "-size", ("name!=a",), headers=headers, expression=expression)
        ListRequest.of(IMAGES, options).print(document, empty="", now=NOW)
        assert capsys.readouterr().out == expected


def test_template_has_the_fields_of_the_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of([image("a")])
    ListRequest.of(IMAGES, ListOptions("json")).print(document, empty="", now=NOW)
    printed = json.loads(capsys.readouterr().out)
    ListRequest.of(IMAGES, ListOptions("jsonpath", expression="{$}")).print(document, empty="", now=NOW)
    assert json.loads(capsys.readouterr().out) == {"items": printed["images"], **printed}
