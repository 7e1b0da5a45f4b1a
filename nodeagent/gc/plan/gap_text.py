"""Text of gaps in the observation of image use; few imports, for a fast start of commands that only display state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.units import format_duration, format_time

if TYPE_CHECKING:
    from datetime import datetime


def describe_gap(started_at: datetime | None, ended_at: datetime, cause: str) -> str:
    """Return the text for the last gap in the observation of image use: its length, end and cause."""
    length = "" if started_at is None else f" of {format_duration((ended_at - started_at).total_seconds())}"
    return f"last gap{length} until {format_time(ended_at)} ({cause})"
