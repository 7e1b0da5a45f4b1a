"""The error of a document that cannot be read."""

from __future__ import annotations

from nodeagent.errors import NodeAgentError


class DocumentError(NodeAgentError):
    """Text is not a document of the expected schema. The message names the path of the field."""
