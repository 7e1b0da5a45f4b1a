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

from nodeagent.errors import ConfigError
from nodeagent.linear_expression import glob_search
from nodeagent.record import Record, replace
from nodeagent.text import encodable
from nodeagent.units import DURATION_FORM, QUANTITY_FORM, parse_bytes, parse_duration_s

_MAX_TEXT_LENGTH: Final = 64
_MAX_DURATION_S: Final = 100 * 365 * 86_400.0
_MAX_SIZE_BYTES: Final = 2**63 - 1
_MAX_PROVIDER_ID: Final = 512
_MAX_SOCKET_PATH_BYTES: Final = 107
"""Maximum length of a socket path, without the final zero byte. Source: unix(7), ``sun_path``."""


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


# Rules of values: each raises ValueError for an invalid value, those of any type return the value as stored.


def duration(value: object) -> object:
    """Return a valid duration as text; a plain 0 is returned as ``0s``."""
    if value == 0 and not isinstance(value, bool):
        return "0s"
    if not isinstance(value, str):
        raise ValueError(f"a duration needs a unit: write {DURATION_FORM}")  # noqa: TRY004 - faults of values are ValueError
    if len(value) > _MAX_TEXT_LENGTH or parse_duration_s(value) > _MAX_DURATION_S:
        raise ValueError("longer than 100 years")
    return value.strip()


def period(value: object) -> object:
    """Check that a duration is at least 1 s, and return it as text."""
    text = duration(value)
    if parse_duration_s(str(text)) < 1:
        raise ValueError("must be at least 1s")
    return text


def size(value: object) -> object:
    """Return a valid size as text; a plain number is a number of bytes."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"not a size: write {QUANTITY_FORM}")  # noqa: TRY004 - faults of values are ValueError
    text = str(value)
    if len(text) > _MAX_TEXT_LENGTH or parse_bytes(text) > _MAX_SIZE_BYTES:
        raise ValueError("larger than 8Ei")
    return text.strip()


def absolute(value: str) -> None:
    """Check that a path is absolute."""
    if not value.startswith("/") or "\0" in value:
        raise ValueError("must be an absolute path, such as /var/log/pods")


def absolute_or_empty(value: str) -> None:
    """Check that a path is absolute or empty."""
    if value:
        absolute(value)


def socket_path(value: str) -> None:
    """Check that a path is short enough for the address of a unix socket."""
    if len(value.encode()) > _MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"longer than the maximum of a socket path ({_MAX_SOCKET_PATH_BYTES} bytes)")


def endpoint(value: str) -> None:
    """Check that a runtime endpoint is a unix socket or empty."""
    if encodable(value) != value:
        raise ValueError("not UTF-8 text")
    if value and not value.removeprefix("unix://").startswith("/"):
        raise ValueError("must be a unix socket, such as unix:///run/containerd/containerd.sock, or empty to detect it")


def registry(value: str) -> None:
    """Check that a registry has the form ``HOST`` or ``HOST:PORT``."""
    if not value or not value.isprintable() or any(each in value for each in "/@ "):
        raise ValueError(f"{value!r} is not a registry: write HOST or HOST:PORT, without scheme and path")
    glob_search(value)


def below_high_threshold(low_percent: int, high_percent: int) -> None:
    """Check that the low threshold of image GC is below the high threshold."""
    if low_percent >= high_percent:
        raise ValueError(f"must be below high_threshold_percent = {high_percent}")


def below_high_inodes(low_percent: int, high_percent: int) -> None:
    """Check that the low threshold of image GC for inodes is below the high threshold."""
    if low_percent >= high_percent:
        raise ValueError(f"must be below high_threshold_inodes_percent = {high_percent}")


def beyond_minimum_age(unused: str, minimum: str) -> None:
    """Check that the maximum unused age of images is longer than their minimum age, or 0."""
    if 0 < parse_duration_s(unused) <= parse_duration_s(minimum):
        raise ValueError(f"must be longer than minimum_age = {minimum}, or 0")


def time_ahead(value: str) -> None:
    """Check the time of a forecast before which images are removed."""
    if parse_duration_s(value) and not 1_800 <= parse_duration_s(value) <= 86_400:
        raise ValueError("must be from 30m to 24h, or 0")


def stall_window(value: str) -> None:
    """Check that a PSI window is within the limits of the kernel."""
    if not 0.5 <= parse_duration_s(value) <= 10:
        raise ValueError("must be from 500ms to 10s (kernel limit)")


def provider_id(value: str) -> None:
    """Check the id of a machine at its provider."""
    if len(value) > _MAX_PROVIDER_ID or not value.isprintable() or (value and "://" not in value):
        raise ValueError("must be PROVIDER://ID, such as example://machine-7")


Duration = Annotated[str, Check(duration, any_type=True), form("duration")]
Period = Annotated[str, Check(period, any_type=True), form("duration, at least 1s")]
Size = Annotated[str, Check(size, any_type=True), form("size")]
Percent = Annotated[int, Meta(ge=0, le=100), form("percent, 0 to 100")]
Count = Annotated[int, Meta(ge=0), form("count")]
Limit = Annotated[int, Meta(ge=-1), form("count, -1 for no limit")]
Seconds = Annotated[float, Meta(ge=0, le=7 * 86_400)]
Switch = Annotated[bool, form("true or false")]
OptionalPath = Annotated[str, Check(absolute_or_empty), form("absolute path, or empty")]
Directory = Annotated[str, Check(absolute), form("absolute path")]
PsiWindow = Annotated[Duration, Check(stall_window)]
ProviderId = Annotated[str, Check(provider_id)]
SocketPath = Annotated[OptionalPath, Check(socket_path)]
Endpoint = Annotated[str, Check(endpoint), form("unix:///PATH")]


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
