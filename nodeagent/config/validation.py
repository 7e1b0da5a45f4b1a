"""Sections and settings, and the conversion of a document to sections, with every fault reported.

A setting is a field of a section with its type, the rules of its value, its form in the reference and its description;
reference, schema and validation are derived from it. A fault has the key, the value, the cause and the allowed form.

``msgspec.convert`` raises only the first error of a document, and its texts do not state the allowed form. It is
therefore called for single values.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, structs

from nodeagent.config import value_forms as forms
from nodeagent.errors import ConfigError
from nodeagent.record import Record, replace


class Check(Record):
    """Rule of a value.

    Attributes:
        rule: function of the value and of the values of ``others`` that raises ``ValueError`` for an invalid value.
        others: earlier settings of the section; without a valid value of each of them the rule is skipped.
        any_type: whether ``rule`` is called before the type of the value is checked, and returns the value to store.
    """

    rule: Callable[..., object]
    others: tuple[str, ...] = ()
    any_type: bool = False


def about(text: str) -> Meta:
    """Return the description of a setting, for its annotation."""
    return Meta(description=text)


def form(text: str) -> Meta:
    """Return the allowed form of a setting, for its annotation."""
    return Meta(extra_json_schema={"form": text})


Duration = Annotated[str, Check(forms.duration, any_type=True), form("duration")]
Period = Annotated[str, Check(forms.period, any_type=True), form("duration, at least 1s")]
Size = Annotated[str, Check(forms.size, any_type=True), form("size")]
Percent = Annotated[int, Meta(ge=0, le=100), form("percent, 0 to 100")]
Count = Annotated[int, Meta(ge=0), form("count")]
Limit = Annotated[int, Meta(ge=-1), form("count, -1 for no limit")]
Seconds = Annotated[float, Meta(ge=0, le=7 * 86_400)]
Switch = Annotated[bool, form("true or false")]
OptionalPath = Annotated[str, Check(forms.absolute_or_empty), form("absolute path, or empty")]
Directory = Annotated[str, Check(forms.absolute), form("absolute path")]
SocketPath = Annotated[OptionalPath, Check(forms.socket_path)]


class Section(Record, forbid_unknown_fields=True):
    """Table of the configuration file.

    A rule of several settings without a single setting at fault is in ``__post_init__``, which raises ``ValueError``.
    """


class Setting(Record):
    """Declaration of a setting, or of a key in a list of tables.

    Attributes:
        section: name of the section; empty at the top level.
        kind: type of the value, without its annotations.
        default: default value; ``NODEFAULT`` for a required key.
    """

    name: str
    kind: Any
    metadata: tuple[Any, ...]
    default: Any
    section: str = ""

    @property
    def key(self) -> str:
        """The dotted key."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def description(self) -> str:
        """The description, or an empty text."""
        return "".join(each.description or "" for each in self.metadata if isinstance(each, Meta))

    @property
    def form(self) -> str:
        """The allowed form of the value."""
        if get_origin(self.kind) is Literal:
            return " or ".join(json.dumps(each) for each in get_args(self.kind))
        found = [each.extra_json_schema["form"] for each in self.metadata if getattr(each, "extra_json_schema", None)]
        return str(found[-1]) if found else "text"


def split(hint: Any) -> tuple[Any, tuple[Any, ...]]:  # noqa: ANN401 - a type expression
    """Return a type without its annotations, and the annotations."""
    return (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


@cache
def fields_of(section: type[Section]) -> tuple[Setting, ...]:
    """Return the fields of a section in the order of their declaration."""
    found = []
    for each in structs.fields(section):
        has_factory = each.default_factory is not NODEFAULT
        found.append(Setting(each.name, *split(each.type), each.default_factory() if has_factory else each.default))
    return tuple(found)


def settings_of(kind: type[Section]) -> Iterator[Setting]:
    """Yield every setting of a configuration, those of its sections included, in the order of the reference."""
    for each in fields_of(kind):
        if is_section(each.kind):
            yield from (replace(inner, section=each.name) for inner in fields_of(each.kind))
        else:
            yield each


def value_of(config: Section, setting: Setting) -> object:
    """Return the value of a setting in a configuration."""
    return getattr(getattr(config, setting.section) if setting.section else config, setting.name)


def is_section(kind: Any) -> bool:  # noqa: ANN401 - a type expression
    """Return whether a type is a section."""
    return isinstance(kind, type) and issubclass(kind, Section)


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
