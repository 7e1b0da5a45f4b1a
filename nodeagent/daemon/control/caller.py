"""The caller of the current request."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from nodeagent.record import Record


class Caller(Record):
    """User who sent a control request. Only root may relax the configuration or end root's holds and pauses."""

    name: str
    is_root: bool


_UNKNOWN: Final = Caller("?", is_root=False)
CALLER: Final[ContextVar[Caller]] = ContextVar("caller", default=_UNKNOWN)
"""Caller of the current control request; set by the control server before it reads the request body."""
