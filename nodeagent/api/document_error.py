"""Error of an unreadable document."""

from __future__ import annotations

from nodeagent.errors import NodeAgentError


class DocumentError(NodeAgentError):
    """The text is not a document of the expected schema; the message contains the path of the field."""
