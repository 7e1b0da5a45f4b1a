"""Scope of a garbage collection pass."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Kinds of items in a pass; the scope determines which lists the observer reads."""

    IMAGES = "images"
    CONTAINERS = "containers"
    ALL = "all"
    LEAKS = "leaks"
