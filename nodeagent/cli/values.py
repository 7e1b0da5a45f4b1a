"""Formatting of table values: sizes, ages, ids, image references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from datetime import datetime


def short_id(text: str) -> str:
    """Return the first twelve hexadecimal digits of an id or digest; any other text unchanged."""
    bare = text.removeprefix("sha256:")
    if len(bare) >= 32 and all(char in "0123456789abcdef" for char in bare):
        return bare[:12]
    return text


def short_reference(reference: str) -> str:
    """Return an image reference or id with its digest cut to twelve digits."""
    repository, at, digest = reference.partition("@")
    return f"{repository}@{short_id(digest)}" if at else short_id(reference)


def size(size_bytes: int | None, *, upper_bound: bool = False) -> str:
    """Return a size as text; an upper bound is marked with ``≤``, ``None`` is shown as ``?``."""
    if size_bytes is None:
        return "?"
    return f"≤ {format_bytes(size_bytes)}" if upper_bound else format_bytes(size_bytes)


def size_cell(size_bytes: int | None) -> str:
    """Return a size as one word, such as ``1.46GiB``; ``?`` for ``None``."""
    return "?" if size_bytes is None else format_bytes(size_bytes).replace(" ", "")


def done_cell(trigger: str, done: int, planned: int) -> str:
    """Return the number of items that a pass removed of those planned; an undo restores them."""
    return f"{done}/{planned} restored" if trigger == "undo" else f"{done}/{planned}"


def ago(moment: datetime | None, now: datetime) -> str:
    """Return the time since a moment as text, ``never`` for ``None``."""
    return "never" if moment is None else f"{age(moment, now)} ago"


def age(moment: datetime, now: datetime) -> str:
    """Return the time since a moment, such as ``3d4h``; 0 for a moment in the future."""
    return format_duration(max(0.0, float(round((now - moment).total_seconds()))))


def time_cell(moment: datetime) -> str:
    """Return an aware UTC time in seconds as one word, such as ``2026-03-01T12:00:00Z``."""
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
