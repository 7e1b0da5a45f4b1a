"""What a pass is about."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What a pass is about; it decides what has to be read."""

    IMAGES = "images"
    CONTAINERS = "containers"
    ALL = "all"
    LEAKS = "leaks"
