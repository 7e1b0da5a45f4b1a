"""Loading and validation of the configuration from all its sources; all errors are reported together."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from typing import TYPE_CHECKING, Final, Literal, get_origin

from pydantic import BaseModel, ValidationError

from nodeagent.config.files import ENVIRONMENT_PREFIX, FOREIGN_PREFIXES, read_files
from nodeagent.config.models import Config
from nodeagent.config.settings import DEFAULT_SOURCE
from nodeagent.errors import ConfigError
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pydantic_core import ErrorDetails

_SERVICE_SUFFIX: Final = re.compile(
    r"(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Suffix of a variable that Kubernetes derives from a Service, after the Service name. Source: Kubernetes, Services."""
_COMMAND_LINE: Final = "command line"
_MAX_SHOWN_LENGTH: Final = 80


class Loaded(Record):
    """A valid configuration and its sources.

    Attributes:
        source: configuration file; ``None`` if no file exists.
        dropins: drop-in files in the order of reading.
        origins: source of each value that is not a default, by dotted key.
    """

    config: Config
    source: Path | None
    dropins: tuple[Path, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


def load(
    path: Path | None = None,
    overrides: Mapping[str, str | int] | None = None,
    environment: Mapping[str, str] = os.environ,
    options: Mapping[str, str] | None = None,
) -> Loaded:
    """Load and validate the configuration from ``path``, or from the default path if the file exists.

    Later sources override earlier ones: the file, the ``*.toml`` files of the directory ``NAME.d`` beside it in the
    order of their names, the environment, the command line. Tables are merged, other values are replaced.

    Args:
        path: configuration file; ``None`` for the default file.
        overrides: dotted keys from the command line, such as ``image_gc.high_threshold_percent``.
        environment: variables such as ``NODEAGENT_IMAGE_GC__HIGH_THRESHOLD_PERCENT``.
        options: command-line option by dotted key, such as ``--high``, for error messages.

    Raises:
        ConfigError: the configuration is invalid or unreadable; the message has one line per error with source, key,
            value, cause and allowed form.
    """
    source, dropins, document, origins = read_files(path)
    errors = []
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(FOREIGN_PREFIXES):
            continue
        try:
            key = _key_of_variable(name)
            if not key:
                continue
            _put(document, key, _typed(key, text))
        except ValueError as error:
            errors.append(f"environment: {name} = {_value(text)}: {error}")
            continue
        origins[key] = f"environment: {name}"
    for key, value in (overrides or {}).items():
        _put(document, key, value)
        origins[key] = _COMMAND_LINE
    for name in _sections():  # a default section would be validated by its own validator, which takes time to build
        document.setdefault(name, {})
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        given = {
            key: f"{options[key]} {value}" for key, value in (overrides or {}).items() if options and key in options
        }
        errors += [_error_line(each, source, origins, given, options or {}) for each in error.errors(include_url=False)]
    if errors:
        raise ConfigError("\n".join(dict.fromkeys(errors)))
    return Loaded(config, source, dropins, origins)


def effective(loaded: Loaded) -> dict[str, tuple[object, str]]:
    """Return the value and the source of every setting, by dotted key."""
    values: dict[str, tuple[object, str]] = {}
    for name in Config.model_fields:
        value = getattr(loaded.config, name)
        if isinstance(value, BaseModel):
            for inner in type(value).model_fields:
                key = f"{name}.{inner}"
                values[key] = getattr(value, inner), _origin(key, loaded.origins) or DEFAULT_SOURCE
        else:
            values[name] = value, _origin(name, loaded.origins) or DEFAULT_SOURCE
    return values


def _sections() -> dict[str, type[BaseModel]]:
    """Return the model of each section of the configuration, by name."""
    kinds = {name: setting.annotation for name, setting in Config.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def _variables() -> dict[str, str]:
    """Return the dotted key of each environment variable, by variable name without the prefix."""
    sections = _sections()
    keys = {name.upper(): name for name in Config.model_fields if name not in sections}
    for name, section in sections.items():
        keys |= {f"{name}__{key}".upper(): f"{name}.{key}" for key in section.model_fields}
    return keys


def _key_of_variable(name: str) -> str:
    """Return the dotted key of an environment variable; empty for a variable of a Kubernetes Service.

    Raises:
        ValueError: no setting has this variable.
    """
    known = _variables()
    suffix = name.removeprefix(ENVIRONMENT_PREFIX)
    if suffix in known:
        return known[suffix]
    _, underscore, end = suffix.partition("_")
    while underscore:
        if _SERVICE_SUFFIX.fullmatch(end):
            return ""
        _, underscore, end = end.partition("_")
    near = difflib.get_close_matches(suffix, known, n=1)
    hint = f"; did you mean {ENVIRONMENT_PREFIX}{near[0]}?" if near else ""
    raise ValueError(f"unknown variable: write {ENVIRONMENT_PREFIX}SECTION__KEY{hint}")


def _typed(key: str, text: str) -> object:
    """Return the text of a variable parsed as TOML, or unchanged for a text setting; the model validates the value."""
    model: type[BaseModel] = Config
    *sections, last = key.split(".")
    for section in sections:
        inner = model.model_fields[section].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    kind = model.model_fields[last].annotation
    if kind is str or get_origin(kind) is Literal:
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text  # rejected by the model, with the allowed form
    return table["value"] if len(table) == 1 else text


def _put(document: dict[str, object], key: str, value: object) -> None:
    *sections, last = key.split(".")
    table = document
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            return  # a value in place of a table is reported by the model
        table = inner
    table[last] = value


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """Return the source of a key, of the table that contains it, or of the first key in it; empty for a default."""
    if key in origins:
        return origins[key]
    parts = key.split(".")
    above = next((origins[up] for end in range(len(parts) - 1, 0, -1) if (up := ".".join(parts[:end])) in origins), "")
    return above or next((where for each, where in origins.items() if each.startswith(f"{key}.")), "")


def _error_line(
    error: ErrorDetails,
    source: Path | None,
    origins: Mapping[str, str],
    given: Mapping[str, str],
    options: Mapping[str, str],
) -> str:
    """Return an error on one line; ``given`` are the options of the command line with their values, by dotted key."""
    location = error["loc"]
    key = ".".join(_key(part) for part in location)
    where = _origin(key, origins) or (str(source) if source is not None else "defaults")
    if error["type"] == "extra_forbidden":
        return f"{where}: {key} = {_value(error['input'])}: unknown key{_nearest(location)}"
    cause = error_text(error)
    if not location or isinstance(error["input"], dict | BaseModel):
        return f"{where}: {key or 'configuration'}: {cause}"
    setting = f"{key} = {_value(error['input'])}"
    other = next((each for each in options if _sibling(key, each) and f"{each.rpartition('.')[2]} = " in cause), "")
    if key in given:
        add = f" ({given[other]})" if other in given else f"; or add {options[other]}" if other else ""
        return f"{given[key]}: {cause}{add}"
    if other in given:
        add = f"; add {options[key]}" if key in options else ""
        return f"{given[other]}: contradicts {setting} ({where}), which {cause}{add}"
    return f"{where}: {setting}: {cause}"


def _sibling(key: str, other: str) -> bool:
    return key != other and key.rpartition(".")[0] == other.rpartition(".")[0]


def _key(part: int | str) -> str:
    """Return a key as printable text on one line, for error messages."""
    text = str(part)
    return text if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", text) else _value(text)


def error_text(error: ErrorDetails) -> str:
    """Return the cause of a validation error and the allowed form."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context.get("error", error["msg"]))
    if kind == "literal_error":
        return f"must be {context.get('expected')}"
    bounds = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}
    if kind in bounds:
        word, name = bounds[kind]
        return f"must be {word} {context.get(name)}"
    forms = {
        "int_type": "must be a whole number",
        "bool_type": "must be true or false",
        "string_type": "must be a quoted string",
        "tuple_type": "must be a list",
        "model_type": "must be a table of settings",
    }
    return forms.get(kind, error["msg"])


def _value(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:
        text = str(value)
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}..."


def _nearest(location: Sequence[int | str]) -> str:
    """Return a hint with the most similar key, or with all keys of the section; empty outside a section."""
    model: type[BaseModel] = Config
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return ""
        model = field.annotation
    known = list(model.model_fields)
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; allowed keys: {', '.join(known)}"
