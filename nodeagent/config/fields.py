"""Value types of the settings, and the base of the sections, from which reference, schema and validation are derived.

A setting is a field of a section with its type, the rules of its value, its form in the reference and its description.
``nodeagent.config.validation`` converts a document to sections.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from msgspec import NODEFAULT, Meta, structs

from nodeagent.config import value_forms as forms
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
