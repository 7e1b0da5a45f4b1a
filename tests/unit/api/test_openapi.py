"""The OpenAPI document: every operation with its request and response, and no undefined reference."""

from __future__ import annotations

import json
import re

import msgspec

from nodeagent.api.openapi import openapi
from nodeagent.api.operations import OPERATIONS
from nodeagent.api.requests import request_type


def test_every_operation_has_its_path_method_and_id() -> None:
    found = {
        (path, method.upper()): operation["operationId"]
        for path, methods in openapi()["paths"].items()
        for method, operation in methods.items()
    }
    assert found == {(each.path, each.method): name for name, each in OPERATIONS.items()}


def test_every_field_of_a_request_is_a_parameter_or_in_the_body() -> None:
    for name, each in OPERATIONS.items():
        operation = openapi()["paths"][each.path][each.method.lower()]
        named = {parameter["name"] for parameter in operation.get("parameters", [])}
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        fields = {field.encode_name for field in msgspec.structs.fields(request_type(name))}
        assert named | set(body.get("properties", {})) == fields, name


def test_every_reference_names_a_defined_schema() -> None:
    text = json.dumps(openapi())
    names = set(re.findall(r'"#/components/schemas/([\w.-]+)"', text))
    assert names <= set(openapi()["components"]["schemas"])
    assert "Status" in names


def test_schema_id_of_every_operation_is_that_of_its_document() -> None:
    for each in OPERATIONS.values():
        (content,) = openapi()["paths"][each.path][each.method.lower()]["responses"]["200"]["content"].values()
        schemas = content["schema"].get("anyOf", [content["schema"]])
        names = [schema.get("$ref", "").rpartition("/")[2] for schema in schemas]
        ids = [openapi()["components"]["schemas"][name]["properties"]["schema"]["enum"] for name in names if name]
        assert each.schema is None if each.streams else [[each.schema]] == ids
