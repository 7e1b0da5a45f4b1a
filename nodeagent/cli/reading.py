"""Reading of documents: from the running daemon, or directly from the node.

A command reads the node if ``--direct`` is given, if no daemon is listening, and if it is given settings of its own,
since the daemon's answer is by its configuration. A daemon that refuses or fails a request is an error. Both result in
the same document, which the command prints.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nodeagent.cli.source import is_client
from nodeagent.text import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.api.codec import Document
    from nodeagent.cli.control_client import ControlConnection
    from nodeagent.cli.source import ReadNode, Source


D = TypeVar("D", bound="Document")
OBSERVED_WITHIN_S: Final = 300.0
"""Time limit of an answer that needs an observation of the node, and waits for those of other users."""


def read(
    operation: str,
    fields: Mapping[str, object],
    source: Source,
    local: ReadNode,
    *,
    within_s: float = OBSERVED_WITHIN_S,
) -> dict[str, Any]:
    """Return the document of an operation as its JSON object.

    Args:
        operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
        fields: of the request.
        source: of the document.
        local: creates the document without a daemon.
        within_s: time limit of the daemon's answer.

    Raises:
        NodeAgentError: the daemon refuses or fails the request, or without a daemon the node cannot be read.
    """
    answer = ask(operation, fields, source, within_s=within_s)
    return read_node(source, local) if answer is None else answer


def ask(
    operation: str,
    fields: Mapping[str, object],
    source: Source,
    *,
    within_s: float = OBSERVED_WITHIN_S,
    meanwhile: Callable[[], object] | None = None,
) -> dict[str, Any] | None:
    """Return the daemon's document as its JSON object; ``None`` if the command reads the node directly.

    Args:
        operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
        fields: of the request.
        source: of the document.
        within_s: time limit of the daemon's answer.
        meanwhile: called while the daemon creates the document; not called without a daemon.

    Raises:
        NodeAgentError: the daemon refuses or fails the request.
    """
    if not is_client(source.config, source.overrides, root_too=True, direct=source.direct):
        return None
    from nodeagent.api.client import ControlClient, DaemonAbsentError  # noqa: PLC0415 - not for a reading of the node
    from nodeagent.cli import control_client  # noqa: PLC0415 - as above

    path = control_client.find_socket(None)
    if path is None:
        return None
    try:
        text = ControlClient(path).call(operation, fields, within_s=within_s, meanwhile=meanwhile)
    except DaemonAbsentError:
        return None
    return _parsed(operation, text)


def answer_of(agent: ControlConnection, operation: str, fields: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Return the document that a connected daemon answers an operation with, as its JSON object.

    Raises:
        NodeAgentError: the daemon refuses or fails the request.
    """
    return _parsed(operation, agent.call_text(operation, fields))


def _parsed(operation: str, text: str) -> dict[str, Any]:
    from nodeagent.api.light import parse_document  # noqa: PLC0415 - after the request
    from nodeagent.api.operations import OPERATIONS  # noqa: PLC0415 - not for a reading of the node
    from nodeagent.cli.control_client import checked  # noqa: PLC0415 - as above

    schema = OPERATIONS[operation].schema
    if schema is None:
        raise ValueError(f"{operation} has no typed document")
    return checked(text, lambda each: parse_document(each, schema))


def read_node(source: Source, local: ReadNode) -> dict[str, Any]:
    """Return a document of this node, as its JSON object.

    Raises:
        ConfigError: the configuration is invalid.
        NodeAgentError: the node cannot be read.
    """
    from nodeagent.cli.local_reading import read_document  # noqa: PLC0415 - not with a daemon

    return read_document(source, local)


def typed(document: Mapping[str, Any], kind: type[D]) -> D:
    """Return a document by its type, for a command that computes with it.

    Raises:
        NodeAgentError: the document is not of this version.
    """
    from nodeagent.api.codec import decode  # noqa: PLC0415 - slow to import
    from nodeagent.cli.control_client import checked  # noqa: PLC0415 - imports the client of the daemon

    return checked(json.dumps(document), lambda text: decode(text, kind))


def print_document(document: Mapping[str, Any], form: str) -> None:
    """Print the JSON object of a document as ``json`` or ``yaml``."""
    if form == "json":
        text = to_json(document, indent=2)
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # escapes of JSON are ASCII
            text = json.dumps(document, indent=2)
        sys.stdout.write(text)
        sys.stdout.write("\n")
        return
    from nodeagent.api.codec import encode  # noqa: PLC0415 - slow to import

    sys.stdout.write(encode(document, form))
