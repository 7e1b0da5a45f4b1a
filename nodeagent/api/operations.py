"""The operations of the control API: one table for the server and the client."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from nodeagent.schemas import SchemaId

SMALL_BODY_BYTES: Final = 16 << 10
LARGE_BODY_BYTES: Final = 8 << 20
"""Limit of large request bodies: the size of a saved plan with ten thousand items."""


class Access(IntEnum):
    """Access right of a caller; each level includes all lower levels."""

    NOTHING = 0
    READ = 1
    ACT = 2


class Operation(NamedTuple):
    """An operation of the control API.

    Attributes:
        method: HTTP method.
        path: path template; its variables are fields of the request.
        access: required access right of the caller.
        schema: schema id of the response; ``None`` for a stream, and for a document without fixed fields.
        streams: whether the response is a stream of documents, one JSON line each.
        body_bytes: limit of the request body; 0 for a request whose fields are query parameters.
    """

    method: str
    path: str
    access: Access
    schema: SchemaId | None = None
    streams: bool = False
    body_bytes: int = 0


OPERATIONS: Final = {
    "Status": Operation("GET", "/v1/status", Access.READ, SchemaId.STATUS),
    "Pressure": Operation("GET", "/v1/pressure", Access.READ, SchemaId.PRESSURE),
    "Trend": Operation("GET", "/v1/trend", Access.READ, SchemaId.TREND),
    "Version": Operation("GET", "/v1/version", Access.READ, SchemaId.VERSION),
    "Images": Operation("GET", "/v1/images", Access.READ, SchemaId.IMAGES),
    "ImageLayers": Operation("GET", "/v1/image-layers", Access.READ, SchemaId.IMAGE_TREE),
    "Containers": Operation("GET", "/v1/containers", Access.READ, SchemaId.CONTAINERS),
    "PodList": Operation("GET", "/v1/pods", Access.READ, SchemaId.PODS),
    "Explain": Operation("GET", "/v1/explanation", Access.READ, SchemaId.EXPLANATION),
    "DiskUsage": Operation("GET", "/v1/disk-usage", Access.READ, SchemaId.DISK_USAGE),
    "Leaks": Operation("GET", "/v1/leaks", Access.READ, SchemaId.PREVIEW),
    "NodeReport": Operation("GET", "/v1/report", Access.READ, SchemaId.NODE_REPORT),
    "EvictionPreview": Operation("GET", "/v1/eviction", Access.READ, SchemaId.EVICTION_PREVIEW),
    "ShutdownPlan": Operation("GET", "/v1/shutdown-plan", Access.READ, SchemaId.SHUTDOWN),
    "ShutdownStatus": Operation("GET", "/v1/shutdown", Access.READ, SchemaId.SHUTDOWN_STATUS),
    "Config": Operation("GET", "/v1/config", Access.READ, SchemaId.CONFIG),
    "Plan": Operation("GET", "/v1/plans/{scope}", Access.READ, SchemaId.PREVIEW),
    "Pods": Operation("GET", "/v1/top", Access.READ, SchemaId.POD_USAGE),
    "History": Operation("GET", "/v1/history", Access.READ, SchemaId.HISTORY),
    "Holds": Operation("GET", "/v1/holds", Access.READ, SchemaId.HOLD_LIST),
    "Events": Operation("GET", "/v1/events", Access.READ, streams=True),
    "PreviewReload": Operation("GET", "/v1/reload", Access.READ, SchemaId.RELOAD),
    "UndoList": Operation("GET", "/v1/undo", Access.READ, SchemaId.UNDO_LIST),
    "AddHold": Operation("POST", "/v1/holds", Access.ACT, SchemaId.HOLD, body_bytes=SMALL_BODY_BYTES),
    "RemoveHold": Operation("DELETE", "/v1/holds/{id}", Access.ACT, SchemaId.HOLD),
    "Pause": Operation("PUT", "/v1/pause", Access.ACT, SchemaId.PAUSED, body_bytes=SMALL_BODY_BYTES),
    "Resume": Operation("DELETE", "/v1/pause", Access.ACT, SchemaId.RESUMED),
    "Trigger": Operation("POST", "/v1/loops/{loop}/trigger", Access.ACT, SchemaId.TRIGGER, body_bytes=SMALL_BODY_BYTES),
    "Reload": Operation("POST", "/v1/reload", Access.ACT, SchemaId.RELOAD),
    "Undo": Operation("POST", "/v1/undo", Access.ACT, SchemaId.UNDO, body_bytes=SMALL_BODY_BYTES),
    "Apply": Operation("POST", "/v1/passes", Access.ACT, streams=True, body_bytes=LARGE_BODY_BYTES),
}
"""Operations by name; the server rejects a request for any other operation as not found."""


def method_name(operation: str) -> str:
    """Return the name of the service's method for an operation: ``add_hold`` for ``AddHold``."""
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in operation).removeprefix("_")


def path_variables(path: str) -> tuple[str, ...]:
    """Return the names of the variables in a path template, in order."""
    return tuple(each.partition("}")[0] for each in path.split("{")[1:])


class ProblemType:
    """URIs of problem types: the ``type`` of an error's problem document. Source: RFC 9457."""

    USAGE: Final = "urn:nodeagent:problem:invalid-request"
    ACCESS: Final = "urn:nodeagent:problem:access-denied"
    BUSY: Final = "urn:nodeagent:problem:pass-running"
    RUNTIME: Final = "urn:nodeagent:problem:runtime-unavailable"
    FAILED: Final = "urn:nodeagent:problem:failed"
    BUG: Final = "urn:nodeagent:problem:bug"
