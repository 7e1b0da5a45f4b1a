"""Views of JSON documents, compared with the document types."""

from __future__ import annotations

import importlib
import json
import pkgutil
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from nodeagent import api
from nodeagent.api.codec import Document, Part
from nodeagent.api.document_error import DocumentError
from nodeagent.api.light import MAPPINGS, TIMES, parse_document, raw, view
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from collections.abc import Iterator

for found in pkgutil.iter_modules(api.__path__):
    importlib.import_module(f"{api.__name__}.{found.name}")


def _subclasses(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _kinds_by_field() -> dict[str, set[str]]:
    """Return the msgspec type names of each document field, by its name in JSON."""
    found: dict[str, set[str]] = {}
    for struct in {*_subclasses(Part), *_subclasses(Document)}:
        for field in msgspec.structs.fields(struct):
            kind = msgspec.inspect.type_info(field.type)
            kinds = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
            found.setdefault(field.encode_name, set()).update(type(each).__name__ for each in kinds)
    return found


def test_time_fields_are_those_of_the_document_types() -> None:
    times = {name: kinds - {"NoneType"} for name, kinds in _kinds_by_field().items() if "DateTimeType" in kinds}
    assert times == {name: {"DateTimeType"} for name in TIMES}


def test_mapping_fields_are_those_of_the_document_types() -> None:
    kinds = _kinds_by_field()
    assert {name for name in kinds if "DictType" in kinds[name]} == MAPPINGS | {"pods"}
    assert all("StructType" not in kinds[name] for name in MAPPINGS)  # "pods" is also the name of an object


def test_field_is_read_in_the_type_of_its_document() -> None:
    values = {
        "observed_at": "2026-01-02T03:04:05.000Z",
        "image-tree": [{"layers": 2}],
        "for": "x",
        "details": {"since_at": "2026-01-02T03:04:05.000Z"},
        "settings": {"a": {"value": "1"}},
        "pods": {"uid-1": {"name": "web"}},
        "until": None,
    }
    seen = view(values)
    assert seen.observed_at == datetime.fromisoformat("2026-01-02T03:04:05+00:00")
    assert [each.layers for each in seen.image_tree] == [2]
    assert (seen.for_, seen.until) == ("x", None)
    assert seen.details == values["details"]
    assert seen.settings["a"].value == "1"
    assert seen.pods["uid-1"].name == "web"
    assert seen.warnings is None
    assert raw(seen) is values


def test_missing_field_is_an_error_of_the_document() -> None:
    with pytest.raises(DocumentError, match="no field images"):
        _ = view({"schema": "x"}).images


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "nodeagent/images/v2"}', "[" * 100_000, b"\xff"])
def test_text_of_another_schema_is_an_error_of_the_document(text: Any) -> None:
    with pytest.raises(DocumentError, match="cannot decode document nodeagent/images/v1"):
        parse_document(text, SchemaId.IMAGES)


def test_document_is_read_unchanged() -> None:
    values = {"schema": "nodeagent/images/v1", "images": []}
    assert parse_document(json.dumps(values), SchemaId.IMAGES) == values
