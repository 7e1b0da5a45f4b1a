"""The operations of the control API: one table for the server, the client and the OpenAPI document."""

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
        summary: one line for the OpenAPI document.
        schema: schema id of the response; ``None`` for a stream, and for a document without fixed fields.
        streams: whether the response is a stream of documents, one JSON line each.
        body_bytes: limit of the request body; 0 for a request whose fields are query parameters.
    """

    method: str
    path: str
    access: Access
    summary: str
    schema: SchemaId | None = None
    streams: bool = False
    body_bytes: int = 0


OPERATIONS: Final = {
    "Status": Operation("GET", "/v1/status", Access.READ, "State of the node and the daemon", SchemaId.STATUS),
    "Pressure": Operation(
        "GET", "/v1/pressure", Access.READ, "Eviction signals against their thresholds", SchemaId.PRESSURE
    ),
    "Version": Operation("GET", "/v1/version", Access.READ, "Versions of the agent and the runtime", SchemaId.VERSION),
    "Images": Operation("GET", "/v1/images", Access.READ, "Images with their verdicts", SchemaId.IMAGES),
    "ImageLayers": Operation("GET", "/v1/image-layers", Access.READ, "Images by shared layers", SchemaId.IMAGE_TREE),
    "Containers": Operation(
        "GET", "/v1/containers", Access.READ, "Containers with their verdicts", SchemaId.CONTAINERS
    ),
    "PodList": Operation("GET", "/v1/pods", Access.READ, "Pods with sandboxes and deletion status", SchemaId.PODS),
    "Explain": Operation(
        "GET", "/v1/explanation", Access.READ, "Verdicts on the items that match a name", SchemaId.EXPLANATION
    ),
    "DiskUsage": Operation(
        "GET", "/v1/disk-usage", Access.READ, "Usage of the image filesystem by share", SchemaId.DISK_USAGE
    ),
    "Leaks": Operation("GET", "/v1/leaks", Access.READ, "Unreferenced blobs and snapshots", SchemaId.PREVIEW),
    "NodeReport": Operation(
        "GET", "/v1/report", Access.READ, "State of the node for a fleet summary", SchemaId.NODE_REPORT
    ),
    "EvictionPreview": Operation(
        "GET", "/v1/eviction", Access.READ, "Preview of the next or a simulated eviction", SchemaId.EVICTION_PREVIEW
    ),
    "ShutdownPlan": Operation(
        "GET", "/v1/shutdown-plan", Access.READ, "Timeline of a shutdown starting now", SchemaId.SHUTDOWN
    ),
    "ShutdownStatus": Operation(
        "GET", "/v1/shutdown", Access.READ, "Inhibitor lock and past node stops", SchemaId.SHUTDOWN_STATUS
    ),
    "Config": Operation("GET", "/v1/config", Access.READ, "Configuration in force", SchemaId.CONFIG),
    "Plan": Operation("GET", "/v1/plans/{scope}", Access.READ, "Preview of a pass, or a saved plan", SchemaId.PREVIEW),
    "Pods": Operation("GET", "/v1/top", Access.READ, "Pods with their usage, in eviction order", SchemaId.POD_USAGE),
    "History": Operation("GET", "/v1/history", Access.READ, "Past passes and node stops", SchemaId.HISTORY),
    "Holds": Operation("GET", "/v1/holds", Access.READ, "Image holds in force", SchemaId.HOLD_LIST),
    "Events": Operation("GET", "/v1/events", Access.READ, "Events of the daemon as they occur", streams=True),
    "PreviewReload": Operation("GET", "/v1/reload", Access.READ, "Changes and effect of a reload", SchemaId.RELOAD),
    "UndoList": Operation(
        "GET", "/v1/undo", Access.READ, "Passes with image removals that can be undone", SchemaId.UNDO_LIST
    ),
    "AddHold": Operation(
        "POST", "/v1/holds", Access.ACT, "Add an image hold", SchemaId.HOLD, body_bytes=SMALL_BODY_BYTES
    ),
    "RemoveHold": Operation("DELETE", "/v1/holds/{id}", Access.ACT, "Remove an image hold", SchemaId.HOLD),
    "Pause": Operation(
        "PUT",
        "/v1/pause",
        Access.ACT,
        "Pause collection and eviction",
        SchemaId.PAUSED,
        body_bytes=SMALL_BODY_BYTES,
    ),
    "Resume": Operation("DELETE", "/v1/pause", Access.ACT, "End a pause", SchemaId.RESUMED),
    "Trigger": Operation(
        "POST",
        "/v1/loops/{loop}/trigger",
        Access.ACT,
        "Run a loop now",
        SchemaId.TRIGGER,
        body_bytes=SMALL_BODY_BYTES,
    ),
    "Reload": Operation("POST", "/v1/reload", Access.ACT, "Reload the configuration", SchemaId.RELOAD),
    "Undo": Operation(
        "POST",
        "/v1/undo",
        Access.ACT,
        "Restore the images removed by a pass",
        SchemaId.UNDO,
        body_bytes=SMALL_BODY_BYTES,
    ),
    "Apply": Operation(
        "POST", "/v1/passes", Access.ACT, "Run a pass, or a saved plan", streams=True, body_bytes=LARGE_BODY_BYTES
    ),
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
