"""Scope of a pass."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Kinds of items in a pass; determines the readings of the observation."""

    IMAGES = "images"
    CONTAINERS = "containers"
    ALL = "all"
    LEAKS = "leaks"
