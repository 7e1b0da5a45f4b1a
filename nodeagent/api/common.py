"""Base types of documents, their encoder and decoder, and the parts that several documents share.

Encoding, decoding and JSON Schema have one declaration, a msgspec struct. The JSON encoder of msgspec is not used: it
rejects text that is not UTF-8 (file names) and does not escape terminal control characters; ``text.to_json`` handles
both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
from msgspec import Struct

from nodeagent.errors import NodeAgentError
from nodeagent.model.decision import ReasonCode, sentence_of
from nodeagent.model.node import NodeSnapshot, Role
from nodeagent.model.runtime import FsObservation
from nodeagent.record import Time, equal_fields
from nodeagent.text import escape_lines, to_json
from nodeagent.units import format_time

if TYPE_CHECKING:
    from nodeagent.model import decision


class DocumentError(NodeAgentError):
    """The text is not a document of the expected schema; the message contains the path of the field."""


Number = int | float
"""A number that keeps its type: ``5`` is not decoded to ``5.0``."""


class Part(Struct, frozen=True, kw_only=True):
    """Base of objects inside a document; decoding ignores unknown fields."""

    @classmethod
    def from_value(cls, value: object, /, **changed: Any) -> Self:  # noqa: ANN401 - fields of a subclass
        """Return the document form of a value: its attributes with the names of fields, and ``changed``."""
        return cls(**equal_fields(cls, value, **changed))


class Document(Part, frozen=True, kw_only=True, tag_field="schema"):
    """Base of documents. The first key is ``schema``, with the schema id from the ``tag`` of the class."""


D = TypeVar("D", bound=Document)


def schema_id(document: Document | type[Document]) -> str:
    """Return the schema id of a document or of its class."""
    return str(document.__struct_config__.tag)


def decode(text: str | bytes, kind: type[D]) -> D:
    """Return the document in a JSON text.

    Raises:
        DocumentError: the text is not JSON, is of another schema, lacks a required field, or has a value of the wrong
            type.
    """
    document: D = decode_any(text, kind, schema_id(kind))
    return document


def decode_any(text: str | bytes, kinds: Any, name: str) -> Any:  # noqa: ANN401 - a union of documents
    """Decode a document of one of several classes, selected by its schema id; error texts contain ``name``.

    Raises:
        DocumentError: see ``decode``.
    """
    try:
        return msgspec.json.decode(text, type=kinds)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DocumentError(f"cannot decode document {name}: {error}") from error


def decode_fields(text: str | bytes) -> dict[str, Any]:
    """Return the fields of a document that has no struct, such as an event.

    Raises:
        DocumentError: the text is not a JSON object.
    """
    fields: dict[str, Any] = decode_any(text, dict[str, Any], "as an object")
    return fields


def to_builtins(value: object) -> Any:  # noqa: ANN401 - the plain form of any document or part
    """Return a document, or a part of a document, as dicts, lists, numbers and text; times remain ``datetime``."""
    return msgspec.to_builtins(value, builtin_types=(datetime,))


def plain(value: object) -> Any:  # noqa: ANN401 - the plain form of any value
    """Return a value as JSON types; other types are converted to text."""
    return json.loads(json.dumps(value, default=_plain_default))


def encode(document: Document | Mapping[str, Any], form: str = "json") -> str:
    """Return a document as text with a final newline; ``form`` is ``json`` or ``yaml``.

    The text is safe on a terminal: unprintable characters are escaped in the syntax of the form.
    """
    text = to_json(to_builtins(document), indent=2, default=_default)
    if form != "yaml":
        return text + "\n"
    import yaml  # noqa: PLC0415 - only for YAML output

    shown = json.loads(text)
    text = str(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True))
    return text if escape_lines(text) == text else str(yaml.safe_dump(shown, sort_keys=False))


def encode_line(document: Document | Part | Mapping[str, Any]) -> str:
    """Return a document, or a part of a document, as one line of JSON with a final newline."""
    return to_json(to_builtins(document), default=_default) + "\n"


def _default(value: object) -> object:
    if isinstance(value, datetime):
        return format_time(value)
    raise TypeError(f"not a JSON value: {type(value).__name__}")


def _plain_default(value: object) -> object:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, set | frozenset):
        return list(value)
    return str(value)


class ReasonDocument(Part, frozen=True, kw_only=True):
    """A reason with its code and its details.

    Attributes:
        details: values in the sentence of the reason; keys contain the unit, values of ``_at`` keys are times.
    """

    code: ReasonCode
    details: dict[str, Any]

    @property
    def sentence(self) -> str:
        """The reason as a sentence, from code and details."""
        return sentence_of(self.code, self.details)

    @classmethod
    def of(cls, value: decision.Reason) -> ReasonDocument:
        """Return the document form of a reason."""
        return cls(code=value.code, details=dict(value.details))


class RecordedReason(Part, frozen=True, kw_only=True):
    """A reason as stored in the history: a code, possibly of another version, and a sentence instead of details."""

    code: str
    sentence: str


class Filesystem(Part, frozen=True, kw_only=True):
    """One reading of a filesystem."""

    path: str
    capacity_bytes: int
    available_bytes: int
    used_percent: int
    inodes: int
    inodes_free: int
    observed_at: Time

    @classmethod
    def of(cls, value: FsObservation) -> Filesystem:
        """Return the document form of a reading."""
        return cls.from_value(value)

    @classmethod
    def of_optional(cls, value: FsObservation | None) -> Filesystem | None:
        """Return the document form of a reading; ``None`` for ``None``."""
        return None if value is None else cls.of(value)

    def to_model(self) -> FsObservation:
        """Return the model's form of the reading, with device id 0, since documents contain no device id."""
        return FsObservation(**equal_fields(FsObservation, self, device_id=0))


class RuntimeVersion(Part, frozen=True, kw_only=True):
    """Name, version and socket of the runtime."""

    name: str
    version: str
    api_version: str
    endpoint: str


class Runtime(RuntimeVersion, frozen=True, kw_only=True):
    """The container runtime, and whether a kubelet manages the node (``role``)."""

    role: Role

    @classmethod
    def of(cls, snapshot: NodeSnapshot) -> Runtime:
        """Return the document form of the runtime and role in a snapshot."""
        return cls.from_value(snapshot.runtime, role=snapshot.role)
