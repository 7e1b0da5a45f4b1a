"""Views of JSON documents, with the fields as attributes: for commands that print a response of the daemon.

The import of the document types takes three times as long as the rest of such a command, so the types are imported for
the type checker only. A function that prints a document accepts both a document and a view, if it uses only fields, no
methods, and compares enumerations as text.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from nodeagent.api.document_error import DocumentError
from nodeagent.parsing import parse_json

if TYPE_CHECKING:
    from msgspec import UnsetType

    from nodeagent.schemas import SchemaId

T = TypeVar("T")

TIMES: Final = frozenset(
    {
        *("created_at", "eligible_at", "ended_at", "finished_at", "first_detected", "jumped_at", "last_used"),
        *("made_at", "observed_at", "observed_since", "placed_at", "removed_at", "started_at", "undo_until", "until"),
        *("observed_from", "observed_until", "untrusted_until"),
    }
)
"""Names of the fields that are times, in every document."""
MAPPINGS: Final = frozenset({"details", "eviction", "pod_memory_bytes", "settings"})
"""Names of the fields that are mappings with data as keys; a view is made only of the values of ``settings``."""
OPTIONAL: Final = frozenset(
    {
        *(
            "available_after",
            "available_before",
            "available_bytes",
            "breakdown",
            "capacity",
            "capacity_bytes",
            "clock",
            "config",
        ),
        *(
            "high_percent",
            "imagefs_problem",
            "low_percent",
            "memory",
            "mountpoint",
            "config_problem",
            "drift",
            "dry_run",
            "effect",
            "eviction",
            "gaps",
            "grace",
            "id_base64",
            "image_use",
            "inodes",
        ),
        *(
            "inodes_free",
            "maximum_unused_age_s",
            "not_ready_because",
            "observed_at",
            "origin",
            "observed_since",
            "paused",
            "pid",
        ),
        *(
            "pod_lists",
            "priority",
            "problem",
            "ranking",
            "ready",
            "reason",
            "request",
            "similar",
            "started_at",
            "threshold",
            "unrelieved",
            "usage",
        ),
        *("used_percent", "waiting", "warnings"),
    }
)
"""Names of the fields that may be missing in a document; the view then returns ``None``."""
_PLAIN: Final = frozenset({"details", "eviction", "pod_memory_bytes"})


class Fields:
    """Read-only view of a JSON object of a document."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value of a document
        values = self._values
        if name in values:
            return _view(name, values[name])
        for other in (name.removesuffix("_"), name.replace("_", "-")):  # renamed fields, as in the document types
            if other in values:
                return _view(name, values[other])
        if name in OPTIONAL:
            return None
        raise DocumentError(f"cannot decode document {values.get('schema', '')}: no field {name}")

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - any value of a document
        return _view(key, self._values[key])


def raw(fields: Any) -> dict[str, Any]:  # noqa: ANN401 - declared as its document
    """Return the JSON object of a view."""
    values: dict[str, Any] = fields._values  # noqa: SLF001 - attribute of a class in this module
    return values


def parse_document(text: str | bytes, schema: SchemaId) -> dict[str, Any]:
    """Return the JSON object of a document.

    Raises:
        DocumentError: the text is not JSON, or of another schema.
    """
    try:
        found = parse_json(text)
    except ValueError as error:
        raise DocumentError(f"cannot decode document {schema}: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != schema:
        other = found.get("schema") if isinstance(found, dict) else type(found).__name__
        raise DocumentError(f"cannot decode document {schema}: found {other!r}")
    return found


def view(values: dict[str, Any]) -> Any:  # noqa: ANN401 - to be declared as its document
    """Return a view of a JSON object."""
    return Fields(values)


def given(value: T | UnsetType) -> T | None:
    """Return the value of an optional field of a view; ``None`` if the document lacks the field."""
    return cast("T | None", value)


def _view(name: str, value: object) -> Any:  # noqa: ANN401 - any value of a document
    if isinstance(value, dict):
        if name not in MAPPINGS:
            return Fields(value)
        return value if name in _PLAIN else {key: _view("", each) for key, each in value.items()}
    if isinstance(value, list):
        return tuple(_view("", each) for each in value)
    if isinstance(value, str) and name in TIMES:
        try:
            return datetime.fromisoformat(value)
        except ValueError as error:
            raise DocumentError(f"cannot decode document: {name}: {error}") from error
    return value
