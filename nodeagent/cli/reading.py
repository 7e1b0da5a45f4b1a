"""Documents of commands, requested from the running daemon or created by reading the node.

A command reads the node with ``--direct``, without a running daemon, and if options or environment variables change
settings, since the daemon responds by its own configuration. The command fails if the daemon refuses the request or
returns an error. The daemon and the command create the same document.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final, TypeVar

from nodeagent.api.codec import Document, encode
from nodeagent.cli.source import is_client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.cli.source import ReadNode, Source


D = TypeVar("D", bound=Document)
OBSERVED_WITHIN_S: Final = 300.0
"""Response timeout of an operation that observes the node, possibly after the observations of other clients."""


def read(
    operation: str,
    kind: type[D],
    fields: Mapping[str, object],
    source: Source,
    local: ReadNode[D],
    *,
    within_s: float = OBSERVED_WITHIN_S,
) -> D:
    """Return the document of an operation, from the daemon or else from the node.

    Args:
        operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
        kind: type of the document.
        fields: request fields.
        source: configuration and options that select the daemon or the node.
        local: creates the document without a daemon.
        within_s: timeout of the daemon's response, in seconds.

    Raises:
        NodeAgentError: the daemon refuses the request or returns an error, or the node cannot be read without a daemon.
    """
    answer = ask(operation, kind, fields, source, within_s=within_s)
    return read_node(source, local) if answer is None else answer


def ask(
    operation: str,
    kind: type[D],
    fields: Mapping[str, object],
    source: Source,
    *,
    within_s: float = OBSERVED_WITHIN_S,
    meanwhile: Callable[[], object] | None = None,
) -> D | None:
    """Return the daemon's document; ``None`` if the command must read the node itself.

    Args:
        operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
        kind: type of the document.
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
    return control_client.decoded(text, kind)


def read_node(source: Source, local: ReadNode[D]) -> D:
    """Read the node without a daemon and return the document created by ``local``.

    Raises:
        ConfigError: the configuration is invalid.
        NodeAgentError: the node cannot be read.
    """
    from nodeagent.cli.local_reading import read_document  # noqa: PLC0415 - not needed if the daemon responds

    return read_document(source, local)


def print_document(document: Document, form: str) -> None:
    """Print a document as ``json`` or ``yaml``."""
    text = encode(document, form)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # JSON escapes are ASCII and valid in every encoding
        text = f"{json.dumps(json.loads(text), indent=2)}\n" if form == "json" else text
    sys.stdout.write(text)
