"""Schema ids, and the encoder and decoder of documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
import yaml

import nodeagent
from nodeagent.api import common as codec
from nodeagent.api.common import (
    Document,
    DocumentError,
    decode,
    decode_fields,
    encode,
    encode_line,
    schema_id,
)
from nodeagent.daemon.control_documents import Triggered
from nodeagent.daemon.documents import Status
from nodeagent.gc.documents.history import HistoryDocument
from nodeagent.gc.documents.holds import HoldList
from nodeagent.gc.documents.passes import decode_progress
from nodeagent.schemas import SchemaId
from tests.support.modules import import_all

import_all()

BASES = {"ListDocument"}


def subclasses(kind: type[Document]) -> set[type[Document]]:
    return {each for child in kind.__subclasses__() for each in {child, *subclasses(child)}}


DOCUMENTS = sorted((each for each in subclasses(Document) if each.__name__ not in BASES), key=schema_id)
TRIGGERED = {"schema": "nodeagent/trigger/v1", "loop": "images", "ended": True, "result": "complete", "detail": ""}


def test_every_document_has_a_unique_schema_id() -> None:
    ids = [schema_id(each) for each in DOCUMENTS]
    assert len(ids) == len(set(ids))
    assert set(ids) <= set(SchemaId)


def test_only_documents_and_files_share_the_registry() -> None:
    untyped = {SchemaId.EVENT, SchemaId.SAVED_PLAN}
    files = {each for each in SchemaId if each.name.endswith("_FILE")}
    assert set(SchemaId) - {SchemaId(schema_id(each)) for each in DOCUMENTS} == untyped | files


def test_schema_ids_are_defined_only_in_the_registry() -> None:
    package = Path(nodeagent.__file__).parent
    registry = package / "schemas.py"
    literal = re.compile(r"""["']nodeagent/[a-z-]+/v\d""")
    elsewhere = [
        path
        for path in package.rglob("*.py")
        if path != registry and "_proto" not in path.parts and literal.search(path.read_text())
    ]
    assert elsewhere == []


@pytest.mark.parametrize("kind", DOCUMENTS, ids=schema_id)
def test_every_document_has_a_json_schema(kind: type[Document]) -> None:
    schema = json.loads(json.dumps(msgspec.json.schema(kind)))
    (own,) = (
        each
        for each in schema["$defs"].values()
        if {"enum": [schema_id(kind)]} == each.get("properties", {}).get("schema")
    )
    assert "schema" in own["required"]


def test_schema_is_the_first_key() -> None:
    text = encode(HoldList(holds=()))
    assert list(json.loads(text)) == ["schema", "holds"]
    assert json.loads(text)["schema"] == "nodeagent/hold-list/v1"


def test_unknown_fields_are_ignored() -> None:
    assert decode(json.dumps(TRIGGERED | {"new": [1]}), Triggered).loop == "images"


def test_missing_optional_field_has_its_default() -> None:
    assert decode(json.dumps(TRIGGERED), Triggered).dry_run is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`, got `array`"),
        (json.dumps(TRIGGERED | {"ended": "yes"}), r"Expected `bool`, got `str` - at `\$.ended`"),
        (json.dumps({"loop": "images"}), "missing required field `ended`"),
        (json.dumps(TRIGGERED | {"schema": "nodeagent/trigger/v2"}), r"Invalid value .*v2' - at `\$.schema`"),
        ("[" * 100_000, "cannot decode"),
    ],
)
def test_decode_error_names_schema_and_field(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message) as caught:
        decode(text, Triggered)
    assert str(caught.value).startswith("cannot decode document nodeagent/trigger/v1: ")


def test_decode_error_names_the_path_into_lists() -> None:
    text = '{"passes": [], "node_stops": [{"id": "a", "boot_id": "b", "kind": 1}]}'
    with pytest.raises(DocumentError, match=r"at `\$.node_stops\[0\].kind`"):
        decode(text, HistoryDocument)


def test_time_without_zone_is_refused() -> None:
    with pytest.raises(DocumentError, match=r"at `\$.observed_at`"):
        decode('{"observed_at": "2026-01-10T12:00:00"}', Status)


def test_progress_is_decoded_by_its_schema_id() -> None:
    with pytest.raises(DocumentError, match="nodeagent/event/v1"):
        decode_progress('{"schema": "nodeagent/event/v1"}')


def test_event_keeps_all_its_fields() -> None:
    assert decode_fields('{"schema": "nodeagent/event/v1", "a": [1]}') == {"schema": "nodeagent/event/v1", "a": [1]}
    with pytest.raises(DocumentError):
        decode_fields("[1]")


@pytest.mark.parametrize("name", ["plain", "a\x1b[31m\n\u202e\x9b\x00", "\udcff"])
def test_encoded_text_is_safe_on_a_terminal(name: str) -> None:
    document = Triggered(loop=name, ended=False, result="", detail="")
    expected = name.replace("\udcff", "\\xff")
    for text in (encode(document), encode_line(document)):
        assert text.replace("\n", "").isprintable()
        assert json.loads(text)["loop"] == expected
    assert yaml.safe_load(encode(document, "yaml"))["loop"] == expected


def test_plain_converts_values_without_a_json_type() -> None:
    assert codec.plain({"path": Path("/x"), "set": {1}, "error": ValueError("no")}) == {
        "path": "/x",
        "set": [1],
        "error": "no",
    }


def test_encoding_rejects_values_without_a_json_type() -> None:
    with pytest.raises(TypeError, match="object"):
        encode({"schema": "s", "value": object()})
