"""The caller of the current request."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a request. Only root may relax the configuration or end root's holds and pauses."""

    name: str
    is_root: bool


_UNKNOWN: Final = Caller("?", is_root=False)
CALLER: Final[ContextVar[Caller]] = ContextVar("caller", default=_UNKNOWN)
"""Set by the control server before it reads a request body."""
