"""The OpenAPI document of the control API, generated from operations, request types and document types."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from nodeagent import __version__
from nodeagent.api import (
    config,
    control,
    diagnostics,
    eviction,
    explain,
    gc,
    history,
    holds,
    lists,
    node_report,
    pods,
    pressure,
    reload,
    shutdown,
    status,
    undo,
)
from nodeagent.api.operations import OPERATIONS, path_variables
from nodeagent.api.requests import request_type

_RESPONSES: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "Status": (status.Status,),
    "Pressure": (pressure.Pressure,),
    "Version": (diagnostics.Version,),
    "Images": (lists.Images,),
    "ImageLayers": (lists.ImageTree,),
    "Containers": (lists.Containers,),
    "PodList": (lists.Pods,),
    "Explain": (explain.Explanation,),
    "DiskUsage": (gc.DiskUsage,),
    "Leaks": (gc.Preview,),
    "NodeReport": (node_report.NodeReport,),
    "EvictionPreview": (eviction.EvictionPreview,),
    "ShutdownPlan": (shutdown.ShutdownPlan,),
    "ShutdownStatus": (shutdown.ShutdownStatus,),
    "Config": (config.EffectiveConfig,),
    "Plan": (gc.Preview,),
    "Pods": (pods.PodUsage,),
    "History": (history.History,),
    "Holds": (holds.HoldList,),
    "Events": (),
    "PreviewReload": (reload.Reload,),
    "UndoList": (undo.UndoList,),
    "AddHold": (holds.Hold,),
    "RemoveHold": (holds.Hold,),
    "Pause": (control.Paused,),
    "Resume": (control.Resumed,),
    "Trigger": (control.Triggered,),
    "Reload": (reload.Reload,),
    "Undo": (undo.Undone,),
    "Apply": (gc.Result, gc.Report),
}
"""Document types of successful responses, by operation. Events and saved plans have no fixed fields."""
_REFERENCE: Final = "#/components/schemas/{name}"
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    documents = sorted({each for kinds in _RESPONSES.values() for each in kinds}, key=lambda each: each.__name__)
    schemas, components = msgspec.json.schema_components(documents, ref_template=_REFERENCE)
    of_document = dict(zip(documents, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for name, operation in OPERATIONS.items():
        found = [of_document[each] for each in _RESPONSES[name]] or [{"type": "object"}]
        media_type = "application/jsonl" if operation.streams else "application/json"
        schema = found[0] if len(found) == 1 else {"anyOf": found}
        paths.setdefault(operation.path, {})[operation.method.lower()] = {
            "operationId": name,
            "summary": operation.summary,
            "x-access": operation.access.name.lower(),
            **_request(name),
            "responses": {
                "200": {"description": "Success", "content": {media_type: {"schema": schema}}},
                "default": {
                    "description": "Error (RFC 9457)",
                    "content": {"application/problem+json": {"schema": {"$ref": _REFERENCE.format(name="Problem")}}},
                },
            },
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nodeagent control API",
            "version": __version__,
            "description": "HTTP/1.1 on the unix socket /run/nodeagent/control.sock; the kernel identifies the caller.",
        },
        "paths": paths,
        "components": {"schemas": {**components, "Problem": _PROBLEM}},
    }


def _request(name: str) -> dict[str, Any]:
    """Return the parameters and the request body of an operation, in OpenAPI form."""
    operation = OPERATIONS[name]
    schema = msgspec.json.schema(request_type(name))
    properties: dict[str, Any] = schema["$defs"][request_type(name).__name__].get("properties", {})
    variables = path_variables(operation.path)
    parameters = [
        {"name": each, "in": "path", "required": True, "schema": {"type": properties[each]["type"]}}
        for each in variables
    ]
    rest = {key: value for key, value in properties.items() if key not in variables}
    if not operation.body_bytes:
        parameters += [{"name": key, "in": "query", "schema": value} for key, value in rest.items()]
    found: dict[str, Any] = {"parameters": parameters} if parameters else {}
    if operation.body_bytes:
        body = {"type": "object", "properties": rest, "additionalProperties": False}
        found["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return found
