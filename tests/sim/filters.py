"""Filters of the list calls of containerd's own API."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tests.sim.store import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_CONDITION: Final = re.compile(r'(?P<field>[a-z_]+(?:\."[^"]+"|\.[^=!~]+)?)(?:(?P<operator>==|!=|~=)(?P<value>.*))?')


def parse_filters(filters: Sequence[str]) -> Callable[[Mapping[str, str], Mapping[str, str]], bool]:
    """Return a predicate on fields and labels that is true if at least one filter matches.

    A filter matches if all of its comma-separated conditions are met.

    Source: containerd's ``pkg/filters``, reduced to the syntax that the agent uses.
    """
    parsed = [[_condition(part) for part in text.split(",")] for text in filters]

    def matches(fields: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        known = {**fields, **{f"labels.{key}": value for key, value in labels.items()}} if parsed else {}
        return not parsed or any(all(condition(known) for condition in conditions) for conditions in parsed)

    return matches


def _condition(text: str) -> Callable[[Mapping[str, str]], bool]:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise RefusedError("INVALID_ARGUMENT", f"[{text}]: parse error: invalid argument")
    field, operator, value = match["field"].replace('"', ""), match["operator"], (match["value"] or "").strip('"')
    if operator == "==":
        return lambda known: known.get(field) == value
    if operator == "!=":
        return lambda known: known.get(field) != value
    if operator == "~=":
        return lambda known: re.search(value, known.get(field, "")) is not None
    return lambda known: bool(known.get(field))
