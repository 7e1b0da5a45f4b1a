"""The configuration as TOML and as a Markdown reference, both generated from the models."""

from __future__ import annotations

import json
import re
import textwrap
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from pydantic import BaseModel

from nodeagent.config.models import Config
from nodeagent.record import Record
from nodeagent.text import escape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

_BEGIN = "<!-- config reference: begin -->"
_END = "<!-- config reference: end -->"


def to_toml(config: Config, *, commented: bool) -> str:
    """Return a configuration as TOML; ``commented`` adds descriptions and comments out the defaults."""
    lines: list[str] = []
    default = Config()
    for name, field in Config.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            continue
        lines += _setting(name, field, value, getattr(default, name), commented=commented)
    for name in Config.model_fields:
        section = getattr(config, name)
        if not isinstance(section, BaseModel):
            continue
        lines += ["", f"[{name}]"]
        for key, field in type(section).model_fields.items():
            before = getattr(getattr(default, name), key)
            lines += _setting(key, field, getattr(section, key), before, commented=commented)
    return "\n".join(lines).lstrip("\n") + "\n"


def sourced_toml(values: Mapping[str, tuple[object, str]]) -> str:
    """Return values by dotted key as TOML, each with its source in a comment."""
    lines: list[str] = []
    section = ""
    for key, (value, source) in sorted(values.items(), key=lambda item: "." in item[0]):
        above, _, name = key.rpartition(".")
        if above != section:
            lines += [*([""] if lines else []), f"[{above}]"]
            section = above
        lines.append(f"{name} = {toml_value(value)}  # {_one_line(source)}")
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


def _setting(name: str, field: FieldInfo, value: object, default: object, *, commented: bool) -> list[str]:
    line = f"{name} = {toml_value(value)}"
    if not commented:
        return [line]
    text = textwrap.wrap(f"{field.description} Form: {_form(field)}.", 110)
    return ["", *(f"# {each}" for each in text), f"#{line}" if value == default else line]


def toml_value(value: object) -> str:
    """Return the value of a setting as TOML."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    if isinstance(value, BaseModel):
        value = {name: each for name in type(value).model_fields if (each := getattr(value, name)) is not None}
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return escape(json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f"))  # JSON escapes are valid TOML


def _toml_key(key: object) -> str:
    text = str(key)
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else toml_value(text)


def _form(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return " or ".join(json.dumps(each) for each in get_args(field.annotation))
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "form" in extra:
        return str(extra["form"])
    return "text"


def _fields() -> Iterator[tuple[str, type[BaseModel]]]:
    yield "", Config
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation


class Setting(Record):
    """Documentation of a setting; ``section`` is empty at the top level, ``value`` is TOML."""

    section: str
    name: str
    form: str
    value: str
    description: str


def settings_of(config: Config) -> Iterator[Setting]:
    """Yield the documentation of every setting, in the order of the configuration reference."""
    for section, model in _fields():
        table = getattr(config, section) if section else config
        for name, field in model.model_fields.items():
            value = getattr(table, name)
            if not isinstance(value, BaseModel):
                yield Setting(section, name, _form(field), toml_value(value), field.description or "")


def reference() -> str:
    """Return a Markdown table of all settings with form, default and effect."""
    lines = [
        "Durations have units (`2m`, `1h30m`, `7d`); sizes have suffixes (`500Mi`, `2G`) or are bytes.",
    ]
    section = None
    for each in settings_of(Config()):
        if each.section != section:
            section = each.section
            title = f"`[{section}]`" if section else "Top level"
            lines += ["", f"### {title}", "", "| key | form | default | effect |", "| --- | --- | --- | --- |"]
        form = each.form.replace("|", "\\|")
        lines.append(f"| `{each.name}` | {form} | `{each.value}` | {each.description} |")
    return "\n".join(lines) + "\n"


def embed_reference(text: str) -> str:
    """Return a Markdown document with the configuration reference between its two markers regenerated.

    Raises:
        ValueError: a marker is missing.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the markers {_BEGIN} and {_END} are missing")
    return f"{before}{begin}\n\n{reference()}\n{end}{after}"
