"""Documents of a command's own observation of the node, without a daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent.api.codec import encode_line
from nodeagent.cli.session import load_settings, open_for_command, run_async

if TYPE_CHECKING:
    from nodeagent.api.codec import Document
    from nodeagent.cli.source import ReadNode, Source


def read_document(source: Source, make: ReadNode) -> dict[str, Any]:
    """Return the document of an agent, as its JSON object.

    Raises:
        ConfigError: the configuration is invalid.
        NodeAgentError: the node cannot be read.
    """
    config = None if source.config is None else Path(source.config)
    settings = load_settings(config, source.overrides)

    async def observe() -> Document:
        async with open_for_command(settings, record=False) as agent:
            return await make(agent)

    return as_json(run_async(observe()))


def as_json(document: Document) -> dict[str, Any]:
    """Return a document as the JSON object received by a client of the daemon."""
    found: dict[str, Any] = json.loads(encode_line(document))
    return found
