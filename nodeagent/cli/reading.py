"""Documents of commands, requested from the running daemon or created by reading the node.

A command reads the node with ``--direct``, without a running daemon, and if options or environment variables change
settings, since the daemon responds by its own configuration. The command fails if the daemon refuses the request or
returns an error. The daemon and the command create the same document.
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
"""Response timeout of an operation that observes the node, possibly after the observations of other clients."""


def read(
    operation: str,
    fields: Mapping[str, object],
    source: Source,
    local: ReadNode,
    *,
    within_s: float = OBSERVED_WITHIN_S,
) -> dict[str, Any]:
    """Return the document of an operation, from the daemon or else from the node, as a JSON object.

    Args:
        operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
        fields: request fields.
        source: configuration and options that select the daemon or the node.
        local: creates the document without a daemon.
        within_s: timeout of the daemon's response, in seconds.

    Raises:
        NodeAgentError: the daemon refuses the request or returns an error, or the node cannot be read without a daemon.
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
    """Return the daemon's document as a JSON object; ``None`` if the command must read the node itself.

    Args:
        operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
        fields: request fields.
        source: configuration and options that select the daemon or the node.
        within_s: timeout of the daemon's response, in seconds.
        meanwhile: called while the daemon creates the document; not called without a daemon.

    Raises:
        NodeAgentError: the daemon refuses the request or returns an error.
    """
    if not is_client(source.config, source.overrides, root_too=True, direct=source.direct):
        return None
    from nodeagent.api.client import ControlClient, DaemonAbsentError  # noqa: PLC0415 - not needed to read the node
    from nodeagent.cli import control_client  # noqa: PLC0415 - not needed to read the node

    path = control_client.find_socket(None)
    if path is None:
        return None
    try:
        text = ControlClient(path).call(operation, fields, within_s=within_s, meanwhile=meanwhile)
    except DaemonAbsentError:
        return None
    return _parsed(operation, text)


def answer_of(agent: ControlConnection, operation: str, fields: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Call an operation of a connected daemon and return its document as a JSON object.

    Raises:
        NodeAgentError: the daemon refuses the request or returns an error.
    """
    return _parsed(operation, agent.call_text(operation, fields))


def _parsed(operation: str, text: str) -> dict[str, Any]:
    from nodeagent.api.light import parse_document  # noqa: PLC0415 - imported after the request
    from nodeagent.api.operations import OPERATIONS  # noqa: PLC0415 - not needed to read the node
    from nodeagent.cli.control_client import checked  # noqa: PLC0415 - not needed to read the node

    schema = OPERATIONS[operation].schema
    if schema is None:
        raise ValueError(f"{operation} has no typed document")
    return checked(text, lambda each: parse_document(each, schema))


def read_node(source: Source, local: ReadNode) -> dict[str, Any]:
    """Read the node without a daemon and return the document created by ``local``, as a JSON object.

    Raises:
        ConfigError: the configuration is invalid.
        NodeAgentError: the node cannot be read.
    """
    from nodeagent.cli.local_reading import read_document  # noqa: PLC0415 - not needed if the daemon responds

    return read_document(source, local)


def typed(document: Mapping[str, Any], kind: type[D]) -> D:
    """Convert the JSON object of a document to its document type.

    Raises:
        NodeAgentError: the document does not match the schema of this version.
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
        except UnicodeEncodeError:  # JSON escapes are ASCII and valid in every encoding
            text = json.dumps(document, indent=2)
        sys.stdout.write(text)
        sys.stdout.write("\n")
        return
    from nodeagent.api.codec import encode  # noqa: PLC0415 - slow to import

    sys.stdout.write(encode(document, form))
