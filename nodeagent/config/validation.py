"""Conversion of a document to sections: every fault is reported, each with its key, value, cause and allowed form.

``msgspec.convert`` raises only the first error of a document, and its texts do not state the allowed form. It is
therefore called for single values.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from types import UnionType
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta

from nodeagent.config.fields import Check, Section, fields_of, is_section, split
from nodeagent.errors import ConfigError
from nodeagent.record import Record

S = TypeVar("S", bound=Section)
_INVALID: Final = object()
"""Result for an invalid value."""
_CAUSES: Final[Mapping[object, str]] = {
    int: "must be a whole number",
    float: "must be a number",
    bool: "must be true or false",
    str: "must be a quoted string",
}


class Fault(Record):
    """Invalid value of a document.

    Attributes:
        location: keys and list positions of the value.
        cause: reason and allowed form.
        unknown: whether no setting has this key.
    """

    location: tuple[str | int, ...]
    value: object
    cause: str
    unknown: bool = False


class InvalidDocumentError(ConfigError):
    """A document has faults; the text has their causes."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(dict.fromkeys(each.cause for each in faults)))
        self.faults = faults


def convert(section: type[S], document: object) -> S:
    """Return the section with the values of a document and otherwise the defaults, which are validated too.

    Raises:
        InvalidDocumentError: values are invalid or keys are unknown; all faults are in the error.
    """
    converter = _Converter()
    found = converter.table(section, document, ())
    if converter.faults:
        raise InvalidDocumentError(converter.faults)
    return cast("S", found)


class _Converter:
    """Conversion of one document, which collects the faults."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def table(self, section: type[Section], document: object, at: tuple[str | int, ...]) -> object:
        """Return a section; the rules of the section are checked if all its values are valid."""
        if not isinstance(document, Mapping):
            return self._fault(at, document, "must be a table of settings")
        before = len(self.faults)
        values: dict[str, object] = {}
        for each in fields_of(section):
            here = (*at, each.name)
            value = document.get(each.name, {} if is_section(each.kind) else each.default)
            if value is NODEFAULT:
                values[each.name] = self._fault(here, document, "required key is missing")
            else:
                values[each.name] = self._value(each.kind, each.metadata, value, here, values)
        for key, value in document.items():
            if key not in values:
                near = difflib.get_close_matches(str(key), values, n=1)
                hint = f"did you mean {near[0]}?" if near else f"allowed keys: {', '.join(values)}"
                self.faults.append(Fault((*at, key), value, f"unknown key; {hint}", unknown=True))
        if len(self.faults) > before:
            return _INVALID
        try:
            return section(**values)
        except ValueError as error:
            return self._fault(at, document, str(error))

    def _value(
        self,
        kind: Any,  # noqa: ANN401 - a type expression
        metadata: tuple[Any, ...],
        value: object,
        at: tuple[str | int, ...],
        earlier: Mapping[str, object],
    ) -> object:
        """Return a valid value in the form in which it is stored, and otherwise ``_INVALID``."""
        checks = [each for each in metadata if isinstance(each, Check)]
        found = value
        try:
            for each in checks:
                if each.any_type:
                    found = each.rule(found)
            found = self._typed(kind, found, at)
            if found is _INVALID:
                return found
            _check_bounds(metadata, found)
            for each in checks:
                others = [earlier[name] for name in each.others]
                if not each.any_type and _INVALID not in others:
                    each.rule(found, *others)
        except ValueError as error:
            return self._fault(at, value, str(error))
        return found

    def _typed(self, kind: Any, value: object, at: tuple[str | int, ...]) -> object:  # noqa: ANN401 - a type expression
        """Return a value of a type; faults inside of tables and lists are recorded.

        Raises:
            ValueError: the value is not of the type.
        """
        if is_section(kind):
            return self.table(kind, value, at)
        if isinstance(kind, UnionType):
            return value if value is None else self._typed(get_args(kind)[0], value, at)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is tuple:
            if not isinstance(value, list | tuple):
                raise ValueError("must be a list")
            found: Any = tuple([self._value(*split(arguments[0]), each, (*at, n), {}) for n, each in enumerate(value)])
            return _INVALID if _INVALID in found else found
        if origin is dict:
            if not isinstance(value, Mapping):
                raise ValueError("must be a table")
            found = {key: self._value(*split(arguments[1]), each, (*at, key), {}) for key, each in value.items()}
            return _INVALID if _INVALID in found.values() else found
        try:
            return msgspec.convert(value, kind)
        except (msgspec.ValidationError, UnicodeError):  # UnicodeError: of a surrogate in the text of the error
            raise ValueError(_choices(arguments) if origin is Literal else _CAUSES[kind]) from None

    def _fault(self, at: tuple[str | int, ...], value: object, cause: str) -> object:
        self.faults.append(Fault(at, value, cause))
        return _INVALID


def _check_bounds(metadata: tuple[Any, ...], value: Any) -> None:  # noqa: ANN401 - of any type
    """Check that a value is within the bounds of its annotation.

    Raises:
        ValueError: the value is out of bounds, or not a number.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    for each in metadata:
        if isinstance(each, Meta):
            if each.ge is not None and not value >= each.ge:
                raise ValueError(f"must be at least {each.ge}")
            if each.le is not None and not value <= each.le:
                raise ValueError(f"must be at most {each.le}")


def _choices(values: tuple[str, ...]) -> str:
    *others, last = map(repr, values)
    return f"must be {', '.join(others)} or {last}"
