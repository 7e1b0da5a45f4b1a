"""Checks of request fields."""

from __future__ import annotations

from nodeagent.api.requests import TEXT_FORM, is_text
from nodeagent.errors import UsageError
from nodeagent.plan.gc.scope import Scope


def parse_scope(text: str) -> Scope:
    """Return the scope of a plan.

    Raises:
        UsageError: the scope is not images, containers or all.
    """
    try:
        scope = Scope(text)
    except ValueError as error:
        raise UsageError(f"scope: write images, containers or all, not {check_text(text, 'scope')!r}") from error
    if scope is Scope.LEAKS:
        raise UsageError("scope: write images, containers or all")
    return scope


def check_number(value: float, most: float, name: str) -> float:
    """Return ``value`` if it is between 0 and ``most``.

    Raises:
        UsageError: the field ``name`` is out of this range.
    """
    if not 0 <= value <= most:
        raise UsageError(f"{name}: {value:g} is not between 0 and {most:g}")
    return value


def check_text(value: str, name: str) -> str:
    """Return ``value`` if it is a valid request text.

    Raises:
        UsageError: the field ``name`` is too long, or unprintable.
    """
    if not is_text(value):
        raise UsageError(f"{name}: {TEXT_FORM}")
    return value
